package spool

import "io"

// ReadAt reads back what has been written, before the message is committed:
// content filters want to see it. It is used by the goroutine that writes.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if f.f == nil {
		return 0, errAborted
	}
	if off < 0 || off >= f.size {
		return 0, io.EOF
	}
	n := 0
	if off < f.off {
		k := int(min(int64(len(p)), f.off-off))
		if n, err := f.f.ReadAt(p[:k], off); err != nil && n < k {
			return n, err
		}
		n = k
	}
	if n < len(p) {
		n += copy(p[n:], f.buf[off+int64(n)-f.off:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
