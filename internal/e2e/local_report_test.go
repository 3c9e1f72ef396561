package e2e

import (
	"fmt"
	"net/smtp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A reported message is one whose sender gets notices, by both mail systems.
type reported struct {
	name    string
	mail    string   // after MAIL FROM:
	rcpt    []string // after RCPT TO:
	content string   // "" is an ordinary message
	notices int      // how many the sender, or who hears in his place, gets
}

const reportSettings = `mail_name = Postfix
smtputf8_enable = no
myorigin = local.test
alias_maps = texthash:{dir}/etc/aliases
recipient_delimiter = +
notify_classes = bounce, 2bounce, delay
bounce_notice_recipient = copies@local.test
2bounce_notice_recipient = double@local.test
delay_notice_recipient = copies@local.test
bounce_size_limit = 3000
bounce_template_file = {dir}/etc/template
smtpd_authorized_verp_clients = 127.0.0.0/8
transport_maps = inline:{ sunk.test=discard: }
`

const reportTemplate = `failure_template = <<EOF
Charset: us-ascii
From: MAILER-DAEMON (Mail Delivery System)
Subject: It has come back
Postmaster-Subject: Postmaster Copy: it has come back

This is $mail_name at $myhostname, where mail waits for ${maximal_queue_lifetime_days} days.
EOF
success_template = <<EOF
From: MAILER-DAEMON (Mail Delivery System)
Subject: It has arrived

This is $mail_name.
EOF
delay_template = <<EOF
From: MAILER-DAEMON (Mail Delivery System)
Subject: It is late
Postmaster-Subject: Postmaster Copy: it is late

It is older than $delay_warning_time_hours hours.
EOF
verify_template = <<EOF
From: MAILER-DAEMON (Mail Delivery System)
Subject: What has become of it

This is $mail_name.
EOF
`

var reportedMail = []reported{
	{name: "unknown", mail: "<box@local.test>", rcpt: []string{"<nosuch@local.test>"}, notices: 1},
	{name: "two", mail: "<box@local.test>", rcpt: []string{"<nosuch@local.test>", "<sink@sunk.test>"}, notices: 1},
	{name: "command", mail: "<box@local.test>", rcpt: []string{"<fails@local.test>"}, notices: 1},
	{name: "alias", mail: "<box@local.test>", rcpt: []string{"<chain+x@local.test>"}, notices: 1},
	{name: "never", mail: "<box@local.test>", rcpt: []string{"<nosuch@local.test> NOTIFY=NEVER"}},
	{name: "delay", mail: "<box@local.test>", rcpt: []string{"<nosuch@local.test> NOTIFY=DELAY"}},
	{name: "failure", mail: "<box@local.test>", rcpt: []string{"<nosuch@local.test> NOTIFY=FAILURE,DELAY"}, notices: 1},
	{name: "success", mail: "<box@local.test>", rcpt: []string{"<box+x@local.test> NOTIFY=SUCCESS ORCPT=rfc822;who+2Bx@far.test"}, notices: 2},
	{name: "expanded", mail: "<box@local.test>", rcpt: []string{"<tobox@local.test> NOTIFY=SUCCESS,FAILURE"}, notices: 2},
	{name: "headers", mail: "<box@local.test> RET=HDRS ENVID=QQ+2B314159", rcpt: []string{"<nosuch@local.test> ORCPT=rfc822;Who@far.test"}, notices: 1},
	{name: "full", mail: "<box@local.test> RET=FULL ENVID=x", rcpt: []string{"<nosuch@local.test>"}, notices: 1},
	{name: "large", mail: "<box@local.test> RET=FULL", rcpt: []string{"<nosuch@local.test>"}, content: "Subject: large\n\n" + strings.Repeat("a line of the text\n", 300), notices: 1},
	{name: "loop", mail: "<box@local.test>", rcpt: []string{"<tobox@local.test>"}, content: "Delivered-To: tobox@local.test\nSubject: x\n\n", notices: 1},
	{name: "verp", mail: "<box@local.test> XVERP=+=", rcpt: []string{"<nosuch@local.test>", "<other@local.test>"}, notices: 2},
	{name: "null", mail: "<>", rcpt: []string{"<nosuch@local.test>"}},
	{name: "owner", mail: "<box@local.test>", rcpt: []string{"<list@local.test>"}, notices: 1},
	{name: "listsuccess", mail: "<box@local.test> RET=HDRS ENVID=QQ1", rcpt: []string{"<good@local.test> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;Who@far.test"}, notices: 1},
	{name: "listforwarded", mail: "<box@local.test>", rcpt: []string{"<away@local.test> NOTIFY=SUCCESS"}, notices: 1},
	{name: "forwarded", mail: "<box@local.test>", rcpt: []string{"<sunk@local.test> NOTIFY=SUCCESS"}, notices: 1},
	{name: "double", mail: "<nosuch@local.test>", rcpt: []string{"<fails@local.test>"}},
	{name: "both", mail: "<box@local.test>", rcpt: []string{"<both+xy@local.test> ORCPT=rfc822;Who@far.test"}, notices: 1},
	{name: "same", mail: "<box@local.test>", rcpt: []string{"<same@local.test>"}, notices: 1},
	{name: "some", mail: "<box@local.test>", rcpt: []string{"<some@local.test>"}, notices: 1},
	{name: "somesuccess", mail: "<box@local.test>", rcpt: []string{"<some@local.test> NOTIFY=SUCCESS,FAILURE"}, notices: 2},
	{name: "includes", mail: "<box@local.test>", rcpt: []string{"<inc@local.test>"}, notices: 1},
	{name: "mixed", mail: "<box@local.test>", rcpt: []string{"<mixed@local.test>"}, notices: 2},
	{name: "verpmembers", mail: "<box@local.test> XVERP=+=", rcpt: []string{"<both@local.test>"}, notices: 2},
	{name: "nevermembers", mail: "<box@local.test>", rcpt: []string{"<both@local.test> NOTIFY=NEVER"}},
	{name: "nullmembers", mail: "<>", rcpt: []string{"<both@local.test>"}, notices: 1},
}

// TestReportsLikePostfix has both mail systems report on the same mail, and
// compares all that people get: senders, owners of lists, and postmaster.
func TestReportsLikePostfix(t *testing.T) {
	t.Parallel()
	python := need(t, "python3")
	settings := options{main: reportSettings, unstarted: true}
	theirs, ours := newPostfix(t, settings), newSystem(t, settings)
	for _, s := range []*system{theirs, ours} {
		setUpReports(s)
		s.start()
	}
	for _, m := range reportedMail {
		a, b := theirs.reports(m), ours.reports(m)
		if len(a) < m.notices {
			t.Fatalf("%s: Postfix sends %d notices, not %d", m.name, len(a), m.notices)
		}
		if slices.Contains([]string{"verp", "verpmembers", "mixed"}, m.name) { // one copy for postmaster of all notices, where Postfix sends one of each
			a, b = senders(a), senders(b)
		}
		if !slices.Equal(a, b) {
			t.Errorf("%s: Postfix reports\n%s\n\nours:\n%s", m.name, strings.Join(a, "\n=====\n"), strings.Join(b, "\n=====\n"))
		}
	}
	list, _ := filepath.Glob(ours.path("mail/*/new/*"))
	readReports(t, list, "message/delivery-status", shownReport)
	out, err := exec.Command(python, append([]string{"-c", parseReports}, list...)...).CombinedOutput()
	if err != nil {
		t.Errorf("Python does not read our reports: %v\n%s", err, out)
	}
}

// readReports reads reports as a user does, with s-nail, which has a MIME parser
// of its own: each has three parts, the second of them a status for programs, of
// this type, which it is told to show as text.
func readReports(t *testing.T, files []string, status string, shown *regexp.Regexp) {
	t.Helper()
	mua := need(t, "s-nail")
	read := 0
	for _, name := range files {
		text := readAll(t, name)
		if !strings.Contains(text, "\nContent-Type: multipart/report") || !strings.Contains(text, "\nContent-Type: "+status) {
			continue
		}
		box := filepath.Join(t.TempDir(), "box")
		if err := os.WriteFile(box, []byte("From MAILER-DAEMON Sat Nov 21 08:00:00 2026\n"+text), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(mua, "-:/", "-R", "-#", "-Sttycharset=utf-8", "-Spipe-"+status+"=?", "-f", box)
		cmd.Stdin = strings.NewReader("type 1\nexit\n")
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
		out, err := cmd.CombinedOutput()
		if err != nil || !shown.Match(out) {
			t.Errorf("s-nail shows a report so: %v\n%s", err, out)
		}
		read++
	}
	if read == 0 {
		t.Error("there are no reports to read")
	}
}

var shownReport = regexp.MustCompile(`(?s)\n\[-- #1\.1 .*\nContent-Type: text/plain.*\n\[-- #1\.2 .*\nContent-Type: message/delivery-status.*\n\nReporting-MTA: dns; .*\n\nFinal-Recipient: rfc822; .*\nAction: .*\nStatus: .*\n\[-- #1\.3`)

// parseReports reads reports with Python's email package and fails when there
// is anything that it, or RFC 3464, does not like, or nothing to read.
const parseReports = `
import email, email.policy, sys
n = 0
for name in sys.argv[1:]:
    with open(name, 'rb') as f:
        m = email.message_from_binary_file(f, policy=email.policy.default)
    if m.get_content_type() != 'multipart/report':
        continue
    n += 1
    for part in m.walk():
        if part.defects:
            sys.exit('%s: %s: %s' % (name, part.get_content_type(), part.defects))
    text, status, original = m.get_payload()
    if m['content-type'].params['report-type'] != 'delivery-status' or status.get_content_type() != 'message/delivery-status':
        sys.exit('%s: report-type' % name)
    about, *recipients = status.get_payload()
    if not about['Reporting-MTA'] or not recipients:
        sys.exit('%s: %s' % (name, status))
    for r in recipients:
        if r['Action'] not in ('failed', 'delayed', 'delivered', 'relayed', 'expanded') or not r['Final-Recipient'].startswith('rfc822;') or r['Status'].count('.') != 2:
            sys.exit('%s: %s' % (name, r))
    if original.get_content_type() not in ('message/rfc822', 'text/rfc822-headers'):
        sys.exit('%s: %s' % (name, original.get_content_type()))
sys.exit(n == 0)
`

// setUpReports makes aliases and the maildirs that notices go to.
func setUpReports(s *system) {
	s.write("etc/template", reportTemplate)
	s.write("etc/included", "fails\nnosuch\n\"|exit 65\"\n")
	s.write("etc/aliases", strings.ReplaceAll(`box {dir}/mail/box/
copies {dir}/mail/copies/
double {dir}/mail/double/
fails "|echo it does not; exit 67"
chain fails
tobox box
list "|echo it does not; exit 67"
owner-list {dir}/mail/owner/
good {dir}/mail/good/
owner-good {dir}/mail/owner/
away sink@sunk.test
owner-away {dir}/mail/owner/
sunk sink@sunk.test
both fails, nosuch
same "|echo it does not; exit 67", "|echo nor this; exit 65"
some box, fails, sink@sunk.test, nosuch
inc :include:{dir}/etc/included
mixed list, fails
postmaster box
`, "{dir}", s.dir))
	for _, dir := range []string{"", "/box", "/copies", "/double", "/owner", "/good"} {
		if err := os.MkdirAll(s.path("mail"+dir), 0o777); err != nil {
			s.t.Fatal(err)
		}
		os.Chmod(s.path("mail"+dir), 0o777)
	}
}

// reports sends a message and returns what came of it in the maildirs, in
// order, without what differs from one time to the next.
func (s *system) reports(m reported) []string {
	s.t.Helper()
	before, _ := filepath.Glob(s.path("mail/*/new/*"))
	if err := s.sendReported(m); err != nil {
		s.t.Fatalf("%s: %v", m.name, err)
	}
	s.waitLog(`message-id=<` + m.name + `@far\.test>`)
	s.eventually("the queue is empty after "+m.name, s.settled)
	after, _ := filepath.Glob(s.path("mail/*/new/*"))
	var out []string
	for _, name := range after {
		if slices.Contains(before, name) {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			s.t.Fatal(err)
		}
		out = append(out, filepath.Base(filepath.Dir(filepath.Dir(name)))+":\n"+s.plainReport(string(b)))
	}
	slices.Sort(out)
	return out
}

// senders are the notices that are not copies for postmaster.
func senders(list []string) []string {
	return slices.DeleteFunc(list, func(text string) bool { return strings.HasPrefix(text, "copies:") })
}

var (
	mentioned = regexp.MustCompile(`(\w+): message-id=<[a-z]+@far\.test>|notification: (\w+)|(\w+): from=.* \(queue active\)`)
	removed   = regexp.MustCompile(`(\w+): removed\n`)
)

// settled says whether every message that came, and every notice, has been
// removed. A notice that is begun and given up is in neither list.
func (s *system) settled() bool {
	log := s.log()
	gone := map[string]bool{}
	for _, m := range removed.FindAllStringSubmatch(log, -1) {
		gone[m[1]] = true
	}
	for _, m := range mentioned.FindAllStringSubmatch(log, -1) {
		if !gone[m[1]+m[2]+m[3]] {
			return false
		}
	}
	return true
}

func (s *system) sendReported(m reported) error {
	c, err := smtp.Dial(s.addr())
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Hello("client.test"); err != nil {
		return err
	}
	content := m.content
	if content == "" {
		content = "Subject: ordinary\n\ntext\n"
	}
	content = "From: x@far.test\nDate: Sat, 21 Nov 2026 08:00:00 +0000\nMessage-Id: <" + m.name + "@far.test>\n" + content
	lines := []string{"MAIL FROM:" + m.mail}
	for _, r := range m.rcpt {
		lines = append(lines, "RCPT TO:"+r)
	}
	for _, line := range lines {
		id, err := c.Text.Cmd("%s", line)
		if err != nil {
			return err
		}
		c.Text.StartResponse(id)
		_, _, err = c.Text.ReadResponse(250)
		c.Text.EndResponse(id)
		if err != nil {
			return err
		}
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprint(w, strings.ReplaceAll(content, "\n", "\r\n")); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return c.Quit()
}

var (
	reportDate = regexp.MustCompile(`\w{3}, [ \d]?\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}( \(\w+\))?`)
	reportHead = regexp.MustCompile(`(?m)^Received: .*\n([ \t]+.*\n)*`)
	reportID   = regexp.MustCompile(`\b[0-9A-F]{9,12}\b|\b4[0-9A-Za-z]{12,20}\b`)
	reportNum  = regexp.MustCompile(`ID\.\d+/|<\d{14}\.ID@|<ID@`)
)

// plainReport is a message without queue identifiers, dates and trace, and with
// its header in alphabetical order.
func (s *system) plainReport(text string) string {
	text = reportDate.ReplaceAllString(text, "DATE")
	text = reportHead.ReplaceAllString(text, "")
	text = reportID.ReplaceAllString(text, "ID")
	text = reportNum.ReplaceAllString(text, "NUMBER")
	text = strings.ReplaceAll(text, s.dir, "{dir}")
	text = strings.NewReplacer("rfc822; MAILER-DAEMON@mta.test", "rfc822;", "<MAILER-DAEMON@mta.test>", "<>").Replace(text) // Postfix's name for the null sender
	head, body, _ := strings.Cut(text, "\n\n")
	fields := strings.Split(strings.ReplaceAll(head, "\n\t", " "), "\n")
	slices.Sort(fields)
	return strings.Join(fields, "\n") + "\n\n" + body
}
