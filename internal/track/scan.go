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
// hundredth of the time of taking lines apart.
type scanner struct {
	starts []int    // of lines
	counts [256]int // how often each octet is in the first block
	known  bool     // counts is filled
}

// lines calls f for the lines of a block of that may have the key of one of the wishes, in order. fold says that the texts are in
// lower case, and stand in the block in any.
func (c *scanner) lines(text []byte, wishes []*wish, fold bool, f func(begin, end int)) {
	if slices.ContainsFunc(wishes, func(w *wish) bool { return w.text == "" }) {
		everyLine(text, f)
		return
	}
	c.count(text)
	c.starts = c.starts[:0]
	for i, w := range wishes {
		if i == 0 || w.text != wishes[i-1].text { // one value may be a key of several classes
			c.find(text, w.text, fold)
		}
	}
	slices.Sort(c.starts)
	for _, begin := range slices.Compact(c.starts) {
		f(begin, lineEnd(text, begin))
	}
}

func (c *scanner) count(text []byte) {
	if c.known {
		return
	}
	c.known = true
	for _, b := range text {
		c.counts[b]++
	}
}

// find notes the lines that have a text. It goes by the octet of it that is the rarest in a log: what is looked for often begins like
// most of what is in a block, as the queue IDs of one minute do.
func (c *scanner) find(text []byte, s string, fold bool) {
	often := func(b byte) int {
		if n := c.counts[b]; !fold || upper(b) == b {
			return n
		}
		return c.counts[b] + c.counts[upper(b)]
	}
	rare := 0
	for i := range len(s) {
		if often(s[i]) < often(s[rare]) {
			rare = i
		}
	}
	c.findBy(text, s, fold, rare, s[rare])
	if up := upper(s[rare]); fold && up != s[rare] {
		c.findBy(text, s, fold, rare, up)
	}
}

// findBy notes the lines that have a text in which one octet, by its place, is the given one.
func (c *scanner) findBy(text []byte, s string, fold bool, place int, octet byte) {
	for at := place; at < len(text); {
		i := bytes.IndexByte(text[at:], octet)
		if i < 0 {
			return
		}
		begin := at + i - place
		if at += i + 1; begin+len(s) > len(text) || !stands(text[begin:begin+len(s)], s, fold) {
			continue
		}
		c.starts = append(c.starts, bytes.LastIndexByte(text[:begin], '\n')+1)
		at = lineEnd(text, begin) + 1 + place
	}
}

// stands says whether b is a text, which is in lower case if fold is true.
func stands(b []byte, s string, fold bool) bool {
	if !fold {
		return string(b) == s
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != s[i] {
			return false
		}
	}
	return true
}

func upper(b byte) byte {
	if b >= 'a' && b <= 'z' {
		return b &^ 0x20
	}
	return b
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
