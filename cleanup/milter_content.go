// The stored content as header fields and a body, for those who must see all of it:
// filters, authentication, signatures. They work on what has been stored and not on the
// stream, since each needs the result of the one before.

package cleanup

import (
	"bytes"
	"errors"
	"io"

	"posthaste/internal/milter"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
)

// maxHead and maxFields bound the header that filters, checks and signatures are made of.
// header_size_limit bounds each field, but their number only the size of a message does,
// and a field of three octets costs a hundred here.
const (
	maxHead   = 16 << 20
	maxFields = 10000
)

var errHead = errors.New("the header has more than 16 MiB or 10000 fields: it cannot be shown to filters, checked or signed")

// content is what has been stored of the message. The body is read from there when it is
// needed; the header is in memory. An error is errHead, or that of a read.
func (in *incoming) content() (*milter.Content, error) {
	var src io.ReaderAt = bytes.NewReader(in.buf)
	size := int64(len(in.buf))
	if in.file != nil {
		src, size = in.file, in.file.Size()
	}
	head, err := readHead(src, size)
	if err != nil {
		return nil, err
	}
	c := new(milter.Content)
	rest := head
	for {
		fd, r, ok := rfc5322.NextField(rest)
		if !ok {
			break
		}
		// A header like this is an attack or a mistake; it is refused as too long.
		if len(c.Fields) == maxFields {
			return nil, errHead
		}
		c.Fields = append(c.Fields, milter.Field{Name: string(fd.Name()), Raw: fd.Raw})
		rest = r
	}
	start := int64(len(head) - len(rest))
	if bytes.HasPrefix(rest, crlf) {
		// The empty line belongs to neither header nor body.
		start += 2
	}
	c.Body, c.BodySize = io.NewSectionReader(src, start, size-start), size-start
	return c, nil
}

// readHead reads the header and the empty line that ends it, or everything if there is
// none. It reads four times as much each time, so that a long header costs little more
// than its length.
func readHead(src io.ReaderAt, size int64) ([]byte, error) {
	for n := int64(16 << 10); ; n *= 4 {
		n = min(n, size)
		// Read anew each time: a header that does not fit into the first piece is rare.
		head := make([]byte, n)
		if _, err := src.ReadAt(head, 0); err != nil && err != io.EOF {
			return nil, err
		}
		if bytes.HasPrefix(head, crlf) {
			return head[:2], nil
		}
		if i := bytes.Index(head, []byte("\r\n\r\n")); i >= 0 {
			return head[:i+4], nil
		}
		if n == size {
			return head, nil
		}
		if n >= maxHead {
			return nil, errHead
		}
	}
}

// replace stores c in place of what has been stored. The gauge begins anew, for what it
// found may not be true any more. An error is left in in.fault.
func (in *incoming) replace(c *milter.Content) {
	old, oldFile := in.buf, in.file
	in.buf, in.spare, in.file = reuse.Truncated(in.spare), old, nil
	in.msg.gauge = gauge{}
	in.msg.watchParts()
	put := func(p []byte) {
		in.msg.out = reuse.Truncated(in.out)
		in.msg.pass(p)
		in.out, in.msg.out = in.msg.out, nil
		in.store()
	}
	for _, f := range c.Fields {
		put(f.Raw)
	}
	if c.BodySize > 0 {
		put(crlf)
		chunk := make([]byte, min(64<<10, c.BodySize))
		for off := int64(0); off < c.BodySize && in.fault == nil; off += int64(len(chunk)) {
			chunk = chunk[:min(int64(cap(chunk)), c.BodySize-off)]
			if _, err := c.Body.ReadAt(chunk, off); err != nil && err != io.EOF {
				in.fault = err
				break
			}
			// The gauge must see CRLF in one piece.
			if n := len(chunk); chunk[n-1] == '\r' && n > 1 {
				chunk = chunk[:n-1] // line ends are not cut in two
			}
			put(chunk)
		}
	}
	// Only now: c.Body was read from there.
	in.s.buffered.Add(-int64(len(old)))
	if oldFile != nil {
		oldFile.Abort()
	}
	// The envelope says what the new content is: its size, and whether it needs 8BITMIME.
	in.msg.describe()
}
