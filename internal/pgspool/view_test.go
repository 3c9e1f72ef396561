package pgspool

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
	"posthaste/internal/testseed"
)

// viewAll lists a shard page by page, with windows of so many messages.
func viewAll(t *testing.T, s *Store, id, window, n int) (list []storage.Viewed) {
	t.Helper()
	for after := uint64(0); ; {
		v, err := s.readView(t.Context(), id, after, 0, window)
		if err != nil {
			t.Fatal(err)
		}
		if len(v.list) > 2*window {
			t.Fatalf("a window of %d has %d messages", window, len(v.list))
		}
		for {
			page, next := v.page(after, n)
			if len(page) > n || next != 0 && next <= after {
				t.Fatalf("a page of %d, %d after %d", len(page), next, after)
			}
			list = append(list, page...)
			if after = next; next == 0 {
				return list
			}
			if next == v.upto {
				break
			}
		}
	}
}

// Another node sees of a shard what its owner knows, at every moment of a random history, whatever the windows and pages are:
// which messages there are, how they stand, and whether an agent has one. It can read them.
func TestView(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	st := d.store("a")
	st.segmentSize = 16 << 10
	e := st.mustOpen(t)
	other := d.store("b")
	r := rand.New(rand.NewPCG(testseed.First(t), 0))
	for range 25 {
		b := e.NewBatch()
		for range r.IntN(12) {
			b.Add(message(t, e, fmt.Sprintf("%0*d", r.IntN(3000), 0)))
		}
		e.Entries(func(en queue.Entry) bool {
			switch p := r.IntN(6); {
			case p == 0:
				b.Remove(en.ID)
			case p == 1:
				b.Update(en.ID, queue.Change{Set: queue.SetQueue | queue.SetAttempts, Queue: queue.Hold, Attempts: en.Attempts + 1})
			case p == 2 && len(en.Done) == 0:
				b.Handed(en.ID, []int{0, 1}, "mx")
			case p == 3 && len(en.Done) == 0:
				b.Done(en.ID, []int{0})
			}
			return true
		})
		if err := e.Commit(b); err != nil {
			t.Fatal(err)
		}
		if r.IntN(3) == 0 {
			tidy(t, e)
		}
		var want []storage.Viewed
		e.Entries(func(en queue.Entry) bool {
			want = append(want, storage.Viewed{Entry: en, InHand: len(e.InHand(en.ID, []int{0, 1})) > 0})
			return true
		})
		got := viewAll(t, other, 1, 1+r.IntN(20), 1+r.IntN(9))
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seen\n%+v\nwant\n%+v", got, want)
		}
		rd := other.Reader()
		for _, v := range got {
			s, err := rd.Read(v.Ref, v.ID)
			if err != nil {
				t.Fatal(err)
			}
			if env, err := s.Envelope(); err != nil || env.Sender != "s@from.test" {
				t.Fatal(env, err)
			}
			one, next, err := rd.(storage.Viewer).View(t.Context(), 1, number(v.ID)-1, number(v.ID), 10)
			if err != nil || next != 0 || len(one) != 1 || !reflect.DeepEqual(one[0], v) {
				t.Fatalf("%s alone: %+v, %d, %v", v.ID, one, next, err)
			}
		}
	}
}

// Whoever looks at a shard while its owner writes, cleans and drops segments sees each message that is there all the time, once.
func TestViewBeside(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	st := d.store("a")
	st.segmentSize = 8 << 10
	e := st.mustOpen(t)
	var stay []mail.QueueID
	for range 30 {
		id, err := put(t, e, fmt.Sprintf("%0500d", 0))
		if err != nil {
			t.Fatal(err)
		}
		stay = append(stay, id)
	}
	other := d.store("b")
	done := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			b := e.NewBatch()
			m := message(t, e, fmt.Sprintf("%03000d", 0))
			b.Add(m)
			if err := e.Commit(b); err != nil {
				t.Error(err)
				return
			}
			b.Reset()
			b.Remove(m.ID)
			if err := e.Commit(b); err != nil {
				t.Error(err)
				return
			}
			if _, err := e.clean(t.Context()); err != nil && sqlState(err) != lockTimeout {
				t.Error(err)
				return
			}
		}
	})
	for range 30 {
		seen := map[mail.QueueID]int{}
		for _, v := range viewAll(t, other, 1, 7, 5) {
			seen[v.ID]++
		}
		for _, id := range stay {
			if seen[id] != 1 {
				t.Errorf("%s: seen %d times", id, seen[id])
			}
		}
	}
	close(done)
	writing.Wait()
}

// The pages of a listing are of one moment, and the first page is of now. Whose a part is, is told.
func TestViewPages(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 2)
	e := d.store("a").mustOpen(t)
	var ids []mail.QueueID
	for range 5 {
		id, err := put(t, e, "x")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	rd := d.store("b").Reader().(storage.Viewer)
	part := int(e.home.id)
	page := func(after uint64) (got []mail.QueueID, next uint64) {
		t.Helper()
		list, next, err := rd.View(t.Context(), part, after, 0, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range list {
			got = append(got, v.ID)
		}
		return got, next
	}
	got, next := page(0)
	if !slices.Equal(got, ids[:2]) {
		t.Fatal(got)
	}
	b := e.NewBatch()
	b.Remove(ids[4])
	if err := e.Commit(b); err != nil {
		t.Fatal(err)
	}
	if list, _, err := rd.View(t.Context(), part, number(ids[4])-1, number(ids[4]), 1); err != nil || len(list) != 0 {
		t.Errorf("a message that is gone is found by its number, for there is a listing from before: %+v, %v", list, err)
	}
	got, next = page(next)
	if !slices.Equal(got, ids[2:4]) {
		t.Fatal(got)
	}
	if got, next = page(next); !slices.Equal(got, ids[4:]) || next != 0 {
		t.Fatal(got, next)
	}
	for after := uint64(0); ; after = next {
		if got, next = page(after); slices.Contains(got, ids[4]) {
			t.Error("a new listing has what was gone when it began")
		}
		if next == 0 {
			break
		}
	}
	want := []storage.Part{{ID: 1, Node: "a", Alive: true}, {ID: 2, Node: "a", Alive: true}}
	if got, err := rd.Parts(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	e.Close()
	d.expire()
	want[0].Alive, want[1].Alive = false, false
	if got, err := rd.Parts(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}
