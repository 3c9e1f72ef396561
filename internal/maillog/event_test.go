package maillog

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata/*.golden")

const ms = time.Millisecond

// events has every event, in every form that it can take.
func events() []Event { return append(append(otherEvents(), smtpEvents()...), localEvents()...) }

// otherEvents are those that have no list of their own.
func otherEvents() []Event {
	session := Reject{
		Name: "unknown", Addr: "127.0.0.1", From: "s@a.test", HasFrom: true, To: "x@sink.test", HasTo: true, Proto: "ESMTP", Helo: "client.test",
	}
	reject := func(f func(*Reject)) Reject {
		r := session
		r.Action, r.Stage = "reject", "RCPT"
		f(&r)
		return r
	}
	return append(serverEvents(), []Event{
		DMARCReportSent{"2026-11-25.a.test@mx.test", "mailto:dmarc@example.com"},
		SMTPDConnect{Name: "unknown", Addr: "127.0.0.1"},
		SMTPDConnect{Name: "mail.example.org", Addr: "2001:db8::1"},
		SMTPDConnect{Name: "h.test", Addr: "192.0.2.1", Port: "4711"},
		SMTPDClient{QueueID: "076AF9D46E1", Name: "unknown", Addr: "127.0.0.1"},
		SMTPDClient{Name: "h.test", Addr: "192.0.2.1"},
		SMTPDClient{
			QueueID: "4bXYZ", Name: "h.test", Addr: "192.0.2.1", SASLMethod: "PLAIN", SASLUsername: "joe", SASLSender: "joe@a.test",
			OrigQueueID: "ABC", OrigName: "far.test", OrigAddr: "198.51.100.7",
		},
		SMTPDDisconnect{Name: "unknown", Addr: "127.0.0.1", Counts: []CommandCount{{"ehlo", 1, 1}, {"mail", 1, 1}, {"rcpt", 2, 2}, {"data", 1, 1}, {"quit", 1, 1}}},
		SMTPDDisconnect{Name: "unknown", Addr: "127.0.0.1", Counts: []CommandCount{
			{"helo", 0, 0}, {"ehlo", 1, 1}, {"mail", 1, 1}, {"rcpt", 0, 3}, {"data", 0, 1}, {"rset", 1, 1}, {"quit", 1, 1}, {"unknown", 0, 1},
		}},
		SMTPDDisconnect{Name: "unknown", Addr: "127.0.0.1"},
		SMTPDDisconnect{Name: "unknown", Addr: "127.0.0.1", Counts: []CommandCount{{"ehlo", 1, 1}}, Notes: "bare_lf"},
		reject(func(r *Reject) {
			r.To = "nobody@vmb.test"
			r.Text = "550 5.1.1 <nobody@vmb.test>: Recipient address rejected: User unknown in virtual mailbox table"
		}),
		reject(func(r *Reject) {
			r.Action, r.From, r.Text = "reject_warning", "bob", "504 5.5.2 <bob>: Sender address rejected: need fully-qualified address"
		}),
		reject(func(r *Reject) { r.Action, r.To = "warn", "warn@sink.test" }),
		reject(func(r *Reject) {
			r.Action, r.To, r.Text = "hold", "hold@sink.test", "<hold@sink.test>: Recipient address triggers HOLD action"
		}),
		reject(func(r *Reject) {
			*r = Reject{Action: "reject", Stage: "CONNECT", Name: "unknown", Addr: "192.0.2.9", Proto: "SMTP",
				Text: "554 5.7.1 <unknown[192.0.2.9]>: Client host rejected: Access denied"}
		}),
		reject(func(r *Reject) {
			r.QueueID, r.From, r.Text = "4bXYZ", "", "450 4.7.1 try later"
			r.SASLMethod, r.SASLUsername, r.SASLSender = "LOGIN", "joe", "joe@a.test"
		}),
		reject(func(r *Reject) { r.To, r.Text = "x@else.test", "454 4.7.1 <x@else.test>: Relay access denied" }),
		reject(func(r *Reject) {
			r.Action, r.From, r.Text = "discard", "drop@void.test", "<drop@void.test>: Sender address triggers DISCARD action"
		}),
		reject(func(r *Reject) {
			r.QueueID, r.Action, r.Stage, r.Text = "4bXYZ", "milter-reject", "END-OF-MESSAGE", "5.7.1 no bad mail"
		}),
		LostConnection{After: "CONNECT", Name: "unknown", Addr: "127.0.0.1"},
		LostConnection{After: "DATA", Content: true, Name: "unknown", Addr: "127.0.0.1"},
		LostConnection{What: "timeout", After: "DATA", Content: true, Bytes: 1234, Name: "unknown", Addr: "127.0.0.1"},
		LostConnection{What: "too many errors", After: "RCPT", Name: "unknown", Addr: "127.0.0.1"},
		Pipelining{After: "HELO", Name: "unknown", Addr: "127.0.0.1", Data: "MAIL FROM:<a@b.c>\r\nQUIT\r\n"},
		Pipelining{After: "EHLO", Name: "unknown", Addr: "127.0.0.1", Data: "\x00\\\xff" + strings.Repeat("x", 200)},
		SASLFailed{Name: "unknown", Addr: "192.0.2.1", Method: "LOGIN", Reason: "UGFzc3dvcmQ6"},
		SASLFailed{Name: "unknown", Addr: "192.0.2.1", Method: "PLAIN", Reason: "authentication failure", Username: "joe"},
		LimitExceeded{What: "Connection concurrency", Count: 51, Name: "unknown", Addr: "192.0.2.1", Service: "smtp"},
		LimitExceeded{What: "Message delivery request rate", Count: 101, Name: "unknown", Addr: "192.0.2.1", Service: "submission"},
		ClientStatistics{What: "connection count", Value: "2", For: "smtp:192.0.2.1", At: "Nov 20 17:56:01"},
		ClientStatistics{What: "connection rate", Value: "3/60s", For: "smtp:192.0.2.1", At: "Nov 20 17:56:01"},
		TLSEstablished{Trust: "Anonymous", Server: true, Peer: "h.test[192.0.2.1]", Proto: "TLSv1.3", Cipher: "TLS_AES_256_GCM_SHA384", Bits: 256,
			KeyExchange: "X25519", Signature: "RSA-PSS (2048 bits)", Digest: "SHA256"},
		TLSEstablished{Trust: "Trusted", Server: true, Peer: "h.test[192.0.2.1]", SNI: "mx.test", Proto: "TLSv1.2", Cipher: "ECDHE-RSA-AES128-GCM-SHA256", Bits: 128},
		TLSEstablished{Trust: "Untrusted", Peer: "h.test[192.0.2.1]:25", Proto: "TLSv1.2", Cipher: "ECDHE-RSA-AES128-GCM-SHA256", Bits: 128},

		MessageID{ID: "076AF9D46E1", Value: "<abc@client.test>"},
		MessageID{ID: "076AF9D46E1", Resent: true, Value: "<abc@client.test>"},
		Tenant{ID: "076AF9D46E1", Tenant: "acme"},
		Tenant{ID: "076AF9D46E1", Tenant: "acme", Campaign: "spring"},
		ContentCheck{Reject: reject(func(r *Reject) { r.QueueID, r.Stage, r.Text = "0B3109D46EC", "", "5.7.1 no bad mail" }), Part: "header", Line: "Subject: bad x"},
		ContentCheck{Reject: reject(func(r *Reject) { r.QueueID, r.Stage, r.Action = "0B3109D46EC", "", "warning" }), Part: "body", Line: "buy now"},
		ContentCheck{Reject: Reject{QueueID: "0B3109D46EC", Action: "info", From: "root", HasFrom: true, Text: "seen"}, Part: "header", Line: "Subject: info x"},
		ContentCheck{Reject: reject(func(r *Reject) {
			r.QueueID, r.Stage, r.Action, r.To, r.Text = "0AD139D46E9", "", "info", "warn@sink.test", "seen"
		}), Part: "header", Line: "Subject: info x"},
		InjectClient{QueueID: "076AF9D46E1", Name: "localhost", Addr: "127.0.0.1", Token: "app", Tenant: "acme"},
		InjectClient{QueueID: "076AF9D46E1", Name: "unknown", Addr: "2001:db8::1", Token: "app"},
		InjectRefused{Name: "unknown", Addr: "192.0.2.1", Request: "POST /v1/messages", Status: 401, Reason: "the token is not known"},
		InjectRefused{Name: "localhost", Addr: "127.0.0.1", Token: "app", Request: "POST /v1/messages", Status: 403, Reason: "from: the token may not send as ann@else.test"},
		PickupUID{ID: "9D23D9D408D", UID: 0, From: "root"},
		PickupUID{ID: "6D8199D40AE", UID: 102, From: "s@a.test", OrigID: "0BA129D46EC"},
		QueueActive{ID: "076AF9D46E1", From: "s@a.test", Size: 261, NRcpt: 2},
		QueueActive{ID: "10E6A9D46EE", Size: 2196, NRcpt: 1},
		Removed{"076AF9D46E1"},
		Elsewhere{"076AF9D46E1"},
		Withdrawn{"076AF9D46E1"},
		WaitRefused{"076AF9D46E1", "550 5.1.1 <nobody@example.com>: no such user"},
		Expired{ID: "08A6F9D4443", From: "s@a.test"},
		Expired{ID: "08A6F9D4443", From: "s@a.test", Forced: true},
		QueueAction{"08FED9D46E4", "placed on hold"},
		QueueAction{"08FED9D46E4", "released from hold"},
		QueueAction{"0BA129D46EC", "requeued"},
		QueueAction{"08A6F9D4443", "expired"},
		QueueAction{"08A6F9D4443", "removed"},
		Suspended{Target: "example.com", Subject: "delivery to example.com", By: "ann", Reason: "they ask for less", Until: time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC)},
		Set{Target: "site=mx.example.com", Subject: "site mx.example.com", Name: "max_message_rate", Value: "1/min", By: "automation", Reason: "shaping.toml:12: 421 slow down", Until: time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC)},
		Unset{Target: "site=mx.example.com", Subject: "site mx.example.com", Name: "max_message_rate"},
		Unset{Target: "site=mx.example.com", Subject: "site mx.example.com", By: "root"},
		Returning{Target: "tenant=news->example.com", Subject: "mail of tenant news to example.com", By: "automation", Reason: "shaping.toml:8: 550 5.7.1 no", Until: time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC)},
		ReturningOver{Target: "domain=example.com", Subject: "mail to example.com"},
		ReturningOver{Target: "domain=example.com", Subject: "mail to example.com", By: "root"},
		Allowed{Target: "site=mx.example.com", Subject: "site mx.example.com", By: "root"},
		Suspended{Target: "*", Subject: "delivery to *", By: "root"},
		Suppressed{ID: "4jWn4F1YhnzSshsm4", To: "joe@example.net", List: "news", Reason: "bounce", Detail: "550 5.1.1 unknown user"},
		Suppressed{To: "joe@example.net", List: "news", Reason: "complaint"},
		Suspended{Target: "sender=news@example.org", Subject: "mail from news@example.org", By: "ann as root", Reason: "wrong campaign"},
		Resumed{Target: "example.com", Subject: "delivery to example.com", By: "ann"},
		Resumed{Target: "sender=news@example.org", Subject: "mail from news@example.org"},
		Limited{Target: "example.com", Subject: "delivery to example.com", Most: 2, By: "ann", Reason: "they answer 421", Until: time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC)},
		Limited{Target: "smtp:example.com", Subject: "delivery to smtp:example.com", Most: 50, Raises: true, By: "root"},
		Unlimited{Target: "example.com", Subject: "delivery to example.com", By: "ann"},
		Unlimited{Target: "example.com", Subject: "delivery to example.com"},
		Diverted{Target: "example.com", Subject: "delivery to example.com", Nexthop: "[relay2.example.org]:587", By: "ann", Reason: "the relay is down", Until: time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC)},
		Diverted{Target: "domain=example.com", Subject: "delivery to domain example.com", Nexthop: "smtp:", By: "root"},
		Undiverted{Target: "example.com", Subject: "delivery to example.com", By: "ann"},
		Undiverted{Target: "domain=example.com", Subject: "delivery to domain example.com"},
		ConsoleAct{User: "ann", Client: "192.0.2.7", Act: "login"},
		ConsoleAct{User: "ann", Client: "192.0.2.7", Act: "login", Reason: "the name or the password is wrong", Failed: true},
		ConsoleAct{User: "ann", Client: "local", Act: "suspend", What: "example.com", Reason: "ticket 4711"},
		ConsoleAct{User: "ann", Client: "192.0.2.7", Act: "hold", What: "08FED9D46E4"},
		ConsoleAct{User: "eve", Client: "192.0.2.7", Act: "read", What: "08FED9D46E4", Reason: "ticket 4711"},
		QueueActions{"Deleted", 2},
		QueueActions{"Requeued", 1},
		QueueActions{"Force-expired", 1},
		QueueActions{"Force-expired", 0},
		QueueActions{"Placed on hold", 1},
		QueueActions{"Released from hold", 0},
		BounceNotice{"085A79D46E3", SenderBounce, "10E6A9D46EE"},
		BounceNotice{"085A79D46E3", SenderDelay, "10E6A9D46EE"},
		BounceNotice{"085A79D46E3", SenderStatus, "10E6A9D46EE"},
		BounceNotice{"085A79D46E3", PostmasterBounce, "10E6A9D46EE"},
		BounceNotice{"085A79D46E3", PostmasterDelay, "10E6A9D46EE"},

		Delivery{ID: "07F429D46E2", To: "u1@vmb.test", Relay: "virtual", Delay: 10 * ms, Delays: [4]time.Duration{0, 10 * ms, 0, 0},
			DSN: dsn.S(2, 0, 0), Status: "sent", Text: "delivered to maildir", From: "s@a.test", MessageID: "<abc@client.test>", EnvID: "QQ314159"},
		Delivery{ID: "085A79D46E3", To: "x@deny.test", Relay: "127.0.0.1[127.0.0.1]:36027", Delay: 30 * ms, Delays: [4]time.Duration{0, 10 * ms, 0, 10 * ms},
			DSN: dsn.S(5, 3, 0), Status: "bounced", Text: "host 127.0.0.1[127.0.0.1] said: 500 5.3.0 Error: command failed (in reply to RCPT TO command)", Class: "ProtocolErrors"},
		Delivery{ID: "08FED9D46E4", To: "x@dead.test", OrigTo: "X@DEAD.test", Delay: 41 * time.Second, Delays: [4]time.Duration{41 * time.Second, 20 * ms, 0, 0},
			DSN: dsn.S(4, 4, 1), Status: "deferred", Text: "delivery temporarily suspended: connect to 127.0.0.1[127.0.0.1]:36029: Connection refused"},
		Delivery{ID: "08FED9D46E4", To: "joe@a.test", OrigTo: "postmaster@a.test", Relay: "mx.a.test[192.0.2.1]:25", ConnUse: 7,
			Delay: 1499 * ms, Delays: [4]time.Duration{130 * ms, 4 * ms, 1200 * ms, 165 * ms}, TLS: "tls13,verified",
			DSN: dsn.S(2, 0, 0), Status: "sent", Text: "250 2.0.0 Ok: queued as ABC"},
		Delivery{ID: "4bXYZ", To: "x@deny.test", Relay: "mx.deny.test[192.0.2.1]:25", Delay: 30 * ms, DSN: dsn.S(4, 3, 0), Status: "SOFTBOUNCE",
			Text: "host mx.deny.test[192.0.2.1] said: 500 5.3.0 Error: command failed (in reply to RCPT TO command)"},
		Delivery{ID: "4bXYZ", To: "x@deny.test", Relay: "mx.deny.test[192.0.2.1]:25", Delay: 30 * ms, Source: "mta2", DSN: dsn.S(2, 0, 0), Status: "sent",
			Text: "250 2.0.0 Ok"},
		Delivery{ID: "4bXYZ", To: "x@probe.test", Relay: "mx.probe.test[192.0.2.1]:25", Delay: 30 * ms, DSN: dsn.S(2, 1, 5), Status: "deliverable", Text: "250 2.1.5 Ok"},
		Delivery{ID: "4bXYZ", To: "y@probe.test", Relay: "mx.probe.test[192.0.2.1]:25", Delay: 30 * ms, DSN: dsn.S(5, 1, 1), Status: "undeliverable",
			Text: "host mx.probe.test[192.0.2.1] said: 550 5.1.1 <y@probe.test>: User unknown (in reply to RCPT TO command)"},
		ConnectFailed{"127.0.0.1", "127.0.0.1", "36029", "Connection refused"},
		ConnectFailed{"mx.test", "/var/run/lmtp", "", "No such file or directory"},

		Dialogue{Peer: "h.test[192.0.2.1]", Line: []byte("EHLO h.test")},
		Dialogue{Sent: true, Peer: "mx.test[192.0.2.1]:25", Line: []byte("MAIL FROM:<a@a.test> BODY=8BITMIME")},

		MasterStarted{"3.7.11", "/etc/postfix"},
		MasterReloaded{"0.1", "/etc/posthaste"},
		MasterTerminating{15},
		ProcessFailed{Path: "/usr/lib/posthaste/smtpd", PID: 123, Status: 1},
		ProcessFailed{Path: "/usr/lib/posthaste/smtpd", PID: 123, Signal: 9},
		Throttling{"/usr/lib/posthaste/smtpd"},
		ProcessLimit{"smtp", "25", 100},
	}...)
}

// TestEvents compares every event's text and fields with the golden file.
// Lines that the real Postfix wrote have been compared by hand when they came
// in; a change of this file is a change of what people's programs read.
func TestEvents(t *testing.T) {
	for name, list := range map[string][]Event{"events": otherEvents(), "smtp": smtpEvents(), "local": localEvents()} {
		checkGolden(t, "testdata/"+name+".golden", list)
	}
}

func checkGolden(t *testing.T, file string, list []Event) {
	var got bytes.Buffer
	for _, e := range list {
		fmt.Fprintf(&got, "%s\n", e.Append(nil))
		if f, ok := e.(Fielder); ok {
			fields := append(append([]byte("{"), bytes.TrimPrefix(f.AppendFields(nil), []byte(","))...), '}')
			if !json.Valid(fields) {
				t.Errorf("%T: fields are not JSON: %s", e, fields)
			}
			fmt.Fprintf(&got, "\t%s\n", fields)
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	g, w := strings.Split(got.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		if i >= len(g) || i >= len(w) || g[i] != w[i] {
			t.Fatalf("%s:%d differs (-rewrite accepts it)\ngot  %q\nwant %q", file, i+1, at(g, i), at(w, i))
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// TestPostfixLines has the events print lines that Postfix 3.7.11 wrote.
func TestPostfixLines(t *testing.T) {
	t.Parallel()
	all := make(map[string]bool)
	for _, e := range events() {
		all[string(e.Append(nil))] = true
	}
	for line := range strings.Lines(`connect from unknown[127.0.0.1]
076AF9D46E1: client=unknown[127.0.0.1]
076AF9D46E1: message-id=<abc@client.test>
076AF9D46E1: from=<s@a.test>, size=261, nrcpt=2 (queue active)
disconnect from unknown[127.0.0.1] ehlo=1 mail=1 rcpt=2 data=1 quit=1 commands=6
disconnect from unknown[127.0.0.1] ehlo=1 mail=1 rcpt=0/3 data=0/1 rset=1 quit=1 unknown=0/1 commands=4/9
disconnect from unknown[127.0.0.1] commands=0/0
NOQUEUE: reject: RCPT from unknown[127.0.0.1]: 550 5.1.1 <nobody@vmb.test>: Recipient address rejected: User unknown in virtual mailbox table; from=<s@a.test> to=<nobody@vmb.test> proto=ESMTP helo=<client.test>
NOQUEUE: reject_warning: RCPT from unknown[127.0.0.1]: 504 5.5.2 <bob>: Sender address rejected: need fully-qualified address; from=<bob> to=<x@sink.test> proto=ESMTP helo=<client.test>
NOQUEUE: warn: RCPT from unknown[127.0.0.1]: ; from=<s@a.test> to=<warn@sink.test> proto=ESMTP helo=<client.test>
NOQUEUE: hold: RCPT from unknown[127.0.0.1]: <hold@sink.test>: Recipient address triggers HOLD action; from=<s@a.test> to=<hold@sink.test> proto=ESMTP helo=<client.test>
0B3109D46EC: reject: header Subject: bad x from unknown[127.0.0.1]; from=<s@a.test> to=<x@sink.test> proto=ESMTP helo=<client.test>: 5.7.1 no bad mail
lost connection after DATA (0 bytes) from unknown[127.0.0.1]
lost connection after CONNECT from unknown[127.0.0.1]
improper command pipelining after HELO from unknown[127.0.0.1]: MAIL FROM:<a@b.c>\r\nQUIT\r\n
9D23D9D408D: uid=0 from=<root>
6D8199D40AE: uid=102 from=<s@a.test> orig_id=0BA129D46EC
07F429D46E2: to=<u1@vmb.test>, relay=virtual, delay=0.01, delays=0/0.01/0/0, dsn=2.0.0, status=sent (delivered to maildir)
085A79D46E3: to=<x@deny.test>, relay=127.0.0.1[127.0.0.1]:36027, delay=0.03, delays=0/0.01/0/0.01, dsn=5.3.0, status=bounced (host 127.0.0.1[127.0.0.1] said: 500 5.3.0 Error: command failed (in reply to RCPT TO command))
08FED9D46E4: to=<x@dead.test>, relay=none, delay=41, delays=41/0.02/0/0, dsn=4.4.1, status=deferred (delivery temporarily suspended: connect to 127.0.0.1[127.0.0.1]:36029: Connection refused)
connect to 127.0.0.1[127.0.0.1]:36029: Connection refused
NOQUEUE: reject: RCPT from unknown[127.0.0.1]: 454 4.7.1 <x@else.test>: Relay access denied; from=<s@a.test> to=<x@else.test> proto=ESMTP helo=<client.test>
0AD139D46E9: info: header Subject: info x from unknown[127.0.0.1]; from=<s@a.test> to=<warn@sink.test> proto=ESMTP helo=<client.test>: seen
daemon started -- version 3.7.11, configuration /etc/postfix
08FED9D46E4: released from hold
0BA129D46EC: requeued
08A6F9D4443: expired
Requeued: 1 message
Force-expired: 1 message
Force-expired: 0 messages
08A6F9D4443: from=<s@a.test>, status=force-expired, returned to sender
085A79D46E3: sender non-delivery notification: 10E6A9D46EE
10E6A9D46EE: from=<>, size=2196, nrcpt=1 (queue active)
076AF9D46E1: removed
08FED9D46E4: placed on hold
Placed on hold: 1 message
Released from hold: 0 messages
`) {
		if line = strings.TrimSuffix(line, "\n"); !all[line] {
			t.Errorf("no event prints %q", line)
		}
	}
}

func TestDelay(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		micros int64
		digits int
		want   string
	}{
		{0, 2, "0"}, {-5, 2, "0"}, {4_999, 2, "0"}, {5_000, 2, "0.01"}, {10_000, 2, "0.01"}, {14_999, 2, "0.01"}, {15_100, 2, "0.02"},
		{99_000, 2, "0.1"}, {123_456, 2, "0.12"}, {400_000, 2, "0.4"}, {995_000, 2, "1"}, {999_999, 2, "1"},
		{1_000_000, 2, "1"}, {1_040_000, 2, "1"}, {1_050_000, 2, "1.1"}, {1_500_000, 2, "1.5"}, {9_949_999, 2, "9.9"}, {9_950_000, 2, "10"},
		{10_400_000, 2, "10"}, {10_500_000, 2, "11"}, {41_300_000, 2, "41"}, {156_700_000, 2, "157"}, {432_000_000_000, 2, "432000"},
		{15_100, 3, "0.015"}, {15_100, 6, "0.015"}, {1_234, 6, "0.0012"}, {12, 6, "0.000012"}, {1, 6, "0.000001"},
		{400_000, 0, "0"}, {500_000, 0, "1"}, {1_500_000, 0, "2"}, {1_500_000, 1, "1.5"}, {40_000, 1, "0"}, {60_000, 1, "0.1"},
	} {
		if got := string(appendDelay(nil, time.Duration(test.micros)*time.Microsecond, ResolutionLimit(test.digits))); got != test.want {
			t.Errorf("%d us with %d digits: %s, want %s", test.micros, test.digits, got, test.want)
		}
	}
	if ResolutionLimit(2) != 0 {
		t.Error("the zero Resolution is not the default")
	}
}

// hostile is a string such as a stranger might send.
var hostile = rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))

// TestHostile puts strange strings into every field of every event: each makes
// one line of text, and one valid JSON object.
func TestHostile(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := events()
		e := rapid.SampledFrom(all).Draw(t, "event")
		v := reflect.New(reflect.TypeOf(e)).Elem()
		v.Set(reflect.ValueOf(e))
		fill(t, v)
		e = v.Interface().(Event)
		for _, format := range []Format{Classic, JSON, Plain, LocalSyslog, SyslogHost, RFC5424} {
			sink := &memory{format: format}
			l := New("postfix/test", sink)
			l.Log(e)
			l.Close()
			line := sink.String()
			if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") || len(line) > maxBatch {
				t.Fatalf("%d bytes, not one line: %q", len(line), line)
			}
			if !utf8.ValidString(line) || strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }) {
				t.Fatalf("control characters in %q", line)
			}
			if format == JSON && !json.Valid([]byte(line)) {
				t.Fatalf("not JSON: %s", line)
			}
		}
	})
}

func fill(t *rapid.T, v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString(hostile.Draw(t, v.Type().Field(i).Name))
		case reflect.Struct:
			fill(t, f)
		}
	}
}

func BenchmarkDelivery(b *testing.B) {
	l := New("postfix/smtp", NewWriter(discard{}, Classic))
	defer l.Close()
	e := &Delivery{ID: "4bXYZ1234567890", To: "someone@example.org", Relay: "mx.example.org[192.0.2.1]:25", Delay: 1499 * ms,
		Delays: [4]time.Duration{130 * ms, 4 * ms, 1200 * ms, 165 * ms}, DSN: dsn.S(2, 0, 0), Status: "sent",
		Text: "250 2.0.0 Ok: queued as 4bXYZ0987654321"}
	b.ReportAllocs()
	for b.Loop() {
		l.Log(e)
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }
