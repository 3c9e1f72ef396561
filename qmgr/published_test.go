package qmgr

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
)

// A node that asks for the metrics of this one hears what the metrics service has said, as it was said; where there is none, or it
// does not say anything, it hears that.
func TestPublished(t *testing.T) {
	t.Parallel()
	ask := func(st *stage) (reply proto.GatherReply, err error) {
		err = st.tool.Call(t.Context(), &proto.Gather{}, &reply)
		return reply, err
	}
	st := newStage(t, "")
	st.viewer = new(fakeCluster)
	socket := filepath.Join(t.TempDir(), "metrics")
	st.metrics = ipc.Unix(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Unix(1800000000, 0)
	answers := make(chan func(*ipc.Request), 1)
	service := &ipc.Server{Handler: func(_ *ipc.Conn, r *ipc.Request) {
		if r.Kind != proto.KindGather {
			t.Errorf("the metrics service is asked for %d", r.Kind)
		}
		(<-answers)(r)
	}}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- service.Serve(ctx, l, 0) }()
	st.run()
	st.waitAttached(1)
	answers <- func(r *ipc.Request) {
		r.Reply(&proto.GatherReply{Began: began, Series: []proto.Sample{{Name: "posthaste_x", Labels: []string{"smtpd", "a"}, Value: 7}}})
	}
	if reply, err := ask(st); err != nil || !reply.Began.Equal(began) || len(reply.Series) != 1 || reply.Series[0].Name != "posthaste_x" || len(reply.Series[0].Labels) != 2 || reply.Series[0].Value != 7 {
		t.Errorf("%+v, %v", reply, err)
	}
	answers <- func(r *ipc.Request) { r.Fail("it has just begun") }
	if reply, err := ask(st); err == nil || !strings.Contains(err.Error(), "the metrics service does not answer: ") || !strings.Contains(err.Error(), "it has just begun") {
		t.Errorf("%+v, %v", reply, err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, viewer := range []*fakeCluster{nil, new(fakeCluster)} {
		st := newStage(t, "")
		st.viewer = viewer
		st.run()
		st.waitAttached(1)
		if reply, err := ask(st); err == nil || !strings.Contains(err.Error(), "metrics_listen is empty there") {
			t.Errorf("%+v, %v", reply, err)
		}
	}
}
