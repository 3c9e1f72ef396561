package smtp

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/mail"
)

// deliverAs delivers to next as session number, to be kept for a time.
func deliverAs(t *testing.T, a *Agent, next string, number uint64, keep time.Duration, optional bool) (kept bool) {
	t.Helper()
	env := envelope(10)
	if optional {
		env.TLSOptional = true // another demand: not over the same session
	}
	r := agent.NewTestRequest(env, mail.Nexthop(next), []byte("A: b\r\n\r\n"), a.log)
	r.CacheLoad, r.CacheKeep, r.Session, r.Keep = true, true, number, keep
	a.Deliver(context.Background(), r)
	if o := r.Outcomes()[0]; o.Status.String() != "2.0.0" {
		t.Errorf("%s %s", o.Status, o.Reason)
	}
	return r.Kept()
}

// TestSessionNumber: a session is taken up again and dismissed under the number
// that the queue manager gave it, and kept for as long as it said.
func TestSessionNumber(t *testing.T) {
	t.Parallel()
	const bye = "C: QUIT\n"
	next, wait := keptServers(t, []string{
		keptHello + keptMessage + keptMessage + bye, // sessions 1
		keptHello + keptMessage + bye,               // session 2
		keptHello + keptMessage + bye,               // session 1 again, under another demand
	}, nil)
	log := new(lines)
	a, done := keptAgent(t, "smtp_connection_cache_time_limit = 100s\nconnection_cache_ttl_limit = 100s\n", log)
	if !deliverAs(t, a, string(next), 1, time.Hour, false) {
		t.Error("the session was not kept")
	}
	s := a.cache.takeNumber(1)
	if left := time.Until(s.kept.expires); left < 50*time.Minute || left > time.Hour {
		t.Errorf("it is kept for %v, want an hour", left)
	}
	a.cache.put(s, 1, s.kept.name, s.kept.addr, s.kept.expires)
	deliverAs(t, a, string(next), 1, 0, false)
	if left := time.Until(a.cache.byNum[1].expires); left > 100*time.Second {
		t.Errorf("without a word it is kept for %v, want what main.cf says", left)
	}
	// All of one name: number 2 has one of its own when 1 is in use.
	mine := a.cache.takeNumber(1)
	deliverAs(t, a, string(next), 2, 0, false)
	a.cache.put(mine, 1, mine.kept.name, mine.kept.addr, mine.kept.expires)
	if a.cache.byNum[1].s == a.cache.byNum[2].s || a.cache.count != 2 {
		t.Errorf("%d sessions are kept, want two", a.cache.count)
	}
	a.Dismiss(2)
	a.Dismiss(2)
	a.Dismiss(99)
	if a.cache.count != 1 || a.cache.byNum[2] != nil || a.cache.byNum[1] == nil {
		t.Errorf("%d sessions are left, want number 1", a.cache.count)
	}
	// Number 1 cannot be used where more is demanded: it is closed, not forgotten.
	deliverAs(t, a, string(next), 1, 0, true)
	if a.cache.count != 1 || a.cache.byNum[1].s == mine {
		t.Errorf("%d sessions are left, number 1 is the former one: %v", a.cache.count, a.cache.byNum[1].s == mine)
	}
	done()
	wait()
}

// TestCacheNumbers: a number names one session, the last that was kept under it;
// sessions end in order of their times, whatever order they came in.
func TestCacheNumbers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var left []string
		c := newCache(nil)
		c.leave = func(s *session) {
			c.mu.Lock()
			left = append(left, s.host)
			c.mu.Unlock()
		}
		keep := func(host string, number uint64, name string, d time.Duration) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			defer theirs.Close()
			c.put(&session{wire: newWire(ours, 100), host: host}, number, cacheKey{hop: name}, cacheKey{path: host}, time.Now().Add(d))
		}
		keep("long", 1, "n", time.Hour)
		keep("short", 2, "n", time.Second)
		keep("unnamed", 3, "", time.Minute)
		if c.takeNumber(3) != nil || c.takeNumber(0) != nil {
			t.Error("a session without a name has a number")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		c.mu.Lock()
		if len(left) != 1 || left[0] != "short" || c.byNum[2] != nil {
			t.Errorf("after two seconds %v have ended", left)
		}
		c.mu.Unlock()
		keep("newer", 1, "n", time.Minute) // of another queue manager
		if s := c.takeName(cacheKey{hop: "n"}); s.host != "newer" {
			t.Errorf("took %s", s.host)
		}
		if c.takeNumber(1) != nil {
			t.Error("a session that was taken is still known by its number")
		}
		if s := c.takeName(cacheKey{hop: "n"}); s == nil || s.host != "long" {
			t.Error("the former session of that number is gone")
		}
		c.close()
	})
}
