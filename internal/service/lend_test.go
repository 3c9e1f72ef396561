package service

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
)

// A listener that was lent serves the next one: who connects between the two waits.
func TestLendIPC(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := new(activity)
	env := &Env{Listeners: []net.Listener{&listener{l, a}}, activity: a}
	client := ipc.NewClient(ipc.Unix(path), nil)
	defer client.Close()
	for n := range 3 {
		asked := make(chan error, 1)
		var reply proto.LeaseReply
		go func() { asked <- client.CallAgain(t.Context(), &proto.Lease{}, &reply) }() // before anybody serves
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- env.LendIPC(ctx, &ipc.Server{Handler: func(_ *ipc.Conn, r *ipc.Request) { r.Reply(&proto.LeaseReply{First: 7, N: n + 1}) }}, 0)
		}()
		if err := <-asked; err != nil || reply.N != n+1 {
			t.Errorf("round %d: %+v, %v", n, reply, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("round %d: %v", n, err)
		}
	}
}
