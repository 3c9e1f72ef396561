package quickio

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestReadAt reads pieces of a file, at its end and behind it too: what comes is
// what package os gives.
func TestReadAt(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, n := range []int{0, 1, 4096, atOnce, atOnce + 1, len(content)} {
		for _, off := range []int64{-1, 0, 1, 4095, int64(len(content)) - 1, int64(len(content)), 1 << 33} {
			want, got := make([]byte, n), make([]byte, n)
			wn, werr := f.ReadAt(want, off)
			gn, gerr := ReadAt(f, got, off)
			if gn != wn || !bytes.Equal(got, want) || (gerr == nil) != (werr == nil) || errors.Is(gerr, io.EOF) != errors.Is(werr, io.EOF) {
				t.Errorf("%d at %d: %d, %v, want %d, %v", n, off, gn, gerr, wn, werr)
			}
		}
	}
}

// TestReadAtHoles reads beyond 4 GB, where an offset has two halves.
func TestReadAtHoles(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const far = 5 << 30
	if _, err := f.WriteAt([]byte("far"), far); err != nil {
		t.Skipf("no sparse files here: %v", err)
	}
	b := make([]byte, 3)
	if _, err := ReadAt(f, b, far); err != nil || string(b) != "far" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := ReadAt(f, b, far-(4<<30)); err != nil || string(b) != "\x00\x00\x00" {
		t.Errorf("in the hole: %q, %v", b, err)
	}
	if _, err := ReadAt(f, b, 1<<40); !errors.Is(err, io.EOF) {
		t.Errorf("behind the end: %v", err)
	}
	f.Close()
	if _, err := ReadAt(f, b, 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
