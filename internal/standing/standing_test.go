package standing

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 28, 12, 30, 0, 0, time.UTC)

// counted counts n of each kind in turn.
func counted(b *Book, now time.Time, provider, source string, n ...int) {
	for k, n := range n {
		for range n {
			b.Count(now, provider, source, Kind(k))
		}
	}
}

// What was counted is told by provider and source, and forgotten a day later, an hour at a time.
func TestRows(t *testing.T) {
	t.Parallel()
	b := new(Book)
	counted(b, noon, "bigmail", "mta2", 3, 1, 0, 0, 1)
	counted(b, noon.Add(time.Hour), "bigmail", "mta2", 2, 0, 0, 1)
	counted(b, noon, "bigmail", "mta1", 0, 0, 1)
	counted(b, noon, "", "mta1", 1)
	b.Count(noon, "bigmail", "mta1", kinds)
	for _, c := range []struct {
		after time.Duration
		want  string
	}{
		{0, "[{{bigmail mta1} [0 0 1 0 0]} {{bigmail mta2} [3 1 0 0 1]}]"}, // what is counted later is not told yet
		{time.Hour, "[{{bigmail mta1} [0 0 1 0 0]} {{bigmail mta2} [5 1 0 1 1]}]"},
		{Span - time.Hour, "[{{bigmail mta1} [0 0 1 0 0]} {{bigmail mta2} [5 1 0 1 1]}]"},
		{Span, "[{{bigmail mta2} [2 0 0 1 0]}]"},
		{Span + time.Hour, "[]"},
	} {
		if got := fmt.Sprint(b.Rows(noon.Add(c.after))); got != c.want {
			t.Errorf("%v later: %s, want %s", c.after, got, c.want)
		}
	}
	// The hour a day later takes the place of that of today.
	counted(b, noon.Add(Span), "bigmail", "mta2", 1)
	if got := fmt.Sprint(b.Rows(noon.Add(Span))); got != "[{{bigmail mta2} [3 0 0 1 0]}]" {
		t.Errorf("a day later: %s", got)
	}
}

// Strangers can make up sites, and neither fill the memory nor take the name of a provider that gets mail. Nothing is lost.
func TestBounded(t *testing.T) {
	t.Parallel()
	b := new(Book)
	all := int64(0)
	for i := range 50 * MaxNames {
		b.Count(noon, fmt.Sprintf("mx.d%d.test", i), "mta1", Sent)
		if i%100 == 0 {
			b.Count(noon, "bigmail", "mta1", Sent)
			all++
		}
		all++
	}
	rows := b.Rows(noon)
	if len(rows) > MaxNames+1 || len(b.rows) > MaxNames+1 {
		t.Errorf("%d rows", len(rows))
	}
	big, sum := int64(0), int64(0)
	for _, r := range rows {
		sum += r.Counts[Sent]
		if r.Name == (Name{"bigmail", "mta1"}) {
			big = r.Counts[Sent]
		}
	}
	if big != 50*MaxNames/100 || sum != all {
		t.Errorf("%d of bigmail, %d in all, want %d and %d", big, sum, 50*MaxNames/100, all)
	}
	// What is over makes room first, and is not counted as others'.
	later := noon.Add(Span)
	b.Count(later, "new.test", "", Sent)
	if got := fmt.Sprint(b.Rows(later)); got != "[{{new.test } [1 0 0 0 0]}]" {
		t.Errorf("a day later: %s", got)
	}
}

// The name of a site has room, whatever its hosts are called.
func TestSite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, want string }{
		{"bigmail", "bigmail"},
		{"mx1.example.net,mx2.example.net", "mx1.example.net,mx2.example.net"},
		{strings.Repeat("mx1.example.net,", 9), "mx1.example.net,mx1.example.net,mx1.example.net,..."},
		{strings.Repeat("a", 100), strings.Repeat("a", 100)},
		{strings.Repeat("a", 1000), strings.Repeat("a", maxName)},
	} {
		if got := Site(c.name); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Two books are one when they are merged, hour by hour.
func TestMerge(t *testing.T) {
	t.Parallel()
	a, b := new(Book), new(Book)
	counted(a, noon, "bigmail", "mta1", 5)
	counted(b, noon.Add(-time.Hour), "bigmail", "mta1", 0, 0, 0, 2, 1)
	counted(b, noon.Add(-Span), "old", "", 0, 0, 0, 2)
	counted(b, noon, "other.test", "", 0, 0, 0, 0, 1)
	a.Merge(noon, b)
	a.Merge(noon, new(Book))
	if got := fmt.Sprint(a.Rows(noon)); got != "[{{bigmail mta1} [5 0 0 2 1]} {{other.test } [0 0 0 0 1]}]" {
		t.Error(got)
	}
	if got := fmt.Sprint(a.Rows(noon.Add(Span - time.Hour))); got != "[{{bigmail mta1} [5 0 0 0 0]} {{other.test } [0 0 0 0 1]}]" {
		t.Errorf("a day later: %s", got)
	}
	// Of many names together the bound is the same.
	for i := range MaxNames {
		counted(b, noon, fmt.Sprint("b", i), "", 1)
		counted(a, noon, fmt.Sprint("a", i), "", 1)
	}
	a.Merge(noon, b)
	if n := len(a.Rows(noon)); n != MaxNames+1 {
		t.Errorf("%d rows", n)
	}
}

// What is kept is the same when it is read, and what is damaged is seen.
func TestFile(t *testing.T) {
	t.Parallel()
	b := new(Book)
	counted(b, noon, "bigmail", "mta1", 300, 2, 3, 4, 5)
	counted(b, noon.Add(-5*time.Hour), "bigmail", "mta1", 1)
	counted(b, noon, "mx.test", "", 0, 1)
	text := b.Encode()
	got, err := Decode(text)
	if err != nil || !reflect.DeepEqual(got.Rows(noon), b.Rows(noon)) || !bytes.Equal(got.Encode(), text) {
		t.Errorf("%v, want %v; %v", got.Rows(noon), b.Rows(noon), err)
	}
	if got, err := Decode(nil); err != nil || got.Rows(noon) != nil {
		t.Errorf("of nothing: %v", err)
	}
	for i := range text {
		bad := bytes.Clone(text)
		bad[i] ^= 0x40
		if _, err := Decode(bad); err == nil {
			t.Fatalf("octet %d is another one, and nobody sees it", i)
		}
		if _, err := Decode(text[:i]); err == nil && i > 0 {
			t.Fatalf("%d octets are enough", i)
		}
	}
}

// No bytes make a Book that is too large, or one that cannot be written again.
func FuzzDecode(f *testing.F) {
	b := new(Book)
	counted(b, noon, "bigmail", "mta1", 3, 2, 1, 1, 1)
	f.Add(b.Encode()[len(magic)+4:])
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := Decode(sealed(append(make([]byte, len(magic)+4), body...)))
		if err != nil {
			return
		}
		if len(got.rows) > MaxNames+1 {
			t.Errorf("%d rows", len(got.rows))
		}
		again, err := Decode(got.Encode())
		if err != nil || !reflect.DeepEqual(again.Rows(noon), got.Rows(noon)) {
			t.Errorf("%v, and again %v: %v", got.Rows(noon), again, err)
		}
	})
}

func BenchmarkMakeRoom(b *testing.B) {
	book := new(Book)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		book.Count(noon, fmt.Sprint("mx", i), "", Sent)
	}
}
