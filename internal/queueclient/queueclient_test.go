package queueclient

import (
	"errors"
	"os"
	"os/user"
	"strconv"
	"testing"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/spooltool/faketest"
)

func open(t *testing.T, s *faketest.Site) *Queue {
	t.Helper()
	q, err := Open(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	return q
}

// A service that is not there is told from one that fails, and at once.
func TestDown(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	q := open(t, s)
	if _, err := q.Manager(t.Context()); !errors.Is(err, ErrDown) {
		t.Errorf("no socket: %v", err)
	}
	if err := os.WriteFile(q.Dir("public", "cleanup"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Cleanup(t.Context()); !errors.Is(err, ErrDown) { // connection refused
		t.Errorf("nobody listens: %v", err)
	}
}

// Every message is listed once, and a walk that is ended asks no more.
func TestEach(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	const n = 2*page + 7
	s.Serve("qmgr", func(r *ipc.Request) {
		q := faketest.Decode[proto.List](t, r)
		reply := new(proto.ListReply)
		for i := q.Cursor; i < n && len(reply.Items) < q.N; i++ {
			reply.Items = append(reply.Items, proto.Item{ID: mail.QueueID(strconv.Itoa(i)), Queue: "hold"})
			reply.Next = i + 1
		}
		if reply.Next == n {
			reply.Next = 0
		}
		r.Reply(reply)
	})
	conn, err := open(t, s).Manager(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{n, 3, page} {
		seen := 0
		err := Each(t.Context(), conn, true, func(it *proto.Item) bool {
			if string(it.ID) != strconv.Itoa(seen) {
				t.Errorf("%s in place of %d", it.ID, seen)
			}
			seen++
			return seen < limit
		})
		if err != nil || seen != limit {
			t.Errorf("%d messages, want %d, %v", seen, limit, err)
		}
	}
}

func TestPermitted(t *testing.T) {
	t.Parallel()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	s := faketest.New(t, "mail_owner = "+me.Username+"\n")
	if !open(t, s).Permitted() {
		t.Error("the queue's owner may not use it")
	}
}
