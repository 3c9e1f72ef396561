package e2e

import (
	"fmt"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// In over SMTP, out over SMTP: the content arrives as it was sent, below the
// trace, and the log tells the story in Postfix's words.
func TestRelay(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost()})
	const content = "From: a@from.test\nDate: Sat, 21 Nov 2026 08:00:00 +0000\nSubject: hello\nMessage-Id: <1@from.test>\n\n" +
		"first line\n.dot\n..dots\n\nlast\n"
	s.mustSend("a@from.test", []string{"b@to.test", "c@to.test"}, content)
	s.waitLog(`postfix/qmgr\[\d+\]: \w+: removed`)
	got := next.received()
	if len(got) != 1 {
		t.Fatalf("%d messages arrived, want 1", len(got))
	}
	if got[0].from != "a@from.test" || fmt.Sprint(got[0].to) != "[b@to.test c@to.test]" {
		t.Errorf("envelope %q -> %q", got[0].from, got[0].to)
	}
	if !strings.HasSuffix(got[0].data, content) {
		t.Errorf("content:\n%s", got[0].data)
	}
	id := s.queueID(`postfix/smtpd\[\d+\]: (\w+): client=`)
	trace := regexp.MustCompile(`^Received: from client\.test \(\S+ \[127\.0\.0\.1\]\)\n\tby mta\.test \(Posthaste\) with (?:UTF8SMTP|ESMTP) id ` + id)
	if !trace.MatchString(got[0].data) {
		t.Errorf("trace:\n%s", got[0].data)
	}
	for _, line := range []string{
		`postfix/smtpd\[\d+\]: connect from \S+\[127\.0\.0\.1\]$`,
		`postfix/smtpd\[\d+\]: ` + id + `: client=\S+\[127\.0\.0\.1\]$`,
		`postfix/cleanup\[\d+\]: ` + id + `: message-id=<1@from\.test>$`,
		`postfix/qmgr\[\d+\]: ` + id + `: from=<a@from\.test>, size=\d+, nrcpt=2 \(queue active\)$`,
		`postfix/smtp\[\d+\]: ` + id + `: to=<b@to\.test>, relay=127\.0\.0\.1\[127\.0\.0\.1\]:\d+, delay=[\d.]+, delays=[\d.]+/[\d.]+/[\d.]+/[\d.]+, dsn=2\.0\.0, status=sent \(250 2\.0\.0 Ok: sunk\)$`,
		`postfix/smtpd\[\d+\]: disconnect from \S+\[127\.0\.0\.1\] ehlo=1 mail=1 rcpt=2 data=1 quit=1 commands=6$`,
	} {
		s.waitLog(line)
	}
}

// queueID is what the pattern's group finds in the log.
func (s *system) queueID(pattern string) string {
	s.t.Helper()
	s.waitLog(pattern)
	return regexp.MustCompile(pattern).FindStringSubmatch(s.log())[1]
}

// The sendmail program works while the mail system is down, and what it left
// is taken when it is up.
func TestSendmail(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost()})
	s.stop()
	out, status := s.tool([]byte("From fred Sat\nTo: x@to.test, Y <y@to.test>\nBcc: z@to.test\nSubject: cron\n\nline\n.\nnot read\n"),
		"sendmail", "-t", "-f", "me@from.test")
	if status != 0 {
		t.Fatalf("exit status %d: %s", status, out)
	}
	s.start()
	s.waitLog(`postfix/pickup\[\d+\]: \w+: uid=\d+ from=<me@from.test>$`)
	s.waitLog(`: removed$`)
	got := next.received()
	if len(got) != 1 || fmt.Sprint(got[0].to) != "[x@to.test y@to.test z@to.test]" {
		t.Fatalf("arrived: %+v", got)
	}
	d := got[0].data
	if !strings.HasSuffix(d, "\n\nline\n") || strings.Contains(d, "Bcc") || strings.Contains(d, "From fred") {
		t.Errorf("content:\n%s", d)
	}
	for _, h := range []string{"\nFrom: ", "\nDate: ", "\nMessage-Id: <"} {
		if !strings.Contains(d, h) {
			t.Errorf("no %s field was added:\n%s", strings.Trim(h, "\n: <"), d)
		}
	}
}

func TestSendmailUsage(t *testing.T) {
	t.Parallel()
	s := newSystem(t, options{unstarted: true})
	for _, c := range []struct {
		args  string
		stdin string
		want  int
		says  string
	}{
		{"", "x\n", 75, "Recipient addresses must be specified"},
		{"-t", "Subject: x\n\n", 75, "No recipient addresses found"},
		{"-Z x@y.test", "", 75, "unknown option -Z"},
		{"-f", "", 75, "option -f requires a value"},
		{"-U", "", 75, "Recipient addresses must be specified"},
		{"-n x@y.test", "", 75, "-n: not supported"},
		{"-N sometimes", "", 75, "warning: -N \"sometimes\": expected never"},
		{"-C /nonexistent x@y.test", "", 78, "/nonexistent"},
	} {
		out, status := s.tool([]byte(c.stdin), append([]string{"sendmail"}, strings.Fields(c.args)...)...)
		if status != c.want || !strings.Contains(out, c.says) {
			t.Errorf("sendmail %s: exit status %d, want %d; output %q lacks %q", c.args, status, c.want, out, c.says)
		}
	}
}

// A destination that is down keeps the mail in the queue, where mailq shows it
// with the reason; when it is up again a flush delivers it.
func TestDeferAndFlush(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	s := newSystem(t, options{main: fmt.Sprintf("relayhost = [127.0.0.1]:%d\n", port)})
	s.mustSend("a@from.test", []string{"b@to.test"}, "Subject: x\n\nx\n")
	s.waitLog(`to=<b@to.test>, relay=none, .* dsn=4\.4\.1, status=deferred \(connect to 127\.0\.0\.1\[127\.0\.0\.1\]:\d+: Connection refused\)$`)
	var out string
	s.eventually("mailq shows the message", func() bool {
		out, _ = s.tool(nil, "mailq")
		return strings.Contains(out, "Connection refused") && !strings.Contains(out, "*")
	})
	if !regexp.MustCompile(`(?s)^-+Queue ID-.*a@from\.test\n +\(connect to 127.*Connection refused\)\n +b@to\.test\n\n-- \d+ Kbytes in 1 Request\.\n$`).MatchString(out) {
		t.Errorf("mailq:\n%s", out)
	}
	next := newSinkAt(t, fmt.Sprintf("127.0.0.1:%d", port), nil)
	if out, status := s.tool(nil, "postqueue", "-f"); status != 0 {
		t.Errorf("postqueue -f: %d %s", status, out)
	}
	s.waitLog(`: removed$`)
	if n := len(next.received()); n != 1 {
		t.Errorf("%d messages arrived, want 1", n)
	}
	if out, _ := s.tool(nil, "mailq"); out != "Mail queue is empty\n" {
		t.Errorf("mailq: %q", out)
	}
}

// A refused recipient bounces to the sender, with a report that another
// program's parser takes for what it is.
func TestBounce(t *testing.T) {
	t.Parallel()
	next := newSink(t, func(line string) string {
		if strings.HasPrefix(line, "RCPT TO:<nobody@") {
			return "550 5.1.1 no such user here"
		}
		return ""
	})
	s := newSystem(t, options{main: next.relayhost()})
	s.mustSend("a@from.test", []string{"nobody@to.test", "b@to.test"}, "Subject: x\nMessage-Id: <b@x>\n\nbody text\n")
	s.waitLog(`to=<nobody@to.test>, .* dsn=5\.1\.1, status=bounced \(host 127\.0\.0\.1\[127\.0\.0\.1\] said: 550 5\.1\.1 no such user here \(in reply to RCPT TO command\)\)$`)
	s.waitLog(`postfix/bounce\[\d+\]: \w+: sender non-delivery notification: \w+$`)
	s.waitLogN(`: removed$`, 2)
	var report string
	for _, m := range next.received() {
		if m.from == "" && fmt.Sprint(m.to) == "[a@from.test]" {
			report = m.data
		}
	}
	if report == "" {
		t.Fatalf("no report arrived: %+v", next.received())
	}
	check := exec.Command("python3", "-c", `
import sys, email, email.policy
m = email.message_from_string(sys.stdin.read(), policy=email.policy.default)
assert m.get_content_type() == "multipart/report", m.get_content_type()
assert m.get_param("report-type") == "delivery-status"
assert not m.defects, m.defects
parts = list(m.iter_parts())
assert [p.get_content_type() for p in parts] == ["text/plain", "message/delivery-status", "message/rfc822"], parts
fields = parts[1].get_payload()
assert fields[1]["Final-Recipient"] == "rfc822; nobody@to.test", fields[1]
assert fields[1]["Action"] == "failed" and fields[1]["Status"] == "5.1.1"
assert fields[1]["Remote-MTA"].startswith("dns; "), fields[1]
assert "body text" in parts[2].get_payload(0).get_content()
print("ok")`)
	check.Stdin = strings.NewReader(report)
	if out, err := check.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "ok" {
		t.Errorf("the report is not what it should be: %v\n%s\n%s", err, out, report)
	}
}

// A bounce that bounces ends with the postmaster, and one of that nowhere.
func TestBounceOfBounce(t *testing.T) {
	t.Parallel()
	next := newSink(t, func(line string) string {
		if strings.HasPrefix(line, "RCPT") {
			return "550 5.1.1 nobody is here"
		}
		return ""
	})
	s := newSystem(t, options{main: next.relayhost() + "notify_classes = bounce, 2bounce\n2bounce_notice_recipient = pm@to.test\n"})
	s.mustSend("a@from.test", []string{"b@to.test"}, "Subject: x\n\nx\n")
	s.waitLog(`sender non-delivery notification: `)
	s.waitLog(`to=<a@from.test>, .*status=bounced`)
	s.eventually("the queue is empty", func() bool {
		out, _ := s.tool(nil, "mailq")
		return out == "Mail queue is empty\n"
	})
}

func TestLocalMaildir(t *testing.T) {
	t.Parallel()
	user := localUser(t)
	box := mailDir(t, user)
	s := newSystem(t, options{main: "mail_spool_directory = " + box + "/\nlocal_recipient_maps = unix:passwd.byname $alias_maps\n"})
	s.mustSend("a@from.test", []string{user + "@local.test"}, "Subject: for you\n\nhello\n")
	s.waitLog(`postfix/local\[\d+\]: \w+: to=<` + user + `@local.test>, relay=local, .* dsn=2\.0\.0, status=sent \(delivered to maildir\)$`)
	files, err := filepath.Glob(filepath.Join(box, user, "new", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("maildir has %v, %v", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if !strings.HasPrefix(text, "Return-Path: <a@from.test>\n") || !strings.Contains(text, "\nDelivered-To: "+user+"@local.test\n") ||
		!strings.HasSuffix(text, "\n\nhello\n") || strings.Contains(text, "\r") {
		t.Errorf("delivered:\n%s", text)
	}
	err = s.send("a@from.test", []string{"no-such-user-here@local.test"}, "x\n")
	if e, ok := err.(*textproto.Error); !ok || e.Code != 550 || !strings.Contains(e.Msg, "User unknown in local recipient table") {
		t.Errorf("mail to an unknown user: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s := newSystem(t, options{main: "mynetworks = 192.0.2.0/24\nmessage_size_limit = 20000\nrelay_domains = to.test\nrelayhost = [127.0.0.1]:1\n"})
	if r := s.dialogue(t, "", "EHLO c.test", "MAIL FROM:<a@b.test>", "RCPT TO:<x@elsewhere.test>", "QUIT"); !strings.HasPrefix(r[3], "454 4.7.1 <x@elsewhere.test>: Relay access denied") {
		t.Errorf("relaying for strangers: %q", r)
	}
	s.waitLog(`NOQUEUE: reject: RCPT from \S+\[127\.0\.0\.1\]: 454 4\.7\.1 <x@elsewhere\.test>: Relay access denied; from=<a@b\.test> to=<x@elsewhere\.test> proto=ESMTP helo=<c\.test>$`)
	if r := s.dialogue(t, "", "EHLO c.test", "MAIL FROM:<a@b.test> SIZE=30000", "QUIT"); !strings.HasPrefix(r[2], "552 5.3.4") {
		t.Errorf("a SIZE over the limit: %q", r)
	}
	err := s.send("a@b.test", []string{"x@to.test"}, "Subject: x\n\n"+strings.Repeat("0123456789\n", 3000))
	if e, ok := err.(*textproto.Error); !ok || e.Code != 552 {
		t.Errorf("a message over the limit: %v", err)
	}
	if r := s.dialogue(t, "", "EHLO c.test", "MAIL FROM:<a@b.test>", "DATA", "QUIT"); !strings.HasPrefix(r[3], "554 5.5.1 Error: no valid recipients") {
		t.Errorf("DATA without recipients: %q", r)
	}
	err = s.send("a@b.test", []string{"x@to.test"}, strings.Repeat("Received: from a by b\n", 60)+"\nloop\n")
	if e, ok := err.(*textproto.Error); !ok || e.Code != 554 || !strings.Contains(e.Msg, "too many hops") {
		t.Errorf("a message with 60 hops: %v", err)
	}
}

// A sender who asks for it gets a report of success: of a delivery to a next hop that does not
// send reports itself, and of an alias.
func TestSuccessNotices(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + "virtual_alias_domains = list.test\n" +
		"virtual_alias_maps = inline:{ { all@list.test = x@to.test, y@to.test } }\n"})
	s.dialogue(t, "", "EHLO c.test", "MAIL FROM:<a@from.test> RET=HDRS ENVID=e1", "RCPT TO:<b@to.test> NOTIFY=SUCCESS",
		"RCPT TO:<all@list.test> NOTIFY=SUCCESS,FAILURE", "DATA", "Subject: tell me\r\n\r\nbody\r\n.", "QUIT")
	s.waitLog(`sender delivery status notification: \w+$`)
	s.waitLogN(`: removed$`, 2)
	var report string
	for _, m := range next.received() {
		if m.from == "" && fmt.Sprint(m.to) == "[a@from.test]" {
			report += m.data
		}
	}
	for _, want := range []string{"Original-Envelope-Id: e1\n", "Final-Recipient: rfc822; b@to.test\n", "Action: relayed\n",
		"Final-Recipient: rfc822; all@list.test\n", "Action: expanded\n"} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q:\n%s", want, report)
		}
	}
	if strings.Contains(report, "body") {
		t.Errorf("the report has the body, headers were asked for:\n%s", report)
	}
}
