package migrate

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/occupant"
)

// all is a master that knows every program but spawn.
var all = Master{
	Knows: func(program string) bool { return program != "spawn" },
	Notes: func(*config.Config, []config.Service) ([]string, error) { return []string{"a note"}, nil },
}

// site makes directories of a Postfix and of ours. In texts {dir} is the
// directory that holds them: {dir}/postfix, {dir}/new, {dir}/spool.
func site(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "{dir}", dir)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// do migrates a site. The output has {dir} for its directory.
func do(t *testing.T, dir string, m Master, args ...string) (out, errs string, status int) {
	t.Helper()
	var o, e bytes.Buffer
	args = append([]string{"--from", filepath.Join(dir, "postfix"), "--to", filepath.Join(dir, "new")}, args...)
	status = Run(args, m, strings.NewReader(""), &o, &e)
	r := strings.NewReplacer(dir, "{dir}")
	return r.Replace(o.String()), r.Replace(e.String()), status
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// lines are the report's lines under a title.
func lines(out, title string) (list []string) {
	_, rest, _ := strings.Cut(out, "\n"+title+":\n")
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "  ") {
			break
		}
		list = append(list, strings.TrimSpace(line))
	}
	return list
}

func contains(list []string, want string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, want) })
}

// debian is what Debian's package writes, shortened, with a smart host that wants a
// password; its master.cf confines services.
var debian = map[string]string{
	"postfix/main.cf": `# See /usr/share/postfix/main.cf.dist
smtpd_banner = $myhostname ESMTP $mail_name (Debian/GNU)
append_dot_mydomain = no
readme_directory = no
compatibility_level = 3.6
myhostname = mail.example.com
alias_maps = hash:{dir}/aliases
alias_database = hash:{dir}/aliases
relayhost = [smtp.example.net]:587
smtp_sasl_auth_enable = yes
# the password
smtp_sasl_password_maps =
  hash:{dir}/postfix/sasl_passwd
mailbox_size_limit = 0
recipient_delimiter = +
inet_interfaces = loopback-only
queue_directory = {dir}/spool
`,
	"postfix/master.cf": `smtp      inet  n       -       y       -       -       smtpd
cleanup   unix  n       -       y       -       0       cleanup
smtp      unix  -       -       y       -       -       smtp
  -o smtp_generic_maps=hash:{dir}/postfix/generic
maildrop  unix  -       n       n       -       -       pipe
  flags=DRXhu user=vmail argv=/usr/bin/maildrop -d ${recipient}
`,
	"postfix/sasl_passwd":    "[smtp.example.net]:587 user:secret\n",
	"postfix/generic":        "root@mail.example.com postmaster@example.com\n",
	"postfix/sasl_passwd.db": "Berkeley",
	"postfix/main.cf.proto":  "# not named\n",
	"aliases":                "postmaster: root\n",
	"spool/deferred/A/A1":    "x", "spool/incoming/B1": "x", "spool/defer/A/A1": "x",
}

func TestSmartHost(t *testing.T) {
	t.Parallel()
	dir := site(t, debian)
	if err := os.Chmod(filepath.Join(dir, "postfix/sasl_passwd"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := read(t, dir, "postfix/main.cf")

	out, errs, status := do(t, dir, all, "--dry-run")
	if status != 0 || errs != "" {
		t.Fatalf("exit status %d, %s", status, errs)
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dry run made something: %v", err)
	}
	tables := []string{"postalias hash:{dir}/aliases", "postmap hash:{dir}/new/generic", "postmap hash:{dir}/new/sasl_passwd"}
	copied := []string{"{dir}/postfix/generic", "{dir}/postfix/sasl_passwd"}
	if got := lines(out, "Would build"); !slices.Equal(got, tables) {
		t.Errorf("would build %q", got)
	}
	if got := lines(out, "Would copy"); !slices.Equal(got, copied) {
		t.Errorf("would copy %q", got)
	}

	if out, errs, status = do(t, dir, all); status != 0 {
		t.Fatalf("exit status %d, %s", status, errs)
	}
	if got := lines(out, "Built"); !slices.Equal(got, tables) {
		t.Errorf("built %q", got)
	}
	main := read(t, dir, "new/main.cf")
	for _, want := range []string{"# the password\nsmtp_sasl_password_maps =\n  hash:" + dir + "/new/sasl_passwd\nmailbox", "\n#readme_directory = no\n",
		"\n#queue_directory = " + dir + "/spool\n", "\nqueue_directory = /var/spool/new\n"} {
		if !strings.Contains(main, want) {
			t.Errorf("main.cf has no %q:\n%s", want, main)
		}
	}
	if master := read(t, dir, "new/master.cf"); master != strings.Replace(read(t, dir, "postfix/master.cf"), dir+"/postfix", dir+"/new", 1) {
		t.Errorf("master.cf: %s", master)
	}
	for _, name := range []string{"aliases.phdb", "new/generic.phdb", "new/sasl_passwd.phdb"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"new/sasl_passwd", "new/sasl_passwd.phdb"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new/main.cf.proto")); err == nil {
		t.Error("a file that nothing names was copied")
	}
	if got := lines(out, "Next"); !contains(got, "--queue: moves the 2 messages that wait in {dir}/spool") {
		t.Errorf("next %q", got)
	}
	ofMachine := func(line string) bool { return strings.HasPrefix(line, "the user postfix is in the group ") }
	if got := slices.DeleteFunc(lines(out, "To decide"), ofMachine); len(got) != 0 {
		t.Errorf("to decide %q", got)
	}
	if read(t, dir, "postfix/main.cf") != before {
		t.Error("Postfix's own file was changed")
	}
}

// What was there is kept, once for each time that it was something else.
func TestKept(t *testing.T) {
	t.Parallel()
	dir := site(t, debian)
	do(t, dir, all)
	main := filepath.Join(dir, "new/main.cf")
	first := read(t, main)
	do(t, dir, all)
	if _, err := os.Stat(main + kept); err == nil {
		t.Error("what is the same was kept")
	}
	for _, text := range []string{"# one\n", "# two\n"} {
		if err := os.WriteFile(main, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, errs, status := do(t, dir, all); status != 0 || read(t, main) != first {
			t.Errorf("exit status %d, %s", status, errs)
		}
	}
	if one, two := read(t, main+kept), read(t, main+kept+".2"); one != "# one\n" || two != "# two\n" {
		t.Errorf("kept %q and %q", one, two)
	}
}

// Virtual domains with Dovecot: its sockets are in Postfix's queue directory,
// and a policy server is run by spawn.
func TestDovecot(t *testing.T) {
	t.Parallel()
	dir := site(t, map[string]string{
		"postfix/main.cf": `compatibility_level = 3.6
myhostname = mx.example.com
alias_maps =
virtual_mailbox_domains = example.com, example.org
virtual_mailbox_maps = proxy:mysql:{dir}/postfix/sql/mailboxes.cf
virtual_alias_maps = hash:{dir}/postfix/virtual,
 regexp:$config_directory/virtual.re
virtual_transport = lmtp:unix:private/dovecot-lmtp
local_recipient_maps = proxy:unix:passwd.byname $alias_maps
smtpd_sasl_type = dovecot
smtpd_sasl_path = private/auth
smtpd_sasl_auth_enable = yes
smtpd_recipient_restrictions = permit_sasl_authenticated, reject_unauth_destination,
  check_policy_service unix:private/policyd-spf, check_policy_service unix:private/inside
smtpd_milters = unix:/var/spool/postfix/opendkim/opendkim.sock
transport_maps = hash:{dir}/postfix/lost
smtpd_tls_cert_file = {dir}/postfix/tls/cert.pem
`,
		"postfix/master.cf": `smtp inet n - y - - smtpd
policyd-spf unix - n n - 0 spawn
  user=policyd-spf argv=/usr/bin/policyd-spf
inside unix - n n - - pipe user=postfix argv=/bin/true
`,
		"postfix/sql/mailboxes.cf": "# {dir}/postfix/x\nhosts = 127.0.0.1\nresult_format = {dir}/postfix/mail/%s\n",
		"postfix/virtual":          "a@example.com b@example.com\n",
		"postfix/virtual.re":       "/^x$/ y\n",
		"postfix/tls/cert.pem":     "",
		"dovecot/conf.d/10-master.conf": "service auth {\n # unix_listener /var/spool/postfix/private/old {\n" +
			"  unix_listener /var/spool/postfix/private/auth {\n    user = postfix\n  }\n}\n",
	})
	o, err := parse([]string{"--from", filepath.Join(dir, "postfix"), "--to", filepath.Join(dir, "new")})
	if err != nil {
		t.Fatal(err)
	}
	o.dovecot = filepath.Join(dir, "dovecot")
	o.groups = func(name string) []string {
		return map[string][]string{"postfix": {"opendkim", "sasl"}, "posthaste": {"sasl"}}[name]
	}
	p, err := newPlan(o, all)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := p.run(&buf); err != nil {
		t.Fatal(err)
	}
	out := strings.ReplaceAll(buf.String(), dir, "{dir}")
	if got, want := lines(out, "Copied"), []string{"{dir}/postfix/sql/mailboxes.cf", "{dir}/postfix/tls/cert.pem", "{dir}/postfix/virtual", "{dir}/postfix/virtual.re"}; !slices.Equal(got, want) {
		t.Errorf("copied %q", got)
	}
	decide := lines(out, "To decide")
	for _, want := range []string{
		"main.cf:15: names a file in Postfix's queue directory",
		"main.cf:11: smtpd_sasl_path: another program makes the socket private/auth in Postfix's queue directory; have it make /var/spool/new/private/auth",
		"main.cf:8: virtual_transport: another program makes the socket private/dovecot-lmtp",
		"master.cf:2: service policyd-spf/unix: there is no program spawn here",
		"master.cf:4: user=postfix: the program runs as Postfix's user",
		"the user postfix is in the group opendkim: if it is for a filter's socket or a key, adduser posthaste opendkim",
		"{dir}/dovecot/conf.d/10-master.conf:3: unix_listener /var/spool/postfix/private/auth: Dovecot is to make this one in /var/spool/new instead",
		"{dir}/postfix/sql/mailboxes.cf:3: names a path below {dir}/postfix, and is copied as it is",
		"{dir}/postfix/lost is named, and is not there",
		"hash:{dir}/new/lost: the text it is built from, {dir}/new/lost, is not there",
	} {
		if !contains(decide, want) {
			t.Errorf("nothing is asked about %q: %q", want, decide)
		}
	}
	for _, never := range []string{"inside", "passwd.byname", "private/old", "Cyrus", "mailboxes.cf:1"} {
		if contains(decide, "socket private/"+never) || contains(decide, never+":") || never == "Cyrus" && contains(decide, never) {
			t.Errorf("%s is asked about: %q", never, decide)
		}
	}
	if master := read(t, dir, "new/master.cf"); !strings.Contains(master, "\n#policyd-spf unix - n n - 0 spawn\n#  user=policyd-spf argv") {
		t.Errorf("%s", master)
	}
	if got := lines(out, "Different here"); !contains(got, "a note") || contains(got, "config_directory is not set") {
		t.Errorf("different %q", got)
	}
}

// Cyrus SASL is Postfix's default, and nobody has to have said so.
func TestCyrus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		main, master string
		want         bool
	}{
		{"smtpd_sasl_auth_enable = yes\n", "", true},
		{"smtpd_sasl_auth_enable = no\n", "", false},
		{"", "  -o smtpd_sasl_auth_enable=yes\n", true},
		{"", "  -o smtpd_sasl_auth_enable=yes\n  -o smtpd_sasl_type=dovecot -o smtpd_sasl_path=/run/auth\n", false},
		{"smtpd_sasl_auth_enable = yes\nsmtpd_sasl_type = cyrus\n", "", true},
		{"smtpd_sasl_auth_enable = yes\nsmtpd_sasl_type = dovecot\nsmtpd_sasl_path = inet:127.0.0.1:12345\n", "", false},
	} {
		dir := site(t, map[string]string{"postfix/main.cf": "alias_maps =\n" + c.main, "postfix/master.cf": "smtp inet n - y - - smtpd\n" + c.master})
		out, _, _ := do(t, dir, all)
		if got := lines(out, "To decide"); contains(got, "Cyrus") != c.want || len(got) > 1 {
			t.Errorf("%q: %q", c.main+c.master, got)
		}
	}
}

// What does not work is asked about, and is written all the same.
func TestWrongSettings(t *testing.T) {
	t.Parallel()
	dir := site(t, map[string]string{"postfix/main.cf": "default_process_limit = many\n", "postfix/master.cf": "smtp inet n - y - - smtpd\n"})
	out, _, status := do(t, dir, all)
	if status != 0 || !contains(lines(out, "To decide"), "main.cf:1: default_process_limit = many") || !strings.Contains(read(t, dir, "new/main.cf"), "many") {
		t.Errorf("exit status %d, %s", status, out)
	}
	bad := all
	bad.Notes = func(*config.Config, []config.Service) ([]string, error) { return nil, errors.New("master.cf:1: no") }
	dir = site(t, debian)
	if out, _, _ := do(t, dir, bad); !contains(lines(out, "To decide"), "master.cf:1: no") {
		t.Error(out)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--from", "/x", "--to", "/x"}, {"--queue", "--back"}, {"--back", "-n"}, {"word"}, {"--wrong"}} {
		var o, e bytes.Buffer
		if status := Run(args, all, nil, &o, &e); status != 64 || o.Len() != 0 || !strings.Contains(e.String(), "usage: posthaste migrate") {
			t.Errorf("%q: exit status %d, %q, %q", args, status, o.String(), e.String())
		}
	}
	var o, e bytes.Buffer
	if status := Run([]string{"--from", t.TempDir()}, all, nil, &o, &e); status != 1 || !strings.Contains(e.String(), "has no Postfix configuration") {
		t.Errorf("exit status %d, %q", status, e.String())
	}
}

// What is left to do is said as it is done on the machine: with systemd or without,
// and without what is done already.
func TestNext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "queue/deferred/1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("posthaste", filepath.Join(dir, "postfix")); err != nil { // ours, which is no Postfix to stop
		t.Fatal(err)
	}
	for _, c := range []struct {
		files    string // that are there
		to, unit string
		port25   string // the program that has it
		want     string
	}{
		{"", "/etc/posthaste", "", "", "posthaste check|start Posthaste: posthaste start"},
		{"", "/etc/posthaste", "", "/usr/sbin/exim4", "posthaste check|stop /usr/sbin/exim4 (process 7): it listens on port 25|start Posthaste: posthaste start"},
		{"", "/etc/posthaste", dir, "", "posthaste check|start Posthaste: systemctl enable posthaste && systemctl restart posthaste"},
		{"postfix", "/etc/posthaste-out", dir, "/usr/lib/postfix/sbin/master", "posthaste -c /etc/posthaste-out check|stop Postfix: systemctl disable --now postfix|" +
			"start Posthaste: systemctl enable posthaste@out && systemctl restart posthaste@out"},
		{"postfix", "/elsewhere", dir, "", "posthaste -c /elsewhere check|stop Postfix: postfix stop|start Posthaste: posthaste -c /elsewhere start"},
		{"queue/deferred/1/A", "/etc/posthaste", "", "", "posthaste check|stop Postfix: postfix stop|start Posthaste: posthaste start|" +
			"posthaste migrate --queue: moves the message that waits in {dir}/queue"},
		{"queue/deferred/1/B", "/elsewhere", "", "", "posthaste -c /elsewhere check|stop Postfix: postfix stop|start Posthaste: posthaste -c /elsewhere start|" +
			"posthaste migrate --to /elsewhere --queue: moves the 2 messages that wait in {dir}/queue"},
	} {
		if c.files != "" {
			if c.files == "postfix" {
				_ = os.Remove(filepath.Join(dir, c.files)) // the link
			}
			if err := os.WriteFile(filepath.Join(dir, c.files), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		unit := c.unit
		if unit == "" {
			unit = filepath.Join(dir, "none")
		}
		listener := func(netip.AddrPort) (occupant.Program, bool) {
			return occupant.Program{Path: c.port25, PID: 7}, c.port25 != ""
		}
		p := &plan{options: &options{from: postfixDir, to: c.to, systemd: unit, listener: listener}, old: postfix{queue: filepath.Join(dir, "queue"), commands: dir}}
		if got, want := strings.Join(p.next(), "|"), strings.ReplaceAll(c.want, "{dir}", dir); got != want {
			t.Errorf("with %s, to %s:\n%s\nwant\n%s", c.files, c.to, got, want)
		}
	}
}
