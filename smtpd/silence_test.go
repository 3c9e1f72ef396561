package smtpd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/submit"
)

// anywhere is a router for whom all mail goes to the same place.
type anywhere struct{}

func (anywhere) Rewrite(_ context.Context, _, addr string) (string, error) { return addr, nil }
func (anywhere) Resolve(_ context.Context, _, addr string) (proto.ResolveReply, error) {
	return proto.ResolveReply{Transport: "smtp", Nexthop: "to.test", Recipient: addr, Flags: proto.ResolveRelay}, nil
}

// oneConn is a listener with one connection.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l oneConn) Close() error   { close(l); return nil }
func (l oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// TestSilentDisk has cleanup say that the queue's disk does not answer. The next client hears
// that at MAIL and does not send its message in vain; a second later one is let through
// again, to find out. Of a node whose queue others have it hears that.
func TestSilentDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testSilentDisk)
}

func testSilentDisk(t *testing.T) {
	var silent, away atomic.Bool
	cleanup := &ipc.Server{Handler: func(_ *ipc.Conn, r *ipc.Request) {
		switch r.Kind {
		case proto.KindLease:
			r.Reply(&proto.LeaseReply{First: 1, N: 1000})
		case proto.KindSubmit:
			if away.Load() {
				r.Reply(&proto.SubmitReply{Code: 451, Status: proto.StatusElsewhere, Text: proto.TextElsewhere, Silent: true})
				return
			}
			if silent.Load() {
				r.Reply(&proto.SubmitReply{Code: 451, Status: dsn.S(4, 3, 0), Text: "Error: queue file write error", Silent: true})
				return
			}
			r.Reply(&proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"})
		}
	}}
	s, stop := before(t, cleanup)
	for _, step := range []struct {
		pause  time.Duration
		silent bool
		away   bool
		want   string // the codes of the replies to MAIL, RCPT, DATA and the content
	}{
		{want: "250 250 354 250"},
		{silent: true, want: "250 250 354 451"},
		{silent: true, want: "451"},
		{silent: true, pause: 900 * time.Millisecond, want: "451"},
		{silent: true, pause: 200 * time.Millisecond, want: "250 250 354 451"},
		{pause: 900 * time.Millisecond, want: "451"},
		{pause: 200 * time.Millisecond, want: "250 250 354 250"},
		{want: "250 250 354 250"},
		{away: true, want: "250 250 354 451"},
		{away: true, want: "451"},
	} {
		time.Sleep(step.pause)
		silent.Store(step.silent)
		away.Store(step.away)
		if got := offer(t, s); got != step.want {
			t.Errorf("%+v: %s", step, got)
		}
	}
	log := stop()
	for _, want := range []string{"451 4.3.0 Error: queue file write error; ", "451 4.3.2 Error: this server takes no mail now, other servers have its queue; "} {
		if !strings.Contains(log, "NOQUEUE: reject: MAIL from unknown[198.51.100.7]: "+want) {
			t.Errorf("log: %s", log)
		}
	}
}

// before is a server in front of a cleanup service. stop ends both, and returns the log.
func before(t *testing.T, cleanup *ipc.Server) (s *Server, stop func() string) {
	t.Helper()
	l := make(oneConn, 1)
	near, far := net.Pipe()
	l <- far
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- cleanup.Serve(ctx, l, time.Second) }()
	conn := ipc.NewClient(ipc.Func("cleanup", func(context.Context) (net.Conn, error) { return near, nil }), nil)
	client := submit.New(conn)
	cfg, err := config.LoadString("compatibility_level = 3.6\nmyhostname = mx.example.test\nmynetworks = 198.51.100.0/24\nsmtpd_relay_restrictions = permit_mynetworks, reject\nnotify_classes =\n")
	if err != nil {
		t.Fatal(err)
	}
	log := new(strings.Builder)
	logger := maillog.New("smtpd", maillog.NewWriter(log, maillog.Classic))
	s, err = New(t.Context(), Deps{Config: cfg, Log: logger, Service: "smtp", Submit: client, Router: anywhere{}, MaxProc: 100})
	if err != nil {
		t.Fatal(err)
	}
	return s, func() string {
		client.Close()
		conn.Close()
		end()
		if err := <-served; err != nil {
			t.Error(err)
		}
		s.Close()
		logger.Close()
		return log.String()
	}
}

// A client of a node that has no queue, since others have it, hears that, and no more of a disk.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, stop := before(t, &ipc.Server{Handler: func(_ *ipc.Conn, r *ipc.Request) { r.Fail("%s", proto.FailElsewhere) }})
		defer stop()
		replies := replies(t, s)
		if got := replies[len(replies)-1]; got != "451 4.3.2 Error: this server takes no mail now, other servers have its queue\r\n" {
			t.Errorf("%q", got)
		}
	})
}

// offer brings a message in a session of its own, and gives the codes of the replies from
// MAIL on.
func offer(t *testing.T, s *Server) string {
	t.Helper()
	codes := replies(t, s)
	for i := range codes {
		codes[i] = codes[i][:3]
	}
	return strings.Join(codes, " ")
}

// replies are those of offer, up to the first that refuses.
func replies(t *testing.T, s *Server) (list []string) {
	t.Helper()
	near, far := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.ServeConn(t.Context(), addressed{far})
	}()
	r := bufio.NewReader(near)
	for i, line := range []string{"", "HELO client.test", "MAIL FROM:<a@from.test>", "RCPT TO:<b@to.test>", "DATA", "Subject: x\r\n\r\nx\r\n."} {
		if line != "" {
			fmt.Fprintf(near, "%s\r\n", line)
		}
		reply, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			continue
		}
		list = append(list, reply)
		if reply[0] != '2' && reply[0] != '3' {
			break
		}
	}
	go io.Copy(io.Discard, r)
	near.Close()
	<-served
	return list
}
