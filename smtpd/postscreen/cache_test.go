package postscreen

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestCache(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "cache")
	now := time.Now().Truncate(time.Second)
	a, b, old := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.9")
	c, err := openCache(path, time.Hour, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	first := [ntests]time.Time{testPregreet: now.Add(time.Minute)}
	second := [ntests]time.Time{testPregreet: now.Add(time.Hour), testBareLF: now.Add(2 * time.Hour)}
	for _, p := range []struct {
		a   netip.Addr
		exp [ntests]time.Time
	}{{a, first}, {b, first}, {a, second}, {old, [ntests]time.Time{now.Add(-2 * time.Hour)}}} {
		if err := c.put(p.a, p.exp); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	// A crash tears the last line; somebody adds nonsense.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString("nonsense\n192.0.2.7 1 2 3\n203.0.113.1 99")
	f.Close()
	c, err = openCache(path, time.Hour, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, ok := c.get(a); !ok || got != second {
		t.Errorf("%v %v", got, ok)
	}
	if got, ok := c.get(b); !ok || got != first {
		t.Errorf("%v %v", got, ok)
	}
	if _, ok := c.get(old); ok {
		t.Error("an entry past its retention time is kept")
	}
	for range 5000 { // the file does not grow without end
		if err := c.put(a, second); err != nil {
			t.Fatal(err)
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() > 200_000 {
		t.Errorf("%v, %v", fi.Size(), err)
	}
	if got, _ := c.get(a); got != second {
		t.Errorf("%v", got)
	}
}

func FuzzCacheLine(f *testing.F) {
	f.Add("192.0.2.1 1 2 3 4 5")
	f.Add("2001:db8::1 0 0 0 0 0")
	f.Fuzz(func(t *testing.T, line string) {
		a, exp, ok := parseEntry(line)
		if !ok {
			return
		}
		a2, exp2, ok := parseEntry(string(appendEntry(nil, a, exp)))
		if !ok || a2 != a || exp2 != exp {
			t.Errorf("%q: %v %v, then %v %v", line, a, exp, a2, exp2)
		}
	})
}
