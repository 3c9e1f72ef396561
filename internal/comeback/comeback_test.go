package comeback

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/bounceclass"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/event"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/resolver"
)

// lines makes a message of lines.
func lines(list ...string) string { return strings.Join(list, "\r\n") + "\r\n" }

// notification makes a report of RFC 3464 with these fields of recipients.
func notification(blocks ...string) string {
	return lines("From: MAILER-DAEMON@example.net", "Auto-Submitted: auto-replied", "MIME-Version: 1.0",
		`Content-Type: multipart/report; report-type=delivery-status; boundary="b"`, "",
		"--b", "Content-Type: text/plain", "", "It did not arrive.", "", "--b", "Content-Type: message/delivery-status", "",
		"Reporting-MTA: dns; mx.example.net", "Original-Envelope-Id: e1", "", strings.Join(blocks, "\r\n\r\n"), "",
		"--b", "Content-Type: text/rfc822-headers", "", "Return-Path: <b+good@bounces.example.org>", "Message-ID: <1@example.org>", "To: joe@example.net", "", "--b--")
}

const failed = "Final-Recipient: rfc822; joe@example.net\r\nAction: failed\r\nStatus: 5.1.1\r\nDiagnostic-Code: smtp; 550 5.1.1 no such user"

// feedbackReport makes one of RFC 5965.
func feedbackReport(kind, from string) string {
	return lines("From: fbl@provider.example", `Content-Type: multipart/report; report-type=feedback-report; boundary=b`, "",
		"--b", "Content-Type: text/plain", "", "A user does not want this.", "--b", "Content-Type: message/feedback-report", "",
		"Feedback-Type: "+kind, "User-Agent: X/1", "Version: 1", "Original-Mail-From: <"+from+">", "Original-Rcpt-To: <jane@example.net>", "",
		"--b", "Content-Type: message/rfc822", "", "Message-ID: <1@example.org>", "Subject: news", "", "text", "--b--")
}

func TestRead(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text string
		want string
	}{
		"notification": {notification(failed), "bounce [failed 5.1.1 joe@example.net/ 550 5.1.1 no such user] paths=b+good@bounces.example.org names=joe@example.net,joe@example.net id=<1@example.org> env=e1"},
		"two recipients": {notification(failed, "Original-Recipient: rfc822;jane@example.net\r\nFinal-Recipient: rfc822;<j@x.example>\r\nAction: Delayed (for now)\r\nStatus: 4.2.2"),
			"bounce [failed 5.1.1 joe@example.net/ 550 5.1.1 no such user] [delayed 4.2.2 j@x.example/jane@example.net 4.2.2] paths=b+good@bounces.example.org names=joe@example.net,jane@example.net,j@x.example,joe@example.net id=<1@example.org> env=e1"},
		"quoted": {notification("Final-Recipient: rfc822; \"john \\doe\"@example.net\r\nAction: failed\r\nStatus: 5.1.1"),
			"bounce [failed 5.1.1 john doe@example.net/ 5.1.1] paths=b+good@bounces.example.org names=john doe@example.net,joe@example.net id=<1@example.org> env=e1"},
		"folded": {notification("Final-Recipient: rfc822; joe@example.net\r\nAction: failed\r\nStatus: 5.0.0\r\nDiagnostic-Code: smtp; 550\r\n 5.1.1 no\r\n\tuser"),
			"bounce [failed 5.0.0 joe@example.net/ 550 5.1.1 no user] paths=b+good@bounces.example.org names=joe@example.net,joe@example.net id=<1@example.org> env=e1"},
		"base64": {strings.Replace(notification(failed), "Content-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; mx.example.net\r\nOriginal-Envelope-Id: e1\r\n\r\n"+failed,
			"Content-Type: message/delivery-status\r\nContent-Transfer-Encoding: base64\r\n\r\nRmluYWwtUmVjaXBpZW50OiByZmM4MjI7IGpvZUBleGFtcGxlLm5ldA0KQWN0aW9uOiBmYWlsZWQNCg==", 1),
			"bounce [failed  joe@example.net/ ] paths=b+good@bounces.example.org names=joe@example.net,joe@example.net id=<1@example.org> env="},
		"control characters": {notification("Final-Recipient: rfc822; joe@example.net\r\nAction: failed\r\nDiagnostic-Code: smtp; 550 \x1b[2J\u202e\xff"),
			"bounce [failed  joe@example.net/ 550 ?[2J??] paths=b+good@bounces.example.org names=joe@example.net,joe@example.net id=<1@example.org> env=e1"},
		"complaint": {feedbackReport("Abuse", "b+good@bounces.example.org"), "complaint abuse paths=b+good@bounces.example.org names=jane@example.net id=<1@example.org> env="},
		"words":     {lines("From: postmaster@x", "Subject: failure", "", "joe@example.net:", "550-5.1.1 no such user"), "told [failed 5.1.1 / 550-5.1.1 no such user] paths= names= id= env="},
		"vacation":  {lines("From: joe@example.net", "Auto-Submitted: auto-replied", "", "I am away. 550 5.1.1 is my number."), "other paths= names= id= env="},
		"vacation of parts": {lines("From: joe@example.net", "Auto-Submitted: auto-replied (vacation)", "Content-Type: multipart/alternative; boundary=b", "",
			"--b", "Content-Type: text/plain", "", "I am away. 550 5.1.1 is my number.", "--b", "Content-Type: text/html", "", "<p>550 5.1.1 is my number", "--b--"), "other paths= names= id= env="},
		"vacation of before": {lines("From: joe@example.net", "Precedence: auto_reply", "", "550 5.1.1 is my number."), "other paths= names= id= env="},
		"a person":           {lines("From: joe@example.net", "", "Please call 555 12345."), "other paths= names= id= env="},
		"no MIME":            {"Content-Type: multipart/report; boundary=\r\n\r\n--\r\n", "other paths= names= id= env="},
		"nothing":            {"", "other paths= names= id= env="},
		"cut off":            {notification(failed)[:400], "bounce [failed 5.1.1 joe@example.net/ 5.1.1] paths= names=joe@example.net id= env=e1"},
		"not a report": {lines("Content-Type: multipart/report; boundary=b", "", "--b", "Content-Type: message/feedback-report", "", "Version: 1", "--b--"),
			"other paths= names= id= env="},
	} {
		for _, r := range []*report{read(strings.NewReader(tt.text)), read(iotest.OneByteReader(strings.NewReader(tt.text)))} {
			if got := r.String(); got != tt.want {
				t.Errorf("%s:\n got %s\nwant %s", name, got, tt.want)
			}
		}
	}
}

// String is for comparison.
func (rep *report) String() string {
	s := [...]string{"other", "bounce", "told", "complaint"}[rep.kind]
	if rep.feedback != "" {
		s += " " + rep.feedback
	}
	for _, b := range rep.blocks {
		s += fmt.Sprintf(" [%s %s %s/%s %s]", b.action, b.status, b.final, b.orig, b.text)
	}
	return s + " paths=" + strings.Join(rep.paths, ",") + " names=" + strings.Join(rep.names, ",") + " id=" + rep.messageID + " env=" + rep.envID
}

// Whatever a message is, what is kept of it is bounded.
func TestBounds(t *testing.T) {
	t.Parallel()
	nested := "x"
	for i := range 50 {
		nested = lines(fmt.Sprintf("Content-Type: multipart/mixed; boundary=b%d", i), "", fmt.Sprintf("--b%d", i), nested, fmt.Sprintf("--b%d--", i))
	}
	for name, text := range map[string]string{
		"recipients": notification(strings.Repeat(failed+"\r\n\r\n", 5000)),
		"fields":     notification(strings.Repeat("A: b\r\n", 100000)),
		"a long one": notification("Final-Recipient: rfc822; " + strings.Repeat("a", 100000) + "@x\r\nAction: failed\r\nDiagnostic-Code: " + strings.Repeat("b", 50000)),
		"parts":      lines("Content-Type: multipart/report; boundary=b", "", strings.Repeat("--b\r\nContent-Type: text/plain\r\n\r\n550 5.1.1 x\r\n", 5000)),
		"nested":     nested,
		"header":     strings.Repeat("Delivered-To: joe@x\r\n", 100000),
	} {
		r := read(strings.NewReader(text))
		if len(r.blocks) > maxBlocks || len(r.names) > 2*maxBlocks || len(r.paths) > maxPaths || len(r.deliveredTo) > 4*maxPaths {
			t.Errorf("%s: %d recipients, %d names", name, len(r.blocks), len(r.names))
		}
		for _, b := range r.blocks {
			if len(b.text)+len(b.final)+len(b.orig)+len(b.action)+len(b.status) > 5*maxText {
				t.Errorf("%s: %.100s", name, b.text)
			}
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(notification(failed))
	f.Add(feedbackReport("abuse", "a@b"))
	f.Add(lines("Subject: x", "", "550 5.1.1 no"))
	f.Fuzz(func(t *testing.T, text string) {
		r := read(strings.NewReader(text))
		if (r.kind == bounce || r.kind == told) != (len(r.blocks) > 0) {
			t.Errorf("kind %d, %d recipients", r.kind, len(r.blocks))
		}
		for _, b := range r.blocks {
			if strings.ContainsAny(b.text+b.final+b.orig+b.status, "\r\n\x00\x1b") {
				t.Errorf("%+v", b)
			}
		}
	})
}

// fakeSuppress knows two return paths, of which one has no record, and notes what it is told.
type fakeSuppress struct {
	told    []string
	bounced bool
	err     error
}

func (f *fakeSuppress) ReturnPath(_ context.Context, q *proto.ReturnPath) (proto.ReturnPathReply, error) {
	switch q.Address {
	case "b+good@bounces.example.org":
		return proto.ReturnPathReply{QueueID: "Q1", Recipient: "joe@example.net", Recorded: true, List: "news", Sender: "list@example.org", MessageID: "<m@example.org>", Bounced: f.bounced, Complained: f.bounced}, f.err
	case "b+bare@bounces.example.org":
		return proto.ReturnPathReply{QueueID: "Q1", Recipient: "joe@example.net"}, f.err
	case "b+forged@bounces.example.org":
		return proto.ReturnPathReply{Problem: "its hash does not match"}, f.err
	}
	return proto.ReturnPathReply{Problem: "it is not a return path of this system"}, f.err
}

func (f *fakeSuppress) Tell(_ context.Context, q *proto.SuppressTell) (proto.SuppressTold, error) {
	f.told = append(f.told, q.What+" "+q.List+" "+q.Address+" "+q.Class+" "+q.Token)
	return proto.SuppressTold{Added: "x"}, f.err
}

func TestDeliver(t *testing.T) {
	t.Parallel()
	behind := strings.Replace(failed, "joe@example.net", "joe@elsewhere.example", 1)
	renamed := "Original-Recipient: rfc822;joe@example.net\r\n" + strings.Replace(failed, "joe@example.net", "joe@in.example.net", 1)
	const good, fbl = "b+good@bounces.example.org", "fbl@bounces.example.org"
	for name, tt := range map[string]struct {
		text, to, main string
		bounced        bool
		told, log      string
	}{
		"bounce":         {notification(failed), good, "", false, "bounce news joe@example.net InvalidRecipient " + good, "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), suppressed"},
		"again":          {notification(failed), good, "", true, "", "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), again"},
		"block":          {notification(strings.Replace(failed, "550 5.1.1 no such user", "550 5.7.1 blocked using spamhaus", 1)), good, "", false, "bounce news joe@example.net SpamBlock " + good, "bounce of Q1 to joe@example.net: SpamBlock (550 5.7.1 blocked using spamhaus), suppressed"},
		"behind":         {notification(behind), good, "", false, "forwarded news joe@example.net InvalidRecipient " + good, "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), suppressed"},
		"its own names":  {notification(renamed), good, "", false, "bounce news joe@example.net InvalidRecipient " + good, "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), suppressed"},
		"others too":     {notification(behind, failed), good, "", false, "bounce news joe@example.net InvalidRecipient " + good, "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), suppressed"},
		"arrived, too":   {notification(behind, strings.Replace(failed, "failed", "delivered", 1)), good, "", false, "", "notification without a failure"},
		"delay":          {notification(strings.Replace(failed, "failed", "delayed", 1)), good, "", false, "", "notification without a failure"},
		"no record":      {notification(failed), "b+bare@bounces.example.org", "", false, "", "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), nothing is recorded of it"},
		"forged":         {strings.Replace(notification(failed), "Return-Path: <b+good@", "X: <", 1), "b+forged@bounces.example.org", "", false, "", "unverified bounce of <1@example.org> to unknown: InvalidRecipient (550 5.1.1 no such user); its hash does not match"},
		"by the message": {notification(failed), fbl, "", false, "bounce news joe@example.net InvalidRecipient " + good, "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), suppressed"},
		"words":          {lines("Subject: x", "", "550 5.1.1 no such user"), good, "", false, "forwarded news joe@example.net InvalidRecipient " + good, "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), suppressed"},
		"words, forged":  {lines("Subject: x", "", "550 5.1.1 no such user"), fbl, "", false, "", "not understood; it is not a return path of this system; dropped"},
		"complaint":      {feedbackReport("abuse", good), fbl, "", false, "complaint news joe@example.net  " + good, "complaint of joe@example.net about Q1: abuse, suppressed"},
		"another type":   {feedbackReport("not-spam", good), fbl, "", false, "", "complaint of joe@example.net about Q1: not-spam"},
		"no proof":       {feedbackReport("abuse", "list@example.org"), fbl, "", false, "", "unverified complaint of unknown about <1@example.org>: abuse; it is not a return path of this system"},
		"a person":       {lines("Subject: x", "", "please stop"), good, "", false, "", "not understood; dropped"},
		"to postmaster":  {lines("Subject: x", "", "please stop"), good, "comeback_unknown_recipient = pm@example.org", false, "", "not understood; forwarded as " + good + ">pm@example.org"},
		"to the sender":  {lines("Subject: x", "", "please stop"), good, "comeback_forward = yes\ncomeback_unknown_recipient = pm@example.org", false, "", "not understood; forwarded as " + good + ">list@example.org"},
		"forward":        {notification(failed), good, "comeback_forward = yes", false, "bounce news joe@example.net InvalidRecipient " + good, "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), suppressed; forwarded as " + good + ">list@example.org"},
		"a circle":       {lines("Delivered-To: "+good, "Subject: x", "", "please stop"), good, "comeback_forward = yes", false, "", "not understood; dropped: it comes round in a circle"},
	} {
		cfg, err := config.LoadString("compatibility_level = 3.6\n" + tt.main)
		if err != nil {
			t.Fatal(err)
		}
		rules, err := bounceclass.Open([]string{bounceclass.Builtin})
		if err != nil {
			t.Fatal(err)
		}
		f := &fakeSuppress{bounced: tt.bounced}
		deliver := func(trace mail.Trace) mail.Outcome {
			a := newAgent(cfg, f, nil)
			a.now = func() time.Time { return time.Unix(1_800_000_000, 0) }
			a.send = func(_ context.Context, _ *agent.Request, _ agent.Content, from, to string) (mail.QueueID, error) {
				return mail.QueueID(from + ">" + to), nil
			}
			r := agent.NewTestRequest(mail.Envelope{Trace: trace, Recipients: []mail.Recipient{{Address: tt.to}}}, "", []byte(tt.text), nil)
			r.Classify(rules)
			a.Deliver(t.Context(), r)
			return r.Outcomes()[0]
		}
		if o := deliver(mail.TraceProbe); o.Action != dsn.Deliverable || len(f.told) > 0 {
			t.Errorf("%s: probe: %+v, told %q", name, o, f.told)
		}
		o := deliver(0)
		if got := strings.Join(f.told, "; "); o.Action != dsn.Delivered || got != tt.told || o.Reason != tt.log {
			t.Errorf("%s: %v\n told %s\n want %s\n log  %s\n want %s", name, o.Action, got, tt.told, o.Reason, tt.log)
		}
		f.err = errors.New("suppress service: it is not running")
		if o := deliver(0); o.Action != dsn.Deferred || o.Reason != "suppress service: it is not running" {
			t.Errorf("%s: without the service: %+v", name, o)
		}
	}
}

// However many return paths a message is sent to, whom it is passed on to gets it once.
func TestPassedOnce(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("compatibility_level = 3.6\ncomeback_unknown_recipient = pm@example.org\n")
	if err != nil {
		t.Fatal(err)
	}
	a := newAgent(cfg, new(fakeSuppress), nil)
	fails, sent := true, 0
	a.send = func(_ context.Context, _ *agent.Request, _ agent.Content, _, to string) (mail.QueueID, error) {
		if fails {
			fails = false
			return "", errors.New("the queue is full")
		}
		sent++
		return mail.QueueID(fmt.Sprint(to, sent)), nil
	}
	var rcpts []mail.Recipient
	for i := range 5 {
		rcpts = append(rcpts, mail.Recipient{Address: fmt.Sprint("x", i, "@bounces.example.org")})
	}
	r := agent.NewTestRequest(mail.Envelope{Recipients: rcpts}, "", []byte(lines("Subject: x", "", "please stop")), nil)
	a.Deliver(t.Context(), r)
	for i, o := range r.Outcomes() {
		if i == 0 && o.Action == dsn.Deferred {
			continue // it is tried again
		}
		if want := "not understood; it is not a return path of this system; forwarded as pm@example.org1"; o.Action != dsn.Delivered || o.Reason != want {
			t.Errorf("%d: %v %s", i, o.Action, o.Reason)
		}
	}
	if sent != 1 {
		t.Errorf("%d copies", sent)
	}
}

// A report may name the recipient with the other form of the domain.
func TestChooseInternational(t *testing.T) {
	t.Parallel()
	list := []block{{action: "failed", final: "other@example.net"}, {action: "failed", final: "JOE@xn--bcher-kva.example"}}
	if b, behind := choose(resolver.Names{}, list, "joe@b\u00fccher.example"); b != &list[1] || behind {
		t.Errorf("%+v, %v", b, behind)
	}
	// Unicode's rules make a k of the Kelvin sign, and that is somebody else.
	if b, behind := choose(resolver.Names{}, []block{{action: "failed", final: "jac\u212a@example.net"}}, "jack@example.net"); b == nil || !behind {
		t.Errorf("%+v, %v", b, behind)
	}
}

// An event of a tenant's mail names the tenant, with or without lists of its own, and the list if it is one of the tenant's; besides the
// mailing, where the message went to, and what it was sent from.
func TestTenantOfEvent(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]string{"news": "/news", "shop/": "shop/", "shop/letter": "shop/letter", "": "/"} {
		e := new(Agent{now: time.Now}).about(event.Complaint, new(report), "path", &origin{ReturnPathReply: proto.ReturnPathReply{List: scope}})
		if got := e.Tenant + "/" + e.List; got != want {
			t.Errorf("%q: %s", scope, got)
		}
	}
	e := new(Agent{now: time.Now}).about(event.Complaint, new(report), "path", &origin{ReturnPathReply: proto.ReturnPathReply{List: "news", Tenant: "shop", Campaign: "spring", Provider: "bigmail", Source: "mta1"}})
	if e.Tenant != "shop" || e.List != "news" || e.Campaign != "spring" || e.Provider != "bigmail" || e.Source != "mta1" {
		t.Errorf("%+v", e)
	}
}
