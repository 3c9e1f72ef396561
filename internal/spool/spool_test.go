package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/reuse"
)

func testEnvelope(id mail.QueueID, size int) []byte {
	e := mail.Envelope{ID: id, Sender: "sender@example.com", Size: int64(size), Arrival: time.Unix(1700000000, 0)}
	return e.Append(nil)
}

func testRecipients(n int) []byte {
	var list []mail.Recipient
	for i := range n {
		list = append(list, mail.Recipient{Address: fmt.Sprintf("user%d@example.org", i)})
	}
	return mail.AppendRecipients(nil, list)
}

func newID(t testing.TB, s *Spool) mail.QueueID {
	n, err := s.Lease(1)
	if err != nil {
		t.Fatal(err)
	}
	return mail.MakeQueueID(time.Unix(1700000000, int64(n%1e6)*1000), n)
}

func openTest(t testing.TB, dir string, o Options) *Spool {
	t.Helper()
	o.Dir = dir
	o.Warn = t.Logf
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func readAll(t testing.TB, r *Reader, e Entry) (*Stored, []byte) {
	t.Helper()
	st, err := r.Read(e.Ref, e.ID)
	if err != nil {
		t.Fatal(err)
	}
	c, err := st.Content()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return st, b
}

func TestLife(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	opt := Options{SegmentSize: 1 << 20}
	s := openTest(t, dir, opt)
	body := bytes.Repeat([]byte("0123456789abcdef\r\n"), 500)
	big := bytes.Repeat([]byte("large message\r\n"), 50000)

	var b Batch
	id := newID(t, s)
	b.Add(Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: testRecipients(3), NRcpt: 3, Content: body})
	idBig := newID(t, s)
	f, err := s.NewFile()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(big); err != nil {
		t.Fatal(err)
	}
	b.Add(Message{ID: idBig, Envelope: testEnvelope(idBig, len(big)), Recipients: testRecipients(1), NRcpt: 1, File: f})
	if err := s.Commit(&b); err != nil {
		t.Fatal(err)
	}
	r := NewReader(nil, dir)
	defer r.Close()
	check := func(when string, pending int) {
		t.Helper()
		e, ok := s.Locate(id)
		if !ok || e.NPending != pending || e.NRcpt != 3 {
			t.Fatalf("%s: %+v %v", when, e, ok)
		}
		st, got := readAll(t, r, e)
		st.Overlay(e.Done)
		if !bytes.Equal(got, body) {
			t.Fatalf("%s: content differs", when)
		}
		env, err := st.Envelope()
		if err != nil || env.Sender != "sender@example.com" || env.ID != id {
			t.Fatalf("%s: %+v %v", when, env, err)
		}
		rc, err := st.Recipients(1, 2)
		if err != nil || len(rc) != 1 || rc[0].Address != "user1@example.org" {
			t.Fatalf("%s: %+v %v", when, rc, err)
		}
		if st.Pending(0) != (pending == 3) || !st.Pending(1) {
			t.Fatalf("%s: pending", when)
		}
		eb, ok := s.Locate(idBig)
		if !ok {
			t.Fatalf("%s: big message gone", when)
		}
		if _, got := readAll(t, r, eb); !bytes.Equal(got, big) {
			t.Fatalf("%s: big content differs", when)
		}
	}
	check("added", 3)
	b.Reset()
	b.Done(id, []int{0})
	if err := s.Commit(&b); err != nil {
		t.Fatal(err)
	}
	check("one done", 2)
	next := time.Unix(1700000300, 0)
	b.Reset()
	i := b.Update(id, Change{Set: SetQueue | SetNextAttempt | SetAttempts, Queue: Deferred, NextAttempt: next, Attempts: 1,
		Outcomes: []mail.Outcome{{Rcpt: 1, Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Reason: "no route"}}})
	if err := s.Commit(&b); err != nil {
		t.Fatal(err)
	}
	if e, ok := b.Entry(i); !ok || e.Queue != Deferred || !e.NextAttempt.Equal(next) || e.Attempts != 1 {
		t.Fatalf("%+v %v", e, ok)
	}
	check("deferred", 2)
	for n := range 3 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openTest(t, dir, opt)
		check(fmt.Sprintf("start %d", n), 2)
		if rep := s.Recovery(); !rep.Clean || rep.Alarms != 0 || rep.Orphans != 0 {
			t.Errorf("start %d: %+v", n, rep)
		}
		e, _ := s.Locate(id)
		st, _ := readAll(t, r, e)
		if o, err := st.Outcomes(); err != nil || len(o) != 1 || o[0].Reason != "no route" {
			t.Fatalf("outcomes %+v %v", o, err)
		}
	}
	done := make(chan error, 1)
	var p Batch
	p.Done(id, []int{1, 2})
	p.Done(idBig, []int{0})
	s.Post(&p, func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Locate(id); ok {
		t.Error("message is still there")
	}
	t.Logf("%+v", s.Stats())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestMany runs many writers over a small log, so that everything happens:
// rotation, recycling, checkpoints, cleaning.
func TestMany(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openTest(t, dir, Options{SegmentSize: 256 << 10, Budget: 64 * 256 << 10})
	r := NewReader(nil, dir)
	defer r.Close()
	const workers = 8
	var wg sync.WaitGroup
	left := make([][]mail.QueueID, workers)
	for w := range workers {
		wg.Go(func() {
			body := bytes.Repeat([]byte{byte('a' + w)}, 5000)
			var b Batch
			for i := range 400 {
				b.Reset()
				id := newID(t, s)
				b.Add(Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: testRecipients(2), NRcpt: 2, Content: body})
				if err := s.Commit(&b); err != nil {
					t.Error(err)
					return
				}
				if i%40 == 0 {
					left[w] = append(left[w], id)
					continue
				}
				p := new(Batch)
				p.Done(id, []int{0, 1})
				s.Post(p, nil)
			}
		})
	}
	wg.Wait()
	var b Batch
	if err := s.Commit(&b); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		n := 0
		for w := range left {
			for _, id := range left[w] {
				e, ok := s.Locate(id)
				if !ok {
					t.Fatalf("%s is gone", id)
				}
				_, got := readAll(t, r, e)
				if len(got) != 5000 || got[0] != byte('a'+w) || got[4999] != byte('a'+w) {
					t.Fatalf("%s: content differs", id)
				}
				n++
			}
		}
		seen := 0
		s.Entries(func(Entry) bool { seen++; return true })
		if seen != n {
			t.Errorf("%d entries, want %d", seen, n)
		}
		t.Logf("%+v", s.Stats())
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openTest(t, dir, Options{SegmentSize: 256 << 10, Budget: 64 * 256 << 10})
		t.Logf("%+v", s.Recovery())
	}
	s.Close()
}

// TestSharedSync: a sync serves all who asked before it began, and nobody who
// asked later; after a failure there is no other.
func TestSharedSync(t *testing.T) {
	t.Parallel()
	var s sharedSync
	begun, goOn := make(chan int), make(chan error)
	n := 0
	do := func() error {
		n++
		begun <- n
		return <-goOn
	}
	errs := make(chan error)
	ask := func() { errs <- s.sync(do) }
	go ask()
	<-begun
	for range 3 {
		go ask()
	}
	for s.asked.Load() < 4 {
		runtime.Gosched()
	}
	goOn <- nil
	if got := <-begun; got != 2 {
		t.Fatalf("sync %d", got)
	}
	goOn <- nil
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	failure := errors.New("broken")
	go ask()
	<-begun
	goOn <- failure
	if err := <-errs; err != failure {
		t.Errorf("failed sync: %v", err)
	}
	go ask()
	if err := <-errs; err != failure {
		t.Errorf("after a failed sync: %v", err)
	}
	if n != 3 {
		t.Errorf("%d syncs, want 3", n)
	}
}

// What a batch keeps for its next use refers to nothing, and is bounded.
func TestBatchReset(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir(), Options{SegmentSize: 1 << 20})
	defer s.Close()
	b := new(Batch)
	for _, n := range []int{1, 10, 2 * reuse.Most} {
		for range n {
			id := newID(t, s)
			b.Add(Message{ID: id, Envelope: testEnvelope(id, 1000), Recipients: testRecipients(2), NRcpt: 2, Content: make([]byte, 1000)})
			b.Update(id, Change{Outcomes: []mail.Outcome{{Reason: "reason"}}, Done: []int{1}})
		}
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
		if e, ok := b.Entry(1); !ok || e.Done == nil {
			t.Errorf("%d messages: %+v, %v", n, e, ok)
		}
		b.Reset()
		if n > reuse.Most && (b.ops != nil || b.entries != nil || b.buf != nil) {
			t.Errorf("%d messages: %d changes, %d entries, %d octets are kept", n, cap(b.ops), cap(b.entries), cap(b.buf))
		}
		for i := range b.ops[:cap(b.ops)] {
			if !reflect.ValueOf(b.ops[:cap(b.ops)][i]).IsZero() {
				t.Errorf("%d messages: change %d is still there", n, i)
			}
		}
		for i := range b.entries[:cap(b.entries)] {
			if !reflect.ValueOf(b.entries[:cap(b.entries)][i]).IsZero() {
				t.Errorf("%d messages: entry %d is still there", n, i)
			}
		}
	}
}
