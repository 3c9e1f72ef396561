package e2e

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The senders have no other addresses than these, and people read what they get.
var internationalMail = []reported{
	{name: "umlaut", mail: "<bücks@local.test> SMTPUTF8", rcpt: []string{"<fällt@local.test>"}, notices: 2},
	{name: "members", mail: "<bücks@local.test> SMTPUTF8 ENVID=QQ1", rcpt: []string{"<viele@local.test>"}, notices: 2},
	{name: "orcpt", mail: "<bücks@local.test> SMTPUTF8", rcpt: []string{`<fällt@local.test> ORCPT=utf-8;f\x{E4}llt@far.test`}, notices: 2},
	{name: "headers", mail: "<bücks@local.test> SMTPUTF8 RET=HDRS", rcpt: []string{"<fällt@local.test>"}, notices: 2},
	{name: "ascii", mail: "<box@local.test> SMTPUTF8", rcpt: []string{"<fails@local.test>"}, notices: 2},
	{name: "success", mail: "<bücks@local.test> SMTPUTF8", rcpt: []string{"<über@local.test> NOTIFY=SUCCESS"}, notices: 1},
}

// rightForms are what we do otherwise where an address is not ASCII: the type of
// the report names its second part (RFC 6522 section 3), the sender is shown as what
// he is, and an address in UTF-8 has that type (RFC 6533 section 3).
var rightForms = strings.NewReplacer("report-type=delivery-status", "report-type=global-delivery-status",
	"X-Postfix-Sender: rfc822; \"b\\\xc3\\\xbccks\"@", "X-Postfix-Sender: utf-8; bücks@", "Return-Path: <\"b\\\xc3\\\xbccks\"@local.test>", "Return-Path: <bücks@local.test>",
	"Original-Recipient: rfc822;fällt", "Original-Recipient: utf-8;fällt", "Original-Recipient: rfc822;über", "Original-Recipient: utf-8;über")

// plainForms are what we do otherwise where all addresses are ASCII: what every
// reader of reports knows.
var plainForms = strings.NewReplacer("text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit", "text/plain; charset=us-ascii",
	"message/global-delivery-status\nContent-Transfer-Encoding: 8bit", "message/delivery-status")

// TestInternationalReports compares reports on mail with SMTPUTF8 addresses
// (RFC 6533) with Postfix's, and has them read by Python, whose parser does not know
// their status part for what it is, and by s-nail.
func TestInternationalReports(t *testing.T) {
	t.Parallel()
	python := need(t, "python3")
	settings := options{main: strings.Replace(reportSettings, "smtputf8_enable = no", "smtputf8_enable = yes", 1), unstarted: true}
	theirs, ours := newPostfix(t, settings), newSystem(t, settings)
	for _, s := range []*system{theirs, ours} {
		setUpReports(s)
		s.write("etc/aliases", readAll(t, s.path("etc/aliases"))+"bücks "+s.dir+"/mail/box/\nfällt \"|echo es fällt; exit 67\"\nviele fällt, nosuch\nüber sink@sunk.test\n")
		s.start()
	}
	content := "Subject: Grüße\nX-To: fällt\n\nein übles Ende\n"
	for _, m := range internationalMail {
		m.content = content
		a, b := theirs.reports(m), ours.reports(m)
		if len(a) != m.notices {
			t.Errorf("%s: Postfix sends %d notices, not %d", m.name, len(a), m.notices)
		}
		was, is := strings.Join(a, "\n=====\n"), strings.Join(b, "\n=====\n")
		if m.name == "ascii" {
			was = plainForms.Replace(was)
		} else {
			was = rightForms.Replace(was)
		}
		if was != is {
			t.Errorf("%s: Postfix reports\n%s\n\nours:\n%s", m.name, was, is)
		}
	}
	list, _ := filepath.Glob(ours.path("mail/*/new/*"))
	out, err := exec.Command(python, append([]string{"-c", parseInternational}, list...)...).CombinedOutput()
	if err != nil {
		t.Errorf("Python does not read our reports: %v\n%s", err, out)
	}
	readReports(t, list, "message/global-delivery-status", shownInternational)
}

var shownInternational = regexp.MustCompile(`(?s)\n\[-- #1\.1 .*\nContent-Type: text/plain.*(fällt|über).*\n\[-- #1\.2 .*\nContent-Type: message/global-delivery-status.*\n\nReporting-MTA: dns; .*\n\nFinal-Recipient: utf-8; .*(fällt|über|sink)@.*\nAction: .*\nStatus: .*\n\[-- #1\.3`)

// parseInternational takes the status part by its octets: blocks of fields, in
// UTF-8, those of RFC 6533 section 4.2 with their address type.
const parseInternational = `
import email, email.policy, sys
n = 0
for name in sys.argv[1:]:
    with open(name, 'rb') as f:
        text = f.read()
    m = email.message_from_bytes(text, policy=email.policy.SMTPUTF8)
    if m.get_content_type() != 'multipart/report' or b'global-delivery-status' not in text:
        continue
    n += 1
    parts = list(m.iter_parts())
    kinds = [p.get_content_type() for p in parts]
    if m['content-type'].params['report-type'] != 'global-delivery-status' or kinds[:2] != ['text/plain', 'message/global-delivery-status'] \
            or kinds[2] not in ('message/global', 'message/global-headers'):
        sys.exit('%s: %s' % (name, kinds))
    if m.defects or any(p.defects for p in parts):
        sys.exit('%s: %s' % (name, [p.defects for p in parts]))
    words = parts[0].get_content()
    raw = text.split(b'Content-Type: message/global-delivery-status', 1)[1].split(b'\n\n', 1)[1].split(b'\n--', 1)[0]
    about, *recipients = [email.message_from_bytes(b, policy=email.policy.SMTPUTF8) for b in raw.strip(b'\n').split(b'\n\n')]
    if not about['Reporting-MTA'] or not recipients:
        sys.exit('%s: %s' % (name, raw))
    for r in recipients:
        kind, final = str(r['Final-Recipient']).split('; ')
        if r.defects or kind not in ('utf-8', 'rfc822') or kind == 'rfc822' and not final.isascii() or final not in words or r['Action'] not in ('failed', 'delivered', 'relayed', 'expanded') or r['Status'].count('.') != 2:
            sys.exit('%s: %s' % (name, raw))
    if 'Grüße'.encode() not in text.split(b'Content-Description: Undelivered Message')[-1] and 'Grüße'.encode() not in text.split(b'global-delivery-status')[-1]:
        sys.exit('%s: the original is not there' % name)
sys.exit(n == 0)
`
