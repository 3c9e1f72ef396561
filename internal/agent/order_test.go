package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/bounceclass"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/service"
)

// fullOrder has something in each field, and no two fields have the same.
func fullOrder() *proto.Deliver {
	at := time.Unix(1800000000, 0)
	return &proto.Deliver{Nexthop: "next.test", Index: []int{7}, Ref: queue.Ref{Segno: 1, Length: 2}, Active: at.Add(3 * time.Second), CacheLoad: true, CacheKeep: true, Session: 4, Keep: 5 * time.Second, Most: 6,
		Source: "mta1", Spec: "address=192.0.2.1", Attempt: 8, Advice: "unit=x", Provider: "bigmail", Envelope: mail.Envelope{ID: mail.MakeQueueID(at, 1), Sender: "ann@from.test", Arrival: at, MessageID: "<m@from.test>", EnvID: "env",
			Tenant: "acme", Campaign: "spring", Size: 9, Recipients: []mail.Recipient{{Address: "joe@to.test", Original: "joe@alias.test"}}}}
}

// All that an order says reaches the agent, and all that is known of its outcome reaches those who read the log, and the queue manager.
func TestOrderInFull(t *testing.T) {
	t.Parallel()
	rules, err := bounceclass.Open([]string{bounceclass.Builtin})
	if err != nil {
		t.Fatal(err)
	}
	var line maillog.Delivery
	log := maillog.New("postfix/smtp", new(logLines))
	log.Observe(func(_ maillog.Level, _ bool, e maillog.Event) {
		if d, ok := e.(*maillog.Delivery); ok {
			line = *d
		}
	})
	order := fullOrder()
	var seen Request
	s := NewServer(Options{Log: log, Classes: rules, Resolution: maillog.ResolutionLimit(3), Deliverer: deliverer(func(_ context.Context, r *Request) {
		r.SentFrom()
		seen = *r
		r.Secured("TLS 1.3")
		r.ConnectionOpened()
		r.SessionKept()
		r.SiteBusy(dsn.S(4, 7, 0), "slower")
		r.Bounce(0, dsn.S(4, 0, 0), "our own words", Detail{Relay: "mx[192.0.2.2]:25", ConnUse: 2, TLS: "TLSv1.3 x", MTA: "mx", DiagType: "smtp", DiagText: "550 5.1.1 no such user", Owner: "owner@list.test"})
	})})
	defer s.close()
	run := newRunning(nil)
	if err := run.order.Decode(order.Append(nil)); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	reply := s.deliver(t.Context(), run)
	if !reflect.DeepEqual(*seen.Envelope, run.order.Envelope) {
		t.Errorf("%+v, want %+v", *seen.Envelope, run.order.Envelope)
	}
	got := []any{seen.Nexthop, seen.CacheLoad, seen.CacheKeep, seen.Session, seen.Keep, seen.Most, seen.Source, seen.SourceSpec, seen.Advice, seen.Provider}
	want := []any{order.Nexthop, true, true, order.Session, order.Keep, order.Most, order.Source, order.Spec, order.Advice, order.Provider}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	env := &order.Envelope
	wantLine := maillog.Delivery{ID: string(env.ID), To: "joe@to.test", OrigTo: "joe@alias.test", Relay: "mx[192.0.2.2]:25", ConnUse: 2, Resolution: maillog.ResolutionLimit(3), Source: "mta1", DSN: dsn.S(5, 0, 0), Status: "bounced",
		Text: "our own words", From: "ann@from.test", MessageID: env.MessageID, EnvID: env.EnvID, Tenant: "acme", Campaign: "spring", Class: "InvalidRecipient", Nexthop: "next.test", Size: 9, Attempt: 8,
		Session: "TLSv1.3 x", Provider: "bigmail", Delay: line.Delay, Delays: line.Delays}
	if line != wantLine {
		t.Errorf("%+v, want\n%+v", line, wantLine)
	}
	if line.Delays[0] != 3*time.Second || line.Delay < before.Sub(env.Arrival) {
		t.Errorf("delay %v, delays %v", line.Delay, line.Delays)
	}
	o := &reply.Outcomes[0]
	wantOutcome := mail.Outcome{Rcpt: 7, Action: dsn.Failed, Status: dsn.S(5, 0, 0), Reason: line.Text, Relay: line.Relay, MTA: "mx", DiagType: "smtp", DiagText: "550 5.1.1 no such user", Owner: "owner@list.test", When: o.When}
	if !reflect.DeepEqual(*o, wantOutcome) || o.When.Before(before) {
		t.Errorf("%+v, want\n%+v", *o, wantOutcome)
	}
	reply.Outcomes = nil
	if want := (proto.DeliverReply{SiteStatus: dsn.S(4, 7, 0), SiteReason: "slower", SitePartly: true, Kept: true, Opened: true, Security: "TLS 1.3"}); !reflect.DeepEqual(*reply, want) {
		t.Errorf("%+v, want %+v", *reply, want)
	}
	if got := seen.Class("550 5.1.1 no such user"); got != "InvalidRecipient" {
		t.Errorf("class %q", got)
	}
}

// The settings of an agent come from main.cf and master.cf, each from the parameter that its page names.
func TestOptions(t *testing.T) {
	t.Parallel()
	const all = "daemon_timeout = 77s\nconfirm_delay_cleared = yes\nsoft_bounce = yes\nsuppress_before_delivery = yes\nreturn_path_domain = b.test\ndelay_logging_resolution_limit = 4\nqueue_service_name = manager\nrelay_slow_delivery_limit = 3\n"
	for _, c := range []struct {
		main, process string
		most          int
		want          Options
	}{
		{"suppress_before_delivery = no\n", "smtp", 0, Options{TimeLimit: 18000 * time.Second, Resolution: maillog.ResolutionLimit(2)}},
		{all, "smtp", 20, Options{Limit: 23, TimeLimit: 77 * time.Second, Reports: true, SoftBounce: true, Before: true, Leaves: true, Resolution: maillog.ResolutionLimit(4)}},
		{all, "lmtp", 0, Options{TimeLimit: 77 * time.Second, Reports: true, SoftBounce: true, Before: true, Resolution: maillog.ResolutionLimit(4)}},
	} {
		cfg, err := config.LoadString(c.main + "queue_directory = /q\n")
		if err != nil {
			t.Fatal(err)
		}
		env := &service.Env{Config: cfg, Name: "relay", Process: c.process, MaxProc: c.most, Log: maillog.New("x", new(logLines))}
		got := options(env)
		name := "public/" + cfg.String("queue_service_name")
		if p := got.Queue.String(); p != filepath.Join("/q", name) && p != name {
			t.Errorf("the queue manager is at %q", p)
		}
		if p := got.Agent("lmtp").String(); p != filepath.Join("/q", "private/lmtp") && p != "private/lmtp" {
			t.Errorf("lmtp is at %q", p)
		}
		if got.Overdue == nil || got.Log != env.Log {
			t.Errorf("%+v", got)
		}
		got.Queue, got.Agent, got.Overdue, got.Log = nil, nil, nil, nil
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v, want\n%+v", got, c.want)
		}
	}
}

// A spoolContent is content that tells what is asked of it.
type spoolContent struct {
	queueread.Content
	text   string
	at     int
	seek   error
	read   error // at the end
	closed bool
}

func (c *spoolContent) Len() int64                         { return int64(len(c.text)) }
func (c *spoolContent) Bytes() []byte                      { return []byte(c.text) }
func (c *spoolContent) Close() error                       { c.closed = true; return errors.New("closed") }
func (c *spoolContent) Seek(n int64, _ int) (int64, error) { c.at = int(n); return n, c.seek }
func (c *spoolContent) Read(p []byte) (int, error) {
	n := copy(p, c.text[c.at:])
	if c.at += n; n == 0 {
		return 0, c.read
	}
	return n, nil
}
func (c *spoolContent) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, c.text)
	return int64(n), cmp.Or(err, c.read)
}

// An agent sees the message as the spool has it, from its beginning each time, and damage that is found in it is reported: not so a disk that cannot be read now.
func TestStored(t *testing.T) {
	t.Parallel()
	c := &spoolContent{text: "content", read: io.EOF}
	r := new(Request)
	s := stored{c, r}
	if s.Len() != 7 || string(s.Bytes()) != "content" {
		t.Errorf("%d octets: %q", s.Len(), s.Bytes())
	}
	for range 2 {
		if b, err := io.ReadAll(struct{ io.Reader }{s.Reader()}); err != nil || string(b) != "content" {
			t.Errorf("%q, %v", b, err)
		}
	}
	c.read = nil
	var b bytes.Buffer
	if n, err := s.WriteTo(&b); n != 7 || err != nil || b.String() != "content" {
		t.Errorf("%d, %v: %q", n, err, b.String())
	}
	if err := s.Close(); err == nil || !c.closed {
		t.Errorf("%v, closed %v", err, c.closed)
	}
	for err, corrupt := range map[error]bool{queue.ErrCorrupt: true, fmt.Errorf("%w: %w", queue.ErrCorrupt, syscall.EIO): false, io.ErrUnexpectedEOF: false} {
		for range 2 {
			r.reply.Corrupt, c.read = false, err
			if _, got := io.ReadAll(struct{ io.Reader }{s.Reader()}); !errors.Is(got, err) || r.reply.Corrupt != corrupt {
				t.Errorf("%v: %v, corrupt %v", err, got, r.reply.Corrupt)
			}
			r.reply.Corrupt = false
			if _, got := s.WriteTo(&b); !errors.Is(got, err) || r.reply.Corrupt != corrupt {
				t.Errorf("%v: %v, corrupt %v", err, got, r.reply.Corrupt)
			}
		}
	}
	c.seek = io.ErrClosedPipe
	if n, err := s.Reader().Read(make([]byte, 1)); n != 0 || err != io.ErrClosedPipe {
		t.Errorf("%d, %v", n, err)
	}
}
