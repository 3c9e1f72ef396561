package pgspool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/storage"
	"posthaste/internal/testwait"
)

// attended has a node answer calls with f until the test ends, or what is returned is called.
func attended(t *testing.T, s *Store, f func(context.Context, storage.Call) ([]byte, error)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Reader().(storage.Courier).Attend(ctx, f, t.Logf) })
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return stop
}

// alive makes nodes known, as if they had just been seen.
func (d *database) alive(nodes ...string) {
	d.t.Helper()
	for _, n := range nodes {
		if _, err := d.conn().Exec(d.t.Context(), "INSERT INTO node VALUES ($1, $1, clock_timestamp() + interval '1 hour')", n); err != nil {
			d.t.Fatal(err)
		}
	}
}

// calls counts the rows of the table.
func (d *database) calls(conn *pgx.Conn) (n int) {
	d.t.Helper()
	if err := conn.QueryRow(d.t.Context(), "SELECT count(*) FROM node_call").Scan(&n); err != nil {
		d.t.Fatal(err)
	}
	return n
}

// A node carries out what another asks it for, once, and its answer or error arrives, whatever octets it has. What nobody takes
// is not carried out, and the table is empty in the end.
func TestCourier(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	d.alive("a", "b", "c")
	if _, err := d.conn().Exec(t.Context(), "UPDATE node SET seen = clock_timestamp() - interval '1 hour' WHERE name = 'c'"); err != nil {
		t.Fatal(err)
	}
	a, b := d.store("a"), d.store("b")
	ask := a.Reader().(storage.Courier)
	var done atomic.Int64
	stop := attended(t, b, func(_ context.Context, c storage.Call) ([]byte, error) {
		done.Add(1)
		if c.Kind == 2 {
			return nil, errors.New("it is refused:\x00 no")
		}
		return fmt.Appendf(nil, "%s %s %d %q", c.From, c.By, c.Kind, c.Payload), nil
	})
	for i := range 5 {
		got, err := ask.Ask(t.Context(), "b", storage.Call{By: "ann\xff", Kind: 1, Payload: []byte{0, 0xff, byte(i)}})
		if want := fmt.Sprintf(`a ann\xff 1 "\x00\xff\x%02x"`, i); err != nil || string(got) != want {
			t.Fatalf("%s, %v; want %s", got, err, want)
		}
	}
	if _, err := ask.Ask(t.Context(), "b", storage.Call{Kind: 2}); err == nil || !strings.Contains(err.Error(), "it is refused:") {
		t.Error(err)
	}
	var not storage.ErrNotCarriedOut
	if _, err := ask.Ask(t.Context(), "c", storage.Call{Kind: 1}); !errors.As(err, &not) || !strings.Contains(err.Error(), "does not answer") {
		t.Error(err)
	}
	if _, err := ask.Ask(t.Context(), "b", storage.Call{Kind: 1, Payload: make([]byte, storage.CallSize+1)}); !errors.As(err, &not) {
		t.Error(err)
	}
	stop()
	if n := done.Load(); n != 6 {
		t.Errorf("%d calls were carried out, 6 were made", n)
	}
	if n := d.calls(d.conn()); n != 0 {
		t.Errorf("%d calls are left", n)
	}
	want := []storage.Member{{Name: "a", Own: true, Alive: true}, {Name: "b", Alive: true}, {Name: "c"}}
	if got, err := ask.Nodes(); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Two processes of a node, as at a reload, carry out each call once, however many come at the same time; what does not fit is refused, and
// is not carried out. Of one that a busy machine is too late for, whoever asks hears that nobody knows.
func TestCourierOnce(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	d.alive("a", "b")
	var mu sync.Mutex
	seen := map[string]int{}
	f := func(_ context.Context, c storage.Call) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		seen[string(c.Payload)]++
		return c.Payload, nil
	}
	attended(t, d.store("b"), f)
	attended(t, d.store("b"), f)
	ask := d.store("a").Reader().(storage.Courier)
	var asking sync.WaitGroup
	answered, unknown := make([]bool, 24), make([]bool, 24)
	for i := range answered {
		asking.Go(func() {
			text := fmt.Sprint(i)
			got, err := ask.Ask(t.Context(), "b", storage.Call{Kind: 1, Payload: []byte(text)})
			var not storage.ErrNotCarriedOut
			switch {
			case err == nil && string(got) == text:
				answered[i] = true
			case err != nil && strings.Contains(err.Error(), "whether it is carried out is not known"):
				unknown[i] = true
			case !errors.As(err, &not):
				t.Errorf("%s: %q, %v", text, got, err)
			}
		})
	}
	asking.Wait()
	mu.Lock()
	defer mu.Unlock()
	for i, yes := range answered {
		if n := seen[fmt.Sprint(i)]; n > 1 || (n == 1) != yes && !unknown[i] {
			t.Errorf("call %d: carried out %d times, answered: %v", i, n, yes)
		}
	}
}

// A server that says that it ends the session, and not what became of the transaction, leaves open whether a call is carried out. One
// that refuses the transaction does not.
func TestCallLeftOpen(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	d.alive("a", "b")
	for state, open := range map[string]bool{"57P01": true, "53100": false} {
		if _, err := d.conn().Exec(t.Context(), `CREATE OR REPLACE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'at COMMIT' USING ERRCODE = '`+state+`'; END $$;
			DROP TRIGGER IF EXISTS late ON node_call; CREATE CONSTRAINT TRIGGER late AFTER INSERT ON node_call DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()`); err != nil {
			t.Fatal(err)
		}
		_, err := d.store("a").Reader().(storage.Courier).Ask(t.Context(), "b", storage.Call{Kind: 1})
		var not storage.ErrNotCarriedOut
		if err == nil || errors.As(err, &not) == open || strings.Contains(err.Error(), "is not known") != open {
			t.Errorf("%s: %v", state, err)
		}
	}
}

// A node that dies with a call in hand is told apart from one that has not begun.
func TestCourierDies(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	d.alive("a", "b")
	begun, end := make(chan struct{}), make(chan struct{})
	attended(t, d.store("b"), func(context.Context, storage.Call) ([]byte, error) {
		close(begun)
		<-end
		return nil, nil
	})
	defer close(end)
	failed := make(chan error, 1)
	go func() {
		_, err := d.store("a").Reader().(storage.Courier).Ask(context.Background(), "b", storage.Call{Kind: 1})
		failed <- err
	}()
	<-begun
	if _, err := d.conn().Exec(t.Context(), "UPDATE node SET seen = '-infinity' WHERE name = 'b'"); err != nil {
		t.Fatal(err)
	}
	err := <-failed
	var not storage.ErrNotCarriedOut
	if err == nil || errors.As(err, &not) || !strings.Contains(err.Error(), "is not known") {
		t.Error(err)
	}
	// What nobody waits for any more is deleted, by whoever looks.
	if _, err := d.conn().Exec(t.Context(), "UPDATE node_call SET until = '-infinity'"); err != nil {
		t.Fatal(err)
	}
	attended(t, d.store("c"), nil)
	conn := d.conn()
	testwait.Until(t, "the call is deleted", func() bool { return d.calls(conn) == 0 })
}

// A process that finds a call at the same moment as another one, and waits for it, does not take it again.
func TestCallTakenBeside(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	st := d.store("b")
	first, look, second := d.conn(), d.conn(), d.conn()
	if _, err := first.Exec(t.Context(), "INSERT INTO node_call VALUES ('x', 'a', 'b', '', 1, '', 'infinity')"); err != nil {
		t.Fatal(err)
	}
	tx, err := first.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	one := &attending{store: st}
	if id, _, err := one.take(t.Context(), tx.Conn()); id != "x" || err != nil {
		t.Fatal(id, err)
	}
	taken := make(chan string, 1)
	go func() {
		id, _, err := one.take(context.Background(), second)
		taken <- fmt.Sprint(id, err)
	}()
	testwait.Until(t, "the other waits", func() (waits bool) {
		err := look.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid = $1)", int32(second.PgConn().PID())).Scan(&waits)
		return waits && err == nil
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-taken; got != "<nil>" {
		t.Errorf("it was taken again: %s", got)
	}
}
