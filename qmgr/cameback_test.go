package qmgr

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/storage"
)

// What another node asks about mail that has come back to it this node's suppress service answers, and hears of it; where there is none, or it does not answer, that is said.
func TestCameBack(t *testing.T) {
	t.Parallel()
	begin := func(suppress func(st *stage)) func(q, reply ipc.Message) error {
		st := newStage(t, "")
		f := &fakeCluster{calls: make(chan func(func(context.Context, storage.Call) ([]byte, error)))}
		st.viewer = f
		suppress(st)
		st.run()
		st.waitAttached(1)
		return func(q, reply ipc.Message) error {
			answered := make(chan error, 1)
			f.calls <- func(answer func(context.Context, storage.Call) ([]byte, error)) {
				b, err := answer(t.Context(), storage.Call{From: "b", By: "comeback", Kind: q.Kind(), Payload: q.Append(nil)})
				if err == nil {
					err = reply.Decode(b)
				}
				answered <- err
			}
			return <-answered
		}
	}
	told := make(chan string, 1)
	ask := begin(func(st *stage) {
		st.suppress = ipc.Unix(st.path("suppress"))
		st.serve("suppress", func(_ *ipc.Conn, r *ipc.Request) {
			switch r.Kind {
			case proto.KindReturnPath:
				var q proto.ReturnPath
				if r.Decode(&q) != nil || q.Address == "" {
					r.Fail("no address")
					return
				}
				r.Reply(&proto.ReturnPathReply{QueueID: "Q1", Recorded: true, List: q.Address})
			case proto.KindSuppressTell:
				var q proto.SuppressTell
				told <- fmt.Sprint(r.Decode(&q), " ", q.What, " ", q.Token)
				r.Reply(&proto.SuppressTold{Added: "bounce"})
			default:
				r.Reply(&proto.StandingReply{})
			}
		})
	})
	var path proto.ReturnPathReply
	if err := ask(&proto.ReturnPath{Address: "news"}, &path); err != nil || !path.Recorded || path.List != "news" {
		t.Errorf("%+v, %v", path, err)
	}
	if err := ask(&proto.ReturnPath{}, &path); err == nil || !strings.Contains(err.Error(), "the suppress service does not answer: ") || !strings.Contains(err.Error(), "no address") {
		t.Error(err)
	}
	var done proto.SuppressTold
	if err := ask(&proto.SuppressTell{What: proto.ToldBounce, Token: "b+x"}, &done); err != nil || done.Added != "bounce" {
		t.Errorf("%+v, %v", done, err)
	} else if got := <-told; got != "<nil> bounce b+x" {
		t.Error(got)
	}
	path = proto.ReturnPathReply{}
	none := begin(func(*stage) {})
	if err := none(&proto.ReturnPath{Address: "news"}, &path); err != nil || path.Recorded || path.Problem == "" {
		t.Errorf("without a list: %+v, %v", path, err)
	}
	if err := none(&proto.SuppressTell{What: proto.ToldBounce}, &done); err == nil || !strings.Contains(err.Error(), "no mail is under the suppression list there") {
		t.Errorf("without a list: %v", err)
	}
}
