//go:build poison

package reuse

import (
	"strings"
	"sync"
	"testing"
)

// thing has a field of each kind.
type thing struct {
	mu    sync.Mutex
	n     int
	text  string
	next  *thing
	buf   []byte
	list  []string
	array [4]byte
	inner struct{ octets []byte }
}

// Whoever keeps what it gave back reads poison, through every name of it, and the next
// owner gets the value with its memory, empty.
func TestReaderFindsPoison(t *testing.T) {
	t.Parallel()
	var p Pool[thing]
	v := p.Get()
	v.buf, v.list, v.inner.octets = append(v.buf, "secret"...), append(v.list, "secret"), []byte("secret")
	buf, list, octets := v.buf, v.list, v.inner.octets
	v.n, v.text, v.next, v.buf, v.list = 1, "secret", v, v.buf[:0], v.list[:0]
	p.Put(v)
	if v.n == 1 || v.text != word || v.next != nil || v.buf != nil || v.array[3] != pattern {
		t.Errorf("what was given back can still be read: %+v", v)
	}
	if strings.Contains(string(buf)+list[0]+string(octets), "secret") {
		t.Errorf("memory of what was given back can still be read: %q, %q, %q", buf, list, octets)
	}
	for range ward {
		p.Put(new(thing))
	}
	if got := p.Get(); got != v || len(got.buf) != 0 || cap(got.buf) != cap(buf) || len(got.list) != 0 || got.list[:1][0] != "" {
		t.Errorf("the next owner has %+v", got)
	}
}

// Lists and buffers leave poison behind, and get other memory.
func TestListsLeavePoison(t *testing.T) {
	t.Parallel()
	buf, list, long := []byte("secret"), []string{"secret"}, make([]int, 1, Most+1)
	if got := Truncated(buf); len(got) != 0 || cap(got) != cap(buf) || buf[0] != pattern {
		t.Errorf("%q is left, and %q", buf, got)
	}
	if got := Emptied(list); len(got) != 0 || cap(got) != 1 || list[0] != word {
		t.Errorf("%q is left, and %q", list, got)
	}
	if got := Emptied(long); got != nil || long[0] == 0 {
		t.Errorf("%v is left, and %v", long, got)
	}
	piece := []byte("lent")
	if Truncated([][]byte{piece}); string(piece) != "lent" {
		t.Errorf("a piece in a list has become %q", piece)
	}
	if Truncated([]byte(nil)) != nil {
		t.Error("nothing has become something")
	}
}

// Writing to what was given back, and giving it back twice, end the program.
func TestWriterPanics(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(*Free[thing], *thing, []byte){
		"a field":      func(_ *Free[thing], v *thing, _ []byte) { v.n = 3 },
		"a pointer":    func(_ *Free[thing], v *thing, _ []byte) { v.next = v },
		"its memory":   func(_ *Free[thing], _ *thing, buf []byte) { buf[1] = 'x' },
		"given twice":  func(f *Free[thing], v *thing, _ []byte) { f.Put(v) },
		"behind a cut": func(_ *Free[thing], _ *thing, buf []byte) { _ = append(buf, 'x') },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if recover() == nil {
					t.Error("nobody noticed")
				}
			}()
			var f Free[thing]
			v := f.Get()
			v.buf = make([]byte, 5, 10)
			buf := v.buf
			f.Put(v)
			harm(&f, v, buf)
			for range ward {
				f.Put(new(thing))
			}
			f.Get()
		})
	}
}
