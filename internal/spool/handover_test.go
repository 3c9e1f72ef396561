package spool

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/testwait"
)

// A process writes, another follows it, with all that happens at the same time, and goes on from there.
func TestFollowBeside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	opt := Options{Dir: dir, SegmentSize: 64 << 10}
	s := openTest(t, dir, opt)
	ids := map[mail.QueueID]bool{}
	var list []mail.QueueID // the same, oldest first
	for range 3 {
		f := NewFollower(opt)
		ctx, stop := context.WithCancel(t.Context())
		var reading sync.WaitGroup
		reading.Go(func() {
			for ctx.Err() == nil {
				f.Read(ctx)
			}
		})
		for i := range 400 {
			var b Batch
			id := newID(t, s)
			b.Add(Message{ID: id, Envelope: testEnvelope(id, 300), Recipients: testRecipients(1), NRcpt: 1, Content: make([]byte, 300)})
			ids[id] = true
			if list = append(list, id); i%10 > 0 {
				b.Remove(list[0])
				delete(ids, list[0])
				list = list[1:]
			}
			if err := s.Commit(&b); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		reading.Wait()
		f.Read(t.Context())
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		opt.Follower = f
		s = openTest(t, dir, opt)
		opt.Follower = nil
		rep := s.Recovery()
		if !rep.Followed {
			t.Errorf("what was followed was of no use: %+v", rep)
		}
		found := map[mail.QueueID]bool{}
		s.Entries(func(e Entry) bool { found[e.ID] = true; return true })
		if !maps.Equal(found, ids) {
			t.Fatalf("%d messages are there, %d should be", len(found), len(ids))
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if rep, err := Check(nil, dir); err != nil || len(rep.Problems) > 0 {
		t.Errorf("%v: %v", err, rep.Problems)
	}
}

// BenchmarkHandOver measures how long a successor takes to open a spool with many deferred messages: cold, and
// when it has followed the log until its predecessor closed it. first is how long the follower reads the
// log at first, which holds nobody up. The same in processor time, which other work on the machine changes
// little, is cpu-s.
//
//	go test ./internal/spool -run '^$' -bench HandOver -start.n 1000000
func BenchmarkHandOver(b *testing.B) {
	opt := Options{Dir: benchDir(b)}
	s := openTest(b, opt.Dir, opt)
	fillDeferred(b, s, *startN)
	var first, cold, followed timed
	closed := func() {
		testwait.Until(b, "segments are ready, as they are in a process that has been there for a while", func() bool { return s.Stats().Free >= 2 })
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
	opened := func(t *timed, f *Follower) {
		opt.Follower = f
		t.add(func() { s = openTest(b, opt.Dir, opt) })
		if n := s.Stats().Messages; n != *startN || s.Recovery().Followed != (f != nil) {
			b.Fatalf("%d messages, want %d: %+v", n, *startN, s.Recovery())
		}
	}
	for b.Loop() {
		closed()
		opened(&cold, nil)
		opt.Follower = nil
		f := NewFollower(opt)
		first.add(func() { f.Read(b.Context()) })
		f.Read(b.Context())
		closed()
		opened(&followed, f)
	}
	first.report(b, "first")
	cold.report(b, "cold")
	followed.report(b, "followed")
	b.ReportMetric(0, "ns/op")
	closed()
}

// timed is how long something took, all in all.
type timed struct{ wall, cpu time.Duration }

func (t *timed) add(f func()) {
	began, used := time.Now(), cpuTime()
	f()
	t.wall += time.Since(began)
	t.cpu += cpuTime() - used
}

func (t *timed) report(b *testing.B, name string) {
	b.ReportMetric(t.wall.Seconds()/float64(b.N), "s-"+name)
	b.ReportMetric(t.cpu.Seconds()/float64(b.N), "cpu-s-"+name)
}
