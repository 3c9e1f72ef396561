package pickup

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/submit"
)

// TestStopWithMailInHand: what has been handed to cleanup when the service is
// told to stop is waited for, so that it is queued once, and nothing else is begun.
func TestStopWithMailInHand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	drop := filepath.Join(dir, "maildrop")
	if err := os.Mkdir(drop, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"one", "two"} {
		r := new(strings.Builder)
		h := &maildrop.Header{Time: time.Now(), Sender: "a@from.test", Recipients: []mail.Recipient{{Address: "b@to.test"}}}
		if err := maildrop.Write(r, h, strings.NewReader("Subject: "+subject+"\n\nx\n")); err != nil {
			t.Fatal(err)
		}
		if err := (maildrop.Box{Dir: drop}).Drop(strings.NewReader(r.String()), os.Getuid(), time.Now(), 0); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan *ipc.Request, 2)
	client := serveCleanup(t, filepath.Join(dir, "cleanup"), got)
	submitter := submit.New(client)
	defer submitter.Close()
	p := New(Options{Dir: drop, Submit: submitter, Log: maillog.New("pickup", maillog.NewWriter(os.Stderr, maillog.Plain)), Parallel: 1, Owner: os.Getuid()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Scan(ctx) }()
	r := <-got
	cancel()
	r.Reply(&proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"})
	if err := <-done; err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(drop); len(left) != 1 || len(got) != 0 {
		t.Errorf("%d files are left and %d more messages were handed over, want 1 and 0", len(left), len(got))
	}
}

// What cleanup refuses for good is not offered again and again; what it cannot
// take now is. What nobody is to have is removed.
func TestRefused(t *testing.T) {
	t.Parallel()
	to := []mail.Recipient{{Address: "b@to.test"}}
	for _, tt := range []struct {
		code       int
		to         []mail.Recipient
		want, left int
	}{{552, to, 1, 1}, {452, to, 3, 1}, {550, nil, 1, 0}, {451, nil, 3, 1}} {
		code, want := tt.code, tt.want
		dir := t.TempDir()
		drop := filepath.Join(dir, "maildrop")
		if err := os.Mkdir(drop, 0o755); err != nil {
			t.Fatal(err)
		}
		r := new(strings.Builder)
		h := &maildrop.Header{Time: time.Now(), Sender: "a@from.test", Recipients: tt.to}
		if err := maildrop.Write(r, h, strings.NewReader("Subject: x\n\nx\n")); err != nil {
			t.Fatal(err)
		}
		if err := (maildrop.Box{Dir: drop}).Drop(strings.NewReader(r.String()), os.Getuid(), time.Now(), 0); err != nil {
			t.Fatal(err)
		}
		got := make(chan *ipc.Request, 1)
		submitter := submit.New(serveCleanup(t, filepath.Join(dir, "cleanup"), got))
		p := New(Options{Dir: drop, Submit: submitter, Log: maillog.New("pickup", maillog.NewWriter(os.Stderr, maillog.Plain)), Parallel: 1, Owner: os.Getuid()})
		offered, stop, stopped := 0, make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case r := <-got:
					offered++
					r.Reply(&proto.SubmitReply{Code: code, Status: dsn.S(uint8(code/100), 3, 4), Text: "no"})
				case <-stop:
					return
				}
			}
		}()
		for range 3 {
			if err := p.Scan(t.Context()); err != nil {
				t.Error(err)
			}
		}
		close(stop)
		<-stopped
		submitter.Close()
		if left, _ := os.ReadDir(drop); offered != want || len(left) != tt.left {
			t.Errorf("%d: offered %d times, %d files are left; want %d and %d", code, offered, len(left), want, tt.left)
		}
	}
}

// A message with more recipients than cleanup takes for one is queued as
// several; what cleanup has taken is not handed over again when it cannot take
// the rest now.
func TestManyRecipients(t *testing.T) {
	t.Parallel()
	const all, most = 23, 6
	dir := t.TempDir()
	drop := filepath.Join(dir, "maildrop")
	if err := os.Mkdir(drop, 0o755); err != nil {
		t.Fatal(err)
	}
	h := &maildrop.Header{Time: time.Now(), Sender: "a@from.test"}
	for i := range all {
		h.Recipients = append(h.Recipients, mail.Recipient{Address: fmt.Sprintf("r%d@to.test", i)})
	}
	file := new(strings.Builder)
	if err := maildrop.Write(file, h, strings.NewReader("Subject: x\n\nx\n")); err != nil {
		t.Fatal(err)
	}
	if err := (maildrop.Box{Dir: drop}).Drop(strings.NewReader(file.String()), os.Getuid(), time.Now(), 0); err != nil {
		t.Fatal(err)
	}
	got := make(chan *ipc.Request)
	client := serveCleanup(t, filepath.Join(dir, "cleanup"), got)
	submitter := submit.New(client)
	defer submitter.Close()
	p := New(Options{Dir: drop, Submit: submitter, Log: maillog.New("pickup", maillog.NewWriter(os.Stderr, maillog.Plain)), Parallel: 1, Owner: os.Getuid()})
	var queued []string
	full := true // cleanup's disk, after two parts
	parts, stop, stopped := 0, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			var r *ipc.Request
			select {
			case r = <-got:
			case <-stop:
				return
			}
			q := new(proto.Submit)
			if err := q.Decode(r.Payload); err != nil || !strings.HasSuffix(string(q.Content), "\r\nSubject: x\r\n\r\nx\r\n") {
				t.Errorf("%v: %q", err, q.Content)
			}
			switch to := q.Envelope.Recipients; {
			case len(to) > most:
				r.Reply(&proto.SubmitReply{Code: 552, Status: dsn.S(5, 5, 3), Text: "too many"})
			case full && parts == 2:
				r.Reply(&proto.SubmitReply{Code: 452, Status: dsn.S(4, 3, 1), Text: "full"})
			default:
				parts++
				for _, to := range to {
					queued = append(queued, to.Address)
				}
				r.Reply(&proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"})
			}
		}
	}()
	for range 2 {
		if err := p.Scan(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if left, _ := os.ReadDir(drop); len(left) != 1 || len(queued) != 10 {
		t.Errorf("on a full disk %d files are left and %d recipients queued, want 1 and 10", len(left), len(queued))
	}
	full = false
	if err := p.Scan(t.Context()); err != nil {
		t.Error(err)
	}
	close(stop)
	<-stopped
	if left, _ := os.ReadDir(drop); len(left) != 0 || len(p.partly) != 0 {
		t.Errorf("%d files are left, %v", len(left), p.partly)
	}
	want := make([]string, all)
	for i := range want {
		want[i] = h.Recipients[i].Address
	}
	if !slices.Equal(queued, want) {
		t.Errorf("queued for %q", queued)
	}
}

// TestContent: what users write stays theirs, line ends at the end of a buffer
// included.
func TestContent(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maildrop.MaxPiece-1)
	for _, c := range []struct{ in, want string }{
		{"Subject: x\n\nx\n", "Subject: x\r\n\r\nx\r\n"},
		{"Subject: x\r\n\r\nx", "Subject: x\r\n\r\nx\r\n"},
		{" folded\nSubject: x\n", "\r\n folded\r\nSubject: x\r\n"},
		{"\tfolded\n", "\r\n\tfolded\r\n"},
		{"", ""},
		{long + "\r\ny\r\n", long + "\r\ny\r\n"},
		{long + "\r", long + "\r\r\n"},
	} {
		dir := t.TempDir()
		r := new(strings.Builder)
		h := &maildrop.Header{Sender: "a@from.test", Recipients: []mail.Recipient{{Address: "b@to.test"}}}
		if err := maildrop.Write(r, h, strings.NewReader(c.in)); err != nil {
			t.Fatal(err)
		}
		if err := (maildrop.Box{Dir: dir}).Drop(strings.NewReader(r.String()), os.Getuid(), time.Now(), 0); err != nil {
			t.Fatal(err)
		}
		got := make(chan *ipc.Request, 1)
		submitter := submit.New(serveCleanup(t, filepath.Join(t.TempDir(), "cleanup"), got))
		p := New(Options{Dir: dir, Submit: submitter, Log: maillog.New("pickup", maillog.NewWriter(os.Stderr, maillog.Plain)), Owner: os.Getuid()})
		done := make(chan error, 1)
		go func() { done <- p.Scan(t.Context()) }()
		req, s := <-got, new(proto.Submit)
		if err := req.Decode(s); err != nil {
			t.Fatal(err)
		}
		text, more := string(s.Content), s.More
		for more {
			req.Reply(&proto.ChunkReply{})
			part := new(proto.Chunk)
			if req = <-got; req.Decode(part) != nil {
				t.Fatal("a part of a message that is none")
			}
			text, more = text+string(part.Data), part.More
		}
		req.Reply(&proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"})
		if err := <-done; err != nil {
			t.Error(err)
		}
		submitter.Close()
		_, rest, _ := strings.Cut(text, "\r\n\tid ")
		if _, content, _ := strings.Cut(rest, "\r\n"); content != c.want {
			t.Errorf("%.20q: got ...%q, want ...%q", c.in, content[max(0, len(content)-100):], c.want[max(0, len(c.want)-100):])
		}
	}
}

// serveCleanup plays a cleanup that passes submissions on.
func serveCleanup(t *testing.T, path string, got chan<- *ipc.Request) *ipc.Client {
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &ipc.Server{Handler: func(_ *ipc.Conn, r *ipc.Request) {
		switch r.Kind {
		case proto.KindLease:
			r.Reply(&proto.LeaseReply{First: 1, N: 10})
		case proto.KindSubmit, proto.KindChunk:
			got <- r
		default:
			r.Fail("unexpected request %d", r.Kind)
		}
	}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { srv.Serve(ctx, l, time.Second); close(ended) }()
	client := ipc.NewClient(ipc.Unix(path), nil)
	t.Cleanup(func() { client.Close(); cancel(); <-ended })
	return client
}
