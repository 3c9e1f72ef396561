package smtp

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestCache: the last session kept is the first taken, by name and by address;
// what was taken under one is gone under the other; time ends sessions; a
// closed cache keeps none.
func TestCache(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var left []string
		c := newCache(nil)
		c.leave = func(s *session) {
			c.mu.Lock()
			left = append(left, s.host)
			c.mu.Unlock()
		}
		keep := func(host, name, addr string, d time.Duration) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			defer theirs.Close()
			if !c.put(&session{wire: newWire(ours, 100), host: host}, 0, cacheKey{hop: name}, cacheKey{path: addr}, time.Now().Add(d)) {
				left = append(left, host+" refused")
			}
		}
		took := func(s *session) string {
			if s == nil {
				return "none"
			}
			return s.host
		}
		keep("1", "n", "a", 2*time.Second)
		keep("2", "", "a", 2*time.Second)
		keep("3", "n", "b", 3*time.Second)
		got := []string{took(c.takeName(cacheKey{hop: "n"})), took(c.takeName(cacheKey{hop: "n"})), took(c.takeName(cacheKey{hop: "n"})), took(c.takeAddr(cacheKey{path: "b"})), took(c.takeAddr(cacheKey{path: "a"})), took(c.takeAddr(cacheKey{path: "a"}))}
		if want := []string{"3", "1", "none", "none", "2", "none"}; !slices.Equal(got, want) {
			t.Errorf("took %v, want %v", got, want)
		}
		for i := range 6 {
			keep(fmt.Sprint(i), "n", fmt.Sprint("a", i%2), time.Duration(i+1)*time.Second)
		}
		time.Sleep(3*time.Second + time.Millisecond)
		synctest.Wait()
		c.mu.Lock()
		if slices.Sort(left); !slices.Equal(left, []string{"0", "1", "2"}) {
			t.Errorf("after three seconds %v have ended", left)
		}
		if len(c.byName[cacheKey{hop: "n"}]) != 3 || c.count != 3 {
			t.Errorf("%d of name n are left, %d in all", len(c.byName[cacheKey{hop: "n"}]), c.count)
		}
		c.mu.Unlock()
		for range maxKept {
			keep("over", "", "x", time.Hour)
		}
		if c.count != maxKept || len(left) != 3+3 || left[5] != "over refused" {
			t.Errorf("%d are kept, and %v left", c.count, left)
		}
		for c.takeAddr(cacheKey{path: "x"}) != nil {
		}
		left = nil
		c.close()
		keep("late", "n", "a", time.Second)
		if slices.Sort(left); !slices.Equal(left, []string{"3", "4", "5", "late refused"}) {
			t.Errorf("at the end %v", left)
		}
		time.Sleep(time.Minute)
	})
}

// TestCacheForgets: when all sessions have expired the cache holds nothing, under no name and no address.
func TestCacheForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(nil)
		c.leave = func(*session) {}
		ours, theirs := net.Pipe()
		defer ours.Close()
		defer theirs.Close()
		for i := range 5 {
			n := fmt.Sprint(i % 3)
			c.put(&session{wire: newWire(ours, 100)}, 0, cacheKey{hop: n}, cacheKey{path: n}, time.Now().Add(time.Duration(i+1)*time.Second))
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		c.mu.Lock()
		if c.count != 0 || len(c.byAddr) != 0 || len(c.byName) != 0 {
			t.Errorf("%d sessions, %d addresses and %d names are left", c.count, len(c.byAddr), len(c.byName))
		}
		c.mu.Unlock()
		c.close()
	})
}

// TestCacheExpiresAgain: the time of sessions that are kept after all others have ended is minded, too.
func TestCacheExpiresAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		left := 0
		var c *cache
		c = newCache(func(*session) {
			c.mu.Lock()
			left++
			c.mu.Unlock()
		})
		defer c.close()
		for n := range 3 {
			ours, theirs := net.Pipe()
			defer ours.Close()
			defer theirs.Close()
			if !c.put(&session{wire: newWire(ours, 100)}, 0, cacheKey{hop: "n"}, cacheKey{path: "a"}, time.Now().Add(time.Minute)) {
				t.Fatal("not kept")
			}
			time.Sleep(time.Minute + time.Millisecond)
			synctest.Wait()
			c.mu.Lock()
			if left != n+1 || c.count != 0 {
				t.Errorf("%d sessions have ended of %d, and %d are kept", left, n+1, c.count)
			}
			c.mu.Unlock()
		}
	})
}

// FuzzOffer: whatever a server says that it offers, it is taken in.
func FuzzOffer(f *testing.F) {
	for _, s := range []string{"SIZE 1000", "size", "AUTH=PLAIN LOGIN", "AUTH", "XFORWARD NAME", "PIPELINING", "SIZE 99999999999999999999", "8BITMIME x"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		s := new(session)
		s.offer(line, nil)
		if s.size < 0 || s.offers&offersSize == 0 && s.size != 0 || s.offers&offersAuth == 0 && s.auth != "" {
			t.Errorf("%q: size %d, offers %b, auth %q", line, s.size, s.offers, s.auth)
		}
		ignored := new(session)
		ignored.offer(line, []string{"SIZE", "AUTH", "XFORWARD", "PIPELINING", "8BITMIME", "DSN", "SMTPUTF8", "STARTTLS", "REQUIRETLS"})
		if ignored.offers != 0 {
			t.Errorf("%q: discarded, and taken in: %b", line, ignored.offers)
		}
	})
}
