package mtasts

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/resolver/fakezone"
)

// slow is a site of all domains that takes a second to answer.
type slow struct {
	mode atomic.Value // of the policy; "" for an error
	hits atomic.Int32
}

func (s *slow) RoundTrip(r *http.Request) (*http.Response, error) {
	s.hits.Add(1)
	select {
	case <-time.After(time.Second):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if s.mode.Load() == "" {
		return nil, io.ErrUnexpectedEOF
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/plain"}},
		Body: io.NopCloser(strings.NewReader("version: STSv1\nmode: " + s.mode.Load().(string) + "\nmx: a.test\nmax_age: 864000\n"))}, nil
}

// renewing starts a table of a domain a.test whose policy is fetched already.
func renewing(t *testing.T, dir string, warn func(string)) (*Table, *slow) {
	dns := fakezone.Must("_mta-sts.a.test. 0 TXT \"v=STSv1; id=1\"").Resolver()
	t.Cleanup(dns.Close)
	s := new(slow)
	s.mode.Store("enforce")
	tab := New(Options{Dir: dir, Resolver: dns, Client: &http.Client{Transport: s}, Warn: warn})
	lookAt(t, tab, Enforce, time.Second)
	return tab, s
}

// lookAt expects a policy of a mode, within a time, and waits for what that set off.
func lookAt(t *testing.T, tab *Table, want Mode, within time.Duration) {
	t.Helper()
	start := time.Now()
	var got Mode
	p, err := tab.Policy(context.Background(), "a.test")
	if p != nil {
		got = p.Mode
	}
	if took := time.Since(start); got != want || err != nil || took > within {
		t.Errorf("mode %q after %v, %v; want %q within %v", got, took, err, want, within)
	}
	time.Sleep(2 * time.Second)
}

// A policy in use is fetched again once a day, for which no mail waits, even if
// the DNS says nothing, and once for all processes.
func TestRenewal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		tab, s := renewing(t, dir, func(text string) { t.Error(text) })
		defer tab.Close()
		none := fakezone.Must("").Resolver()
		defer none.Close()
		other := New(Options{Dir: dir, Resolver: none, Client: tab.opt.Client, Warn: tab.opt.Warn})
		defer other.Close()
		at := func(hours int) { time.Sleep(time.Until(start.Add(time.Duration(hours) * time.Hour))) }
		hits := func(want int32) {
			t.Helper()
			if got := s.hits.Load(); got != want {
				t.Errorf("after %v: fetched %d times, want %d", time.Since(start), got, want)
			}
		}
		at(23)
		lookAt(t, tab, Enforce, 0)
		lookAt(t, other, Enforce, 0)
		hits(1)
		at(25)
		s.mode.Store("testing")
		var wg sync.WaitGroup
		for range 9 {
			wg.Go(func() { lookAt(t, other, Enforce, 0) })
		}
		wg.Wait()
		hits(2)
		lookAt(t, other, Testing, 0)
		lookAt(t, tab, Enforce, 0)
		lookAt(t, tab, Testing, 0)
		hits(2)
		at(9 * 24) // nearly the end of the first one's time
		lookAt(t, tab, Testing, 0)
		at(11 * 24) // past it
		lookAt(t, tab, Testing, 0)
		hits(4)
		s.mode.Store("none")
		at(13 * 24)
		lookAt(t, tab, Testing, 0)
		at(15 * 24) // there is nothing left to protect
		lookAt(t, tab, None, 0)
		hits(5)
	})
}

// A renewal that fails keeps the policy, is said, and is tried again an hour later.
func TestRenewalFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var warnings []string
		tab, s := renewing(t, dir, func(text string) { warnings = append(warnings, text) })
		s.mode.Store("")
		for range 6 * 24 * 11 { // every ten minutes, until a day after the policy's time is over
			time.Sleep(10*time.Minute - 2*time.Second)
			want := Enforce
			if tab.recall("a.test").inForce(time.Now()) == nil {
				want = ""
			}
			if lookAt(t, tab, want, time.Second); want == "" {
				break
			}
		}
		synctest.Wait() // for what is said last
		const known = `mta-sts: policy of a.test: Get "https://mta-sts.a.test/.well-known/mta-sts.txt": unexpected EOF; the one that is known counts until 2000-01-11T00:00:01Z`
		last := len(warnings) - 1
		if n := 9 * 24; last < n-36 || last > n+1 || warnings[0] != known || warnings[last-1] != known || strings.Contains(warnings[last], "counts") {
			t.Errorf("%d warnings, %q ... %q", len(warnings), warnings[0], warnings[max(last-1, 0):])
		}
		tab.Close()
	})
}

// Dead sites have no more than a few renewals under way, and Close waits for none.
func TestRenewalOfDeadSites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dns := fakezone.Must("").Resolver()
		defer dns.Close()
		tab := New(Options{Resolver: dns, Client: &http.Client{Transport: dead{}}, Warn: func(text string) { t.Error(text) }})
		start := time.Now()
		domain := func(i int) string { return string(rune('a'+i)) + ".test" }
		for i := range 3 * maxRenewed {
			tab.known[domain(i)] = &entry{ID: "1", Policy: &Policy{Mode: Enforce, MaxAge: time.Hour}, Expires: start.Add(time.Minute)}
		}
		for i := range 3 * maxRenewed {
			if p, err := tab.Policy(context.Background(), domain(i)); p == nil || err != nil {
				t.Error(domain(i), p, err)
			}
		}
		tab.mu.Lock()
		n := len(tab.calls)
		tab.mu.Unlock()
		if n != maxRenewed {
			t.Errorf("%d renewals under way, want %d", n, maxRenewed)
		}
		if tab.Close(); !time.Now().Equal(start) {
			t.Errorf("Close took %v", time.Since(start))
		}
	})
}
