package queueclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"posthaste/internal/cli"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/spooltool/faketest"
)

// All nodes are asked before any of them has answered, what they say is taken one at a time, and one that fails is named and
// keeps nobody from the others.
func TestEachNode(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	const n = 5
	var mu sync.Mutex
	var waiting []*ipc.Request
	s.Serve("qmgr", func(r *ipc.Request) {
		mu.Lock()
		defer mu.Unlock()
		if waiting = append(waiting, r); len(waiting) < n {
			return
		}
		for _, r := range waiting {
			q := faketest.Decode[proto.Forward](t, r)
			if q.Node == "n2" {
				r.Reply(&proto.ForwardReply{Failed: "it does not answer"})
				continue
			}
			r.Reply(&proto.ForwardReply{Payload: (&proto.CommandReply{IDs: []mail.QueueID{mail.QueueID(q.Node)}}).Append(nil)})
		}
	})
	conn, err := open(t, s).Manager(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var nodes []*Node
	for i := range n {
		nodes = append(nodes, Elsewhere(conn, fmt.Sprint("n", i), ""))
	}
	var ids []string // the race detector tells when two touch it at once
	err = EachNode(nodes, func(m Caller) error {
		var reply proto.CommandReply
		if err := m.Call(t.Context(), &proto.Command{Verb: proto.VerbFlush}, &reply); err != nil {
			return err
		}
		ids = append(ids, string(reply.IDs[0]))
		return nil
	})
	slices.Sort(ids)
	if err == nil || err.Error() != "node n2: it does not answer" || strings.Join(ids, " ") != "n0 n1 n3 n4" {
		t.Errorf("%v, %v", ids, err)
	}
}

// What one node has and cannot be read is named, and what the others have is listed.
func TestEachOfOthers(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	s.Serve("qmgr", func(r *ipc.Request) {
		q := faketest.Decode[proto.List](t, r)
		if q.Part == 2 {
			r.Fail("part 2 of the queue cannot be read: it is damaged")
			return
		}
		r.Reply(&proto.ListReply{Items: []proto.Item{{ID: mail.QueueID(fmt.Sprint("m", q.Part))}}})
	})
	conn, err := open(t, s).Manager(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	parts := Parts{{ID: 1, Node: "a", Own: true}, {ID: 2, Node: "b"}, {ID: 3, Node: "c"}, {ID: 4}, {ID: 5, Node: "a", Own: true, Unread: true}}
	var ids []string
	err = parts.EachUnread(t.Context(), conn, true, func(it *proto.Item) bool {
		ids = append(ids, string(it.ID))
		return true
	})
	if err != nil || strings.Join(ids, " ") != "m5" {
		t.Errorf("what this node has not read: %v, %v", ids, err)
	}
	if it, err := (Parts{parts[0], parts[4]}).Find(t.Context(), conn, "m5"); err != nil || it == nil {
		t.Errorf("it is not found: %v", err)
	}
	ids = nil
	err = parts.EachOfOthers(t.Context(), conn, true, func(it *proto.Item) bool {
		ids = append(ids, string(it.ID))
		return true
	})
	var refused ipc.RemoteError
	if !errors.As(err, &refused) || err.Error() != "node b: part 2 of the queue cannot be read: it is damaged" || strings.Join(ids, " ") != "m3 m4" {
		t.Errorf("%v, %v", ids, err)
	}
}

// What was ordered of mail that has not been read comes after all pages, and with what was left out of it the status is that of a failure.
func TestSelectUnread(t *testing.T) {
	t.Parallel()
	for _, u := range []proto.Unread{{}, {Ordered: "ordered"}, {Omitted: "omitted"}, {Ordered: "ordered", Omitted: "omitted"}} {
		pages := 0
		err := Select(t.Context(), callerFunc(func(reply ipc.Message) {
			r := reply.(*proto.SelectReply)
			if pages++; pages == 1 {
				r.Unread, r.Next = u, 7
			}
		}), &proto.Select{Verb: proto.VerbHold}, func(*proto.SelectReply) error { return nil })
		want := map[string]int{"": 0, "ordered": cli.ExitTemp, "omitted": cli.ExitUnavailable, "ordered; omitted": cli.ExitUnavailable}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if status, ok := want[text]; !ok || pages != 2 || err != nil && cli.Status(err) != status || (u.Ordered == "" && u.Omitted == "") != (err == nil) {
			t.Errorf("%+v: %v after %d pages", u, err, pages)
		}
	}
}

// A callerFunc is a queue manager that fills in a reply.
type callerFunc func(reply ipc.Message)

func (f callerFunc) Call(_ context.Context, _, reply ipc.Message) error {
	f(reply)
	return nil
}
