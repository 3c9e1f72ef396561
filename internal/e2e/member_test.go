package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// retried has all mail tried again, and waits until that has been done.
func (s *system) retried() {
	s.t.Helper()
	const tried = "to=<later@local.test>, "
	n := strings.Count(s.log(), tried)
	s.eventually("the mail is tried again", func() bool {
		s.operate("", "postqueue", "-f")
		return strings.Count(s.log(), tried) > n
	})
}

// Of an alias's members one fails for good, and one is to be tried again: the
// sender hears of the first at once, as with the original, and only once,
// however often the second is tried, whatever is restarted, and at the end.
func TestMembersToldOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		mail, rcpt string
		atOnce     int // notices that the first attempt causes
		last       int // and the end
	}{
		"usual":   {"<box@local.test>", "<half@local.test>", 1, 1},
		"success": {"<box@local.test> ENVID=q RET=HDRS", "<half@local.test> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;who@far.test", 2, 1},
		"never":   {"<box@local.test>", "<half@local.test> NOTIFY=NEVER", 0, 0},
		"null":    {"<>", "<half@local.test>", 1, 1}, // for double
		"verp":    {"<box@local.test> XVERP=+=", "<half@local.test>", 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			theirs, ours := reporters(t, "notify_classes = 2bounce\n")
			for _, s := range []*system{theirs, ours} {
				if err := s.sendReported(reported{name: "members", mail: tt.mail, rcpt: []string{tt.rcpt}}); err != nil {
					t.Fatal(err)
				}
				s.waitLog(`to=<later@local\.test>, .*status=deferred`)
				s.eventually("the sender is told", func() bool { return len(s.reported()) >= tt.atOnce })
			}
			sameReports(t, theirs, ours, tt.atOnce)
			if t.Failed() {
				return
			}
			ours.retried()
			ours.stop()
			ours.start()
			ours.retried()
			ours.kill("qmgr", "bounce")
			ours.retried()
			if got := ours.reported(); len(got) != tt.atOnce {
				t.Errorf("after some attempts there are %d notices, not %d:\n%s", len(got), tt.atOnce, strings.Join(got, "\n=====\n"))
			}
			for _, s := range []*system{theirs, ours} {
				s.operate("", "postsuper", "-e", "ALL")
				s.eventually("the mail goes back", func() bool {
					s.operate("", "postqueue", "-f")
					return s.settled()
				})
			}
			a, b := slices.Compact(theirs.reported()), ours.reported()
			if !slices.Equal(a, b) || len(b) != tt.atOnce+tt.last {
				t.Errorf("only the original reports\n%s\n\nonly ours, of %d:\n%s", strings.Join(without(a, b), "\n=====\n"), len(b), strings.Join(without(b, a), "\n=====\n"))
			}
		})
	}
}

// Members that are late are told of one by one, and so is, with
// confirm_delay_cleared, that they have the mail at last.
func TestMembersDelayed(t *testing.T) {
	t.Parallel()
	theirs, ours := reporters(t, "notify_classes = delay\ndelay_warning_time = 1s\nconfirm_delay_cleared = yes\n")
	for _, s := range []*system{theirs, ours} {
		if err := s.sendReported(reported{name: "members", mail: "<box@local.test>", rcpt: []string{"<late@local.test>"}}); err != nil {
			t.Fatal(err)
		}
		s.eventually("the sender is told of the delay", func() bool {
			s.operate("", "postqueue", "-f")
			return len(s.reported()) >= 2
		})
		s.stop() // so that not one of the two finds the file
		s.write("now", "")
		s.start()
		s.eventually("the late mail is delivered, and the sender told", func() bool {
			s.operate("", "postqueue", "-f")
			return s.settled()
		})
	}
	sameReports(t, theirs, ours, 3)
}

// Those that fail later are told of then, and those that have been told of are
// not again when the last of the others has the mail.
func TestMembersFailOneByOne(t *testing.T) {
	t.Parallel()
	s := newSystem(t, options{main: reportSettings + "notify_classes =\n", unstarted: true})
	setUpReports(s)
	members := ""
	for i := range 3 {
		members += fmt.Sprintf(", \"|cat %s/code%d; exit `cat %s/code%d`\"", s.dir, i, s.dir, i)
		s.write(fmt.Sprintf("code%d", i), "75")
	}
	s.write("etc/aliases", readAll(t, s.path("etc/aliases"))+"group fails"+members+"\n")
	s.start()
	if err := s.sendReported(reported{name: "group", mail: "<box@local.test>", rcpt: []string{"<group@local.test> NOTIFY=FAILURE"}}); err != nil {
		t.Fatal(err)
	}
	tried := func(n int) {
		t.Helper()
		s.eventually("it is tried", func() bool {
			s.operate("", "postqueue", "-f")
			return strings.Count(s.log(), "to=<fails@local.test>, ") >= n
		})
	}
	told := func(n int, last ...string) {
		t.Helper()
		s.eventually("the sender is told", func() bool { return len(s.reported()) >= n })
		var status []string
		for _, text := range s.reported() {
			for _, line := range strings.Split(text, "\n") {
				if strings.HasPrefix(line, "Status: ") {
					status = append(status, line[8:])
				}
			}
		}
		slices.Sort(status)
		if !slices.Equal(status, last) {
			t.Errorf("told of %q, not of %q", status, last)
		}
	}
	tried(1)
	told(1, "5.1.1")
	s.write("code0", "67")
	tried(3)
	told(2, "5.1.1", "5.1.1")
	s.write("code1", "65")
	tried(5)
	told(3, "5.1.1", "5.1.1", "5.6.0")
	s.write("code2", "0")
	s.eventually("all is over", func() bool {
		s.operate("", "postqueue", "-f")
		return s.settled()
	})
	told(3, "5.1.1", "5.1.1", "5.6.0")
}

// shows says that the lists of the queue name the member that keeps an alias
// there, with its reason.
func (s *system) shows(reason string) {
	s.t.Helper()
	if out := s.mustTool("mailq"); !strings.Contains(out, "("+reason) {
		s.t.Errorf("mailq:\n%s", out)
	}
	if out := s.mustTool("postqueue", "-j"); !strings.Contains(out, `"delay_reason": "`+reason) {
		s.t.Errorf("postqueue -j:\n%s", out)
	}
}

// What its sender has been told of an alias's members goes along when the mail
// is queued again (postsuper -r), also by way of a virtual alias, and when it
// moves to another system.
func TestMembersMoved(t *testing.T) {
	t.Parallel()
	settings := reportSettings + "notify_classes =\nvirtual_alias_maps = inline:{ {all@local.test=half@local.test} }\n"
	s := newSystem(t, options{main: settings, unstarted: true})
	to := newSystem(t, options{main: settings, unstarted: true})
	for _, s := range []*system{s, to} {
		setUpReports(s)
		s.write("etc/aliases", readAll(t, s.path("etc/aliases"))+"later \"|exit 75\"\nhalf fails, later\n")
		s.start()
	}
	if err := s.sendReported(reported{name: "moved", mail: "<box@local.test>", rcpt: []string{"<all@local.test>"}}); err != nil {
		t.Fatal(err)
	}
	told := func(s *system, want int) {
		t.Helper()
		if got := s.reported(); len(got) != want {
			t.Errorf("there are %d notices, not %d:\n%s", len(got), want, strings.Join(got, "\n=====\n"))
		}
	}
	s.waitLog(`to=<later@local\.test>, .*status=deferred`)
	s.eventually("the sender is told", func() bool { return len(s.reported()) > 0 })
	s.retried()
	s.shows("later@local.test: ")
	if out := s.mustTool("explain", queueID.FindStringSubmatch(s.waitLog(`to=<later@local\.test>, .*status=deferred`))[1]); !strings.Contains(out, " 4.3.0 later@local.test: ") ||
		!strings.Contains(out, "; failed for good, and reported: fails@local.test\n") {
		t.Errorf("explain:\n%s", out)
	}
	s.operate("", "postsuper", "-r", "ALL")
	s.waitLog(`: requeued as `)
	s.waitLogN(`to=<later@local\.test>, .*status=deferred`, 3)
	s.operate("", "postsuper", "-h", "ALL")
	s.eventually("it is on hold", func() bool { return strings.Contains(s.mustTool("mailq"), "!") })
	told(s, 1)
	s.stop()
	s.shows("later@local.test: ") // as read from the spool
	if text := s.exported(1); !strings.Contains(text, "\n  Told: yes\n") {
		t.Errorf("exported:\n%s", text)
	}
	out, status := to.tool(nil, "spool", "import", s.path("exported"))
	if status != 0 || !strings.HasPrefix(out, "1 messages imported") {
		t.Fatalf("import: status %d, %s", status, out)
	}
	to.operate("", "postsuper", "-H", "ALL")
	to.retried()
	to.retried()
	to.operate("", "postsuper", "-e", "ALL")
	to.eventually("the mail goes back", func() bool {
		to.operate("", "postqueue", "-f")
		return to.settled()
	})
	told(to, 1) // of the other
	if got := to.reported(); len(got) > 0 && (!strings.Contains(got[0], "later@local.test") || strings.Contains(got[0], "fails@local.test")) {
		t.Errorf("told in the end:\n%s", got[0])
	}
}
