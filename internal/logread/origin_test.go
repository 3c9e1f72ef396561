package logread

import (
	"fmt"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/rfc5322"
)

// lineOf is the line of an event.
func lineOf(e maillog.Event) *Line {
	l := new(Line)
	l.cut(e.Append(nil))
	return l
}

// Who a message comes from is read back.
func TestOrigins(t *testing.T) {
	t.Parallel()
	e := maillog.SMTPDClient{QueueID: "4aAAAA1z", Name: "h.test", Addr: "192.0.2.1", Port: "4711", SASLMethod: "PLAIN", SASLUsername: "joe",
		SASLSender: "joe@a.test", OrigQueueID: "4bBBBB2z", OrigName: "far.test", OrigAddr: "2001:db8::1"}
	c, ok := lineOf(e).Client()
	if got, want := fmt.Sprintf("%s %s %s %s %s %s %s", c.Host, c.Method, c.User, c.Sender, c.OrigID, c.Orig, lineOf(e).ID),
		"{h.test 192.0.2.1} PLAIN joe joe@a.test 4bBBBB2z {far.test 2001:db8::1} 4aAAAA1z"; got != want || !ok {
		t.Errorf("%s, want %s", got, want)
	}
	c, ok = lineOf(maillog.SMTPDClient{QueueID: "4aAAAA1z", Name: "unknown", Addr: "unknown", OrigName: "x.test", OrigAddr: "unknown"}).Client()
	if got := fmt.Sprintf("%s %s", c.Host, c.Orig); got != "{unknown unknown} {x.test }" || !ok {
		t.Error(got)
	}
	c, ok = lineOf(maillog.InjectClient{QueueID: "4aAAAA1z", Name: "localhost", Addr: "127.0.0.1", Token: "app", Tenant: "acme"}).Client()
	if got := fmt.Sprintf("%s %s %s", c.Host, c.User, c.Tenant); got != "{localhost 127.0.0.1} app acme" || !ok {
		t.Error(got)
	}
	u, ok := lineOf(maillog.PickupUID{ID: "4aAAAA1z", UID: 102, From: rfc5322.Quote("a> orig_id=4cCCCC3z@b.test"), OrigID: "4bBBBB2z"}).Pickup()
	if got := fmt.Sprintf("%s %s %s", u.UID, u.From, u.OrigID); got != `102 "a> orig_id=4cCCCC3z"@b.test 4bBBBB2z` || !ok {
		t.Error(got)
	}
	for _, resent := range []bool{false, true} {
		id, r, ok := lineOf(maillog.MessageID{ID: "4aAAAA1z", Resent: resent, Value: "<1@a.test>"}).MessageID()
		if string(id) != "<1@a.test>" || r != resent || !ok {
			t.Errorf("%s %t %t", id, r, ok)
		}
	}
	d, ok := lineOf(maillog.Delivery{ID: "4aAAAA1z", To: "x@b.test", Relay: "mx.b.test[192.0.2.9]:25", ConnUse: 3, Delay: 1500 * time.Millisecond,
		TLS: "tls13,verified", DSN: dsn.S(2, 0, 0), Status: "sent", Text: "250 Ok, relay=none, status=bounced (no)"}).Delivery()
	if got := fmt.Sprintf("%s|%s|%s|%s|%s|%s|%s", d.Relay, d.Delay, d.Delays, d.TLS, d.DSN, d.Status, d.Reason); got !=
		"mx.b.test[192.0.2.9]:25|1.5|0/0/0/0|tls13,verified|2.0.0|sent|250 Ok, relay=none, status=bounced (no)" || !ok {
		t.Error(got)
	}
}

// What was decided is read back, and a client cannot say for whom in the server's place.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	base := maillog.Reject{Action: "reject", Stage: "RCPT", Name: "h.test", Addr: "192.0.2.1", Text: "550 5.1.1 <x@b.test>: Recipient address rejected: no",
		From: "s@a.test", To: "x@b.test", HasFrom: true, HasTo: true, Proto: "ESMTP", Helo: "client.test"}
	with := func(change func(*maillog.Reject)) maillog.Reject {
		e := base
		change(&e)
		return e
	}
	spoof := "; from=<boss@c.test> to=<y@c.test> proto=ESMTP helo=<y>"
	quoted := rfc5322.Quote("x" + spoof + "@b.test")
	for _, c := range []struct {
		event maillog.Event
		want  string
	}{
		{base, "reject RCPT {h.test 192.0.2.1} true s@a.test x@b.test client.test  550 5.1.1 <x@b.test>: Recipient address rejected: no"},
		{with(func(e *maillog.Reject) { e.From, e.Port, e.SASLUsername, e.SASLMethod = "", "4711", "joe", "PLAIN" }),
			"reject RCPT {h.test 192.0.2.1} true  x@b.test client.test joe 550 5.1.1 <x@b.test>: Recipient address rejected: no"},
		{with(func(e *maillog.Reject) {
			e.HasFrom, e.HasTo, e.Stage, e.Text, e.Helo = false, false, "CONNECT", "554 no; never", ""
		}),
			"reject CONNECT {h.test 192.0.2.1} false     554 no; never"},
		{with(func(e *maillog.Reject) { e.Helo = "x" + spoof }), "reject RCPT {h.test 192.0.2.1} true s@a.test x@b.test x" + spoof + "  550 5.1.1 <x@b.test>: Recipient address rejected: no"},
		{with(func(e *maillog.Reject) { e.Text, e.To = "550 5.1.1 <"+quoted+">: no", quoted }),
			"reject RCPT {h.test 192.0.2.1} true s@a.test " + quoted + " client.test  550 5.1.1 <" + quoted + ">: no"},
		{with(func(e *maillog.Reject) { e.Action, e.Text = "warn", "" }), "warn RCPT {h.test 192.0.2.1} true s@a.test x@b.test client.test  "},
		{maillog.ContentCheck{Reject: with(func(e *maillog.Reject) { e.QueueID, e.Text = "4aAAAA1z", "5.7.1 bad" }), Part: "header", Line: "Subject: from me; from=<z>"},
			"reject header Subject: from me; from=<z> {h.test 192.0.2.1} true s@a.test x@b.test client.test  5.7.1 bad"},
		{maillog.ContentCheck{Reject: maillog.Reject{Action: "info", QueueID: "4aAAAA1z", HasFrom: true, From: "root"}, Part: "body", Line: "x"}, "info body x { } true root    "},
		{maillog.ProxyVerdict{Stage: "END-OF-MESSAGE", Reply: "554 5.7.1 spam from x", From: "s@a.test", Proto: "SMTP", Helo: "c"}, "proxy-reject END-OF-MESSAGE { } true s@a.test  c  554 5.7.1 spam from x"},
	} {
		l := lineOf(c.event)
		v, ok := l.Verdict()
		if got := fmt.Sprintf("%s %s %s %t %s %s %s %s %s", v.Action, v.Stage, v.Client, v.HasFrom, v.From, v.To, v.Helo, v.User, v.Text); got != c.want || !ok {
			t.Errorf("%s:\n%s, %t, want\n%s", l.Text, got, ok, c.want)
		}
	}
	for _, text := range []string{"NOQUEUE: reject: RCPT from x", "connect from h.test[192.0.2.1]", "4aAAAA1z: removed", "warning: hostname x; from=<y>"} {
		l := new(Line)
		l.cut([]byte(text))
		if v, ok := l.Verdict(); ok {
			t.Errorf("%s: %+v", text, v)
		}
	}
	if h, ok := FirstHost([]byte("PREGREET 11 after 0.04 from [2001:db8::1]:4711: EHLO [x]")); !ok || string(h.Addr) != "2001:db8::1" || len(h.Name) > 0 {
		t.Errorf("%s", h)
	}
}
