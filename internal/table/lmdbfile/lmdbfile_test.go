package lmdbfile

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"posthaste/internal/table/tabletest"
)

// sampleFile is what Postfix 3.7's postmap has made of tabletest.Content with LMDB 0.9.24.
func sampleFile(t testing.TB) []byte { return tabletest.Sample(t, "testdata/main.lmdb.gz") }

func TestSample(t *testing.T) {
	t.Parallel()
	b := sampleFile(t)
	for name, open := range map[string]func() (*File, error){
		"in memory": func() (*File, error) { return New(b) },
		"on disk":   func() (*File, error) { return Open(bytes.NewReader(b), int64(len(b))) },
		"loaded":    func() (*File, error) { return Load(bytes.NewReader(b), int64(len(b))) },
	} {
		f, err := open()
		if err != nil {
			t.Fatal(name, err)
		}
		if err := tabletest.Whole(f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !Recognized(b) || Recognized(make([]byte, 20)) {
		t.Error("it is not recognized, or everything is")
	}
}

// A file that was cut off, or of which pages in use are missing, is an error, and never one
// in which keys are not found.
func TestTorn(t *testing.T) {
	t.Parallel()
	whole := sampleFile(t)
	for size := 0; size < len(whole); size += 7 {
		f, err := New(whole[:size])
		if err == nil && f.Verify() == nil && tabletest.Answers(f) != nil {
			t.Errorf("%d of %d octets are taken for the whole", size, len(whole))
		}
	}
	for page := 0; page < len(whole); page += 4096 {
		for _, with := range [][]byte{make([]byte, 4096), bytes.Repeat([]byte{0xff}, 4096), whole[len(whole)-4096:]} {
			b := bytes.Clone(whole)
			copy(b[page:], with)
			if f, err := New(b); err == nil && f.Verify() == nil {
				// A lost page 0 or 1 cannot be told from the transaction before. Pages 4 and 5 have
				// nothing but a part of a value, without a number.
				if err := tabletest.Answers(f); err != nil && page/4096 != 0 && page/4096 != 1 && page/4096 != 4 && page/4096 != 5 {
					t.Errorf("a file without page %d is taken for the whole: %v", page/4096, err)
				}
			}
		}
	}
}

func TestForeign(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		at   int
		to   byte
		want string
	}{
		{"another magic", headSize, 1, "not an LMDB file"},
		{"another version", headSize + 4, 2, "version 2"},
		{"duplicates", headSize + 76, 4, "another order"},
	} {
		b := sampleFile(t)
		b[c.at], b[4096+c.at] = c.to, c.to
		if _, err := New(b); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// changing is a file to which transactions are written while it is read: after each read of a
// page the next version is there.
type changing struct {
	versions [][]byte
	reads    int
}

func (c *changing) ReadAt(b []byte, at int64) (int, error) {
	v := c.versions[min(c.reads, len(c.versions)-1)]
	c.reads++
	return bytes.NewReader(v).ReadAt(b, at)
}

// What is read across transactions is read again.
func TestChanges(t *testing.T) {
	t.Parallel()
	whole := sampleFile(t)
	newest := 0
	if le.Uint64(whole[4096+headSize+128:]) > le.Uint64(whole[headSize+128:]) {
		newest = 1
	}
	after := bytes.Clone(whole)
	le.PutUint64(after[newest*4096+headSize+128:], le.Uint64(whole[newest*4096+headSize+128:])+1)
	// The transaction after that writes to what the one before has freed: to all other
	// pages, say.
	during := bytes.Clone(after)
	for i := 8192; i < len(during); i++ {
		during[i] = 0xee
	}
	for upset := 1; upset <= 5; upset++ { // how many reads see that: the lookup begins with two of pages 0 and 1
		c := &changing{versions: [][]byte{whole, whole}}
		for range upset {
			c.versions = append(c.versions, during)
		}
		c.versions = append(c.versions, after)
		f, err := Open(bytes.NewReader(whole), int64(len(whole)))
		if err != nil {
			t.Fatal(err)
		}
		f.r = c
		value, found, err := f.Get([]byte("alice@example.com\x00"))
		if err != nil || !found || string(value) != "one\x00" || c.reads < 8 {
			t.Errorf("%d reads of what is being written: %q, %v, %v after %d reads", upset, value, found, err, c.reads)
		}
	}
	// It ends although the writing does not.
	f := &File{r: &endless{file: whole, newest: newest}, size: int64(len(whole)), page: 4096}
	if _, _, err := f.Get([]byte("alice@example.com\x00")); !errors.Is(err, ErrBusy) {
		t.Errorf("a file that is written to all the time: %v", err)
	}
}

// endless is a file of which every read sees another transaction.
type endless struct {
	file   []byte
	newest int
	n      uint64
}

func (e *endless) ReadAt(b []byte, at int64) (int, error) {
	n, err := bytes.NewReader(e.file).ReadAt(b, at)
	if e.n++; at == int64(e.newest)*4096 {
		le.PutUint64(b[headSize+128:], 1000+e.n)
	}
	return n, err
}

// check reads a file that may have anything in it.
func check(t interface{ Fatalf(string, ...any) }, b []byte) {
	f, err := New(b)
	if err != nil {
		return
	}
	tabletest.Hostile(t, f)
}

func TestChanged(t *testing.T) {
	t.Parallel()
	whole := sampleFile(t)
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Clone(whole)
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			page := rapid.IntRange(0, len(b)/4096-1).Draw(t, "page") * 4096
			at := rapid.OneOf(rapid.IntRange(0, 255), rapid.IntRange(3900, 4095)).Draw(t, "at")
			b[page+at] = rapid.Byte().Draw(t, "to")
		}
		check(t, b)
	})
}

func FuzzFile(f *testing.F) {
	f.Add(sampleFile(f))
	f.Fuzz(func(t *testing.T, b []byte) { check(t, b) })
}
