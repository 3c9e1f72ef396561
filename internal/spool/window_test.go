package spool

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"posthaste/internal/vfs"
)

// A window shows what is in the file, wherever it is asked to look, with and
// without somebody reading ahead, and from one file to the next.
func TestWindow(t *testing.T) {
	t.Parallel()
	const size = 5*windowLen + 12345
	content := make([]byte, size)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range content {
		content[i] = byte(r.Uint32())
	}
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := vfs.OS{}.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rapid.Check(t, func(t *rapid.T) {
		var next prefetch
		defer next.wait()
		var buf []byte
		for range rapid.IntRange(1, 3).Draw(t, "files") {
			start := rapid.SampledFrom([]int{0, 3 * windowLen}).Draw(t, "start")
			w := window{f: f, size: size, buf: buf[:0]}
			if rapid.Bool().Draw(t, "ahead") {
				w.next = &next
			}
			off := int64(start)
			for off < size {
				n := rapid.SampledFrom([]int{1, 100, headroom, headroom + 1, windowLen + 5}).Draw(t, "n")
				got := w.at(off, n)
				if want := content[off:min(off+int64(n), size)]; !bytes.Equal(got, want) {
					t.Fatalf("at %d: not what is in the file", off)
				}
				off += int64(rapid.SampledFrom([]int{-5000, 1, n, 300_000, 2 * windowLen}).Draw(t, "step"))
				off = max(off, 0)
				if rapid.IntRange(0, 9).Draw(t, "end") == 0 {
					break
				}
			}
			next.reset()
			buf = w.buf
		}
	})
}
