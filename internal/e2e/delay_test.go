package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// operate runs one of the commands, of the original when s is one of those.
func (s *system) operate(stdin string, words ...string) {
	s.t.Helper()
	if s.original != nil {
		s.original.Run(stdin, words[0], words[1:]...)
		return
	}
	if words[0] == "postfix" {
		words = words[1:]
	}
	if out, status := s.tool([]byte(stdin), words...); status != 0 {
		s.t.Fatalf("%v: %s", words, out)
	}
}

func readAll(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// reporters are the original and ours, with the aliases and maildirs of
// setUpReports and an alias whose command tells all mail to come later until
// there is a file "now".
func reporters(t *testing.T, settings string) (theirs, ours *system) {
	prepare := func(s *system) {
		setUpReports(s)
		aliases := strings.ReplaceAll("later \"|test -e {dir}/now || exit 75\"\nother \"|test -e {dir}/now || exit 75\"\n"+
			"half fails, later\nlate later, other\npair box, fails\n", "{dir}", s.dir)
		s.write("etc/aliases", readAll(t, s.path("etc/aliases"))+aliases)
	}
	settings = reportSettings + settings
	theirs, ours = newPostfix(t, options{main: settings, unstarted: true}), newSystem(t, options{main: settings + "\nsmtpd_announce_limits = no\n", unstarted: true})
	for _, s := range []*system{theirs, ours} {
		prepare(s)
		s.start()
	}
	return theirs, ours
}

// reported are the texts of what is in the maildirs, in order.
func (s *system) reported() (list []string) {
	s.t.Helper()
	files, _ := filepath.Glob(s.path("mail/*/new/*"))
	for _, name := range files {
		text := s.plainReport(readAll(s.t, name))
		if strings.Count(text, "\nFinal-Recipient: ") > 1 { // they are in the order in which their deliveries ended
			lines := strings.Split(text, "\n")
			slices.Sort(lines)
			text = strings.Join(lines, "\n")
		}
		list = append(list, filepath.Base(filepath.Dir(filepath.Dir(name)))+":\n"+text)
	}
	slices.Sort(list)
	return list
}

// sameReports compares what people have been told.
func sameReports(t *testing.T, theirs, ours *system, want int) {
	t.Helper()
	a, b := theirs.reported(), ours.reported()
	if len(a) != want {
		t.Errorf("the original sends %d notices, not %d", len(a), want)
	}
	if !slices.Equal(a, b) {
		t.Errorf("only the original reports\n%s\n\nonly ours:\n%s", strings.Join(without(a, b), "\n=====\n"), strings.Join(without(b, a), "\n=====\n"))
	}
}

// without is what list has, and other has not, or not as often.
func without(list, other []string) (rest []string) {
	other = slices.Clone(other)
	for _, s := range list {
		if i := slices.Index(other, s); i >= 0 {
			other = slices.Delete(other, i, i+1)
		} else {
			rest = append(rest, s)
		}
	}
	return rest
}

var delayedMail = []reported{
	{name: "usual", mail: "<box@local.test>", rcpt: []string{"<later@local.test>"}},
	{name: "delay", mail: "<box@local.test>", rcpt: []string{"<later@local.test> NOTIFY=DELAY"}},
	{name: "several", mail: "<box@local.test>", rcpt: []string{"<later@local.test>", "<other@local.test> NOTIFY=FAILURE"}},
	{name: "failure", mail: "<box@local.test>", rcpt: []string{"<later@local.test> NOTIFY=FAILURE"}},
	{name: "never", mail: "<box@local.test>", rcpt: []string{"<later@local.test> NOTIFY=NEVER"}},
	{name: "null", mail: "<>", rcpt: []string{"<later@local.test>"}},
}

// Who sent mail that is late is told so once, and, with confirm_delay_cleared,
// when it has arrived after all; postmaster has a copy of what is told of a
// delay, and hears too of mail whose sender does not want to. By the original and
// by us the same.
func TestDelayNotices(t *testing.T) {
	t.Parallel()
	theirs, ours := reporters(t, "notify_classes = delay\ndelay_warning_time = 1s\nconfirm_delay_cleared = yes\n")
	const late = 3   // of delayedMail, whose senders want to know
	const copies = 5 // of all but that with the null sender
	for _, s := range []*system{theirs, ours} {
		for _, m := range delayedMail {
			if err := s.sendReported(m); err != nil {
				t.Fatalf("%s: %v", m.name, err)
			}
		}
		s.eventually("the sender is told of the delay", func() bool {
			s.operate("", "postqueue", "-f")
			return len(s.reported()) >= late+copies
		})
		s.write("now", "")
		s.eventually("the late mail is delivered, and the sender told", func() bool {
			s.operate("", "postqueue", "-f")
			return s.settled()
		})
	}
	sameReports(t, theirs, ours, 2*late+copies)
}

// deliveryLine is what is logged of a delivery, without what differs from one
// time to the next.
var deliveryLine = regexp.MustCompile(`to=<.*?>, (?:orig_to=<.*?>, )?relay=\S+ |dsn=.*`)

func (s *system) deliveryLines() (list []string) {
	for _, line := range s.waitLogN(`to=<.*status=`, 1) {
		line = strings.Join(deliveryLine.FindAllString(line, -1), "")
		list = append(list, strings.NewReplacer(s.dir, "{dir}", " )", ")").Replace(line))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// soft_bounce keeps mail that would go back: nobody is told, and when it is
// turned off the mail goes back.
func TestSoftBounce(t *testing.T) {
	t.Parallel()
	refusing := newSink(t, func(line string) string {
		if strings.HasPrefix(line, "RCPT") {
			return "550 5.1.1 nobody is here"
		}
		return ""
	})
	theirs, ours := reporters(t, "soft_bounce = yes\nnotify_classes =\n"+refusing.relayhost()+"smtpd_recipient_restrictions = check_recipient_access inline:{ no@local.test=REJECT }, permit_mynetworks, reject\n")
	var replies [2]string
	for i, s := range []*system{theirs, ours} {
		replies[i] = s.dialogue(t, "", "EHLO c.test", "MAIL FROM:<a@b.test>", "RCPT TO:<no@local.test>", "QUIT")[3]
		for _, to := range []string{"<nosuch@local.test>", "<fails@local.test>", "<x@sunk.test>", "<x@far.test>"} {
			if err := s.sendReported(reported{name: "soft", mail: "<box@local.test>", rcpt: []string{to}}); err != nil {
				t.Fatal(err)
			}
		}
		s.waitLogN(`to=<(nosuch@local|fails@local|x@far)\.test>, .*status=SOFTBOUNCE`, 3)
		s.waitLog(`to=<x@sunk\.test>, .*status=sent`)
	}
	if !strings.HasPrefix(replies[0], "454 4.7.1 ") || replies[0] != replies[1] {
		t.Errorf("the original replies %q, ours %q", replies[0], replies[1])
	}
	if a, b := theirs.deliveryLines(), ours.deliveryLines(); !slices.Equal(a, b) {
		t.Errorf("the original logs\n%s\n\nours:\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	sameReports(t, theirs, ours, 0)
	for _, s := range []*system{theirs, ours} {
		s.operate("", "postconf", "-e", "soft_bounce = no")
		s.operate("", "postfix", "reload")
		s.eventually("the mail goes back", func() bool {
			s.operate("", "postqueue", "-f")
			return s.settled()
		})
	}
	sameReports(t, theirs, ours, 3)
}

// Mail that may not wait at all is tried once and goes back at once, with its
// temporary error; notices, whose lifetime is another, are dropped.
func TestNoLifetime(t *testing.T) {
	t.Parallel()
	theirs, ours := reporters(t, "maximal_queue_lifetime = 0\nbounce_queue_lifetime = 0\nnotify_classes =\n")
	for _, s := range []*system{theirs, ours} {
		for _, m := range []reported{
			{name: "one", mail: "<box@local.test>", rcpt: []string{"<later@local.test>"}},
			{name: "two", mail: "<box@local.test>", rcpt: []string{"<later@local.test>", "<box@local.test>", "<fails@local.test>"}},
			{name: "never", mail: "<box@local.test>", rcpt: []string{"<later@local.test> NOTIFY=NEVER"}},
			{name: "null", mail: "<>", rcpt: []string{"<later@local.test>"}},
			{name: "half", mail: "<box@local.test>", rcpt: []string{"<half@local.test>"}},
			{name: "late", mail: "<box@local.test>", rcpt: []string{"<late@local.test>"}},
		} {
			if err := s.sendReported(m); err != nil {
				t.Fatalf("%s: %v", m.name, err)
			}
		}
		s.waitLogN(`status=expired, returned to sender`, 6)
		s.eventually("the queue is empty", s.settled)
	}
	sameReports(t, theirs, ours, 3+1+3)
}

// sendmail -bv tells what would come of mail, and -v what has.
func TestStatusReports(t *testing.T) {
	t.Parallel()
	theirs, ours := reporters(t, "notify_classes =\n")
	const message = "From: x@far.test\nMessage-Id: <verbose@far.test>\nDate: Sat, 21 Nov 2026 08:00:00 +0000\nSubject: x\n\ntext\n"
	for _, s := range []*system{theirs, ours} {
		told := 0
		for _, flag := range []string{"-bv", "-v"} {
			for to, notices := range map[string]int{
				"box@local.test":    1,
				"tobox@local.test":  1,
				"nosuch@local.test": 1, // and with -v what comes of any mail that fails
				"fails@local.test":  1,
				"later@local.test":  1,
				"x@sunk.test":       1,
				"pair@local.test":   1,
			} {
				if flag == "-v" && strings.Contains("box tobox nosuch fails pair", strings.TrimSuffix(to, "@local.test")) {
					notices++ // the mail itself, or the notice that it has failed
				}
				if flag == "-v" && to == "pair@local.test" {
					notices++ // both
				}
				told += notices
				s.operate(message, "sendmail", flag, "-f", "box@local.test", to)
				s.eventually(flag+" reports on "+to, func() bool { return len(s.reported()) == told })
			}
		}
		if !strings.Contains(s.log(), "status=deferred") || strings.Contains(s.log(), "status=sent (delivered to command") {
			t.Error("the command for later has told all mail to come later, and with -bv been left alone")
		}
		s.write("now", "")
		s.eventually("what was late is delivered, without another report", func() bool {
			s.operate("", "postqueue", "-f")
			return s.settled()
		})
	}
	sameReports(t, theirs, ours, 7+7+6)
}
