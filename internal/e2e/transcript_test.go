package e2e

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// faultySessions are SMTP sessions in which something happens that postmaster
// may want to know of, or nothing.
var faultySessions = [][]string{
	{"", "EHLO c.test", "MAIL FROM:<box@local.test>", "RCPT TO:<sink@sunk.test>", "DATA", "Subject: fine\r\n\r\nx\r\n.", "QUIT"},
	{"", "EHLO policy.test", "MAIL FROM:<box@local.test>", "RCPT TO:<no@local.test>", "RCPT TO:<sink@sunk.test>", "DATA", "Subject: other\r\n\r\nx\r\n.", "QUIT"},
	{"", "EHLO order.test", "RCPT TO:<sink@sunk.test>", "DATA", "MAIL FROM:<box@local.test>", "MAIL FROM:<box@local.test>", "QUIT"},
	{"", "HELO", "HELO syntax.test", "MAIL FROM:box at local", "MAIL FROM:<box@local.test> NONSENSE=1", "QUIT"},
	{"", "EHLO unknown.test", "HELLO?", "VRFY sink@sunk.test", "QUIT"},
	{"", "EHLO size.test", "MAIL FROM:<box@local.test> SIZE=999999", "QUIT"},
	{"", "EHLO large.test", "MAIL FROM:<box@local.test>", "RCPT TO:<sink@sunk.test>", "DATA", "Subject: x\r\n\r\n" + strings.Repeat("a line of the text\r\n", 300) + ".", "QUIT"},
	{"", "EHLO data.test", "MAIL FROM:<box@local.test>", "RCPT TO:<sink@sunk.test>", "DATA", "Subject: forbidden\r\n\r\nx\r\n.", "QUIT"},
	{"", "EHLO loop.test", "MAIL FROM:<box@local.test>", "RCPT TO:<sink@sunk.test>", "DATA", strings.Repeat("Received: from x by y\r\n", 60) + "\r\nx\r\n.", "QUIT"},
	// What is odd here is the server that the message goes to.
	{"", "EHLO client.test", "MAIL FROM:<box@local.test>", "RCPT TO:<far@far.test>", "DATA", "Subject: far\r\n\r\nx\r\n.", "QUIT"},
}

// With notify_classes, postmaster gets the transcripts of SMTP sessions that
// went wrong, ours with clients and with servers, as the original has them.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	odd := newSink(t, func(line string) string {
		if line == "DATA" {
			return "502 5.5.1 what is that"
		}
		return ""
	})
	theirs, ours := reporters(t, "notify_classes = bounce, data, policy, protocol, resource, software\nerror_notice_recipient = copies@local.test\n"+
		"bounce_notice_recipient = double@local.test\nmessage_size_limit = 3000\nheader_checks = regexp:{dir}/etc/checks\n"+
		"smtpd_recipient_restrictions = check_recipient_access inline:{ {no@local.test = REJECT not here} }, permit_mynetworks, reject\n"+odd.relayhost())
	for _, s := range []*system{theirs, ours} {
		s.write("etc/checks", "/^Subject: forbidden/ REJECT not that\n")
	}
	for _, lines := range faultySessions {
		a, b := theirs.dialogue(t, lines...), ours.dialogue(t, lines...)
		for i := range a {
			a[i], b[i] = theirs.plainReport(a[i]), ours.plainReport(b[i])
		}
		if !slices.Equal(a, b) {
			t.Errorf("%s: the original says %q, ours %q", lines[1], a, b)
		}
	}
	const notices = 7 + 1 + 2 // of sessions with clients, of one with a server, and what came of its message
	var told [2][]string
	for i, s := range []*system{theirs, ours} {
		s.eventually("the notices are delivered", func() bool { return len(s.reported()) >= notices && s.settled() })
		for _, text := range s.reported() {
			told[i] = append(told[i], transcriptNoise.ReplaceAllString(text, ""))
		}
	}
	if len(told[0]) != notices {
		t.Errorf("the original sends %d notices, not %d", len(told[0]), notices)
	}
	if a, b := without(told[0], told[1]), without(told[1], told[0]); len(a)+len(b) > 0 {
		t.Errorf("only the original reports\n%s\n\nonly ours:\n%s", strings.Join(a, "\n=====\n"), strings.Join(b, "\n=====\n"))
	}
}

// transcriptNoise is what we say, and the original does not: that a notice is
// made by a machine, and to whom it really goes; what it says at the end of a
// session that we keep; and how long a message is with its queue identifier in it.
var transcriptNoise = regexp.MustCompile(`(?m)^Auto-Submitted: auto-generated\n|^To: Postmaster <.*\n| SIZE=\d{3}$|^ Out: RSET\n Out: QUIT\n In:  250 2\.0\.0 Ok\n`)
