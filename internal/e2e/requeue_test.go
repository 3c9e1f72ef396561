package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// Mail that waits for a content filter that is gone leaves when the filter has been
// taken out of main.cf and the mail is queued again. Its addresses are mapped by
// today's tables, and a new always_bcc gets it; the former one gets it once.
func TestRequeueToday(t *testing.T) {
	t.Parallel()
	dead := freePort(t)
	next := newSink(t, nil)
	old := fmt.Sprintf("content_filter = smtp:[127.0.0.1]:%d\nalways_bcc = log@bcc.test\n", dead)
	s := newSystem(t, options{main: next.relayhost() + old +
		"header_checks = inline:{ {Subject: filter=FILTER smtp:[127.0.0.1]:1} }\n"})
	for _, subject := range []string{"plain", "filter"} {
		s.mustSend("a@from.test", []string{"b@to.test"}, "Subject: "+subject+"\n\nx\n")
	}
	s.eventually("all is deferred", func() bool {
		return strings.Count(s.mustTool("postqueue", "-j"), `"queue_name": "deferred"`) == 2
	})
	s.configure(next.relayhost()+"always_bcc = new@bcc.test\ncanonical_maps = inline:{b@to.test=c@to.test}\n", "")
	s.mustTool("reload")
	s.mustTool("postsuper", "-r", "ALL")
	got := map[string]int{}
	s.eventually("all has arrived", func() bool {
		clear(got)
		n := 0
		for _, m := range next.received() {
			_, subject, _ := strings.Cut(m.data, "Subject: ")
			subject, _, _ = strings.Cut(subject, "\n")
			for _, to := range m.to {
				got[subject+" "+to]++
				n++
			}
		}
		return n >= 6 && s.mustTool("mailq") == "Mail queue is empty\n"
	})
	for _, subject := range []string{"plain", "filter"} {
		for _, to := range []string{"c@to.test", "log@bcc.test", "new@bcc.test"} {
			if got[subject+" "+to] != 1 {
				t.Errorf("%s: %s got it %d times: %v", subject, to, got[subject+" "+to], got)
			}
		}
	}
}
