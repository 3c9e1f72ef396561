package cleanup

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/testwait"
)

// TestProbedAlias: of a probe for an alias, which is not sent anywhere, the verify service is told at once that the address takes mail;
// what it cannot be told is in the log. Nobody is told of a message that is no probe.
func TestProbedAlias(t *testing.T) {
	t.Parallel()
	s, log := newTestServer(t, "virtual_alias_maps = inline:{ {team@list.test=a@x.test,b@x.test} }\n", "")
	path := filepath.Join(t.TempDir(), "verify")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan proto.Probed, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&ipc.Server{Handler: func(_ *ipc.Conn, r *ipc.Request) {
			var q proto.Probed
			if err := r.Decode(&q); err != nil {
				t.Error(err)
			}
			told <- q
		}}).Serve(ctx, l, time.Second)
	}()
	s.opt.Verify = ipc.NewClient(ipc.Unix(path), nil)
	defer s.opt.Verify.Close()
	client := served(t, s)
	number := uint64(0)
	submit := func(trace mail.Trace) {
		t.Helper()
		q := submission("local", "team@list.test")
		number++
		q.Envelope.ID, q.Envelope.Trace, q.Content = mail.MakeQueueID(arrival, number), trace, []byte("Subject: x\r\n\r\nx\r\n")
		var reply proto.SubmitReply
		if err := client.Call(t.Context(), q, &reply); err != nil || reply.Code != 250 {
			t.Fatalf("%+v, %v", reply, err)
		}
	}
	submit(0)
	submit(mail.TraceProbe)
	testwait.Until(t, "the verify service is told", func() bool { return len(told) > 0 })
	if q := <-told; q != (proto.Probed{Address: "team@list.test", Text: "aliased to multiple recipients", Status: proto.ProbeOK}) {
		t.Errorf("told: %+v", q)
	}
	cancel()
	<-ended
	// It cannot be reached, and is not waited for without end.
	s.opt.Verify.Close()
	s.opt.Verify = ipc.NewClient(ipc.Unix(path+"2"), nil)
	s.probed([]noticed{{Recipient: mail.Recipient{Address: "team@list.test"}, Outcome: mail.Outcome{Action: dsn.Deliverable}}}, time.Millisecond)
	s.wg.Wait()
	if text := log.String(); strings.Count(text, "address probe result for team@list.test is lost") != 1 {
		t.Errorf("the log: %s", text)
	}
	if len(told) > 0 {
		t.Errorf("told of mail: %+v", <-told)
	}
}
