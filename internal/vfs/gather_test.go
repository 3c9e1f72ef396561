package vfs

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
)

// What lies in several places is in the file one behind the other, however many places there are: more than
// the kernel takes at once, empty ones among them, and one alone.
func TestWriteAll(t *testing.T) {
	t.Parallel()
	var ops []Op
	faces := map[string]FS{"os": OS{}, "mem": NewMem(512), "faulty": &Faulty{FS: NewMem(512), Hook: func(o Op) error {
		if o.Kind == OpWrite {
			ops = append(ops, o)
		}
		return nil
	}}}
	for name, v := range faces {
		dir := filepath.Join(t.TempDir(), "d")
		must(t, v.MkdirAll(dir))
		f, err := v.Create(filepath.Join(dir, "f"))
		must(t, err)
		for _, n := range []int{1, 2, 3*maxPieces + 7} {
			var pieces [][]byte
			for i := range n {
				pieces = append(pieces, nil, bytes.Repeat([]byte{byte(i)}, i%100+1))
			}
			want := bytes.Join(pieces, nil)
			must(t, WriteAll(f, pieces, 5))
			got := make([]byte, len(want))
			if _, err := f.ReadAt(got, 5); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d pieces: %v, and not what was written", name, n, err)
			}
		}
		must(t, f.Close())
		if err := WriteAll(f, [][]byte{{1}, {2}}, 0); err == nil {
			t.Errorf("%s: a write to a closed file succeeds", name)
		}
		r, err := v.Open(filepath.Join(dir, "f"))
		must(t, err)
		if err := WriteAll(r, [][]byte{{1}, {2}}, 0); err == nil {
			t.Errorf("%s: a write to a file that is only read succeeds", name)
		} else if _, ok := errors.AsType[*fs.PathError](err); !ok {
			t.Errorf("%s: %v does not name the file", name, err)
		}
		must(t, r.Close())
	}
	if len(ops) != 5 { // each is one operation, as it is one to the disk
		t.Errorf("%v, want 5 writes", ops)
	}
}

// What a short write has left is written next.
func TestDrop(t *testing.T) {
	t.Parallel()
	all := []byte("abcdefghi")
	for n := range len(all) + 1 {
		pieces := drop([][]byte{nil, all[:3:3], nil, all[3:4:4], all[4:], nil}, n)
		if got := bytes.Join(pieces, nil); string(got) != string(all[n:]) {
			t.Errorf("%d written: %q is left", n, got)
		}
		if len(pieces) > 0 && len(pieces[0]) == 0 {
			t.Errorf("%d written: what is left begins with nothing", n)
		}
	}
}
