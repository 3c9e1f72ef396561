package postconf

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const sampleMain = `# head
always_bcc = a     b	c
# about relay
relayhost = [x]:25
mydestination = $myhostname, aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, cccccccccccccccccccccccc
# inside
   dddd
# after
smtpd_restriction_classes = cls1
cls1 = permit
mua_x = reject
biff = yes
myhostname = mail.example.com
slow_destination_rate_delay = 3s
smtpd_client_restrictions = check_client_access { inline:{ {a=b  c}, d=e } }  permit
recipient_delimiter =
`

const sampleMaster = `# c
smtp      inet  n       -       y       -       -       smtpd
  -o smtpd_banner=$myhostname -o { mynetworks = a b }
# inner
  -o syslog_name=postfix/x -v
slow unix - - n - - smtp -o smtp_helo_name=x
  -o smtpd_helo_restrictions=$mua_x
# mid
pipe1 unix - n n - - pipe
  flags=DRhu user=vmail argv=/usr/bin/maildrop -d ${recipient}
a-very-long-service-name      unix  n       -       y       -       -       smtpd -o { mynetworks = y z } -D
# end
`

// sampleDir makes a configuration directory.
func sampleDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "main.cf"), sampleMain)
	writeFile(t, filepath.Join(dir, "master.cf"), sampleMaster)
	return dir
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	// Postfix waits for a file that was just written to settle.
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(name, old, old); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// run runs our postconf.
func run(args ...string) (stdout, stderr string, status int) {
	var out, errOut bytes.Buffer
	status = Run(args, Build{MapTypes: []string{"hash", "cidr"}, ServerSASL: []string{"dovecot"}}, &out, &errOut)
	return out.String(), errOut.String(), status
}

// asPostfix are commands that must do what Postfix's postconf does, to the byte: what they
// print, and what they leave in the files.
var asPostfix = [][]string{
	{"-n"}, {"-nf"}, {"-nH"}, {"-nh"}, {"-C", "user"}, {"-C", "service", "-n"},
	{"-x", "mydestination"}, {"-h", "relayhost", "always_bcc"}, {"-H", "relayhost", "biff"},
	{"-o", "relayhost=$myhostname", "-x", "relayhost"},
	{"nosuch", "biff"}, {"-d", "biff", "smtpd_banner", "always_bcc"},
	{"-d", "slow_destination_rate_delay"}, {"slow_destination_rate_delay"},
	{"-M"}, {"-Mf"}, {"-M", "smtp/inet"}, {"-M", "slow"}, {"-M", "*/unix"}, {"-M", "nope"},
	{"-F"}, {"-F", "smtp/inet/chroot"}, {"-Fh", "smtp/inet/chroot"}, {"-F", "*/unix/private"},
	{"-P"}, {"-Ph", "smtp/inet"}, {"-Px", "smtp/inet"}, {"-P", "*/*/mynetworks"},

	{"-e", "relayhost=[y]:587"}, {"relayhost=  two   words "}, {"-e", "biff=maybe"}, {"-e", "new_one = x y"},
	{"-e", "mydestination=q"}, {"-X", "mydestination"}, {"-#", "mydestination"}, {"-X", "biff", "cls1"}, {"-#", "biff"}, {"-X", "nothere"},
	{"-Fe", "smtp/inet/chroot=n", "slow/unix/process_limit=3"}, {"-Fe", "slow/unix/command=lmtp -v"}, {"-F", "*/unix/chroot=y"},
	{"-Pe", "smtp/inet/smtpd_banner=hello"}, {"-Pe", "slow/unix/smtp_bind_address=1"}, {"-PX", "smtp/inet/syslog_name"},
	{"-Me", "new/unix=new unix - - n - - smtp -v"}, {"-Me", "slow/unix=slow unix y n n - 3 lmtp"}, {"-MX", "slow/unix"}, {"-M#", "pipe1/unix"},
}

// refused are commands that Postfix refuses, too, with the same exit status.
var refused = [][]string{
	{"-e"}, {"-e", "foo"}, {"-e", "a b=c"}, {"-X"}, {"-X", "a=b"}, {"-dn"}, {"-ne"}, {"-hH", "biff"}, {"-z"}, {"-o", "x"}, {"-C", "x"},
	{"-MX", "slow"}, {"-Me", "bad/unix=bad unix - -"}, {"-Fe", "smtp/inet/foo=n"}, {"-F", "a/b/c/d"},
	{"-e", "x=a\nb"}, {"-F#", "smtp/inet/chroot"}, {"-FX", "smtp/inet/chroot"}, {"-T", "x"}, {"-Me"}, {"-PX"}, {"-o"},
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for _, args := range refused {
		dir := sampleDir(t)
		stdout, stderr, status := run(append([]string{"-c", dir}, args...)...)
		if status != 1 || stdout != "" || !strings.HasPrefix(stderr, "postconf: fatal: ") {
			t.Errorf("%q: status %d, prints %q and %q; want status 1 and a message", args, status, stdout, stderr)
		}
		if readFile(t, dir+"/main.cf") != sampleMain || readFile(t, dir+"/master.cf") != sampleMaster {
			t.Errorf("%q: a refused command changed a file", args)
		}
	}
}

var comment = regexp.MustCompile("(?m)^#.*\n")

func TestAsPostfix(t *testing.T) {
	t.Parallel()
	postconf := "/usr/sbin/postconf"
	if out, err := exec.Command(postconf, "-dh", "mail_name").Output(); err != nil || strings.TrimSpace(string(out)) != "Postfix" {
		t.Skip("SKIPPED: Postfix's postconf is not installed, so nothing was compared with it")
	}
	for _, args := range asPostfix {
		t.Run(strings.Join(args, "_"), func(t *testing.T) {
			t.Parallel()
			theirs, ours := sampleDir(t), sampleDir(t)
			if len(args[0]) == 3 || strings.HasPrefix(args[len(args)-1], "*/unix/chroot=") { // Postfix moves the comments of what it edits
				for _, dir := range []string{theirs, ours} {
					writeFile(t, filepath.Join(dir, "master.cf"), comment.ReplaceAllString(sampleMaster, ""))
				}
			}
			if args[0] == "-X" || args[0] == "-#" { // which tell of a name that is there twice
				for _, dir := range []string{theirs, ours} {
					writeFile(t, filepath.Join(dir, "main.cf"), sampleMain+"biff = no\n")
				}
			}
			cmd := exec.Command(postconf, append([]string{"-c", theirs}, args...)...)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			wantStatus := 0
			if cmd.Run() != nil {
				wantStatus = 1
			}
			out, errOut, status := run(append([]string{"-c", ours}, args...)...)
			if status != wantStatus {
				t.Fatalf("exit status %d (%s), Postfix's %d (%s)", status, errOut, wantStatus, stderr.String())
			}
			if want := strings.ReplaceAll(stdout.String(), theirs, ours); out != want {
				t.Errorf("prints\n%s\nPostfix prints\n%s", out, want)
			}
			for _, name := range []string{"main.cf", "master.cf"} {
				if got, want := readFile(t, filepath.Join(ours, name)), readFile(t, filepath.Join(theirs, name)); got != want {
					t.Errorf("%s is\n%s\nPostfix makes it\n%s", name, got, want)
				}
			}
		})
	}
}
