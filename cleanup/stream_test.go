package cleanup

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/testwait"
)

// served is a client of a server that is reached over a socket.
func served(t *testing.T, s *server) *ipc.Client { return servedTo(t, s, nil) }

// servedTo is served for a client that is told things.
func servedTo(t *testing.T, s *server, told ipc.Handler) *ipc.Client {
	path := filepath.Join(t.TempDir(), "cleanup")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.IPC().Serve(ctx, l, 10*time.Second) }()
	c := ipc.NewClient(ipc.Unix(path), told)
	t.Cleanup(func() { c.Close(); cancel(); <-done })
	return c
}

// A list of recipients comes in parts before the content; what comes out of
// order is refused, and nothing of it is queued.
func TestListed(t *testing.T) {
	t.Parallel()
	s, _ := newTestServer(t, "", "")
	conn, err := served(t, s).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	members := func(from, n int) (list []mail.Recipient) {
		for i := range n {
			list = append(list, mail.Recipient{Address: fmt.Sprintf("m%d@list.test", from+i)})
		}
		return list
	}
	for i, tc := range []struct {
		name    string
		chunks  []proto.Chunk
		refused int // the chunk that is, from 1
	}{
		{"whole", []proto.Chunk{{Recipients: members(3, 3000), Listing: true, More: true}, {Recipients: members(3003, 997), More: true},
			{Data: []byte("Subject: x\r\n\r\n"), More: true}, {Data: []byte("y\r\n")}}, 0},
		{"no content", []proto.Chunk{{Recipients: members(3, 3997)}}, 0},
		{"ends in the list", []proto.Chunk{{Recipients: members(3, 1), Listing: true}}, 1},
		{"more after the list", []proto.Chunk{{Recipients: members(3, 1), More: true}, {Recipients: members(4, 1), More: true}}, 2},
		{"given up", []proto.Chunk{{Recipients: members(3, 1), Listing: true, More: true}}, 0},
	} {
		id := mail.MakeQueueID(time.Now(), uint64(i)+1)
		env := mail.Envelope{ID: id, Arrival: time.Now(), Sender: "a@from.test", Recipients: members(0, 3)}
		if err := conn.Call(t.Context(), &proto.Submit{Envelope: env, More: true, Listing: true}, new(proto.ChunkReply)); err != nil {
			t.Fatal(err)
		}
		for k := range tc.chunks {
			c := &tc.chunks[k]
			c.ID = id
			if c.More {
				err = conn.Call(t.Context(), c, new(proto.ChunkReply))
			} else {
				var reply proto.SubmitReply
				if err = conn.Call(t.Context(), c, &reply); err == nil && reply.Code != 250 {
					t.Errorf("%s: %+v", tc.name, reply)
				}
			}
			if (err != nil) != (k+1 == tc.refused) {
				t.Errorf("%s: part %d: %v", tc.name, k+1, err)
			}
		}
		if err := conn.Send(&proto.Abort{ID: id}); err != nil {
			t.Fatal(err)
		}
		e, found := s.opt.Engine.Locate(id)
		if last := tc.chunks[len(tc.chunks)-1]; found != (tc.refused == 0 && !last.More) || found && e.NRcpt != 4000 {
			t.Errorf("%s: queued %v, with %d recipients", tc.name, found, e.NRcpt)
		}
	}
}

// A submitter that sends more parts than it may is disconnected, and its message given up, while the message waits; others are
// served meanwhile. As many as it may send it can.
func TestWindow(t *testing.T) {
	t.Parallel()
	for _, more := range []int{0, 1} {
		s, log := newTestServer(t, "", "")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		s.ctx = ctx
		s.opt.Delay, s.opt.Token, s.opt.PutToken = time.Hour, func() bool { return false }, func() {} // the queue manager cannot keep up
		client := served(t, s)
		conn, err := client.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		id := mail.MakeQueueID(time.Now(), 1)
		answers := make(chan error, 100)
		answered := func(_ []byte, err error) { answers <- err }
		conn.Go(&proto.Submit{Envelope: mail.Envelope{ID: id, Arrival: time.Now(), Sender: "a@from.test", Recipients: []mail.Recipient{{Address: "b@to.test"}}},
			Content: []byte("Subject: x\r\n\r\n"), More: true}, answered)
		// The first part is in hand when there is room for one part more: for an abort.
		key := func() *stream {
			s.mu.Lock()
			defer s.mu.Unlock()
			for k, st := range s.streams {
				if k.id == id {
					return st
				}
			}
			return nil
		}
		testwait.Until(t, "the first part is in hand", func() bool { st := key(); return st != nil && len(st.parts) == 0 })
		for range proto.MaxUnanswered + 1 + more {
			conn.Go(&proto.Chunk{ID: id, Data: []byte("x\r\n"), More: true}, answered)
		}
		if more > 0 {
			<-conn.Done()
			testwait.Until(t, "the message is given up", func() bool { return key() == nil })
		} else if err := conn.Call(t.Context(), &proto.Lease{N: 1}, new(proto.LeaseReply)); err != nil {
			t.Errorf("who sends what it may is disconnected: %v", err)
		}
		if got := strings.Contains(log.String(), string(id)+": the submitter sends more than it may; disconnecting it"); got != (more > 0) {
			t.Errorf("logged\n%s", log.String())
		}
		if err := served(t, s).Call(t.Context(), &proto.Lease{N: 1}, new(proto.LeaseReply)); err != nil {
			t.Errorf("another submitter: %v", err)
		}
		stop()
		conn.Close()
		for range proto.MaxUnanswered + 2 + more {
			<-answers
		}
	}
}
