package spool

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"posthaste/internal/vfs"
)

// What has been written can be read back at any time and place, whether it is
// in the file yet, or in memory, or both; and more can be written after.
func TestReadBack(t *testing.T) {
	t.Parallel()
	s := openTest(t, "q", Options{FS: vfs.NewMem(512), SegmentSize: 64 << 10})
	defer s.Close()
	f, err := s.NewFile()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	var want []byte
	for range 15 {
		part := make([]byte, r.IntN(3*bigChunk/2))
		for i := range part {
			part[i] = byte(r.Uint32())
		}
		if n, err := f.Write(part); n != len(part) || err != nil {
			t.Fatalf("write: %d of %d, %v", n, len(part), err)
		}
		want = append(want, part...)
		got, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d octets of %d are not as they were written, %v", len(got), len(want), err)
		}
		for range 20 {
			off := r.IntN(len(want) + 1)
			buf := make([]byte, 1+r.IntN(2*bigChunk))
			n, err := f.ReadAt(buf, int64(off))
			whole := off+len(buf) <= len(want)
			if n != min(len(buf), len(want)-off) || whole != (err == nil) || !whole && err != io.EOF || !bytes.Equal(buf[:n], want[off:off+n]) {
				t.Fatalf("%d octets at %d of %d: %d, %v", len(buf), off, len(want), n, err)
			}
		}
	}
	for _, off := range []int64{-1, f.Size() + 1, 1 << 62} {
		if n, err := f.ReadAt(make([]byte, 1), off); n != 0 || err != io.EOF {
			t.Errorf("at %d: %d, %v", off, n, err)
		}
	}
	f.Abort()
	if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("after it was given up: %v", err)
	}
}

// What cannot be read is said.
func TestReadBackFails(t *testing.T) {
	t.Parallel()
	bad := errors.New("bad sector")
	var failing atomic.Bool
	fs := &vfs.Faulty{FS: vfs.NewMem(512), Hook: func(op vfs.Op) error {
		if failing.Load() && op.Kind == vfs.OpRead {
			return bad
		}
		return nil
	}}
	s := openTest(t, "q", Options{FS: fs, SegmentSize: 64 << 10})
	defer s.Close()
	f, err := s.NewFile()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(make([]byte, bigChunk+1)); err != nil {
		t.Fatal(err)
	}
	failing.Store(true)
	if _, err := f.ReadAt(make([]byte, 2), bigChunk-1); !errors.Is(err, bad) {
		t.Errorf("in the file and in memory: %v", err)
	}
	if n, err := f.ReadAt(make([]byte, 1), bigChunk); n != 1 || err != nil {
		t.Errorf("in memory: %d, %v", n, err)
	}
	f.Abort()
}
