package pgspool

import (
	"context"
	"errors"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
	"posthaste/internal/testwait"
)

// pair opens the queue of two shards on two nodes, each of which has one.
func pair(t *testing.T, adopted func(storage.Recovery)) (d *database, a, b *engine) {
	t.Helper()
	d = newDatabase(t, newServer(t), 2)
	for _, node := range []string{"a", "b"} { // each knows of the other before it takes its share
		if err := d.store(node).register(t.Context(), d.conn()); err != nil {
			t.Fatal(err)
		}
	}
	a = d.store("a").mustOpen(t)
	en, err := d.store("b").Open(context.Background(), storage.Options{TempDir: t.TempDir(), InlineLimit: 1000, Warn: t.Logf,
		Adopted: func(_ storage.Engine, r storage.Recovery) { adopted(r) }})
	if err != nil {
		t.Fatal(err)
	}
	b = en.(*engine)
	t.Cleanup(func() { b.Close() })
	if len(a.owned()) != 1 || len(b.owned()) != 1 || a.home.id == b.home.id {
		t.Fatalf("%d and %d shards", len(a.owned()), len(b.owned()))
	}
	return d, a, b
}

// The mail of a node that is dead comes into the queue of one that lives, while that is in use; what the dead one's
// agents had in hand is doubtful. What is under way there is not disturbed.
func TestAdopt(t *testing.T) {
	t.Parallel()
	told := make(chan storage.Recovery, 1)
	d, a, b := pair(t, func(r storage.Recovery) { told <- r })
	id, err := put(t, a, "one")
	long, err2 := put(t, a, "two")
	mine, err3 := put(t, b, "three")
	if err := errors.Join(err, err2, err3, leave(a, id)); err != nil {
		t.Fatal(err)
	}
	a.stop()
	if _, err := d.conn().Exec(t.Context(), "UPDATE lease SET until = '-infinity' WHERE shard = $1", int(a.home.id)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.conn().Exec(t.Context(), "UPDATE node SET seen = '-infinity' WHERE name = 'a'"); err != nil {
		t.Fatal(err)
	}
	r := <-told
	if len(r.InDoubt) != 1 || r.InDoubt[0].ID != id {
		t.Errorf("%+v", r)
	}
	if len(b.owned()) != 2 {
		t.Errorf("%d shards", len(b.owned()))
	}
	rd := b.store.Reader()
	for id, want := range map[mail.QueueID]string{id: "one", long: "two", mine: "three"} {
		en, ok := b.Locate(id)
		if !ok {
			t.Fatalf("%s is not there", id)
		}
		read(t, rd, en, want)
	}
	if err := leave(a, long); !errors.Is(err, queue.ErrNotOurs) {
		t.Errorf("the former owner: %v", err)
	}
	if err := leave(b, long); err != nil {
		t.Error(err)
	}
	batch := b.NewBatch()
	batch.Done(long, []int{0, 1})
	batch.Update(id, queue.Change{Set: queue.SetAttempts, Attempts: 5})
	if err := b.Commit(batch); err != nil {
		t.Fatal(err)
	}
	tidy(t, b)
	b.Close()
	b = d.store("b").mustOpen(t)
	en, ok := b.Locate(id)
	if _, still := b.Locate(long); still || !ok || en.Attempts != 5 || len(b.owned()) != 2 {
		t.Errorf("after a start: %v %v %+v", still, ok, en)
	}
}

// A node that hands over a part of what it has takes new mail while its deliveries end, and loses none of it.
func TestHandOverTakesMail(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 2)
	a := d.store("a").mustOpen(t)
	id, err := put(t, a, "one")
	if err := errors.Join(err, leave(a, id)); err != nil {
		t.Fatal(err)
	}
	// Another node is there, for good.
	if _, err := d.conn().Exec(t.Context(), "INSERT INTO node VALUES ('b', 'x', clock_timestamp() + interval '1 hour')"); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it begins to hand over", a.drained.Load)
	if err := a.Silent(); err != nil {
		t.Errorf("new mail is refused: %v", err)
	}
	late, err := put(t, a, "two")
	if err != nil {
		t.Fatal(err)
	}
	done := a.NewBatch()
	done.Done(id, []int{0, 1})
	if err := a.Commit(done); err != nil {
		t.Fatal(err)
	}
	<-a.Broken()
	if err := a.Silent(); !errors.Is(err, queue.ErrSilent) {
		t.Errorf("after that: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Logf("%v", err)
	}
	// Nobody has anything now: all of it is there, in the parts of both.
	if _, err := d.conn().Exec(t.Context(), "DELETE FROM node WHERE name = 'b'"); err != nil {
		t.Fatal(err)
	}
	again := d.store("a").mustOpen(t)
	if _, ok := again.Locate(late); !ok {
		t.Error("what came meanwhile is lost")
	}
	if _, ok := again.Locate(id); ok {
		t.Error("what was delivered is in the queue again")
	}
}

// A node that is drained gives no leave any more, waits for what agents have in hand, gives up its shards, and takes
// none.
func TestDrain(t *testing.T) {
	t.Parallel()
	told := make(chan storage.Recovery, 1)
	d, a, b := pair(t, func(r storage.Recovery) { told <- r })
	id, err := put(t, a, "one")
	other, err2 := put(t, a, "two")
	if err := errors.Join(err, err2, leave(a, id)); err != nil {
		t.Fatal(err)
	}
	if err := d.store("x").Drain(t.Context(), "nobody", true); err == nil {
		t.Error("a node that does not exist is drained")
	}
	if err := d.store("x").Drain(t.Context(), "a", true); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "new mail is refused", func() bool { return errors.Is(a.Silent(), queue.ErrSilent) })
	late := make(chan error, 1)
	ask := a.NewBatch()
	ask.Apart()
	ask.Handed(other, []int{0}, "x")
	a.Post(ask, func(err error) { late <- err })
	a.Hurry()
	select {
	case <-a.Broken():
		t.Error("it does not wait for the delivery under way")
	default:
	}
	done := a.NewBatch()
	done.Done(id, []int{0, 1})
	if err := a.Commit(done); err != nil {
		t.Errorf("the outcome of that: %v", err)
	}
	<-a.Broken()
	if err := <-late; !errors.Is(err, queue.ErrNotOurs) {
		t.Errorf("leave to deliver: %v", err)
	}
	if r := <-told; len(r.InDoubt) != 0 {
		t.Errorf("in doubt: %+v", r.InDoubt)
	}
	if _, ok := b.Locate(other); !ok {
		t.Error("the other node does not have the mail")
	}
	if _, ok := b.Locate(id); ok {
		t.Error("what was delivered is in the queue again")
	}
	if _, err := d.store("a").testOpen(t); !errors.Is(err, queue.ErrNotOurs) {
		t.Errorf("a drained node: %v", err)
	}
	if err := d.store("x").Drain(t.Context(), "a", false); err != nil {
		t.Error(err)
	}
}

// Of several shards of a dead node each is taken in as soon as it has been read.
func TestAdoptOneByOne(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 3)
	a := d.store("a").mustOpen(t)
	a.stop()
	conn := d.conn()
	do := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	do("UPDATE lease SET until = CASE WHEN shard = 3 THEN timestamptz '-infinity' ELSE 'infinity' END")
	told := make(chan int, 2)
	st := d.store("b")
	en, err := st.Open(t.Context(), storage.Options{TempDir: t.TempDir(), InlineLimit: 128 << 10, PostDelay: 50 * time.Millisecond, Warn: t.Logf,
		Adopted: func(e storage.Engine, _ storage.Recovery) { told <- len(e.(*engine).owned()) }})
	if err != nil {
		t.Fatal(err)
	}
	defer en.Close()
	do("UPDATE node SET seen = '-infinity' WHERE name = 'a'; UPDATE lease SET until = '-infinity' WHERE shard < 3")
	testwait.Until(t, "both are taken in", func() bool { return len(told) == 2 })
	if first, second := <-told, <-told; first != 2 || second != 3 {
		t.Errorf("%d shards, then %d", first, second)
	}
}
