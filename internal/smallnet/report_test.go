package smallnet

import (
	"strings"
	"time"

	"posthaste/internal/testwait"
)

// report: what was found of Postfix's mail goes to its postmaster, in a report that passes DMARC
// there. Its day ends early: the counts are put into the day before.
func (s *story) report() {
	h := s.ours
	h.must("posthaste reload") // who counts writes down what it has
	testwait.For(s.t, func() string {
		if out, _ := h.run("posthaste dmarc report --show"); !strings.Contains(out, " pfix.net: ") {
			return "what is counted: " + out
		}
		return ""
	})
	today := time.Now().UTC()
	h.must("cd /var/lib/posthaste/dmarc; for f in " + today.Format(time.DateOnly) + "*; do mv $f " + today.AddDate(0, 0, -1).Format(time.DateOnly) + "${f#" + today.Format(time.DateOnly) + "}; done; posthaste dmarc report --send-now >/tmp/sent 2>&1 || cat /tmp/sent")
	message := s.postfix.mail("joe", "Report Domain: pfix.net Submitter: ")
	found(s.t, message, "dkim=pass", "spf=pass", "dmarc=pass")
	h.write("tmp/report", message)
	if out := h.must("posthaste dmarc report /tmp/report"); !strings.Contains(out, "pfix.net: 1 report by example.org") {
		s.t.Errorf("what the report says: %s", out)
	}
}
