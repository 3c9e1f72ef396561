package e2e

import (
	"strings"
	"sync/atomic"
	"testing"
)

// A site goes back: what waits here waits in the original's queue, and is
// delivered by it; what is held stays held until it is released.
func TestMigrateBack(t *testing.T) {
	t.Parallel()
	var open atomic.Bool
	next := newSink(t, func(line string) string {
		if strings.HasPrefix(line, "RCPT") && !open.Load() {
			return "451 4.2.1 not today"
		}
		return ""
	})
	original := newPostfix(t, options{main: next.relayhost()})
	s := newSystem(t, options{main: next.relayhost()})
	s.mustSend("a@from.test", []string{"b@to.test", "c@to.test"}, "Subject: waits\n\nx\n"+strings.Repeat("y", 5000)+"\n.z\n")
	s.mustSend("", []string{"h@to.test"}, "Subject: held\n\nx\n")
	s.waitLogN(`status=deferred`, 3)
	if out, status := s.tool(nil, "postsuper", "-h", s.queueID(`(\w+): to=<h@to\.test>.*status=deferred`)); status != 0 {
		t.Fatalf("postsuper -h: %s", out)
	}
	back := func() (string, int) {
		return s.tool(nil, "migrate", "--from", original.path("etc"), "--back")
	}
	if out, status := back(); status != 75 || !strings.Contains(out, "is in use by a running Postfix") {
		t.Errorf("while both run: %d %s", status, out)
	}
	original.stop()
	if out, status := back(); status != 75 || !strings.Contains(out, "stop it first") {
		t.Errorf("while we run: %d %s", status, out)
	}
	s.stop()
	if out, status := back(); status != 0 || !strings.HasPrefix(out, "2 messages moved to ") || !strings.HasSuffix(out, ": 1 deferred, 1 on hold, 0 to be delivered at once; 0 stay here\n") || strings.Count(out, "\n") != 1 {
		t.Fatalf("%d %s", status, out)
	}
	if out, _ := s.tool(nil, "spool", "dump", "-m"); out != "" {
		t.Errorf("still here: %s", out)
	}

	original.start()
	// It knows what the mail waits for.
	waits := original.original.Run("", "postqueue", "-j")
	for _, want := range []string{`"queue_name": "deferred"`, `"address": "b@to.test", "delay_reason": "host 127.0.0.1[127.0.0.1] said: 451 4.2.1 not today (in reply to RCPT TO command)"`,
		`"address": "c@to.test", "delay_reason": `} {
		if !strings.Contains(waits, want) {
			t.Errorf("no %s in the original's queue:\n%s", want, waits)
		}
	}
	open.Store(true)
	original.eventually("the original delivers", func() bool {
		original.operate("", "postqueue", "-f")
		return len(next.received()) > 0
	})
	if out := original.original.Run("", "postqueue", "-p"); !strings.Contains(out, "!") || !strings.Contains(out, "h@to.test") || strings.Contains(out, "b@to.test") {
		t.Errorf("the original's queue:\n%s", out)
	}
	original.operate("", "postsuper", "-H", "ALL")
	original.eventually("the original delivers what was held", func() bool {
		original.operate("", "postqueue", "-f")
		return len(next.received()) > 1
	})
	first, second := next.received()[0], next.received()[1]
	// A line is longer than one record of a queue file; Postfix's client folds it for SMTP.
	unfolded := strings.ReplaceAll(first.data, "\n y", "y")
	if first.from != "a@from.test" || strings.Join(first.to, " ") != "b@to.test c@to.test" || !strings.HasSuffix(unfolded, "\n\nx\n"+strings.Repeat("y", 5000)+"\n.z\n") {
		t.Errorf("%q to %q: %q", first.from, first.to, first.data)
	}
	if second.from != "" || !strings.Contains(second.data, "Subject: held") {
		t.Errorf("%+v", second)
	}
}
