package pgspool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/storage"
	"posthaste/internal/testwait"
)

// orderer is a node's way to leave orders and carry them out.
func (s *Store) orderer() storage.Orderer { return s.Reader().(storage.Orderer) }

// order is one, for a part or a node alone.
func order(node string, part int, text string) storage.Order {
	return storage.Order{Call: storage.Call{By: "ann\xff", Kind: 7, Payload: []byte(text)}, Node: node, Part: part, What: text}
}

// carryAll has a node that has these parts carry out what there is, and returns it.
func carryAll(t *testing.T, s *Store, parts ...int) (list []string) {
	t.Helper()
	err := s.orderer().Carry(t.Context(), func() ([]int, error) { return parts, nil }, func(_ context.Context, o *storage.Order) error {
		if o.From != "a" || o.By != `ann\xff` || o.Kind != 7 || o.Number == 0 || time.Since(o.Given) > time.Hour {
			t.Errorf("%+v", o)
		}
		list = append(list, fmt.Sprintf("%s %d %s", o.Node, o.Part, o.Payload))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Orders are carried out by the node that they are for, or by whoever has the part, in the order in which they were given, once; one that
// fails stays, and keeps those behind it waiting. What is given twice, and may be given by anybody, is there once.
func TestOrders(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 2)
	a, b, c := d.store("a"), d.store("b"), d.store("c")
	if got := carryAll(t, b, 1, 2); len(got) != 0 {
		t.Errorf("%q", got)
	}
	open := order("b", 2, "flush")
	open.Open = true
	for _, list := range [][]storage.Order{{order("b", 1, "first\x00"), order("b", 0, "node")}, {order("", 2, "second")}, {order("b", 1, "third")}, {open}, {open}} {
		if err := a.orderer().Leave(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	st, err := a.Status(t.Context())
	if err != nil || st.Orders != 5 || len(st.Ordered) != 5 || st.Ordered[0].What != `first\x00` || st.Ordered[0].By != `ann\xff` || st.Ordered[0].On != "a" || st.Ordered[2].Node != "" || st.Ordered[2].Shard != 2 {
		t.Errorf("%+v, %v", st, err)
	}
	broken := errors.New("not now")
	tries := 0
	err = c.orderer().Carry(t.Context(), func() ([]int, error) { return []int{1}, nil }, func(context.Context, *storage.Order) error {
		tries++
		return broken
	})
	if !errors.Is(err, broken) || tries != 1 {
		t.Errorf("%d tries, %v", tries, err)
	}
	if err := c.orderer().Carry(t.Context(), func() ([]int, error) { return nil, broken }, nil); !errors.Is(err, broken) {
		t.Error(err)
	}
	if got := carryAll(t, c, 1); fmt.Sprintf("%q", got) != `["b 1 first\x00" "b 1 third"]` {
		t.Errorf("%q", got)
	}
	if got := carryAll(t, c, 1); len(got) != 0 {
		t.Errorf("carried out again: %q", got)
	}
	if got := carryAll(t, b, 2); fmt.Sprintf("%q", got) != `["b 0 node" " 2 second" "b 2 flush"]` {
		t.Errorf("%q", got)
	}
}

// Orders are bounded, all of a request are left or none, and they do not wait for ever.
func TestOrdersBounded(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a := d.store("a")
	var list []storage.Order
	for i := range storage.MaxOrders {
		list = append(list, order("b", 1, fmt.Sprint(i)))
	}
	var not storage.ErrNotCarriedOut
	if err := a.orderer().Leave(t.Context(), append(list, order("b", 1, "x"))); !errors.As(err, &not) || !strings.Contains(err.Error(), "too many orders") {
		t.Error(err)
	}
	if err := a.orderer().Leave(t.Context(), []storage.Order{order("b", 1, strings.Repeat("x", storage.CallSize+1))}); !errors.As(err, &not) {
		t.Error(err)
	}
	soon := order("b", 1, "soon over")
	soon.Until = time.Now().Add(-time.Hour)
	if err := a.orderer().Leave(t.Context(), []storage.Order{soon}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.conn().Exec(t.Context(), "UPDATE node_order SET until = until - interval '10 seconds' WHERE what = 'soon over'"); err != nil {
		t.Fatal(err)
	}
	if err := a.orderer().Leave(t.Context(), list[1:]); err != nil {
		t.Fatal(err)
	}
	if got := carryAll(t, d.store("b"), 1); len(got) != storage.MaxOrders-1 || got[0] != "b 1 1" {
		t.Errorf("%d: %q", len(got), got[0])
	}
}

// While somebody carries out an order nobody else does, whether it is another process of the same node, or another one that has just got the
// part; and one whose session the database ends has it carried out again.
func TestOrderOnce(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a := d.store("a")
	const n = 20
	for i := range n {
		if err := a.orderer().Leave(t.Context(), []storage.Order{order("b", 1, fmt.Sprint(i))}); err != nil {
			t.Fatal(err)
		}
	}
	var carrying sync.WaitGroup
	var done, inside atomic.Int64
	for range 3 {
		carrying.Go(func() {
			s := d.store("b").orderer()
			err := s.Carry(t.Context(), func() ([]int, error) { return []int{1}, nil }, func(context.Context, *storage.Order) error {
				if inside.Add(1) != 1 {
					t.Error("two orders at a time")
				}
				done.Add(1)
				inside.Add(-1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	carrying.Wait()
	conn := d.conn()
	left := func() (n int) {
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM node_order").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	// Who waits for a row that goes finds none, and looks again a second later.
	if got, rest := int(done.Load()), left(); got+rest != n {
		t.Errorf("%d were carried out, %d are left", got, rest)
	}
	carryAll(t, d.store("b"), 1)

	if err := a.orderer().Leave(t.Context(), []storage.Order{order("b", 1, "killed")}); err != nil {
		t.Fatal(err)
	}
	b := d.store("b")
	err := b.orderer().Carry(t.Context(), func() ([]int, error) { return []int{1}, nil }, func(ctx context.Context, _ *storage.Order) error {
		_, err := conn.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", sessionName("b"))
		return err
	})
	if err == nil || left() != 1 {
		t.Errorf("%v, %d are left", err, left())
	}
	testwait.Until(t, "it is carried out again", func() bool {
		if got := carryAll(t, d.store("c"), 1); len(got) != 0 && got[0] != "b 1 killed" {
			t.Errorf("%q", got)
		}
		return left() == 0
	})
}

// Who carries out an order keeps nobody from others, also when its time is over meanwhile; and what was over is not carried out.
func TestOrderExpires(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 2)
	a, conn := d.store("a"), d.conn()
	leave := func(o storage.Order) {
		if err := a.orderer().Leave(t.Context(), []storage.Order{o}); err != nil {
			t.Fatal(err)
		}
	}
	leave(order("c", 2, "other"))
	// On a machine that is busy the time of an order may be over before it is looked for.
	begun := false
	for wait := time.Second; !begun; wait *= 2 {
		o := order("b", 1, "soon over")
		o.Until = time.Now().Add(wait)
		leave(o)
		leave(o)
		err := d.store("b").orderer().Carry(t.Context(), func() ([]int, error) { return []int{1}, nil }, func(context.Context, *storage.Order) error {
			if begun {
				t.Error("an order is carried out whose time was over")
			}
			begun = true
			testwait.Until(t, "its time is over", func() (is bool) {
				if err := conn.QueryRow(t.Context(), "SELECT bool_and(until < clock_timestamp()) FROM node_order WHERE shard = 1").Scan(&is); err != nil {
					t.Fatal(err)
				}
				return is
			})
			if got := fmt.Sprint(carryAll(t, d.store("c"), 2)); got != "[c 2 other]" {
				t.Errorf("the other node has carried out %s meanwhile", got)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if got := carryAll(t, d.store("b"), 1, 2); len(got) != 0 {
		t.Errorf("%q", got)
	}
	var left int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM node_order").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d are left: %v", left, err)
	}
}
