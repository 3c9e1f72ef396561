package postscreen

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/maillog"
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

// Without an interval the file is written anew only when most of it is out of date: a
// client that passes costs a line.
func TestCacheWithoutCleaning(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "cache")
	c, err := openCache(path, time.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	began := c.cleaned
	for i := range 10 {
		exp := [ntests]time.Time{testPregreet: time.Now().Add(time.Minute)}
		if err := c.put(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), exp); err != nil {
			t.Fatal(err)
		}
	}
	if c.cleaned != began || c.lines != 10 {
		t.Errorf("the file has been written anew, and has %d lines", c.lines)
	}
}

// A client whose results have expired is tested again, and the log has it as one that is
// known for as long as the cache does: postscreen_cache_retention_time.
func TestPassOld(t *testing.T) {
	t.Parallel()
	cache, err := openCache(filepath.Join(t.TempDir(), "cache"), 2*time.Hour, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	var out strings.Builder
	log := maillog.New("postscreen", maillog.NewWriter(&out, maillog.Format(0)))
	now := time.Now()
	c := &Screen{log: log, cache: cache, now: func() time.Time { return now }}
	c.enabled[testPregreet] = true
	addr := netip.MustParseAddr("192.0.2.1")
	for range 2 {
		v := &Visit{screen: c, client: maillog.Endpoint{Addr: addr.String(), Port: "4711"}, addr: addr, began: now}
		if !v.recall() {
			t.Error("the client is not tested")
		}
		v.passed(testPregreet, time.Hour)
		v.rememberIfPassed()
		now = now.Add(90 * time.Minute)
	}
	log.Close()
	if got := strings.Count(out.String(), "PASS NEW [192.0.2.1]:4711"); got != 1 || strings.Count(out.String(), "PASS OLD [192.0.2.1]:4711") != 1 {
		t.Errorf("logged:\n%s", out.String())
	}
}
