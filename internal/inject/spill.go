package inject

import (
	"fmt"
	"io"
	"os"
)

// spillAt is how much of a message is kept in memory.
const spillAt = 64 << 10

// A spill keeps a message of any length: what is long in a file that has no name.
type spill struct {
	b    []byte
	f    *os.File // nil: all is in b
	size int64
}

// write adds to it.
func (s *spill) write(p []byte) error {
	if s.f == nil && len(s.b)+len(p) <= spillAt {
		s.b = append(s.b, p...)
		return nil
	}
	if s.f == nil {
		f, err := os.CreateTemp("", "posthaste-inject-")
		if err != nil {
			return fmt.Errorf("keep message until it is complete: %w", err)
		}
		os.Remove(f.Name())
		s.f = f
	}
	n, err := s.f.Write(p)
	s.size += int64(n)
	if err != nil {
		return fmt.Errorf("keep message until it is complete: %w", err)
	}
	return nil
}

// copy writes all of it to w.
func (s *spill) copy(w io.Writer) error {
	if _, err := w.Write(s.b); err != nil || s.f == nil {
		return err
	}
	_, err := io.Copy(struct{ io.Writer }{w}, io.NewSectionReader(s.f, 0, s.size))
	return err
}

func (s *spill) close() {
	if s.f != nil {
		s.f.Close()
	}
}
