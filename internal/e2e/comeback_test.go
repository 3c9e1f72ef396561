package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/overview"
)

// returnPaths are what mail of a list leaves with.
var returnPaths = regexp.MustCompile(`^b\+[a-z2-7]{1,61}@bounces\.test$`)

// cameBack is a bounce (RFC 3464) or a complaint (RFC 5965) as the systems of others send them.
func cameBack(kind, fields, returned string) string {
	return strings.ReplaceAll(fmt.Sprintf(`From: MAILER-DAEMON@far.test
MIME-Version: 1.0
Content-Type: multipart/report; report-type=%s; boundary="b"

--b
Content-Type: text/plain

Something has happened.

--b
Content-Type: message/%[1]s

%s

--b
Content-Type: message/rfc822

%s
Message-ID: <claimed@list.test>
Subject: news

news
--b--
`, kind, fields, returned), "\n", "\r\n")
}

// Mail of a list leaves with a sender of its own for each recipient. What comes back to that becomes an event, and has the
// recipient suppressed: the next message is refused, and one that is queued returned. A forged sender does nothing, and
// nobody who writes to the same people is hindered.
func TestComeback(t *testing.T) {
	t.Parallel()
	next := newSink(t, func(cmd string) string {
		if strings.HasPrefix(cmd, "RCPT TO:<never@") {
			return "550 5.1.1 no such user"
		}
		if strings.HasPrefix(cmd, "RCPT TO:<blocked@") {
			return "550 5.7.1 blocked using spamhaus"
		}
		return ""
	})
	s := newEvents(t, "", options{unstarted: true, main: "\n" + next.relayhost() + `return_path_domain = bounces.test
return_path_secret_file = {dir}/returnpath
suppress_list_maps = inline:{ {news@list.test = news} }
relay_domains = bounces.test
transport_maps = inline:{ {bounces.test = comeback:} }
destination_provider_maps = static:big
destination_limit_maps = inline:{ {provider:big = concurrency=50} }
virtual_alias_domains = alias.test
virtual_alias_maps = inline:{ {old@alias.test = joe@to.test} }
smtpd_recipient_restrictions = reject_suppressed_recipient, permit_mynetworks, reject
`, master: "suppress unix - - n - 1 suppressd\ncomeback unix - - n - - comeback\n"})
	s.write("returnpath", "a secret of this test\n")
	if err := os.Chmod(s.path("returnpath"), 0o600); err != nil { // root's alone
		t.Fatal(err)
	}
	s.start()
	send := func(from string, to ...string) error {
		return s.send(from, to, "Message-ID: <m@list.test>\r\nSubject: x\r\n\r\nx\r\n")
	}
	mustSend := func(from string, to ...string) {
		t.Helper()
		if err := send(from, to...); err != nil {
			t.Fatal(err)
		}
	}
	mustSend("news@list.test", "joe@to.test", "jane@to.test", "jim@to.test", "never@to.test", "blocked@to.test")
	paths := map[string]string{}
	s.eventually("three have arrived", func() bool {
		for _, m := range next.received() {
			if len(m.to) != 1 || !returnPaths.MatchString(m.from) {
				t.Fatalf("%+v", m)
			}
			paths[m.to[0]] = m.from
		}
		return len(paths) == 3
	})
	back := func(to, kind, fields, returned string) {
		t.Helper()
		if err := s.send("", []string{to}, cameBack(kind, fields, returned)); err != nil {
			t.Fatal(err)
		}
	}
	const gone = "Reporting-MTA: dns; far.test\n\nFinal-Recipient: rfc822; %s\nAction: failed\nStatus: 5.1.1\nDiagnostic-Code: smtp; 550 5.1.1 no such user"
	refused := func(to string) {
		t.Helper()
		if err := send("news@list.test", to); err == nil || !strings.Contains(err.Error(), "5.7.1 <") || !strings.Contains(err.Error(), "on the suppression list") {
			t.Errorf("%s: %v", to, err)
		}
	}

	// Forged: another secret made it, as far as anybody can see.
	forged := strings.Replace(paths["jim@to.test"], "b+", "b+a", 1)
	if err := s.send("", []string{forged}, cameBack("delivery-status", fmt.Sprintf(gone, "jim@to.test"), "")); err == nil || !strings.Contains(err.Error(), "5.1.1 <") {
		t.Errorf("mail to a forged return path: %v", err)
	}
	back("fbl@bounces.test", "delivery-status", fmt.Sprintf(gone, "jim@to.test"), "Return-Path: <"+forged+">")
	s.waitLog(`to=<fbl@bounces\.test>, relay=none,.*status=sent \(unverified bounce of <claimed@list\.test> to unknown: InvalidRecipient .*; it is not a return path of this system\)`)

	// A bounce, in the other case of letters, and once more.
	path := strings.ToUpper(paths["joe@to.test"])
	for _, want := range []string{`, suppressed\)`, `, again\)`} {
		back(path, "delivery-status", fmt.Sprintf(gone, "joe@to.test"), "")
		s.waitLog(`status=sent \(bounce of [0-9A-Za-z]+ to joe@to\.test: InvalidRecipient \(550 5\.1\.1 no such user\)` + want)
	}
	if e := s.waitEvent("bounced-later", "joe@to.test"); e.DSN != "5.1.1" || e.Reply != "550 5.1.1 no such user" || e.QueueID == "" {
		t.Errorf("%+v", e)
	}
	refused("joe@to.test")

	// A complaint, at an address that the provider was given.
	back("fbl@bounces.test", "feedback-report", "Feedback-Type: abuse\nUser-Agent: X/1\nVersion: 1", "Return-Path: <"+paths["jane@to.test"]+">")
	s.waitEvent("complaint", "jane@to.test")
	s.waitLog(`complaint of jane@to\.test about [0-9A-Za-z]+: abuse, suppressed`)
	refused("Jane@TO.test")

	// An operator sees how the provider takes the mail, and what came back of it, also after a restart.
	taken := func() bool {
		var n overview.Now
		out, status := s.tool(nil, "top", "-j")
		if err := json.Unmarshal([]byte(out), &n); err != nil || status != 0 {
			t.Fatalf("exit status %d, %v\n%s", status, err, out)
		}
		if len(n.Providers) != 1 || n.ProvidersFault != "" {
			return false
		}
		p := &n.Providers[0]
		return p.Name == "big" && p.Delivered >= 3 && p.Bounced >= 2 && p.Later == 1 && p.Complaints == 1 && p.Much()
	}
	s.eventually("top shows what came back", taken)
	if e := s.waitEvent("complaint", "jane@to.test"); e.Provider != "big" {
		t.Errorf("%+v", e)
	}

	// What failed at once, and what says nothing of the recipient.
	s.waitLog(`to=<never@to\.test>, list=news, suppressed=bounce \(550 5\.1\.1 no such user`)
	refused("never@to.test")
	mustSend("news@list.test", "blocked@to.test", "jim@to.test")

	// An alias leads to one who is on the list.
	mustSend("news@list.test", "old@alias.test")
	s.waitLog(`to=<joe@to\.test>, orig_to=<old@alias\.test>, relay=none,.*dsn=5\.7\.1, status=bounced \(recipient is on the suppression list: bounce \(550 5\.1\.1 no such user\)\)`)

	// A person's mail is not under the list.
	mustSend("ann@list.test", "joe@to.test")
	s.eventually("Ann's mail has arrived", func() bool {
		for _, m := range next.received() {
			if m.from == "ann@list.test" && m.to[0] == "joe@to.test" {
				return true
			}
		}
		return false
	})
	bounces := 0
	for _, e := range s.events() {
		if e.Kind == "bounced-later" && e.Recipient != "" {
			bounces++
		}
	}
	if bounces != 1 {
		t.Errorf("%d events of bounces", bounces)
	}

	// The list outlives the mail system, and an operator has the last word.
	s.stop()
	s.start()
	s.eventually("top shows what came back before", taken)
	out, status := s.tool(nil, "suppress", "export")
	if n := strings.Count(out, "\tnews\t"); status != 0 || n != 3 {
		t.Errorf("%d entries, status %d: %s", n, status, out)
	}
	if o, status := s.tool(nil, "suppress", "remove", "-l", "news", "joe@to.test"); status != 0 {
		t.Error(o)
	}
	mustSend("news@list.test", "joe@to.test")
	if o, status := s.tool([]byte("joe@to.test\nnot an address\n"), "suppress", "import", "-l", "news"); status == 0 {
		t.Error(o)
	}
	mustSend("news@list.test", "joe@to.test")
	if o, status := s.tool([]byte(out), "suppress", "import"); status != 0 || !strings.Contains(o, "3 entries imported") {
		t.Error(o)
	}
	refused("joe@to.test")
}
