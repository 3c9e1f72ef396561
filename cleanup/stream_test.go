package cleanup

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
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
