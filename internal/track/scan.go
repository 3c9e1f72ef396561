package track

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// A wish is a key that blocks are gone through for.
type wish struct {
	print uint64
	text  string // stands in each line that has the key; empty: every line may have it
}

// newWish is a wish for a key. Its text is looked for as it is, or in lower case if fold is true.
func newWish(c class, key []byte, fold bool) wish {
	w := wish{print: fingerprint(c, key)}
	if literal(key) {
		if w.text = string(key); fold {
			w.text = string(lower(nil, key))
		}
	}
	return w
}

// literal says whether a key stands in a log in no other way than as it is: in JSON text, whoever has written it, what is outside
// this set may be escaped. A question mark may be an escape that is not known. The empty key stands everywhere.
func literal(key []byte) bool {
	for _, c := range key {
		if c < ' ' || c > '~' {
			return false
		}
		switch c {
		case '"', '\\', '/', '<', '>', '&', '\'', '?':
			return false
		}
	}
	return len(key) > 0
}

// lower puts b into dst with its ASCII letters in lower case.
func lower(dst, b []byte) []byte {
	const ones = 0x0101010101010101
	dst = slices.Grow(dst[:0], len(b))[:len(b)]
	i := 0
	for ; i+8 <= len(b); i += 8 {
		// Of each octet's seven low bits: the high bit of the first sum says that they are at least 'A', that of the second
		// that they are more than 'Z'. No sum carries into the next octet.
		x := binary.LittleEndian.Uint64(b[i:])
		low := x & (0x7f * ones)
		capital := (low + (0x80-'A')*ones) &^ (low + (0x7f-'Z')*ones) &^ x & (0x80 * ones)
		binary.LittleEndian.PutUint64(dst[i:], x|capital>>2)
	}
	for ; i < len(b); i++ {
		if dst[i] = b[i]; b[i] >= 'A' && b[i] <= 'Z' {
			dst[i] |= 0x20
		}
	}
	return dst
}

// A scanner finds the lines of blocks that may have certain keys. Most lines of a block are of other messages: looking for a text takes a
// fiftieth of the time of taking lines apart.
type scanner struct {
	folded []byte   // the block, in lower case
	starts []int    // of lines
	counts [256]int // how often each octet is in the first block; empty at first
	known  bool     // counts is filled
}

// lines calls f for the lines of a block of that may have the key of one of the wishes, in order. fold says that the texts are in
// lower case.
func (c *scanner) lines(text []byte, wishes []*wish, fold bool, f func(begin, end int)) {
	if slices.ContainsFunc(wishes, func(w *wish) bool { return w.text == "" }) {
		everyLine(text, f)
		return
	}
	if fold {
		c.folded = lower(c.folded, text)
		text = c.folded
	}
	c.starts = c.starts[:0]
	for i, w := range wishes {
		if i == 0 || w.text != wishes[i-1].text { // one value may be a key of several classes
			c.find(text, []byte(w.text))
		}
	}
	slices.Sort(c.starts)
	for _, begin := range slices.Compact(c.starts) {
		f(begin, lineEnd(text, begin))
	}
}

// find notes the lines that have a text. It goes by the octet of it that is the rarest in a log: what is looked for often begins like
// most of what is in a block, as the queue IDs of one minute do.
func (c *scanner) find(text, s []byte) {
	if !c.known {
		c.known = true
		for _, b := range text {
			c.counts[b]++
		}
	}
	rare := 0
	for i, b := range s {
		if c.counts[b] < c.counts[s[rare]] {
			rare = i
		}
	}
	for at := rare; at < len(text); {
		i := bytes.IndexByte(text[at:], s[rare])
		if i < 0 {
			return
		}
		begin := at + i - rare
		if at += i + 1; !bytes.HasPrefix(text[begin:], s) {
			continue
		}
		c.starts = append(c.starts, bytes.LastIndexByte(text[:begin], '\n')+1)
		at = lineEnd(text, begin) + 1 + rare
	}
}

// lineEnd is where the line ends that an octet is of.
func lineEnd(text []byte, at int) int {
	if n := bytes.IndexByte(text[at:], '\n'); n >= 0 {
		return at + n
	}
	return len(text)
}

func everyLine(text []byte, f func(begin, end int)) {
	for at := 0; at < len(text); {
		end := lineEnd(text, at)
		f(at, end)
		at = end + 1
	}
}
