package qmgr

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/nodeshare"
	"posthaste/internal/pack"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// withDead is a server whose scheduler knows these destinations as dead.
func withDead(now time.Time, n int) *Server {
	s := &Server{now: now}
	s.opt.Settings.Node = "a"
	s.sched = sched.New(sched.Config{RecipientLimit: 20000, ActiveLimit: 20000, MinimalBackoff: time.Hour, MaximalBackoff: time.Hour, DefaultTransports: sched.TransportConfig{FailedCohortLimit: 1, ConcurrencyLimit: 20}})
	var snap sched.Snapshot
	for i := range n {
		name := fmt.Sprintf("d%d.test", i)
		snap.Dests = append(snap.Dests, sched.DestSnapshot{Transport: "smtp", Queue: name, Nexthop: mail.Nexthop(name), State: sched.DestDead, Until: now.Add(10 * time.Minute), Status: dsn.S(4, 4, 1),
			Text: "connect to x: Connection timed out"})
	}
	s.sched.Restore(now, snap)
	return s
}

// What one node says of its dead destinations another one reads, with what is left of their time by its own clock. What a
// node has only heard it does not say again.
func TestHintNote(t *testing.T) {
	t.Parallel()
	now := time.Unix(1800000000, 0)
	s := withDead(now, 1)
	there := now.Add(-17 * time.Hour) // another clock
	s.now = now.Add(4 * time.Minute)
	list := readHints(s.hintNote(), there)
	if len(list) != 1 {
		t.Fatalf("%+v", list)
	}
	if want := (sched.Hint{Transport: "smtp", Queue: "d0.test", Nexthop: "d0.test", Status: dsn.S(4, 4, 1), Text: "connect to x: Connection timed out (as node a has found)", Until: there.Add(6 * time.Minute)}); list[0] != want {
		t.Errorf("%+v, want %+v", list[0], want)
	}
	other := withDead(there, 0)
	other.sched.Step(there, sched.Event{Kind: sched.EventHints, Hints: list}, nil)
	if d, _ := other.sched.Dest("smtp", "d0.test"); d.State != sched.DestDead {
		t.Fatalf("%+v", d)
	}
	if note := other.hintNote(); note != nil {
		t.Errorf("hearsay is told: %+v", readHints(note, there))
	}
	s.leaving = true
	if s.hintNote() != nil {
		t.Error("a queue manager that has a successor speaks")
	}
}

// A note has room for so many, and no more are read; what is damaged, or is no text, does no harm.
func TestHintNoteBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1800000000, 0)
	note := withDead(now, 5000).hintNote()
	if n := len(readHints(note, now)); len(note) > nodeshare.NoteLimit || n < 500 || n > maxHints {
		t.Errorf("%d octets, %d destinations", len(note), n)
	}
	one := func(status, text, queue string) []byte {
		return pack.Nested(nil, 'd', func(b []byte) []byte {
			b = pack.String(b, 't', "smtp")
			b = pack.String(b, 'q', queue)
			b = pack.String(b, 'c', status)
			b = pack.String(b, 'r', text)
			return pack.Int(b, 'l', 1<<60)
		})
	}
	for _, bad := range [][]byte{{1, 2, 3}, one("5.1.1", "x", "q"), one("", "x", "q"), one("4.4.1", strings.Repeat("x", 600), "q"), one("4.4.1", "x", ""), one("4.4.1", "x", strings.Repeat("q", 600))} {
		if list := readHints(bad, now); len(list) != 0 {
			t.Errorf("%+v", list)
		}
	}
	list := readHints(one("4.4.1", "a\nb\xff", "q"), now)
	if len(list) != 1 || list[0].Text != "a?b? (as node  has found)" || list[0].Until.Sub(now) > 30*24*time.Hour {
		t.Errorf("%+v", list)
	}
}

// A cleanup that does not answer does not keep a node from telling the others again.
func TestHintsUnanswered(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.run()
	st.waitAttached(1)
	for n := range 2 {
		done := make(chan struct{})
		go func() {
			st.srv.exchangeHints(t.Context())
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatal("it waits for ever")
		}
		st.until("it is told", func() bool { return st.noted == n+1 })
	}
}

// FuzzHints: whatever another node says, the scheduler stays sound.
func FuzzHints(f *testing.F) {
	now := time.Unix(1800000000, 0)
	f.Add(withDead(now, 3).hintNote())
	f.Fuzz(func(t *testing.T, note []byte) {
		s := withDead(now, 1)
		s.sched.Step(now, sched.Event{Kind: sched.EventHints, Hints: readHints(note, now)}, nil)
		if err := s.sched.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

// What other nodes have found dead is dead here, for as long as they say, and what this node finds it tells them.
func TestHintsExchanged(t *testing.T) {
	t.Parallel()
	st := newStage(t, "initial_destination_concurrency = 1\n")
	st.node = "b"
	other := withDead(time.Now(), 1)
	st.heard = [][]byte{{1, 2, 3}, other.hintNote()}
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.srv.exchangeHints(t.Context())
	st.arrive("s@from.test", "x@d0.test")
	st.waitDest("d0.test", "considered dead until", "4.4.1 connect to x: Connection timed out (as node a has found)")
	// Nothing that it has only heard.
	st.srv.exchangeHints(t.Context())
	id := st.arrive("s@from.test", "x@own.test")
	o := smtp.next()
	o.answer("site")
	st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	st.srv.exchangeHints(t.Context())
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.notes) != 3 || len(st.notes[0]) != 0 || len(st.notes[1]) != 0 {
		t.Fatalf("told: %q", st.notes)
	}
	list := readHints(st.notes[2], time.Now())
	if len(list) != 1 || list[0].Queue != "own.test" || list[0].Nexthop != "own.test" || list[0].Transport != "smtp" || !strings.HasSuffix(list[0].Text, "(as node b has found)") {
		t.Errorf("told: %+v", list)
	}
}
