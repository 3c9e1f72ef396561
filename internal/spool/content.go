package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/reuse"
	"posthaste/internal/vfs"
)

// Content is a message's content: an io.ReadSeekCloser and io.WriterTo. It belongs to one
// goroutine.
type Content struct {
	r    *Reader
	buf  *[]byte // pooled
	data []byte  // all of it, or the present chunk of a big file
	pos  int64
	len  int64
	big  *bigContent // nil: all of it is in memory
}

// bigContent is the file of a message that has one of its own.
type bigContent struct {
	f    vfs.File
	base int64 // of the present chunk
	sums []byte
	raw  bool // do not look at checksums
	id   mail.QueueID
}

// Content opens the content of message id, of which the record at ref says
// where it is: Read and [Stored.Content] in one, with the same errors, for those who
// want nothing else. Content that is in the record itself is read with it.
func (r *Reader) Content(ref Ref, id mail.QueueID) (*Content, error) {
	t, number, err := id.Parse()
	if err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrInvalid, string(id), err)
	}
	buf := r.buffer()
	c, err := r.contentAt(buf, ref, Stored{r: r, id: id, number: number}, t)
	if errors.Is(err, ErrCorrupt) { // damage has to be seen twice to be believed
		c, err = r.contentAt(buf, ref, Stored{r: r, id: id, number: number}, t)
	}
	if c == nil || c.buf != buf {
		r.bufs.Put(buf)
	}
	return c, err
}

// contentAt reads the record at ref into buf, and the content from there or from
// where it says. st has the message's names.
func (r *Reader) contentAt(buf *[]byte, ref Ref, st Stored, made time.Time) (*Content, error) {
	b, h, err := r.fetch(*buf, ref, st.number, ref.Length)
	*buf = b[:0]
	if err == nil {
		st.m, err = r.metaIn(b[headerLen:headerLen+h.metaLen], &h, ref)
	}
	if err != nil {
		return nil, fmt.Errorf("message %s: %w", st.id, err)
	}
	if err := st.checkTime(made); err != nil {
		return nil, err
	}
	if st.msg = msgOf(ref, &h, &st.m); h.typ != recMSG || st.m.flags&msgBig != 0 {
		return st.content(false)
	}
	c, err := st.body(buf, b, &h, false)
	if err != nil {
		return nil, fmt.Errorf("message %s: content: %w", st.id, err)
	}
	return c, nil
}

// Content opens the content. That of a message in the log is read and verified
// in full before Content returns; that of a big file as it is read, 64 KiB
// at a time, and a reader must be ready for ErrCorrupt before the end.
func (st *Stored) Content() (*Content, error) { return st.content(false) }

// Salvage opens the content and gives what is there, whether or not its
// checksum is right. It is for operators' eyes, not for delivery.
func (st *Stored) Salvage() (*Content, error) { return st.content(true) }

func (st *Stored) content(raw bool) (*Content, error) {
	if st.m.flags&msgBig != 0 {
		return st.openBig(raw)
	}
	if st.msg.IsZero() {
		return nil, fmt.Errorf("message %s: %w: its content is gone", st.id, ErrCorrupt)
	}
	buf := st.r.buffer()
	c, err := st.inline(buf, raw)
	if errors.Is(err, ErrCorrupt) {
		c, err = st.inline(buf, raw)
	}
	if err != nil {
		st.r.bufs.Put(buf)
		return nil, fmt.Errorf("message %s: content: %w", st.id, err)
	}
	return c, nil
}

// inline reads the content in a MSG record (invariant 11).
func (st *Stored) inline(buf *[]byte, raw bool) (*Content, error) {
	b, h, err := st.r.fetch(*buf, st.msg, st.number, st.msg.Length)
	*buf = b[:0]
	if err != nil {
		return nil, err
	}
	return st.body(buf, b, &h, raw)
}

// body gives the content in b, the MSG record, whose memory is that of buf.
func (st *Stored) body(buf *[]byte, b []byte, h *header, raw bool) (*Content, error) {
	data := b[headerLen+h.metaLen:]
	if !raw && (h.flags&recDamaged != 0 || checksum(data) != h.bodyCRC && !st.r.planted(plantNoChecksum)) {
		return nil, st.r.judgeAgain(st.msg)
	}
	return &Content{r: st.r, buf: buf, data: data, len: int64(len(data))}, nil
}

func (st *Stored) openBig(raw bool) (*Content, error) {
	r := st.r
	if st.m.bigCRC == 0 {
		if err := st.needEnvelope(); err != nil && !raw {
			return nil, err
		}
	}
	f, err := r.openContent(st.id)
	if err != nil {
		return nil, fmt.Errorf("message %s: content: %w", st.id, err)
	}
	sums := make([]byte, 4*((st.m.bigLen+bigChunk-1)/bigChunk))
	err = readVerified(f, sums, st.m.bigLen, st.m.bigCRC)
	if err != nil && !raw {
		f.Close()
		return nil, fmt.Errorf("message %s: content: list of checksums: %w", st.id, err)
	}
	return &Content{r: r, len: st.m.bigLen, big: &bigContent{f: f, sums: sums, raw: raw, id: st.id}}, nil
}

// Bytes is the whole content when it was in the log, good until Close, and
// nil when it is in a file of its own.
func (c *Content) Bytes() []byte {
	if c.big != nil {
		return nil
	}
	return c.data
}

// Len is the content's length in bytes.
func (c *Content) Len() int64 { return c.len }

// Read reads on.
func (c *Content) Read(p []byte) (int, error) {
	if c.pos >= c.len {
		return 0, io.EOF
	}
	b, err := c.rest()
	n := copy(p, b)
	c.pos += int64(n)
	return n, err
}

// WriteTo writes what is left to w, as io.WriterTo, without a copy in between.
// An error of w is returned as it is.
func (c *Content) WriteTo(w io.Writer) (n int64, err error) {
	for c.pos < c.len {
		b, err := c.rest()
		if err != nil {
			return n, err
		}
		k, err := w.Write(b)
		n += int64(k)
		c.pos += int64(k)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// rest is what memory holds, or its chunk has, from the position on.
func (c *Content) rest() ([]byte, error) {
	base := int64(0)
	if c.big != nil {
		base = c.big.base
	}
	if c.pos < base || c.pos >= base+int64(len(c.data)) {
		base = c.pos / bigChunk * bigChunk
		if err := c.chunk(base); err != nil {
			return nil, err
		}
	}
	return c.data[c.pos-base:], nil
}

// chunk reads and verifies the chunk of a big file that begins at base.
func (c *Content) chunk(base int64) error {
	big := c.big
	if big == nil {
		return fs.ErrClosed
	}
	if c.buf == nil {
		c.buf = c.r.buffer()
		if cap(*c.buf) < bigChunk {
			*c.buf = make([]byte, bigChunk)
		}
	}
	big.base = base
	c.data = (*c.buf)[:min(bigChunk, c.len-base)]
	if big.raw {
		readAround(big.f, c.data, base) // zeros for what cannot be read
		return nil
	}
	want := binary.LittleEndian.Uint32(big.sums[4*(base/bigChunk):])
	if c.r.planted(plantNoChunkSum) {
		readAround(big.f, c.data, base)
		want = checksum(c.data)
	}
	err := readVerified(big.f, c.data, base, want)
	if err != nil {
		c.data = reuse.Truncated(c.data)
		return fmt.Errorf("message %s: content at %d: %w", big.id, base, err)
	}
	return nil
}

// readVerified reads p at off. The error is ErrCorrupt when the checksum is wrong, twice, or
// the file is too short, and ErrUnread when it could not be read.
func readVerified(f io.ReaderAt, p []byte, off int64, sum uint32) error {
	for range 2 {
		if n, err := f.ReadAt(p, off); err != nil && n < len(p) {
			return fmt.Errorf("%w: %w", readFailure(err), err)
		}
		if checksum(p) == sum {
			return nil
		}
	}
	return fmt.Errorf("%w: checksum", ErrCorrupt)
}

// Seek sets the position, as io.Seeker.
func (c *Content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.pos
	case io.SeekEnd:
		offset += c.len
	}
	if offset < 0 {
		return c.pos, errors.New("spool: seek before the start of a message")
	}
	c.pos = offset
	return offset, nil
}

// Close gives up the buffer or file.
func (c *Content) Close() error {
	if c.buf != nil {
		c.r.bufs.Put(c.buf)
		c.buf = nil
	}
	c.data, c.len = nil, 0
	if c.big != nil {
		f := c.big.f
		c.big = nil
		return f.Close()
	}
	return nil
}
