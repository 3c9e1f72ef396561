package qmgr

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
)

// An agent that ends before it has said what it has in hand, whenever that is, costs what waits for it one
// deferral: the next attempt reaches its successor.
func TestAgentDiesUnheard(t *testing.T) {
	t.Parallel()
	for name, times := range map[string]int32{"once": 1, "twice": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, "")
			var attached atomic.Int32
			orders := make(chan order, 1)
			st.serveAs("smtp", &ipc.Server{Handler: func(c *ipc.Conn, r *ipc.Request) {
				switch r.Kind {
				case proto.KindAttach:
					if attached.Add(1) <= times {
						c.Close()
						return
					}
					c.Push(new(proto.Inventory))
				case proto.KindDeliver:
					orders <- order{faketest.Decode[proto.Deliver](t, r), r, st}
				}
			}})
			retry := st.agent("retry", proto.Inventory{})
			id := st.fill(deferredMail(queue.Incoming, time.Minute, "s@from.test", "", "r@to.test"))[0]
			st.run()
			for n := range times {
				o := retry.next()
				o.answer("defer")
				st.waitOp(id, "its deferral", func(op *proto.Op) bool { return inQueue(queue.Deferred)(op) && op.Attempts == int(n)+2 }) // it has been tried before
				st.command(proto.Command{Verb: proto.VerbFlush, All: true})
			}
			select {
			case o := <-orders:
				o.answer("ok")
			case <-time.After(patience):
				t.Fatal("no delivery is ordered")
			}
			st.waitOp(id, "its removal", removed)
			if n := strings.Count(st.log.String(), "connect to transport smtp: the service ended before it said anything"); n != int(times) {
				t.Errorf("%d times:\n%s", n, st.log)
			}
		})
	}
}
