package tryout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/etc"
	"posthaste/internal/config"
	"posthaste/internal/sasl"
)

// TestMovePort changes the port where this program wrote it, and nowhere else.
func TestMovePort(t *testing.T) {
	t.Parallel()
	base := withPort(etc.Master, 2525)
	for _, c := range []struct {
		name, text, want, err string
	}{
		{"as written", base, strings.Replace(base, "127.0.0.1:2525 ", "127.0.0.1:2600 ", 1), ""},
		{"the same port", strings.ReplaceAll(base, "2525", "2600"), strings.ReplaceAll(base, "2525", "2600"), ""},
		{"with options", "127.0.0.1:2525 inet n - n - - smtpd -o x=y\n", "127.0.0.1:2600 inet n - n - - smtpd -o x=y\n", ""},
		{"somebody's own", "smtp inet n - n - - smtpd\n", "", "there are 0 lines"},
		{"two", "127.0.0.1:1 inet n - n - - smtpd\n127.0.0.1:2 inet n - n - - smtpd\n", "", "there are 2 lines"},
		{"a comment", "#127.0.0.1:1 inet n - n - - smtpd\n127.0.0.1:2 inet n - n - - smtpd\n", "#127.0.0.1:1 inet n - n - - smtpd\n127.0.0.1:2600 inet n - n - - smtpd\n", ""},
	} {
		s := &System{Dir: t.TempDir(), Port: 2600}
		path := filepath.Join(s.ConfigDir(), "master.cf")
		if err := os.Mkdir(s.ConfigDir(), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		err := s.movePort()
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if want := c.want; c.err == "" && string(got) != want || c.err != "" && string(got) != c.text {
			t.Errorf("%s: master.cf is\n%s", c.name, got)
		}
	}
}

// TestTruth: where it listens and where mail lands is what the files say.
func TestTruth(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		main, master, box string
		listens           []string
	}{
		{"mail_spool_directory = /run/mail/\n", "127.0.0.1:2525 inet n - n - - smtpd\n", "in /run/mail/joe/new", []string{"127.0.0.1:2525, for this machine only"}},
		{"mail_spool_directory = /run/mail\n", "", "in /run/mail/joe", nil},
		{"home_mailbox = Maildir/\n", "", "in Maildir/ below the home directory of joe", nil},
		{"mailbox_transport = lmtp:unix:x\n", "", "where mailbox_transport or mailbox_command takes it", nil},
		{"inet_interfaces = loopback-only\n", "smtp inet n - n - - smtpd\n", "in /var/mail/joe", []string{"127.0.0.1:25, for this machine only"}},
		{"inet_interfaces = all\n", "smtp inet n - n - - smtpd\n[::1]:26 inet n - n - - smtpd\nsmtp unix - - n - - smtp\n", "in /var/mail/joe",
			[]string{"0.0.0.0:25, for other machines as well", "[::1]:26, for this machine only"}},
	} {
		cfg, err := config.LoadString("compatibility_level = 3.6\n" + c.main)
		if err != nil {
			t.Fatal(err)
		}
		services, faulty := config.LoadMasterString(c.master, cfg)
		if len(faulty) > 0 {
			t.Fatal(faulty)
		}
		if box := mailbox(cfg, "joe"); box != c.box {
			t.Errorf("%q: mail lands %s, want %s", c.main, box, c.box)
		}
		var listens []string
		for _, addr := range listening(cfg, services) {
			listens = append(listens, addr+reach(addr))
		}
		if strings.Join(listens, "; ") != strings.Join(c.listens, "; ") {
			t.Errorf("%q: listens on %q, want %q", c.master, listens, c.listens)
		}
	}
}

// Where the console's program is there its line is on, it has a port of its own, and one user
// whose password nobody else can read.
func TestConsole(t *testing.T) {
	t.Parallel()
	if text := commentedConsole().ReplaceAllString(etc.Master, "$1"); !strings.Contains(text, "\nconsole  unix ") {
		t.Error("etc/master.cf has no line of the console that could be turned on")
	}
	for _, port := range []int{1, 2525, 60035, 60036, 65535} {
		if p := consolePort(port); p < 1 || p > 65535 || p == port {
			t.Errorf("%d for %d", p, port)
		}
	}
	s := &System{Dir: t.TempDir()}
	if err := os.Mkdir(s.ConfigDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what is there stays
		if err := s.makeUser(); err != nil {
			t.Fatal(err)
		}
	}
	password, err := os.ReadFile(filepath.Join(s.ConfigDir(), passwordFile))
	if err != nil {
		t.Fatal(err)
	}
	users, err := os.ReadFile(filepath.Join(s.ConfigDir(), usersFile))
	if err != nil {
		t.Fatal(err)
	}
	user, text, _ := strings.Cut(strings.TrimSpace(string(users)), " ")
	if secret, err := sasl.ParseSecret(text); err != nil || user != Recipient() || !secret.Matches(strings.TrimSpace(string(password))) {
		t.Errorf("%q %v", users, err)
	}
	for _, name := range []string{passwordFile, usersFile} {
		if info, err := os.Stat(filepath.Join(s.ConfigDir(), name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	cfg, err := config.LoadString("compatibility_level = 3.6\nconsole_listen = 127.0.0.1:8025\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ master, want string }{{"console unix - - n 60 1 console\n", "  console      http://127.0.0.1:8025/, user "}, {"smtp inet n - n - - smtpd\n", ""}} {
		services, faulty := config.LoadMasterString(c.master, cfg)
		if got := s.consoleHint(cfg, services); len(faulty) > 0 || !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%q, %v", got, faulty)
		}
	}
}
