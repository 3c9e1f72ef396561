package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/testproc"
	"posthaste/internal/testusers"
)

// siteBlock is a file in docs/mailboxes.md.
var siteBlock = regexp.MustCompile("(?ms)^```(\\S+)\n(.*?)^```$")

// TestMailboxes sets up the site of docs/mailboxes.md by its own blocks, with real users,
// Dovecot, procmail, maildrop and vacation, and sends it mail.
func TestMailboxes(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"dovecot", "procmail", "maildrop", "vacation"} {
		need(t, program)
	}
	site := newSite(t)
	s := site.system
	const from = "a@far.test"
	mail := func(to, subject string) {
		t.Helper()
		s.mustSend(from, []string{to}, "From: "+from+"\nTo: "+to+"\nSubject: "+subject+"\n\nhello "+to+"\n")
	}
	for to, where := range map[string]string{
		"ann@example.org": "home/ann/Maildir/new/*", "joe+news@example.org": "home/joe/Maildir/new/*", "postmaster@example.org": "home/ann/Maildir/new/*",
		"nobodyknows@example.org": "home/ann/Maildir/new/*", "info@example.com": "vmail/example.com/info/new/*", "sales@example.com": "vmail/example.com/sales",
		"anybody@example.com": "vmail/example.com/rest/new/*", "fred@example.net": "vmail/dovecot/example.net/fred/mail/new/*",
		"jane@example.edu": "vmail/dovecot/example.edu/jane/mail/new/*", "bob@example.org": "home/bob/Maildir/new/*", "eve@example.org": "home/eve/Maildir/new/*",
		"tickets@example.org": "tickets.out",
		"dan@example.org":     "vmail/dovecot/example.org/dan/mail/new/*", "shop@example.org": "vmail/dovecot/example.org/shop/mail/new/*",
	} {
		mail(to, "hello")
		site.arrives(where, "hello "+to)
	}
	mail("bob@example.org", "a sale")
	site.arrives("home/bob/spam", "Subject: a sale")
	mail("eve@example.org", "the meeting")
	site.arrives("home/eve/meetings", "Subject: the meeting")

	// The list goes to its members, from its owner.
	mail("staff@example.org", "to all")
	site.arrives("home/ann/Maildir/new/*", "hello staff@example.org")
	site.arrives("home/joe/Maildir/new/*", "Return-Path: <owner-staff@example.org>")
	s.waitLog(`to=<guest@elsewhere\.test>, .*status=sent`)

	// Dan has a .forward file, and his mailbox is Dovecot's.
	s.write("home/dan/.forward", "\\dan, friend@elsewhere.test, \"|cat > $HOME/copy\"\n")
	run(t, "chown", "dan", s.path("home/dan/.forward"))
	mail("Dan+x@example.org", "for dan and his friend")
	site.arrives("vmail/dovecot/example.org/dan/mail/new/*", "Subject: for dan and his friend")
	site.arrives("home/dan/copy", "Subject: for dan and his friend")
	s.waitLog(`to=<friend@elsewhere\.test>, .*status=sent`)
	s.waitLog(`to=<Dan\+x@example\.org>, relay=local, .*status=sent \(forwarded as `)

	// Joe is away, and says so once.
	site.file("joe", ".forward")
	mail("joe@example.org", "are you there?")
	mail("joe@example.org", "are you still there?")
	site.arrives("home/joe/Maildir/new/*", "are you still there?")
	s.waitLog(`pickup\[\d+\]: \w+: uid=\d+ from=<joe>`)
	s.waitLog(`to=<a@far\.test>, .*status=sent`)
	s.waitLogN(`delivered to command: /usr/bin/vacation joe`, 2)
	var answers []string
	s.eventually("joe answers", func() bool {
		answers = nil
		for _, m := range site.next.received() {
			if len(m.to) == 1 && m.to[0] == from {
				answers = append(answers, m.data)
			}
		}
		return len(answers) > 0
	})
	if len(answers) != 1 || !strings.Contains(answers[0], "Subject: away") || !strings.Contains(answers[0], "I am on holiday") {
		t.Errorf("answers: %q", answers)
	}
}

// TestMailboxesOwner: the commands of docs/mailboxes.md make the user that its
// main.cf and its Dovecot deliver as.
func TestMailboxesOwner(t *testing.T) {
	t.Parallel()
	m := newNetwork(t, "").newMachine("mail.example.org")
	m.must("root", fileOf(t, "mailboxes.md", "sh"))
	for _, dir := range []string{"/srv/vmail", "/srv/vmail/dovecot", "/srv/vmail/example.com"} {
		if got := m.must("root", "stat -c '%U %u %g %a' "+dir); got != "vmail 5000 5000 700\n" {
			t.Errorf("%s: %s", dir, got)
		}
	}
	for file, line := range map[string]string{"main.cf": "virtual_uid_maps = static:5000\n", "dovecot.conf": "uid=5000 gid=5000"} {
		if !strings.Contains(fileOf(t, "mailboxes.md", file), line) {
			t.Errorf("%s does not have %q", file, line)
		}
	}
}

// site is the site of docs/mailboxes.md below the system's directory.
type site struct {
	*system
	files map[string]string
	next  *sink
}

// ownSendmail has the mail system $1 at /usr/sbin/sendmail, by which vacation sends, for what is
// run after it. The machine may have no such program, or Postfix's; $3 is where its others are then.
const ownSendmail = `set -e
mkdir -m 755 "$3"
mount --bind /usr/sbin "$3"
mount -t tmpfs -o mode=755 tmpfs /usr/sbin
ln -s "$3"/* /usr/sbin
ln -sf "$1/posthaste" /usr/sbin/sendmail
`

func newSite(t *testing.T) *site {
	page, err := os.ReadFile("../../docs/mailboxes.md")
	if err != nil {
		t.Fatal(err)
	}
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true})
	vmail := testusers.Add(t, "vmail", s.path("vmail"))
	owner, _ := mailOwner(t)
	here := strings.NewReplacer("/etc/posthaste/", s.path("etc")+"/", "/etc/aliases", s.path("etc/aliases"), "/etc/dovecot/", s.path("etc")+"/",
		"/srv/vmail", s.path("vmail"), "/var/spool/posthaste", s.path("spool"), "/run/dovecot", s.path("run"), "/var/log/dovecot.log", s.path("dovecot.log"),
		"/usr/local/bin/", s.path("bin")+"/", "user = posthaste", "user = "+owner, "static:5000", fmt.Sprintf("static:%d", vmail),
		"uid=5000 gid=5000", fmt.Sprintf("uid=%d gid=%d", vmail, testusers.Group))
	x := &site{system: s, files: map[string]string{}, next: next}
	for _, m := range siteBlock.FindAllStringSubmatch(string(page), -1) {
		x.files[m[1]] = here.Replace(m[2])
	}
	for _, dir := range []string{"home", "bin", "vmail", "vmail/dovecot", "vmail/example.com"} {
		if err := os.MkdirAll(s.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(dir, "vmail") {
			os.Chown(s.path(dir), vmail, testusers.Group)
		}
	}
	for user, dotfile := range map[string]string{"joe": ".vacation.msg", "ann": "", "dan": "", "bob": ".procmailrc", "eve": ".mailfilter"} {
		testusers.Home(t, s.path("home"), user)
		if dotfile != "" {
			x.file(user, dotfile)
		}
	}
	run(t, "maildirmake.maildrop", s.path("home/eve/Maildir"))
	run(t, "chown", "-R", "eve", s.path("home/eve"))
	x.tickets()
	for _, name := range []string{"aliases", "staff", "vmailbox", "commands", "dovecot.conf", "users"} {
		s.write("etc/"+name, x.files[name])
	}
	s.configure(x.files["main.cf"]+next.relayhost(), x.files["master.cf"]+"pickup unix n - n 1 1 pickup\n")
	for _, args := range [][]string{{"newaliases"}, {"postmap", s.path("etc/vmailbox"), s.path("etc/commands")}} {
		if out, status := s.tool(nil, args...); status != 0 {
			t.Fatalf("%v: %s", args, out)
		}
	}
	s.cmd = exec.Command("unshare", "-m", "sh", "-c", ownSendmail+`exec "$1/posthaste" -c "$2" start-fg`, "-", binDir, s.path("etc"), s.path("sbin"))
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	s.launch()
	// postdrop is not set-gid in a test, so that users have to be let in.
	if err := os.Chmod(s.path("spool/maildrop"), 0o1733|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	x.dovecot()
	return x
}

// file writes a file of the page into a user's home directory.
func (x *site) file(user, name string) {
	x.t.Helper()
	x.write("home/"+user+"/"+name, x.files[name])
	run(x.t, "chown", user, x.path("home", user, name))
}

// tickets is a program that keeps what it gets.
func (x *site) tickets() {
	x.write("bin/tickets", "#!/bin/sh\ncat > "+x.path("tickets.out")+"\n")
	os.Chmod(x.path("bin/tickets"), 0o755)
	x.write("tickets.out", "")
	os.Chmod(x.path("tickets.out"), 0o666)
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// dovecot starts Dovecot by the page's configuration.
func (x *site) dovecot() {
	x.t.Helper()
	x.runDovecot(need(x.t, "dovecot"), x.path("etc/dovecot.conf"), x.path("spool/private/dovecot-lmtp"), "dovecot.log", "vmail/dovecot/lda.log")
}

// runDovecot starts Dovecot and waits for its socket. It ends with the test,
// which shows the logs if it fails.
func (s *system) runDovecot(program, conf, socket string, logs ...string) {
	s.t.Helper()
	cmd := exec.Command(program, "-F", "-c", conf)
	var out testproc.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(testproc.Watch(s.t, cmd, ""))
	s.t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
		if s.t.Failed() {
			s.t.Logf("dovecot: %s", out.String())
			for _, name := range logs {
				text, _ := os.ReadFile(s.path(name))
				s.t.Logf("%s:\n%s", name, text)
			}
		}
	})
	s.eventually("Dovecot listens", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
}

// arrives waits until a file that matches the pattern has the text.
func (x *site) arrives(pattern, text string) {
	x.t.Helper()
	x.eventually(text+" arrives in "+pattern, func() bool {
		list, _ := filepath.Glob(x.path(pattern))
		for _, name := range list {
			if b, err := os.ReadFile(name); err == nil && strings.Contains(string(b), text) {
				return true
			}
		}
		return false
	})
}
