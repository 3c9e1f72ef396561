package pgspool

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/queue"
	"posthaste/internal/testwait"

	"github.com/jackc/pgx/v5"
)

// Deliveries under way at an orderly end go on, and are not in doubt: the next process of the node has them in hand. After
// an end that was not orderly they are in doubt, once. Another node finds them so in either case.
func TestOrderlyEnd(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	st := d.store("a")
	a := st.mustOpen(t)
	id, err := put(t, a, "x")
	if err = errors.Join(err, leave(a, id)); err != nil {
		t.Fatal(err)
	}
	look := func(what string, e *engine, unclean bool, inHand, inDoubt, listed int) {
		t.Helper()
		r := e.Recovery()
		if hands := slices.Collect(e.Hands); len(hands) != inHand || len(r.InDoubt) != inDoubt || r.Unclean != unclean || e.busy() != (inHand > 0) {
			t.Errorf("%s: in hand %v, in doubt %v, unclean %v", what, hands, r.InDoubt, r.Unclean)
		}
		n := 0
		if err := d.store("look").EachDoubt(t.Context(), func(*Doubt) error { n++; return nil }); err != nil || n != listed {
			t.Errorf("%s: %d are listed as doubtful, want %d: %v", what, n, listed, err)
		}
	}
	a.Close()
	a = d.store("a").mustOpen(t)
	look("a reload", a, false, 1, 0, 0)
	a.fail(queue.ErrBroken) // as when the connection is lost: agents go on
	a.Close()
	a = a.store.mustOpen(t)
	look("opened again by the process itself", a, true, 1, 0, 0)
	a.fail(queue.ErrBroken)
	a.Close()
	a = d.store("a").mustOpen(t)
	look("killed", a, true, 0, 1, 1)
	a.Close()
	a = d.store("a").mustOpen(t)
	if err := leave(a, id); err != nil {
		t.Fatal(err)
	}
	a.Close()
	d.expire()
	b := d.store("b").mustOpen(t)
	look("another node", b, false, 0, 1, 2)
}

// What has been named as doubtful is not waited for when the queue is handed over, unless it is tried again.
func TestDrainWithDoubt(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a := d.store("a").mustOpen(t)
	id, err := put(t, a, "x")
	if err = errors.Join(err, leave(a, id)); err != nil {
		t.Fatal(err)
	}
	if a.Doubtful(id, []int{1}); !a.busy() {
		t.Error("of another recipient")
	}
	if a.Doubtful(id, []int{0}); a.busy() || len(slices.Collect(a.Hands)) > 0 || len(a.InHand(id, []int{0})) != 1 {
		t.Error("it is waited for")
	}
	if err := leave(a, id); err != nil || !a.busy() {
		t.Errorf("tried again: %v", err)
	}
	a.Doubtful(id, []int{0})
	if err := d.store("look").Drain(t.Context(), "a", true); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it is handed over", func() bool { return errors.Is(a.Err(), queue.ErrNotOurs) })
}

// A queue that an older program has made gets the tables that it lacks, whoever is first.
func TestLaterTables(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 2)
	conns := []*pgx.Conn{d.conn(), d.conn(), d.conn(), d.conn()}
	for range 20 {
		for _, x := range later {
			if _, err := conns[0].Exec(t.Context(), "DROP TABLE "+x[0]); err != nil {
				t.Fatal(err)
			}
		}
		failed := make(chan error, len(conns))
		for _, conn := range conns {
			go func() { failed <- addTables(t.Context(), conn) }()
		}
		for range conns {
			if err := <-failed; err != nil {
				t.Error(err)
			}
		}
	}
	d.store("a").mustOpen(t).Close()
}

// What main.cf sets differently on nodes that live is listed; what each has its own value of, or may be secret, is not
// even published, and neither is any value.
func TestSettingsCompared(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 3)
	for node, main := range map[string]string{
		"a": "myhostname = a.test\nmessage_size_limit = 1000\nrelayhost =   x.test\n y.test\n",
		"b": "myhostname = b.test\nmessage_size_limit = 2000\nrelayhost = x.test y.test\nsmtp_sasl_password_maps = hash:/b\n",
		"c": "message_size_limit = 1000\nrelayhost = x.test y.test\nmydestination = c.test\n",
		"d": "message_size_limit = 5\n", // it does not live
	} {
		cfg, err := config.LoadString(main)
		if err != nil {
			t.Fatal(err)
		}
		st := d.store(node)
		st.settings = digestSettings(cfg)
		if err := st.register(t.Context(), d.conn()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.conn().Exec(t.Context(), "UPDATE node SET seen = clock_timestamp() - interval '1 hour' WHERE name = 'd'"); err != nil {
		t.Fatal(err)
	}
	st, err := d.store("look").Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(st.Differ), "[{message_size_limit [[a c] [b]]} {mydestination [[a b] [c]]}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var n int
	err = d.conn().QueryRow(t.Context(), "SELECT count(*) FROM node_setting WHERE name LIKE '%password%' OR name = 'myhostname' OR digest !~ '^[0-9a-f]{16}$'").Scan(&n)
	if err != nil || n != 0 {
		t.Errorf("%d rows that should not be there, %v", n, err)
	}
}
