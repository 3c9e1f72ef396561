package dbfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"posthaste/internal/table/tabletest"
)

// sampleFile is what Postfix 3.7's postmap has made of tabletest.Content with Berkeley DB 5.3.
func sampleFile(t testing.TB, kind string) []byte {
	t.Helper()
	return tabletest.Sample(t, "testdata/"+kind+".db.gz")
}

func TestSamples(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"hash", "btree"} {
		b := sampleFile(t, kind)
		inMemory, err := New(b)
		if err != nil {
			t.Fatal(kind, err)
		}
		onDisk, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(kind, err)
		}
		swapped, err := New(bigEndian(b, kind))
		if err != nil {
			t.Fatal(kind, err)
		}
		for name, f := range map[string]*File{"in memory": inMemory, "on disk": onDisk, "big-endian": swapped} {
			if err := tabletest.Whole(f); err != nil {
				t.Errorf("%s %s: %v", kind, name, err)
			}
		}
		if !Recognized(b) || Recognized(make([]byte, 16)) {
			t.Errorf("%s is not recognized, or everything is", kind)
		}
	}
}

// bigEndian is a file as a machine with the other byte order makes it.
func bigEndian(in []byte, kind string) []byte {
	b := bytes.Clone(in)
	le, be := binary.LittleEndian, binary.BigEndian
	swap2 := func(at int) { be.PutUint16(b[at:], le.Uint16(b[at:])) }
	swap4 := func(at int) { be.PutUint32(b[at:], le.Uint32(b[at:])) }
	page := int(le.Uint32(b[20:]))
	for at := 8; at < 224; at += 4 {
		if at != 24 {
			swap4(at)
		}
	}
	for p := page; p < len(b); p += page {
		count, type_ := int(le.Uint16(in[p+20:])), b[p+25]
		for _, at := range []int{8, 12, 16} {
			swap4(p + at)
		}
		swap2(p + 20)
		swap2(p + 22)
		if type_ == pageOverflow {
			continue
		}
		for i := range count {
			item := p + int(le.Uint16(in[p+headSize+2*i:]))
			swap2(p + headSize + 2*i)
			switch {
			case kind == "hash" && b[item] == hashOffPage:
				swap4(item + 4)
				swap4(item + 8)
			case kind == "btree" && b[item+2] == btreeOverflow:
				swap4(item + 4)
				swap4(item + 8)
			case kind == "btree":
				swap2(item)
			}
		}
	}
	return b
}

// A file that was cut off, or of which pages are missing, is an error, and never one in which
// keys are not found.
func TestTorn(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"hash", "btree"} {
		whole := sampleFile(t, kind)
		for size := 0; size < len(whole); size += 7 {
			if f, err := New(whole[:size]); err == nil {
				if f.Verify() == nil {
					t.Errorf("%s: %d of %d octets are taken for the whole", kind, size, len(whole))
				}
			}
		}
		for page := 0; page < len(whole); page += 4096 {
			for _, with := range [][]byte{make([]byte, 4096), bytes.Repeat([]byte{0xff}, 4096), whole[:4096], whole[len(whole)-4096:]} {
				b := bytes.Clone(whole)
				copy(b[page:], with)
				if bytes.Equal(b, whole) {
					continue
				}
				if f, err := New(b); err == nil && f.Verify() == nil && tabletest.Answers(f) != nil {
					t.Errorf("%s: a file without page %d is taken for the whole: %v", kind, page/4096, tabletest.Answers(f))
				}
			}
		}
	}
}

// What a file says of itself decides what is refused, with the reason.
func TestForeign(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		kind string
		at   int
		to   byte
		want string
	}{
		{"another magic", "hash", 12, 1, "not a Berkeley DB hash or btree"},
		{"an old version", "hash", 16, 7, "version 7"},
		{"a new version", "btree", 16, 10, "version 10"},
		{"encrypted", "btree", 24, 1, "encrypted"},
		{"checksums", "hash", 26, 1, "checksums"},
		{"duplicates", "btree", 48, 1, "duplicate"},
		{"another hash function", "hash", 92, 1, "hash function"},
	} {
		b := sampleFile(t, c.kind)
		b[c.at] = c.to
		if _, err := New(b); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
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
	files := map[string][]byte{"hash": sampleFile(t, "hash"), "btree": sampleFile(t, "btree")}
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Clone(files[rapid.SampledFrom([]string{"hash", "btree"}).Draw(t, "kind")])
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			// Most of a file is text or empty: the numbers are at the beginning of pages, and
			// items at their end.
			page := rapid.IntRange(0, len(b)/4096-1).Draw(t, "page") * 4096
			at := rapid.OneOf(rapid.IntRange(0, 255), rapid.IntRange(3900, 4095)).Draw(t, "at")
			b[page+at] = rapid.Byte().Draw(t, "to")
		}
		check(t, b)
	})
}

func FuzzFile(f *testing.F) {
	f.Add(sampleFile(f, "hash"))
	f.Add(sampleFile(f, "btree"))
	f.Fuzz(func(t *testing.T, b []byte) { check(t, b) })
}
