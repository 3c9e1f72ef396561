// Package faketest makes a queue directory with a configuration, and services
// that answer as a test tells them to, for the tests of the queue tools.
package faketest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
)

// A Site is a mail system of which only the directories exist.
type Site struct {
	t      testing.TB
	Config string // configuration directory
	Queue  string // queue directory
	Log    string // log file
}

// New makes a site. main is added to its main.cf.
func New(t testing.TB, main string) *Site {
	t.Helper()
	dir, err := os.MkdirTemp("", "pht")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &Site{t: t, Config: filepath.Join(dir, "etc"), Queue: filepath.Join(dir, "spool"), Log: filepath.Join(dir, "mail.log")}
	for _, d := range []string{s.Config, filepath.Join(s.Queue, "public"), filepath.Join(s.Queue, "maildrop")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf("compatibility_level = 3.6\nqueue_directory = %s\nmaillog_file = %s\nmaillog_file_prefixes = %s\nmyhostname = mta.test\n"+
		"spool_segment_size = 1048576\n%s", s.Queue, s.Log, dir, main)
	if err := os.WriteFile(filepath.Join(s.Config, "main.cf"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

// Serve answers requests to the public service of that name until the test
// ends.
func (s *Site) Serve(service string, handler func(*ipc.Request)) {
	s.t.Helper()
	s.ServeConn(service, func(_ *ipc.Conn, r *ipc.Request) { handler(r) })
}

// ServeConn is Serve for a handler that does something to the connection.
func (s *Site) ServeConn(service string, handler func(*ipc.Conn, *ipc.Request)) {
	s.t.Helper()
	l, err := net.Listen("unix", filepath.Join(s.Queue, "public", service))
	if err != nil {
		s.t.Fatal(err)
	}
	srv := &ipc.Server{Handler: handler, OnTrigger: func([]byte) {}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(ctx, l, time.Second) })
	s.t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// Decode reads a request, or fails the test.
func Decode[M any, P interface {
	*M
	ipc.Message
}](t testing.TB, r *ipc.Request) M {
	var m M
	if err := r.Decode(P(&m)); err != nil {
		t.Errorf("request: %v", err)
	}
	return m
}

// A Mail is a message for Fill.
type Mail struct {
	Envelope mail.Envelope // without ID
	Content  string        // CRLF lines
	Queue    queue.Name
	Done     []int
	Outcomes []mail.Outcome
	Attempts int
	Next     time.Time
	Warned   bool
	Expire   bool
	Bits     uint64 // that the message's number has besides those that the spool gives: that of another spool
}

// Fill puts messages into the site's spool and closes it. The queue IDs are of
// the messages' arrival times.
func (s *Site) Fill(mails ...Mail) []mail.QueueID { return s.fill(1, mails) }

// FillFast is Fill for many messages: they go in by the hundred.
func (s *Site) FillFast(mails ...Mail) []mail.QueueID { return s.fill(100, mails) }

func (s *Site) fill(size int, mails []Mail) (ids []mail.QueueID) {
	s.t.Helper()
	sp, err := spool.Open(spool.Options{Dir: filepath.Join(s.Queue, "spool"), SegmentSize: 1 << 20})
	if err != nil {
		s.t.Fatal(err)
	}
	defer sp.Close()
	b := new(spool.Batch)
	for i := range mails {
		m := &mails[i]
		number, err := sp.Lease(1)
		if err != nil {
			s.t.Fatal(err)
		}
		m.Envelope.ID = mail.MakeQueueID(m.Envelope.Arrival, number|m.Bits)
		msg := spool.Message{ID: m.Envelope.ID, Envelope: m.Envelope.Append(nil), NRcpt: len(m.Envelope.Recipients),
			Recipients: mail.AppendRecipients(nil, m.Envelope.Recipients), Queue: m.Queue, NextAttempt: m.Next}
		if len(m.Content) <= sp.InlineLimit() {
			msg.Content = []byte(m.Content)
		} else {
			if msg.File, err = sp.NewFile(); err == nil {
				_, err = msg.File.Write([]byte(m.Content))
			}
			if err != nil {
				s.t.Fatal(err)
			}
		}
		b.Add(msg)
		if m.Attempts > 0 || m.Done != nil || m.Outcomes != nil || m.Warned || m.Expire {
			b.Update(msg.ID, queue.Change{Set: queue.SetAttempts | queue.SetWarned | queue.SetExpire, Attempts: m.Attempts, Warned: m.Warned, Expire: m.Expire,
				Outcomes: m.Outcomes, Done: m.Done})
		}
		ids = append(ids, msg.ID)
		if len(ids)%size != 0 && i+1 < len(mails) {
			continue
		}
		if err := sp.Commit(b); err != nil {
			s.t.Fatal(err)
		}
		b = new(spool.Batch)
	}
	return ids
}

// Entries is what the site's spool has.
func (s *Site) Entries() map[mail.QueueID]queue.Entry {
	s.t.Helper()
	all := make(map[mail.QueueID]queue.Entry)
	err := spool.View(nil, filepath.Join(s.Queue, "spool"), func(format string, args ...any) {
		s.t.Errorf("spool: "+format, args...)
	}, func(e queue.Entry) bool { all[e.ID] = e; return true })
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// LogText is the log so far.
func (s *Site) LogText() string {
	b, _ := os.ReadFile(s.Log)
	return string(b)
}

// Postlog takes log lines as the postlog service does. What it returns gives
// all that were sent before it is called; it may be called once.
func (s *Site) Postlog() func() string {
	s.t.Helper()
	addr := &net.UnixAddr{Net: "unixgram", Name: filepath.Join(s.Queue, "public", "postlog")}
	c, err := net.ListenUnixgram("unixgram", addr)
	if err != nil {
		s.t.Fatal(err)
	}
	var text []byte
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			n, err := c.Read(buf)
			if err != nil || n == 1 { // end marks the end
				return
			}
			text = append(text, buf[:n]...)
		}
	}()
	s.t.Cleanup(func() {
		c.Close()
		<-done
	})
	return func() string {
		end, err := net.DialUnix("unixgram", nil, addr)
		if err != nil {
			s.t.Fatal(err)
		}
		defer end.Close()
		if _, err := end.Write([]byte{0}); err != nil {
			s.t.Fatal(err)
		}
		<-done
		return string(text)
	}
}
