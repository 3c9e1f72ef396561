package pgspool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
	"posthaste/internal/testwait"
)

// The server's settings that lose mail are told by who gets the queue, at once; a node that stands by tries again each second,
// and tells nothing.
func TestUnsafeServer(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t, "fsync=off"), 1)
	warned := func(node string, want error) (n int) {
		en, err := d.store(node).Open(context.Background(), storage.Options{TempDir: t.TempDir(), InlineLimit: 128 << 10, PostDelay: 50 * time.Millisecond,
			Warn: func(f string, args ...any) {
				if strings.Contains(fmt.Sprintf(f, args...), "has fsync = off: mail may be lost") {
					n++
				}
			}})
		if !errors.Is(err, want) {
			t.Fatal(err)
		}
		if err == nil {
			t.Cleanup(func() { en.Close() })
		}
		return n
	}
	if n := warned("a", nil); n != 1 {
		t.Errorf("who gets the queue: %d warnings", n)
	}
	if n := warned("b", queue.ErrNotOurs); n != 0 {
		t.Errorf("who stands by: %d warnings", n)
	}
}

// A lease is as long as cluster_lease_time says, when a part of the queue is taken and when it is renewed; so long others leave it
// alone, and mail is taken; a third of it before its end no delivery begins.
func TestLeaseTime(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	st := d.store("a")
	st.lease = 2 * time.Hour
	a := st.mustOpen(t)
	conn := d.conn()
	left := func() (left time.Duration) {
		if err := conn.QueryRow(t.Context(), "SELECT until - clock_timestamp() FROM lease").Scan(&left); err != nil {
			t.Fatal(err)
		}
		return left
	}
	if l := left(); l < time.Hour || l > 2*time.Hour {
		t.Errorf("%v are left of the lease", l)
	}
	if _, err := conn.Exec(t.Context(), "UPDATE lease SET until = clock_timestamp() + interval '1 second'"); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the lease is renewed for as long", func() bool { return left() > time.Hour })
	if _, err := d.store("b").testOpen(t); !errors.Is(err, queue.ErrNotOurs) {
		t.Errorf("another node: %v", err)
	}
	l := &lease{lasts: st.leaseTime(), margin: st.margin()}
	for _, c := range []struct {
		ago           time.Duration
		good, overdue bool
	}{{79 * time.Minute, true, false}, {81 * time.Minute, false, false}, {119 * time.Minute, false, false}, {121 * time.Minute, false, true}} {
		if l.renewed = time.Now().Add(-c.ago); l.good() != c.good || l.overdue() != c.overdue {
			t.Errorf("renewed %v ago: good %v, overdue %v", c.ago, l.good(), l.overdue())
		}
	}
	if err := errors.Join(a.Silent(), a.Err()); err != nil {
		t.Error(err)
	}
}

// main.cf's cluster_lease_time is that of the store.
func TestLeaseTimeIsSet(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"": 3 * time.Second, "cluster_lease_time = 40s\n": 40 * time.Second} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "main.cf"), []byte("spool_postgresql_url = postgres://mail@db.test/mail\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		st, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := st.leaseTime(); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
		st.Close()
	}
}

// One node owns the queue. Another gets it when the lease has run out, and then the former owner can
// record nothing any more, and gets no leave to deliver.
func TestTakeover(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a := d.store("a").mustOpen(t)
	first, err := put(t, a, "one")
	second, err2 := put(t, a, "two")
	if err = errors.Join(err, err2, leave(a, first)); err != nil {
		t.Fatal(err)
	}
	late, third := a.NewBatch(), message(t, a, "three")
	if _, err := d.store("b").testOpen(t); !errors.Is(err, queue.ErrNotOurs) || !strings.Contains(err.Error(), "a has it") {
		t.Fatalf("while a lives: %v", err)
	}
	a.stop() // it does not renew its lease any more, as when it hangs
	d.expire()
	b := d.store("b").mustOpen(t)
	r := b.Recovery()
	if len(r.InDoubt) != 1 || r.InDoubt[0].ID != first || !slices.Equal(r.InDoubt[0].Rcpts, []int{0}) || !r.Exact || !strings.Contains(r.Summary, "took over the queue from a: 2 messages") {
		t.Errorf("%+v", r)
	}
	if err := leave(a, second); !errors.Is(err, queue.ErrNotOurs) {
		t.Errorf("leave to deliver: %v", err)
	}
	late.Reset()
	late.Add(third)
	if err := a.Commit(late); !errors.Is(err, queue.ErrNotOurs) {
		t.Errorf("a message: %v", err)
	}
	select {
	case <-a.Broken():
	default:
		t.Error("it does not say that it has ended")
	}
	n := 0
	for range b.Entries {
		n++
	}
	if n != 2 {
		t.Errorf("%d messages", n)
	}
	var got []Doubt
	if err := d.store("look").EachDoubt(t.Context(), func(x *Doubt) error { got = append(got, *x); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].ID != string(first) || got[0].Recipient != 0 || got[0].Node != "b" || got[0].LostBy != "a" || got[0].Nexthop != "mx.to.test" {
		t.Errorf("%+v", got)
	}
	// The successor of a process on the same node has it at once.
	b.Close()
	if b, err = d.store("b").testOpen(t); err != nil {
		t.Fatal(err)
	}
	b.Close()
}

// A node that hears that its lease was not renewed stops by itself, and says so.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a := d.store("a").mustOpen(t)
	if _, err := put(t, d.seize("b"), "x"); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it stops", func() bool { return a.Err() != nil })
	if err := a.Err(); !errors.Is(err, queue.ErrNotOurs) {
		t.Error(err)
	}
}

// Without a good lease nobody gets leave to deliver, although the database still lets it be recorded; and
// with the next renewal, all who wait.
func TestNoLeaveWithoutLease(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	for _, planted := range []bool{false, true} {
		st := d.store("a")
		st.plant.noLease = planted
		a := st.mustOpen(t)
		a.stop()
		id, err := put(t, a, "x")
		if err != nil {
			t.Fatal(err)
		}
		a.lease.mu.Lock()
		a.lease.renewed = time.Now().Add(-a.lease.lasts) // which is when it runs out
		a.lease.mu.Unlock()
		got := make(chan error, 1)
		b := a.NewBatch()
		b.Apart()
		b.Handed(id, []int{0}, "x")
		a.Post(b, func(err error) { got <- err })
		a.Hurry()
		testwait.Until(t, "it is recorded", func() bool { return len(a.InHand(id, []int{0})) == 1 })
		if err := a.Silent(); !errors.Is(err, queue.ErrSilent) {
			t.Errorf("new mail: %v", err)
		}
		given := false
		if planted {
			testwait.Until(t, "the fault shows", func() bool { given = len(got) == 1; return given })
		} else if given = len(got) == 1; given {
			t.Error("leave was given without a lease")
		}
		if !given {
			for _, r := range a.lease.extend(time.Now()) {
				r.finish(nil)
			}
			if err := <-got; err != nil {
				t.Error(err)
			}
		}
		a.Close()
	}
}

// fenced has a node go on that has lost its shard, and returns a message that it was told is queued, and
// that the new owner does not know: it would never be delivered.
func fenced(t *testing.T, d *database, p plant) (lost bool) {
	old := d.store("old")
	old.plant = p
	a := old.mustOpen(t)
	a.stop()
	d.expire()
	b := d.store("new").mustOpen(t)
	id, err := put(t, a, "x")
	if err != nil {
		return false
	}
	_, found := b.Locate(id)
	b.Close()
	b = d.store("new").mustOpen(t)
	defer b.Close()
	_, later := b.Locate(id)
	return !found || !later
}

// What fences a former owner off is the look at the epoch, and nothing else: without it, mail is lost.
func TestEpoch(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	if fenced(t, newDatabase(t, s, 1), plant{}) {
		t.Error("a node that had lost its shard was told that a message is queued")
	}
	if !fenced(t, newDatabase(t, s, 1), plant{noEpoch: true}) {
		t.Error("the test does not notice that the epoch is not looked at")
	}
}

// A transaction of a node that hangs, which has locked the shard's row, does not keep the others from taking it
// over.
func TestTakeoverFromHung(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a := d.store("a").mustOpen(t)
	a.stop()
	sh := a.owned()
	hung, err := d.store("a").connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close(context.Background())
	if rows, err := run(t.Context(), hung, a.store.beginSQL(sh)); rows != 1 || err != nil {
		t.Fatal(rows, err)
	}
	if _, err := d.store("b").testOpen(t); err == nil {
		t.Fatal("it was taken over while the lease is good")
	}
	// The row of the lease is not locked, only the shard's.
	d.seize("b")
	if _, err := run(t.Context(), hung, "COMMIT"); err == nil {
		t.Error("the former owner's transaction went on")
	}
}

// Two installations of one name do not take the queue from each other for ever: the second is refused.
func TestSameName(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	d.store("a").mustOpen(t)
	other := d.store("a")
	other.instance = "elsewhere:/q"
	if _, err := other.testOpen(t); err == nil || errors.Is(err, queue.ErrNotOurs) || errors.Is(err, queue.ErrBroken) || !strings.Contains(err.Error(), "another installation has this name") {
		t.Error(err)
	}
}

// A database without a queue, or of another version, is for a person to mend; one that does not answer
// is not.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	d := newDatabase(t, s, 1)
	passes := func(err error) bool { return errors.Is(err, queue.ErrBroken) || errors.Is(err, queue.ErrNotOurs) }
	empty := &database{t: t, url: strings.Replace(d.url, "search_path=", "search_path=none", 1)}
	if _, err := empty.store("a").testOpen(t); !errors.Is(err, errNoSchema) || passes(err) {
		t.Errorf("no tables: %v", err)
	}
	if err := d.store("a").Init(t.Context(), 1, func(string) {}); err == nil || !strings.Contains(err.Error(), "has a queue already") {
		t.Errorf("a second init: %v", err)
	}
	wrong := d.store("a")
	wrong.config.Password = "wrong"
	if _, err := wrong.testOpen(t); !passes(err) || strings.Contains(err.Error(), "secret") {
		t.Errorf("a wrong password: %v", err)
	}
	if _, err := d.conn().Exec(t.Context(), "UPDATE version SET number = 99"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.store("a").testOpen(t); err == nil || passes(err) || !strings.Contains(err.Error(), "version 99") {
		t.Errorf("another version: %v", err)
	}
	s.Stop()
	if _, err := d.store("a").testOpen(t); !passes(err) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("no server: %v", err)
	}
}

// The URL is checked without saying what is in it.
func TestURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                                    "want postgres://",
		"mysql://u@h/d":                       "want postgres://",
		"postgres://u@h:x/d":                  "want postgres://",
		"postgres://u:topsecret@h/d":          "password does not belong",
		"postgres://u@h/d?password=topsecret": "password does not belong",
		"postgres://u@h/d?sslmode=never":      "want postgres://",
	} {
		if _, err := parseURL(url); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "topsecret") {
			t.Errorf("%s: %v", url, err)
		}
	}
	c, err := parseURL("postgres://u@h1,h2:6432/d?sslmode=disable")
	if err != nil || c.RuntimeParams["search_path"] != "posthaste" || len(c.Fallbacks) != 1 || c.Fallbacks[0].Port != 6432 || c.ValidateConnect == nil {
		t.Errorf("%+v %v", c, err)
	}
}

var _ storage.Store = (*Store)(nil)

// All shards that were this node's are there when the queue is open, though commits take long: an agent says then what came of a
// delivery that it had in hand, and that is not lost. It still has it in hand also when the queue is not opened at the first attempt.
func TestOwnFirst(t *testing.T) {
	t.Parallel()
	const shards = 6
	d := newDatabase(t, newServer(t), shards)
	a := d.store("a").mustOpen(t)
	a.mu.Lock()
	a.home = a.shards[shards] // the last one to be taken
	a.mu.Unlock()
	id, err := put(t, a, "x")
	if err == nil {
		err = leave(a, id)
	}
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	conn := d.conn()
	if _, err := conn.Exec(t.Context(), `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(.4); RETURN NEW; END $$;
		CREATE TRIGGER slow BEFORE UPDATE ON shard FOR EACH ROW EXECUTE FUNCTION slow()`); err != nil {
		t.Fatal(err)
	}
	st := d.store("a")
	if got, err := st.take(t.Context(), conn, shards); got == nil || !got.resumed || err != nil {
		t.Fatalf("%+v, %v", got, err)
	}
	a = st.mustOpen(t)
	if n := len(a.whole()); n != shards {
		t.Errorf("%d shards of %d", n, shards)
	}
	if r := a.Recovery(); len(r.InDoubt) > 0 {
		t.Errorf("in doubt: %v", r.InDoubt)
	}
	b := a.NewBatch()
	b.Done(id, []int{0, 1})
	if err := a.Commit(b); err != nil {
		t.Error(err)
	}
	if _, ok := a.Locate(id); ok {
		t.Error("what came of it is lost")
	}
}

// A process that has its queue open again without one of its parts loses what agents say of the mail there: when the part comes back,
// what was in hand is doubtful. One that has had the part all the time goes on with it.
func TestBackLater(t *testing.T) {
	t.Parallel()
	for _, orderly := range []bool{false, true} {
		d := newDatabase(t, newServer(t), 2)
		st := d.store("a")
		a := st.mustOpen(t)
		a.mu.Lock()
		a.home = a.shards[2] // the one that is left over when there is another node
		a.mu.Unlock()
		id, err := put(t, a, "x")
		if err == nil {
			err = leave(a, id)
		}
		if err != nil {
			t.Fatal(err)
		}
		if orderly {
			a.Close()
			st = d.store("a") // a successor
		} else {
			a.fail(errors.New("the database was away"))
			a.Close()
		}
		d.alive("b")
		a = st.mustOpen(t)
		if n := len(a.whole()); n != 1 {
			t.Fatalf("%d shards, want 1", n)
		}
		if _, err := d.conn().Exec(t.Context(), "UPDATE node SET seen = '-infinity' WHERE name = 'b'"); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "the other part is back", func() bool { return len(a.whole()) == 2 })
		if got := d.doubts(); !reflect.DeepEqual(got, map[mail.QueueID]int{id: 1}) {
			t.Errorf("orderly %v: in doubt: %v", orderly, got)
		}
		// From now on it is had like the other one.
		a.fail(errors.New("the database was away"))
		a.Close()
		if a = st.mustOpen(t); len(a.Recovery().InDoubt) > 0 {
			t.Errorf("orderly %v: in doubt: %v", orderly, a.Recovery().InDoubt)
		}
	}
}

// A part that a process has left in order, and its successor has not taken, is none that the process after that goes on with: what
// agents said of its mail in between was not heard. Another node has it at once.
func TestLeftOver(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 2)
	a := d.store("a").mustOpen(t)
	a.mu.Lock()
	a.home = a.shards[2] // the one that is left over when there is another node
	a.mu.Unlock()
	id, err := put(t, a, "x")
	if err = errors.Join(err, leave(a, id)); err != nil {
		t.Fatal(err)
	}
	a.Close()
	d.alive("b")
	a = d.store("a").mustOpen(t)
	a.stop() // so that it takes nothing more
	if n := len(a.whole()); n != 1 {
		t.Fatalf("%d shards, want 1", n)
	}
	free := 0
	if err := d.conn().QueryRow(t.Context(), "SELECT count(*) FROM shard JOIN lease ON shard = id WHERE node IS NULL AND until = '-infinity'").Scan(&free); err != nil || free != 1 {
		t.Errorf("%d shards are free, %v", free, err)
	}
	a.Close()
	if _, err := d.conn().Exec(t.Context(), "UPDATE node SET seen = '-infinity' WHERE name = 'b'"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		a = d.store("a").mustOpen(t)
		// Its second opening finds the same delivery, and the list has it once.
		if got := d.doubts(); len(a.whole()) != 2 || !reflect.DeepEqual(got, map[mail.QueueID]int{id: 1}) {
			t.Errorf("%d shards, in doubt: %v", len(a.whole()), got)
		}
		a.fail(errors.New("killed"))
		a.Close()
	}
}
