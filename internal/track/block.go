package track

import (
	"bytes"
	"errors"
	"io"

	"posthaste/internal/logread"
)

const (
	maxLine  = 1 << 20              // octets of a line; what is longer is cut there
	maxBlock = usualBlock + maxLine // octets of a block's text, at most: see cutter
)

// usualBlock is the usual size of a block.
const usualBlock = 128 << 10

// sizes are of the parts that logs are cut into, in octets, and of what is kept of them.
type sizes struct {
	block   int   // text in a block, unless a line is longer
	segment int   // text in a segment, unless its last block goes beyond
	rest    int64 // text at the end of a log that is gone through at each search, before it is worth a file of the index
	tail    int64 // text at the end of a segment by which it is known again; at most what a full segment has

	memory int // entries of segments that are not stored, four octets each: 64 MiB are the index of about 1 GB
}

var usualSizes = sizes{block: usualBlock, segment: 16 << 20, rest: 1 << 20, tail: 4 << 10, memory: 16 << 20}

// A block is a part of a log: whole lines, unless one is longer than maxLine.
type block struct {
	off  int64 // of the text, in the log as it is when it is not compressed
	line int64 // number of its first line, from 1
	text []byte
}

// A cutter cuts a log into blocks.
type cutter struct {
	r    io.Reader
	size int  // of a block
	live bool // return what there is, not only full blocks
	buf  []byte
	used int // octets at the beginning of buf that were returned
	off  int64
	line int64
	err  error // io.EOF, or what came of reading
}

func newCutter(r io.Reader, size int, off, line int64) *cutter {
	return &cutter{r: r, size: size, off: off, line: line, buf: make([]byte, 0, size+maxLine)}
}

// next is the next block, whose text is good until it is called again. At the end it returns io.EOF. A last line that has no
// line end is returned only if whole is false.
func (c *cutter) next(whole bool) (block, error) {
	c.buf = c.buf[:copy(c.buf, c.buf[c.used:])]
	c.used = 0
	for {
		if n := c.cut(whole); n > 0 {
			b := block{c.off, c.line, c.buf[:n]}
			c.used = n
			c.off += int64(n)
			c.line += int64(bytes.Count(b.text, []byte("\n")))
			return b, nil
		}
		if c.err != nil {
			return block{}, c.err
		}
		c.fill()
	}
}

// fill reads on.
func (c *cutter) fill() {
	room := c.buf[len(c.buf):cap(c.buf)]
	if len(c.buf) < c.size {
		room = c.buf[len(c.buf):c.size]
	}
	n, err := c.r.Read(room)
	c.buf, c.err = c.buf[:len(c.buf)+n], err
}

// cut is how long the next block is; 0: more must be read.
func (c *cutter) cut(whole bool) int {
	if len(c.buf) == 0 || len(c.buf) < c.size && c.err == nil && !c.live {
		return 0
	}
	if n := bytes.LastIndexByte(c.buf, '\n') + 1; n > 0 {
		return n
	}
	if len(c.buf) >= maxLine || !whole && c.err != nil && errors.Is(c.err, io.EOF) {
		return len(c.buf)
	}
	return 0
}

// A lineNumber says where a line stands.
type place struct {
	pos  int64 // file and offset, in the order of the log
	line int64
}

// fileShift is where the number of the file stands in a position; below it is the offset.
const fileShift = 44

// position is that of an offset in a file.
func position(file int, off int64) int64 { return int64(file)<<fileShift | off }

// A picker calls f for lines of a text, in order: where each begins and ends.
type picker func(text []byte, f func(begin, end int))

// lines calls f for each line of a block that is picked, and of use.
func (b *block) lines(pick picker, file int, p *logread.Reader, e *event, f func(place)) {
	n, counted := b.line, 0
	pick(b.text, func(begin, end int) {
		n += int64(bytes.Count(b.text[counted:begin], []byte("\n")))
		counted = begin
		if l, ok := p.Parse(b.text[begin:end]); ok && e.parse(l) {
			f(place{position(file, b.off+int64(begin)), n})
		}
	})
}
