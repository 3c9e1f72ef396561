package pgspool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
	"posthaste/internal/testseed"
	"posthaste/internal/testwait"
)

// adopting opens the queue for a node that reads so few rows of a shard at a time, and hears what it adopts.
func adopting(t *testing.T, d *database, node string, page int, warn func(string, ...any), adopted func(*engine, storage.Recovery)) *engine {
	t.Helper()
	st := d.store(node)
	st.page, st.segmentSize = page, 4<<10
	en, err := st.Open(context.Background(), storage.Options{TempDir: t.TempDir(), InlineLimit: 1000, Warn: warn,
		Adopted: func(e storage.Engine, r storage.Recovery) { adopted(e.(*engine), r) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { en.Close() })
	return en.(*engine)
}

// seen is what an engine says of all its messages.
func seen(e *engine) map[mail.QueueID]storage.Viewed {
	list := map[mail.QueueID]storage.Viewed{}
	for en := range e.Entries {
		list[en.ID] = storage.Viewed{Entry: en, InHand: len(e.InHand(en.ID, []int{0, 1})) > 0}
	}
	return list
}

// wander makes changes at random.
func wander(t *testing.T, e *engine, r *rand.Rand) {
	t.Helper()
	b := e.NewBatch()
	b.Apart()
	for en := range e.Entries {
		switch p := r.IntN(8); {
		case p == 0:
			b.Remove(en.ID)
		case p == 1:
			b.Update(en.ID, queue.Change{Set: queue.SetQueue | queue.SetAttempts, Queue: queue.Deferred, Attempts: en.Attempts + 1})
		case p == 2:
			b.Handed(en.ID, []int{0, 1}, "mx")
		case p == 3:
			b.Done(en.ID, []int{r.IntN(2)})
		}
	}
	if err := e.Commit(b); err != nil {
		t.Fatal(err)
	}
}

// A shard that is read in parts is in the end what it was for its former owner, but for what its new owner has changed meanwhile, at
// any moment of a random history: nothing is missing, nothing that has left comes back, and what was in hand is in doubt before anybody
// can see it. The new owner takes new mail, and other mail in hand, while it reads.
func TestAdoptInParts(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	r := rand.New(rand.NewPCG(testseed.First(t), 0))
	e := adopting(t, d, "n0", 3, t.Logf, func(*engine, storage.Recovery) { t.Error("there was nothing to adopt") })
	for round := range 6 {
		for range 6 {
			add := e.NewBatch()
			for range r.IntN(15) {
				m := message(t, e, fmt.Sprintf("%0*d", r.IntN(900), 0))
				if r.IntN(4) == 0 { // content in rows of its own
					f, err := e.NewFile()
					if err != nil {
						t.Fatal(err)
					}
					f.Write([]byte(strings.Repeat("y", 3000)))
					m.Content, m.File = nil, f
				}
				add.Add(m)
			}
			if err := e.Commit(add); err != nil {
				t.Fatal(err)
			}
			wander(t, e, r)
			if r.IntN(3) == 0 {
				tidy(t, e)
			}
		}
		want := seen(e)
		e.stop()
		d.expire()
		parts, over := 0, make(chan struct{})
		// Not Fatalf: it runs in the engine's goroutine.
		look := func(e *engine, rec storage.Recovery, whole bool) {
			parts++
			now := seen(e)
			for id, v := range now {
				if w, ok := want[id]; !ok || !reflect.DeepEqual(v, w) {
					t.Errorf("round %d, part %d: %+v\nwant %+v, %v", round, parts, v, w, ok)
				}
			}
			if whole && len(now) != len(want) {
				t.Errorf("round %d: %d messages, want %d", round, len(now), len(want))
			}
			if hands := slices.Collect(e.Hands); len(hands) > 0 {
				t.Errorf("agents are said to have %v", hands)
			}
			for _, x := range rec.InDoubt {
				if !now[x.ID].InHand {
					t.Errorf("%s is in doubt, and not in hand", x.ID)
				}
			}
		}
		next := adopting(t, d, fmt.Sprint("n", round+1), 3, t.Logf, func(e *engine, rec storage.Recovery) {
			whole := len(e.whole()) == 1
			look(e, rec, whole)
			if whole {
				close(over)
				return
			}
			// Nothing of it is dropped while what is alive in it is not known, and nobody is told that it can be changed as a whole.
			if len(e.Owned()) != 0 || e.victim(e.home) != nil {
				t.Errorf("owned %v, and it would be cleaned", e.Owned())
			}
			b := e.NewBatch()
			b.Apart()
			for _, id := range slices.Sorted(maps.Keys(want)) {
				if _, ok := e.Locate(id); ok && r.IntN(3) == 0 {
					b.Remove(id)
					delete(want, id)
				}
			}
			if err := e.Commit(b); err != nil {
				t.Error(err)
			}
			if id, err := put(t, e, "new"); err != nil {
				t.Error(err)
			} else {
				want[id] = seen(e)[id]
			}
		})
		<-over
		e.Close()
		e = next
		parts++
		if got := viewAll(t, d.store("look"), 1, 50, 50); len(got) != len(want) {
			t.Fatalf("the tables have %d messages, want %d", len(got), len(want))
		}
		if bytes, alive, _ := e.space(); alive > bytes {
			t.Errorf("%d octets are alive of %d", alive, bytes)
		}
	}
}

// deep has node a die with so many messages, of which agents had the oldest and the newest in hand.
func deep(t *testing.T, d *database, n int) (list []mail.QueueID) {
	t.Helper()
	a := d.store("a").mustOpen(t)
	for range n {
		id, err := put(t, a, "x")
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, id)
		if len(list) == 1 {
			err = leave(a, id)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := leave(a, list[n-1]); err != nil {
		t.Fatal(err)
	}
	a.stop()
	d.expire()
	return list
}

// doubts are the messages in the list that every node can see, with how often they are.
func (d *database) doubts() map[mail.QueueID]int {
	d.t.Helper()
	list := map[mail.QueueID]int{}
	if err := d.store("look").EachDoubt(d.t.Context(), func(x *Doubt) error { list[mail.QueueID(x.ID)]++; return nil }); err != nil {
		d.t.Fatal(err)
	}
	return list
}

// A node dies while it reads what another has left, and has a part of that in delivery already. The next owner finds all in doubt
// that either had in hand, whichever was first, and nothing else; the node that lost the part records nothing any more.
func TestAdopterDies(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	list := deep(t, d, 40)
	first, held := make(chan *engine), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(held) })
	b := adopting(t, d, "b", 2, t.Logf, func(e *engine, r storage.Recovery) {
		if len(e.whole()) == 0 {
			select {
			case first <- e:
				<-held
			case <-held:
			}
		}
	})
	t.Cleanup(goOn) // or a test that fails waits for b's end
	if <-first != b {
		t.Fatal("another engine")
	}
	early, oldest := list[35], list[0]
	if _, ok := b.Locate(oldest); ok {
		t.Fatal("all has been read")
	}
	if err := leave(b, early); err != nil {
		t.Fatal(err)
	}
	if got := d.doubts(); !reflect.DeepEqual(got, map[mail.QueueID]int{list[39]: 1}) {
		t.Errorf("in doubt: %v", got)
	}
	done := b.NewBatch()
	done.Done(list[39], []int{0, 1})
	if err := b.Commit(done); err != nil {
		t.Error(err)
	}
	b.lease.mu.Lock()
	b.lease.ending = true // nobody renews it, but the one who reads goes on
	b.lease.mu.Unlock()
	var c *engine
	testwait.Until(t, "c takes it over", func() bool {
		d.expire() // again: a renewal may have been under way
		var err error
		c, err = d.store("c").testOpen(t)
		return err == nil
	})
	goOn()
	<-b.Broken()
	if err := leave(b, list[30]); !errors.Is(err, queue.ErrNotOurs) {
		t.Errorf("the former owner: %v", err)
	}
	var names []mail.QueueID
	for _, x := range c.Recovery().InDoubt {
		names = append(names, x.ID)
	}
	if want := []mail.QueueID{oldest, early}; !slices.Equal(names, want) {
		t.Errorf("in doubt: %v, want %v", names, want)
	}
	if got, want := d.doubts(), (map[mail.QueueID]int{oldest: 1, early: 1, list[39]: 1}); !reflect.DeepEqual(got, want) {
		t.Errorf("listed: %v, want %v", got, want)
	}
	if n := len(seen(c)); n != 39 {
		t.Errorf("%d messages", n)
	}
}

// An orderly end while a shard is being read is none for that shard: what has not been read is in doubt for the next process.
func TestReloadWhileAdopting(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	list := deep(t, d, 40)
	first, goOn := make(chan bool), make(chan struct{})
	b := adopting(t, d, "b", 2, t.Logf, func(*engine, storage.Recovery) {
		select {
		case first <- true:
			<-goOn
		case <-goOn:
		}
	})
	<-first
	closed := make(chan error)
	go func() { closed <- b.Close() }()
	testwait.Until(t, "Close has begun", func() bool {
		b.queue.mu.Lock()
		defer b.queue.mu.Unlock()
		return b.queue.closing
	})
	close(goOn)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	b = d.store("b").mustOpen(t)
	r := b.Recovery()
	if len(r.InDoubt) != 2 || r.InDoubt[0].ID != list[0] || len(seen(b)) != 40 {
		t.Errorf("%d messages, in doubt %+v", len(seen(b)), r.InDoubt)
	}
	// What was found to be doubtful before the end is in the list once.
	if got, want := d.doubts(), (map[mail.QueueID]int{list[0]: 1, list[39]: 1}); !reflect.DeepEqual(got, want) {
		t.Errorf("listed: %v, want %v", got, want)
	}
}

// A connection that is lost while a shard is read does not end that: it goes on where it was.
func TestAdoptOverAnotherConnection(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	d := newDatabase(t, s, 1)
	list := deep(t, d, 60)
	conn := d.conn()
	over, cut, said := make(chan storage.Recovery, 1), false, make(chan string, 10)
	b := adopting(t, d, "b", 2, func(f string, a ...any) {
		select {
		case said <- fmt.Sprintf(f, a...):
		default: // there is enough
		}
	}, func(e *engine, r storage.Recovery) {
		if len(e.whole()) == 1 {
			over <- r
		} else if !cut {
			cut = true
			if _, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE application_name = 'posthaste b' AND query LIKE 'SELECT kind%' ORDER BY query_start DESC LIMIT 1`); err != nil {
				t.Error(err)
			}
		}
	})
	if r := <-over; !cut || !strings.Contains(r.Summary, "took over the queue from a: 60 messages") {
		t.Errorf("%+v", r)
	}
	close(said)
	lost := false
	for text := range said {
		lost = lost || strings.Contains(text, "the rest of what other nodes have left cannot be read")
	}
	if !lost {
		t.Error("the connection was not lost")
	}
	if len(seen(b)) != len(list) || len(d.doubts()) != 2 {
		t.Errorf("%d messages, in doubt %v", len(seen(b)), d.doubts())
	}
}

// New mail goes to the shards in turn, each time a segment is full, and content in rows of its own is found in the shard that it was
// written to, though new mail goes to another one by then.
func TestTurn(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 3)
	st := d.store("a")
	st.segmentSize = 8 << 10
	e := st.mustOpen(t)
	in := map[uint32]int{}
	for range 60 {
		id, err := put(t, e, strings.Repeat("x", 1000))
		if err != nil {
			t.Fatal(err)
		}
		en, _ := e.Locate(id)
		in[en.Ref.File]++
	}
	if len(in) != 3 || in[1] < 15 || in[2] < 15 || in[3] < 15 {
		t.Errorf("messages by shard: %v", in)
	}
	b := e.NewBatch()
	m := message(t, e, "")
	f, err := e.NewFile()
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("long", 5000)
	f.Write([]byte(text))
	m.Content, m.File = nil, f
	b.Add(m)
	if err := e.upload(b.(*batch)); err != nil {
		t.Fatal(err)
	}
	home := b.(*batch).ops[0].home
	if next := e.turn(); next == home {
		t.Fatal("it is not another one's turn")
	}
	pins := func() int {
		e.mu.RLock()
		defer e.mu.RUnlock()
		n := 0
		for _, s := range home.segs {
			n += s.pins
		}
		return n
	}
	if n := pins(); n != 1 {
		t.Errorf("the segment is kept for %d", n)
	}
	if err := e.Commit(b); err != nil {
		t.Fatal(err)
	}
	if n := pins(); n != 0 {
		t.Errorf("later the segment is kept for %d", n)
	}
	e.Close()
	e = d.store("a").mustOpen(t)
	en, _ := e.Locate(m.ID)
	if en.Ref.File != home.id {
		t.Errorf("it is in shard %d, its content in %d", en.Ref.File, home.id)
	}
	read(t, e.store.Reader(), en, text)
}

// An index that takes over another one is as if each message had been put in, and its chunks are full when what comes is in order.
func TestMerge(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(testseed.First(t), 0))
	for range 200 {
		var x, y, want = newIndex(), newIndex(), newIndex()
		at := 1 + r.IntN(3000)
		for range r.IntN(400) {
			l := &live{number: uint64(at)}
			if r.IntN(10) == 0 {
				at = 1 + r.IntN(3000)
			} else if at > 1 {
				at--
			}
			if want.find(l.number) != nil {
				continue
			}
			want.put(l)
			if r.IntN(2) == 0 {
				x.put(l)
			} else {
				y.put(l)
			}
		}
		x.merge(&y)
		numbers := func(x *index) (list []uint64) {
			for from, more := uint64(0), true; more; {
				from, more = x.page(from, func(l *live) { list = append(list, l.number) })
			}
			return list
		}
		if got := numbers(&x); !slices.Equal(got, numbers(&want)) || x.n != want.n {
			t.Fatalf("%v, %d\nwant %v, %d", got, x.n, numbers(&want), want.n)
		}
	}
	x := newIndex()
	for n := 10 * chunkLen; n > 0; n-- {
		x.put(&live{number: uint64(n)})
	}
	if len(x.chunks) != 10 {
		t.Errorf("%d chunks for what 10 have room for", len(x.chunks))
	}
}

// Shards can be added to a queue that is in use, and are taken at once; they cannot be taken away.
func TestAddShards(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 2)
	a := d.store("a").mustOpen(t)
	id, err := put(t, a, "x")
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	say := func(sql string) { said = append(said, sql) }
	for n, want := range map[int]string{0: "from 1 to 64", 65: "from 1 to 64", 1: "there are 2 shards"} {
		if err := d.store("x").AddShards(t.Context(), n, say); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v", n, err)
		}
	}
	if err := d.store("x").AddShards(t.Context(), 2, say); err != nil || len(said) > 0 {
		t.Errorf("as many as there are: %v, %q", err, said)
	}
	if err := d.store("x").AddShards(t.Context(), 5, say); err != nil || len(said) != 6 || said[0] != "INSERT INTO shard VALUES (3, NULL, 0);" {
		t.Errorf("%v, %q", err, said)
	}
	testwait.Until(t, "the node has them", func() bool { return len(a.whole()) == 5 })
	if _, ok := a.Locate(id); !ok {
		t.Error("the mail is gone")
	}
}

// What was recorded of a message since its state is made in the order in which it was recorded, though it is read the other way round.
func TestReadBackwards(t *testing.T) {
	t.Parallel()
	e := &engine{idx: newIndex()}
	e.opt.Warn = t.Errorf
	r := e.newReading(&taken{shard: shard{id: 1}})
	record := func(segno uint32, kind uint8, head []byte) {
		r.record(&segment{segno: segno}, &row{pos: 1, kind: kind, number: 7, head: sealHead(nil, head, kind, 7)}, 100)
	}
	h := handing{At: 5, Nexthop: "mx", Rcpts: []uint32{1}}
	record(4, rowHANDED, h.Append(nil, tagHanded))
	record(3, rowDONE, queue.AppendRcpts(nil, tagRcpts, []int{0}))
	if r.isKnown(7) {
		t.Error("it is known before its state is")
	}
	record(2, rowMSG, appendState(nil, &state{live: live{number: 7, created: 1, nrcpt: 2, npending: 2, first: 2}}, true))
	record(1, rowDONE, queue.AppendRcpts(nil, tagRcpts, []int{1})) // of before that state
	l := r.idx.find(7)
	if l == nil || l.last != 4 || l.refSeg != 2 || l.npending != 1 || len(r.idx.handed[7]) != 1 || len(r.later) != 0 {
		t.Errorf("%+v, in hand %v, left over %v", l, r.idx.handed[7], r.later)
	}
}

// The queue manager hears the whole queue some times only, although something is in doubt in each part that is read; and all that is in
// doubt is named.
func TestToldSeldom(t *testing.T) {
	t.Parallel()
	const n = 64
	d := newDatabase(t, newServer(t), 1)
	a := d.store("a").mustOpen(t)
	for range n {
		id, err := put(t, a, "x")
		if err == nil {
			err = leave(a, id)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	a.stop()
	d.expire()
	heard, parts, over := 0, 0, make(chan int, 1)
	b := adopting(t, d, "b", 2, t.Logf, func(e *engine, r storage.Recovery) {
		parts += len(r.InDoubt)
		if !r.More {
			heard++
		}
		if len(e.whole()) == 1 {
			over <- parts
		}
	})
	if got := <-over + len(b.Recovery().InDoubt); got != n || heard < 3 || heard > 10 {
		t.Errorf("%d in doubt, want %d; the queue is told %d times", got, n, heard)
	}
}

// A shard that cannot be read to its end does not keep those from being read that were taken with it.
func TestAdoptBesideUnreadable(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 2)
	st := d.store("a")
	st.segmentSize = 1
	a := st.mustOpen(t)
	var ids []mail.QueueID
	for i := range 30 {
		a.mu.Lock()
		a.home = a.shards[1+uint32(i/29)] // the last one goes to the second shard
		a.home.head = nil                 // to a segment of its own
		a.mu.Unlock()
		id, err := put(t, a, "x")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	a.stop()
	d.expire()
	conn := d.conn()
	for _, sql := range []string{
		"CREATE FUNCTION lost() RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RAISE 'missing chunk' USING ERRCODE = 'XX000'; END $$",
		"ALTER TABLE seg_1_1 RENAME TO kept",
		"CREATE VIEW seg_1_1 AS SELECT pos, kind, number, lost() AS head, rest, body FROM kept",
		"UPDATE node SET seen = '-infinity'", // so that both are taken together
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	b := adopting(t, d, "b", 2, t.Logf, func(*engine, storage.Recovery) {})
	testwait.Until(t, "a shard has been read", func() bool { return len(b.whole()) == 1 })
	if _, ok := b.Locate(ids[29]); !ok {
		t.Error("the second shard has not been read")
	}
	if got := b.Reading(); !slices.Equal(got, []int{1}) || len(seen(b)) != 29 {
		t.Errorf("%v is being read; %d messages", got, len(seen(b)))
	}
}
