package quickio

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// pipePair are two connections over pipes to one another.
func pipePair(t *testing.T) (a, b *Conn) {
	t.Helper()
	var files [2][2]*os.File // from whom, in and out
	for i := range files {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		files[i] = [2]*os.File{r, w}
	}
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	a, err := NewPipes(near, files[1][0], files[0][1])
	if err != nil {
		t.Fatal(err)
	}
	b, err = NewPipes(far, files[0][0], files[1][1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// TestNewPipes: what is written arrives, however much it is, in both directions at
// a time; deadlines, and ends, are told.
func TestNewPipes(t *testing.T) {
	t.Parallel()
	a, b := pipePair(t)
	text := bytes.Repeat([]byte("pipes "), 200_000)
	var wg sync.WaitGroup
	for _, c := range []*Conn{a, b} {
		wg.Go(func() {
			if n, err := c.WriteTwo(text[:7], text[7:]); n != len(text) || err != nil {
				t.Errorf("written %d, %v", n, err)
			}
		})
		wg.Go(func() {
			got := make([]byte, len(text))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, text) {
				t.Errorf("read: %v", err)
			}
		})
	}
	wg.Wait()

	a.SetDeadline(time.Unix(1, 0))
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the deadline: %v", err)
	}
	a.SetDeadline(time.Time{})
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if n, err := a.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("read after the end: %d, %v", n, err)
	}
	if _, err := a.Write(text); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write after the end: %v", err)
	}
	if _, err := b.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("read of what is closed: %v", err)
	}
}
