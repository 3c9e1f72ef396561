package e2e

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/trace"
)

// traced is what posthaste trace prints.
func (s *system) traced(status int, args ...string) string {
	s.t.Helper()
	var out, errs bytes.Buffer
	if got := trace.Run(append([]string{"-c", s.path("etc")}, args...), nil, &out, &errs); got != status {
		s.t.Errorf("trace %q: status %d, want %d\n%s%s", args, got, status, errs.String(), out.String())
	}
	return out.String()
}

// A message goes through a content filter, an alias, a list with an owner, and bounces: it is one
// block, by whatever it is looked for. A refusal is found by its recipient.
func TestTrace(t *testing.T) {
	t.Parallel()
	next := newSink(t, func(line string) string {
		if strings.Contains(line, "gone@to.test") {
			return "550 5.1.1 no such user"
		}
		return ""
	})
	back := freePort(t)
	s := newSystem(t, options{main: next.relayhost() + fmt.Sprintf("content_filter = smtp:[127.0.0.1]:%d\n", back) +
		"alias_maps = inline:{ {all=list@local.test}, {list=far@to.test, gone@to.test}, {owner-list=keeper@to.test} }\nlocal_recipient_maps = $alias_maps\n" +
		"smtpd_authorized_xforward_hosts = 127.0.0.0/8\nsmtp_send_xforward_command = yes\n",
		master: fmt.Sprintf("127.0.0.1:%d inet n - n - - smtpd\n -o content_filter=\n", back)})
	s.mustSend("ann@from.test", []string{"all@local.test"}, "From: <ann@from.test>\nMessage-ID: <one@from.test>\nSubject: x\n\nbody\n")
	replies := s.dialogue(t, "", "EHLO client.test", "MAIL FROM:<ann@from.test>", "RCPT TO:<nobody@local.test>")
	if last := replies[len(replies)-1]; !strings.HasPrefix(last, "550 ") {
		t.Fatalf("%q", replies)
	}
	s.waitLog(`to=<owner-list@mta\.test>,.*status=sent`)
	s.waitLogN(`: removed`, 4)

	first := s.traced(0, "ann@from.test", "all@local.test")
	tree := regexp.MustCompile(`(?s)^(\w+)  delivered\n.*filtered: (\w+)  forwarded\n.*to <(?:all|list)@local\.test>.*forwarded: (\w+)  partly delivered\n.*` +
		`to <gone@to\.test>.*550 5\.1\.1 no such user.*report: (\w+)  delivered\n.*to <owner-list@mta\.test>`).FindStringSubmatch(first)
	if tree == nil {
		t.Fatalf("%s\n%s", first, s.log())
	}
	for _, args := range [][]string{{tree[1]}, {tree[2]}, {"--id", tree[3]}, {tree[4]}, {"far@to.test"}, {"<one@from.test>"}, {"--from", "<>", "owner-list@mta.test"},
		{"--reply", "no such USER"}, {"--no-index", tree[4]}} {
		if got := s.traced(0, args...); got != first {
			t.Errorf("%q:\n%s\nwant\n%s", args, got, first)
		}
	}
	if got := s.traced(0, "nobody@local.test"); !strings.HasPrefix(got, "no queue ID  reject at RCPT\n") || strings.Count(got, "\n\n") != 1 {
		t.Errorf("%s", got)
	}
	s.traced(66, "stranger@from.test")
	if err := os.RemoveAll(s.path("data", "track")); err != nil {
		t.Fatal(err)
	}
	if got := s.traced(0, tree[1]); got != first {
		t.Errorf("without the index:\n%s", got)
	}
}
