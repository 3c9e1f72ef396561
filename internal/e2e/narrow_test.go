package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// TestNarrowQueue: with two places in the active queue the queue manager has ten deferred messages
// in memory, of sixty. What is due is delivered, all others are listed, changed and counted, and
// a flush delivers them; what was put on hold stays.
func TestNarrowQueue(t *testing.T) {
	t.Parallel()
	const n, due = 60, 17
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + "qmgr_message_active_limit = 2\n", unstarted: true})
	fillDeferred(t, s, n, due)
	s.start()
	s.waitLogN(`: removed$`, due)

	out, _ := s.timed("mailq")
	if !strings.HasSuffix(out, fmt.Sprintf(" in %d Requests.\n", n-due)) {
		t.Errorf("mailq ends %q", out[max(0, len(out)-100):])
	}
	if out, _ := s.timed("qshape", "deferred"); !regexp.MustCompile(fmt.Sprintf(`TOTAL +%d `, n-due)).MatchString(out) {
		t.Errorf("qshape does not count %d:\n%s", n-due, out)
	}
	ids := regexp.MustCompile(`(?m)^[0-9A-Za-z]{8,}`).FindAllString(out, -1)
	if len(ids) != n-due {
		t.Fatalf("mailq lists %d messages:\n%s", len(ids), out)
	}
	held, gone := ids[len(ids)-1], ids[len(ids)-2]
	s.timed("postsuper", "-h", held)
	s.timed("postsuper", "-d", gone)
	s.timed("postqueue", "-f")
	s.waitLogN(`status=sent `, n-2)
	s.waitLogN(`: removed$`, n-1)
	if out, _ := s.timed("mailq"); !strings.Contains(out, held+"!") || !strings.HasSuffix(out, " in 1 Request.\n") {
		t.Errorf("on hold is %s, and mailq says\n%s", held, out)
	}
	s.timed("postsuper", "-H", held)
	s.waitLogN(`status=sent `, n-1)
}
