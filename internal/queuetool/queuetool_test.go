package queuetool

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/postqueue"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
)

func run(s *faketest.Site, args ...string) (out, errs string, status int) {
	var o, e bytes.Buffer
	ask := func(args []string) int {
		return postqueue.Run("postqueue", append([]string{"-c", s.Config}, args...), &o, &e)
	}
	if len(args) > 0 {
		args = append([]string{args[0], "-c", s.Config}, args[1:]...)
	}
	if len(args) > 0 && (args[0] == "list" || args[0] == "flush") {
		args = append(args[:1], args[3:]...)
	}
	status = Run("posthaste queue", args, ask, strings.NewReader(""), &o, &e)
	return o.String(), e.String(), status
}

func message(q queue.Name, sender, rcpt, reply string) faketest.Mail {
	m := faketest.Mail{Queue: q, Attempts: 3, Content: "Subject: x\r\n\r\nx\r\n", Envelope: mail.Envelope{Arrival: time.UnixMicro(1795251386000000),
		Sender: sender, Size: 14, Recipients: []mail.Recipient{{Address: rcpt}}}}
	if reply != "" {
		m.Outcomes = []mail.Outcome{{Action: dsn.Deferred, Status: dsn.S(4, 7, 1), Reason: reply}}
	}
	return m
}

// While the mail system is down the spool is judged and changed here: exactly
// what is selected, and nothing in a dry run.
func TestDown(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	ids := s.Fill(message(queue.Deferred, "news@a.test", "x@one.test", "450 greylisted"), message(queue.Deferred, "", "y@two.test", "452 full"),
		message(queue.Hold, "news@a.test", "z@two.test", ""), message(queue.Corrupt, "news@a.test", "z@two.test", ""))
	for _, c := range []struct{ args, want string }{
		{"delete --sender=news@a.test --dry-run", "dry run, nothing is changed: Deleted: 2 messages"},
		{"hold --reply=GREY", "Placed on hold: 1 message"},
		{"hold --sender=news@a.test", "Placed on hold: 0 messages"},
		{"release --queue=hold --domain=two.test", "Released from hold: 1 message"},
		{"delete --sender=<>", "Deleted: 1 message"},
		{"delete " + string(ids[0]) + " --queue=deferred", "Deleted: 0 messages"},
		{"delete --queue=corrupt", "Deleted: 1 message"},
		{"delete ALL --queue=hold", "Deleted: 1 message"},
	} {
		before := len(s.Entries())
		_, errs, status := run(s, strings.Fields(c.args)...)
		if status != 0 || !strings.Contains(errs, "posthaste queue: "+c.want+"\n") {
			t.Errorf("%s: exit status %d: %s", c.args, status, errs)
		}
		if strings.Contains(c.args, "--dry-run") && len(s.Entries()) != before {
			t.Errorf("%s: the queue has changed", c.args)
		}
	}
	out, _, status := run(s, "list", "-j", "--domain", "two.test")
	if want := `"attempts": 3, "next_attempt": `; status != 0 || strings.Count(out, "\n") != 1 || !strings.Contains(out, string(ids[2])) || !strings.Contains(out, want) {
		t.Errorf("list: exit status %d: %q", status, out)
	}
	if left := s.Entries(); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	if _, errs, status := run(s, "delete", "--nexthop=x.test"); status != 69 || !strings.Contains(errs, "running mail system") {
		t.Errorf("next hop while down: exit status %d: %s", status, errs)
	}
	if log := s.LogText(); !strings.Contains(log, "postfix/postsuper[") || strings.Contains(log, "dry run") {
		t.Errorf("log:\n%s", log)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	ids := s.Fill(message(queue.Deferred, "", "y@two.test", ""))
	for _, args := range []string{"", "nosuch", "delete", "delete --dry-run", "delete --all-recipients", "hold -v", "flush", "delete --sendr=x", "delete --sender", "delete --queue=x",
		"delete --sender=x ALL " + string(ids[0]), "delete a/b", "list ALL", "flush --dry-run " + string(ids[0]), "delete --all-recipients=yes --domain=x",
		"delete --older=soon"} {
		if _, errs, status := run(s, strings.Fields(args)...); status != 64 || errs == "" {
			t.Errorf("%q: exit status %d: %s", args, status, errs)
		}
	}
	if n := len(s.Entries()); n != 1 {
		t.Error(fmt.Sprint(n, " messages are left of 1"))
	}
}
