package postconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/testpeers"
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
	{"-Fe", "slow/unix/type=pass"}, {"-Fe", "slow/unix/wakeup=60?"},
}

// refused are commands that Postfix refuses, too, with the same exit status.
var refused = [][]string{
	{"-e"}, {"-e", "foo"}, {"-e", "a b=c"}, {"-X"}, {"-X", "a=b"}, {"-dn"}, {"-ne"}, {"-hH", "biff"}, {"-z"}, {"-o", "x"}, {"-C", "x"},
	{"-MX", "slow"}, {"-Me", "bad/unix=bad unix - -"}, {"-Fe", "smtp/inet/foo=n"}, {"-F", "a/b/c/d"},
	{"-Fe", "smtp/inet/chroot=zz"}, {"-Fe", "slow/unix/process_limit=qq"}, {"-Fe", "slow/unix/type=unxi"}, {"-Fe", "slow/unix/wakeup=1x"},
	{"-Me", "slow/unix=slow unxi - - n - - smtp"}, {"-Me", "new/unix=new unix q - n - - smtp"},
	{"-PX", "smtp/inet/*"}, {"-Pe", "smtp/inet/*=x"}, {"-n", "biff=yes"}, {"-d", "biff=yes"}, {"-nM"}, {"-dP"},
	{"-j", "-h", "biff"}, {"-jf"}, {"-jH"}, {"-je", "biff=no"}, {"-jm"}, {"-jX", "biff"}, {"-e", "x=a\nb"}, {"-F#", "smtp/inet/chroot"}, {"-FX", "smtp/inet/chroot"}, {"-T", "x"}, {"-Me"}, {"-PX"}, {"-o"},
}

// TestJSON: one object a line, the settings as Postfix 3.11 names them.
func TestJSON(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, dir+"/main.cf", "mydestination=$whatever\nwhatever=a \"quoted\" <b>\\\n")
	writeFile(t, dir+"/master.cf", "foo unix - n n - 0 other\n -o mydestination=$whatever\n -o { whatever = two words }\n"+
		"12345 inet n n n - - spawn\n user=nobody argv=/bin/sh -c { sleep 1 }\n")
	const whatever = `a \"quoted\" <b>\\`
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-nj", "mydestination", "whatever"}, `{"mydestination": "$whatever"}
{"whatever": "` + whatever + `"}
`},
		{[]string{"-jx", "mydestination"}, `{"mydestination": "` + whatever + "\"}\n"},
		{[]string{"-Mj"}, `{"foo/unix": "foo unix - n n - 0 other -o mydestination=$whatever -o {whatever=two words}"}
{"12345/inet": "12345 inet n n n - - spawn user=nobody argv=/bin/sh -c {sleep 1}"}
`},
		{[]string{"-Mjx", "foo/unix"}, `{"foo/unix": "foo unix - n n - 0 other -o {mydestination=two words} -o {whatever=two words}"}
`},
		{[]string{"-Fj", "foo/unix/service", "*/inet/command"}, `{"foo/unix/service": "foo"}
{"12345/inet/command": "spawn user=nobody argv=/bin/sh -c {sleep 1}"}
`},
		{[]string{"-Pj"}, `{"foo/unix/mydestination": "$whatever"}
{"foo/unix/whatever": "two words"}
`},
	} {
		out, errOut, status := run(append([]string{"-c", dir}, tc.args...)...)
		if out != tc.want || status != 0 {
			t.Errorf("%q: status %d\n%s%s\nwant\n%s", tc.args, status, out, errOut, tc.want)
		}
		for line := range strings.Lines(out) {
			var m map[string]string
			if err := json.Unmarshal([]byte(line), &m); err != nil || len(m) != 1 {
				t.Errorf("%q: %q is not an object: %v", tc.args, line, err)
			}
		}
	}
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
	postconf := testpeers.Postfix(t, "postconf")
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

const oddMain = `myhostname = a.example.org
mua = yes
process_id = 5
cls = permit
`

const oddMaster = `smtp inet n - n - - smtpd -o smtpd_banner=$myhostname -o smtpd_restriction_classes=cls -o smtpd_recipient_restrictions=cls -vo mua=$myhostname
foo unix - - n - - smtp -v -o { smtp_helo_name = $mua b }
bar unix - - n - - pipe user=$mua argv=x ${recipient}
`

// TestAsPostfixWithWarnings: what is printed, what is warned of and what the files are then is
// Postfix's, for files with what is seldom in them. A line number, which ours have, is passed over.
func TestAsPostfixWithWarnings(t *testing.T) {
	t.Parallel()
	postconf := testpeers.Postfix(t, "postconf")
	line := regexp.MustCompile(`(/main\.cf):\d+:`)
	for _, c := range []struct {
		args   []string
		master string // oddMaster, or "none" for no file
	}{
		{[]string{"-Mx"}, oddMaster}, {[]string{"-Mxf"}, oddMaster}, {[]string{"-Fx", "foo/unix"}, oddMaster}, {[]string{"-Px"}, oddMaster}, {[]string{"-P"}, oddMaster},
		{[]string{"-M"}, oddMaster}, {[]string{"-F", "smtp/inet/command"}, oddMaster}, {[]string{"-M", "foo/unix", "foo/unix"}, oddMaster},
		{[]string{"-M", "smtp/inet", "nosuch/unix"}, oddMaster}, {[]string{"-n"}, oddMaster}, {[]string{"myhostname", "myhostname"}, oddMaster}, {[]string{"-n", "process_id"}, oddMaster},
		{[]string{"-Me", "foo/unix=bar unix - - n - - smtp"}, oddMaster}, {[]string{"-Me", "foo/unix=fox unix - - n - - smtp"}, oddMaster},
		{[]string{"-Me", "nosuch/unix=foo unix - - n - - lmtp"}, oddMaster}, {[]string{"-Me", "foo/unix=foo inet - - n - - smtp"}, oddMaster}, {[]string{"-Me", "*/unix=foo unix - - n - - smtp"}, oddMaster}, {[]string{"-M", "foo/unix=foo unix - - n - - lmtp"}, oddMaster},
		{[]string{"-PX", "smtp/inet/mua"}, oddMaster}, {[]string{"-Pe", "smtp/inet/mua=no"}, oddMaster}, {[]string{"-MX", "foo/unix", "foo/unix"}, oddMaster},
		{[]string{"-e", "biff=yes", "biff=no"}, oddMaster}, {[]string{"-n"}, "none"}, {[]string{"-M"}, "none"}, {[]string{"-P"}, "none"}, {[]string{"-F", "a/unix"}, "none"},
		{[]string{"-e", "biff=no"}, "none"},
	} {
		t.Run(strings.Join(c.args, "_"), func(t *testing.T) {
			t.Parallel()
			theirs, ours := t.TempDir(), t.TempDir()
			for _, dir := range []string{theirs, ours} {
				writeFile(t, filepath.Join(dir, "main.cf"), oddMain)
				if c.master != "none" {
					writeFile(t, filepath.Join(dir, "master.cf"), c.master)
				}
			}
			cmd := exec.Command(postconf, append([]string{"-c", theirs}, c.args...)...)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			wantStatus := 0
			if cmd.Run() != nil {
				wantStatus = 1
			}
			out, errOut, status := run(append([]string{"-c", ours}, c.args...)...)
			if want := strings.ReplaceAll(stdout.String(), theirs, ours); out != want || status != wantStatus {
				t.Errorf("exit status %d, prints\n%s\nPostfix: %d\n%s", status, out, wantStatus, want)
			}
			sorted := func(text string) []string { l := strings.Split(text, "\n"); slices.Sort(l); return l }
			want := strings.ReplaceAll(strings.ReplaceAll(stderr.String(), theirs, ours), postconf, "postconf")
			if got := line.ReplaceAllString(errOut, "$1:"); !slices.Equal(sorted(got), sorted(want)) {
				t.Errorf("says\n%s\nPostfix says\n%s", got, want)
			}
			for _, name := range []string{"main.cf", "master.cf"} {
				got, _ := os.ReadFile(filepath.Join(ours, name))
				want, _ := os.ReadFile(filepath.Join(theirs, name))
				if string(got) != string(want) {
					t.Errorf("%s is\n%s\nPostfix makes it\n%s", name, got, want)
				}
			}
		})
	}
}

// An edit of master.cf leaves comments where they are, and what it does not
// change as it is written.
func TestMasterEditKeepsText(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args []string
		want string // what becomes of sampleMaster
	}{
		{[]string{"-PX", "*/*/mynetworks"}, `# c
smtp       inet  n       -       y       -       -       smtpd
    -o smtpd_banner=$myhostname
    -o syslog_name=postfix/x
    -v
# inner
slow unix - - n - - smtp -o smtp_helo_name=x
  -o smtpd_helo_restrictions=$mua_x
# mid
pipe1 unix - n n - - pipe
  flags=DRhu user=vmail argv=/usr/bin/maildrop -d ${recipient}
a-very-long-service-name unix n - y      -       -       smtpd -D
# end
`},
		{[]string{"-M#", "smtp/inet"}, "# c\n#smtp      inet  n       -       y       -       -       smtpd\n" +
			"#  -o smtpd_banner=$myhostname -o { mynetworks = a b }\n# inner\n#  -o syslog_name=postfix/x -v\n" +
			sampleMaster[strings.Index(sampleMaster, "slow unix"):]},
		{[]string{"-Pe", "slow/unix/smtp_bind_address=a b"}, strings.Replace(sampleMaster, `slow unix - - n - - smtp -o smtp_helo_name=x
  -o smtpd_helo_restrictions=$mua_x
`, `slow       unix  -       -       n       -       -       smtp
    -o smtp_helo_name=x
    -o smtpd_helo_restrictions=$mua_x
    -o {smtp_bind_address=a b}
`, 1)},
		{[]string{"-Pe", "pipe1/unix/biff=1"}, strings.Replace(sampleMaster, `pipe1 unix - n n - - pipe
  flags=DRhu user=vmail argv=/usr/bin/maildrop -d ${recipient}
`, `pipe1      unix  -       n       n       -       -       pipe
    -o biff=1
    flags=DRhu user=vmail argv=/usr/bin/maildrop -d ${recipient}
`, 1)},
		{[]string{"-PX", "slow/unix/nothing"}, sampleMaster},
	}
	for _, tt := range tests {
		dir := sampleDir(t)
		if _, stderr, status := run(append([]string{"-c", dir}, tt.args...)...); status != 0 || stderr != "" {
			t.Errorf("%q: status %d, %s", tt.args, status, stderr)
		}
		if got := readFile(t, dir+"/master.cf"); got != tt.want {
			t.Errorf("%q makes master.cf\n%s\nwant\n%s", tt.args, got, tt.want)
		}
	}
}

// TestAttachedOption: -o may have its value in the same word, as services take it.
func TestAttachedOption(t *testing.T) {
	t.Parallel()
	dir := sampleDir(t)
	writeFile(t, filepath.Join(dir, "master.cf"), "a unix - - n - - smtp -v -obiff=no -o{x = y z} -o c=d e -of=g\n")
	const want = "a/unix/biff = no\na/unix/c = d\na/unix/x = y z\n"
	if out, stderr, status := run("-c", dir, "-P"); out != want || status != 0 {
		t.Errorf("status %d, %s\n%s", status, stderr, out)
	}
	if _, stderr, status := run("-c", dir, "-Pe", "a/unix/biff=yes"); status != 0 {
		t.Error(stderr)
	}
	if out, _, _ := run("-c", dir, "-M"); out != "a          unix  -       -       n       -       -       smtp -v -o biff=yes -o {x=y z} -o c=d e -of=g\n" {
		t.Errorf("-M prints %q", out)
	}
}

func TestEditKeepsModeAndLink(t *testing.T) {
	t.Parallel()
	dir, elsewhere := sampleDir(t), t.TempDir()
	target := filepath.Join(elsewhere, "the-main.cf")
	writeFile(t, target, sampleMain)
	if err := os.Chmod(target, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir + "/main.cf"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, dir+"/main.cf"); err != nil {
		t.Fatal(err)
	}
	if _, stderr, status := run("-c", dir, "-e", "relayhost=new"); status != 0 {
		t.Fatal(stderr)
	}
	info, err := os.Lstat(dir + "/main.cf")
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("main.cf is no link any more (%v)", err)
	}
	if info, err = os.Stat(target); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v (%v), want 0640", info.Mode(), err)
	}
	if want := strings.Replace(sampleMain, "[x]:25", "new", 1); readFile(t, target) != want {
		t.Errorf("main.cf is\n%s\nwant\n%s", readFile(t, target), want)
	}
	for _, d := range []string{dir, elsewhere} {
		names, err := filepath.Glob(d + "/*.tmp")
		if err != nil || len(names) != 0 {
			t.Errorf("an edit left %q (%v)", names, err)
		}
	}
}

// Edits at the same time all count.
func TestConcurrentEdits(t *testing.T) {
	t.Parallel()
	dir := sampleDir(t)
	const n = 16
	done := make(chan string)
	for i := range n {
		go func() {
			_, stderr, _ := run("-q", "-c", dir, "-e", fmt.Sprintf("own_%d=%d", i, i))
			done <- stderr
		}()
	}
	for range n {
		if stderr := <-done; stderr != "" {
			t.Error(stderr)
		}
	}
	text := readFile(t, dir+"/main.cf")
	for i := range n {
		if !strings.Contains(text, fmt.Sprintf("\nown_%d = %d\n", i, i)) {
			t.Errorf("own_%d is lost", i)
		}
	}
	if !strings.HasPrefix(text, sampleMain) {
		t.Error("the edits changed something else")
	}
}

func TestFailedEditChangesNothing(t *testing.T) {
	t.Parallel()
	dir := sampleDir(t)
	writeFile(t, dir+"/master.cf", "broken line\n")
	_, stderr, status := run("-c", dir, "-Fe", "smtp/inet/chroot=n")
	if status != 1 || !strings.Contains(stderr, "/master.cf:1: expected 8 fields") {
		t.Errorf("status %d, %s", status, stderr)
	}
	if readFile(t, dir+"/master.cf") != "broken line\n" {
		t.Error("the refused edit changed master.cf")
	}
	if _, err := os.Stat(dir + "/master.cf.tmp"); err == nil {
		t.Error("the refused edit left its temporary file")
	}
}

// An edit of a name that nothing reads is warned of at once, and of no other.
func TestEditWarnsOfUnknownName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string // of the warning; {dir} is the directory
	}{
		{[]string{"-e", "smtpd_recipient_restriction=permit"}, "{dir}/main.cf: unused parameter: smtpd_recipient_restriction=permit; did you mean smtpd_recipient_restrictions?"},
		{[]string{"zzz=1"}, "{dir}/main.cf: unused parameter: zzz=1"},
		{[]string{"-e", "cls1=reject"}, ""}, // a restriction class
		{[]string{"-e", "mua_x=permit"}, ""},
		{[]string{"-e", "slow_destination_rate_delay=1s"}, ""},
		{[]string{"-e", "biff=no"}, ""},
		{[]string{"-X", "zzz"}, ""},
		{[]string{"-Pe", "smtp/inet/smtpd_baner=x"}, "{dir}/master.cf: unused parameter: smtpd_baner=x; did you mean smtpd_banner?"},
		{[]string{"-Pe", "smtp/inet/smtpd_banner=x"}, ""},
		{[]string{"-Me", "new/unix=new unix - - n - - smtp -o smtp_hello_name=x"}, "{dir}/master.cf: unused parameter: smtp_hello_name=x; did you mean smtp_helo_name?"},
		{[]string{"-Fe", "smtp/inet/chroot=n"}, ""},
	} {
		dir := sampleDir(t)
		_, stderr, status := run(append([]string{"-c", dir}, c.args...)...)
		want := ""
		if c.want != "" {
			want = "postconf: warning: " + strings.ReplaceAll(c.want, "{dir}", dir) + "\n"
		}
		if status != 0 || stderr != want {
			t.Errorf("%q: status %d, %q, want %q", c.args, status, stderr, want)
		}
	}
}

func TestEditWarnsOfBadValue(t *testing.T) {
	t.Parallel()
	dir := sampleDir(t)
	_, stderr, status := run("-c", dir, "message_size_limit=10x")
	if want := "main.cf:17: message_size_limit = 10x: expected a size such as 10240000, 512k or 20m\n"; status != 0 || !strings.HasSuffix(stderr, want) {
		t.Errorf("status %d, %q; want the edit done and a warning that ends in %q", status, stderr, want)
	}
	// A file with a malformed value can be shown and repaired.
	if out, stderr, status := run("-c", dir, "message_size_limit"); status != 0 || out != "message_size_limit = 10x\n" {
		t.Errorf("prints %q (%s), want the value as it is", out, stderr)
	}
	if _, stderr, status := run("-c", dir, "-q", "message_size_limit=10k"); status != 0 || stderr != "" {
		t.Errorf("status %d, %q", status, stderr)
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	dir := sampleDir(t)
	tests := []struct {
		arg, want string
	}{
		{"-m", "cidr\nhash\n"},
		{"-l", "dotlock\nfcntl\nflock\n"},
		{"-a", "dovecot\n"},
		{"-A", ""},
		{"-Tpublic-key-algorithms", "rsa\necdsa\ned25519\n"},
	}
	for _, tt := range tests {
		if out, stderr, status := run("-c", dir, tt.arg); status != 0 || out != tt.want {
			t.Errorf("%s prints %q (%s), want %q", tt.arg, out, stderr, tt.want)
		}
	}
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	dir := sampleDir(t)
	if _, stderr, status := run("-c", dir, "-b"); status != 1 || !strings.Contains(stderr, "without the bounce service") {
		t.Errorf("status %d, %q", status, stderr)
	}
	writeFile(t, dir+"/main.cf", "bounce_template_file = $config_directory/templates\n")
	build := Build{Templates: func(cfg *config.Config, file string, expand bool, w io.Writer) error {
		fmt.Fprintln(w, file, expand, cfg.Dir())
		return nil
	}}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-b"}, dir + "/templates true " + dir + "\n"},
		{[]string{"-t"}, dir + "/templates false " + dir + "\n"},
		{[]string{"-t", "/x"}, "/x false " + dir + "\n"},
	} {
		var out, errOut bytes.Buffer
		if status := Run(append([]string{"-c", dir}, tt.args...), build, &out, &errOut); status != 0 || out.String() != tt.want {
			t.Errorf("%q: status %d, prints %q (%s), want %q", tt.args, status, out.String(), errOut.String(), tt.want)
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	dir := sampleDir(t)
	writeFile(t, dir+"/main.cf", sampleMain+"typo_param = 1\ntlsproxy_tls_loglevel = $typo_too\n")
	head := "postconf: warning: " + dir
	undefined, unused := head+"/main.cf: undefined parameter: typo_too\n", head+"/main.cf: unused parameter: typo_param=1\n"
	_, stderr, _ := run("-c", dir, "-n")
	if !strings.HasPrefix(stderr, undefined) || !strings.HasSuffix(stderr, unused) || strings.Contains(stderr, "unknown parameter") {
		t.Errorf("warnings are %q, want %q and %q", stderr, undefined, unused)
	}
	if _, stderr, _ := run("-c", dir, "-M"); stderr != undefined {
		t.Errorf("-M: warnings are %q", stderr)
	}
	if _, stderr, _ := run("-c", dir, "-d"); stderr != "" {
		t.Errorf("-d: warnings are %q", stderr)
	}
	writeFile(t, dir+"/master.cf", "smtp inet n - n - - smtpd -o typo_here=$typo_there\n")
	undefined, unused = head+"/master.cf: undefined parameter: typo_there\n"+undefined, head+"/master.cf: unused parameter: typo_here=$typo_there\n"
	for _, flag := range []string{"-M", "-F", "-P"} {
		if _, stderr, _ := run("-c", dir, flag); stderr != undefined+unused {
			t.Errorf("%s: warnings are %q", flag, stderr)
		}
	}
	if _, stderr, _ := run("-c", dir, "-nq"); stderr != "" {
		t.Errorf("-q prints %q", stderr)
	}
}

// A line of master.cf that continues nothing is warned of once, and no edit
// touches it.
func TestMasterOrphan(t *testing.T) {
	t.Parallel()
	dir := sampleDir(t)
	const orphan = "  early unix - - n - - smtp\n"
	writeFile(t, dir+"/master.cf", orphan+"late unix - - n - - smtp\n")
	want := "postconf: warning: " + dir + `/master.cf:1: logical line must not start with whitespace: "  early unix - - n - - smtp"` + "\n"
	for _, args := range [][]string{{"-M"}, {"-n"}} {
		out, stderr, status := run(append([]string{"-c", dir}, args...)...)
		if !strings.HasPrefix(stderr, want) || strings.Count(stderr, want) != 1 || strings.Contains(out, "early") || status != 0 {
			t.Errorf("%q: %q, %q, status %d, want %q", args, out, stderr, status, want)
		}
	}
	if _, stderr, status := run("-c", dir, "-M", "-e", "late/unix=late unix - - n - 7 smtp"); status != 0 {
		t.Fatalf("edit: %s", stderr)
	}
	text, err := os.ReadFile(dir + "/master.cf")
	if err != nil || !strings.HasPrefix(string(text), orphan) || !strings.Contains(string(text), " 7 ") {
		t.Errorf("after an edit: %q, %v", text, err)
	}
}

func TestVerbose(t *testing.T) {
	t.Parallel()
	dir := sampleDir(t)
	want := "postconf: reading " + dir + "/master.cf\n" +
		"postconf: hopcount_limit: " + "Maximum Received headers before rejecting (int; for cleanup; at least 1"
	if _, stderr, _ := run("-c", dir, "-vd", "hopcount_limit"); !strings.HasPrefix(stderr, want) {
		t.Errorf("-v prints %q, want %q", stderr, want)
	}
	want = "(one of yes, no, normalize, reject, note; for smtpd"
	if _, stderr, _ := run("-c", dir, "-vd", "smtpd_forbid_bare_newline"); !strings.Contains(stderr, want) {
		t.Errorf("-v prints %q, want %q in it", stderr, want)
	}
}

// -C own lists what no Postfix has.
func TestOwn(t *testing.T) {
	t.Parallel()
	out, stderr, status := run("-c", sampleDir(t), "-d", "-H", "-C", "own")
	if status != 0 {
		t.Fatal(stderr)
	}
	listed := strings.Fields(out)
	for _, name := range listed {
		if p, ok := config.Lookup(name); !ok || p.Origin != config.Own {
			t.Errorf("-C own lists %s", name)
		}
	}
	if !slices.Contains(listed, "spool_inline_limit") || !slices.Contains(listed, "slow_scheduler") {
		t.Errorf("-C own lists %q, without spool_inline_limit or slow_scheduler", listed)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestOutputError(t *testing.T) {
	t.Parallel()
	var errOut bytes.Buffer
	if status := Run([]string{"-c", sampleDir(t), "-d"}, Build{}, brokenWriter{}, &errOut); status != 1 {
		t.Errorf("status %d after output was lost, want 1", status)
	}
}

// -d lists every parameter that is not an old name, each once, in order.
func TestDefaultsAreComplete(t *testing.T) {
	t.Parallel()
	out, stderr, status := run("-c", sampleDir(t), "-d")
	if status != 0 {
		t.Fatal(stderr)
	}
	listed := make(map[string]bool)
	last := ""
	for line := range strings.Lines(out) {
		name, _, _ := strings.Cut(line, " =")
		if name <= last {
			t.Errorf("%s comes after %s", name, last)
		}
		last, listed[name] = name, true
	}
	for _, p := range config.All() {
		if listed[p.Name] != (p.Origin != config.OldName) {
			t.Errorf("%s: listed %v, origin %d", p.Name, listed[p.Name], p.Origin)
		}
	}
	if !listed["pipe1_time_limit"] || !listed["slow_destination_rate_delay"] || listed["slow_time_limit"] {
		t.Error("the parameters of master.cf's services are not those that they have")
	}
}

// Whatever an edit is given, the other lines stay, and the result can be edited
// again.
func FuzzEdit(f *testing.F) {
	f.Add(sampleMain, "relayhost", "x")
	f.Add("a = b\n  c", "a", "")
	f.Add(" x\n#\na=", "new", "${")
	f.Fuzz(func(t *testing.T, text, name, value string) {
		line := name + "=" + value
		n, v, err := config.SplitNameValue(line)
		if err != nil || strings.ContainsAny(line, "\r\n") || strings.Contains(v, "#") {
			return
		}
		c := &command{flags: map[byte]bool{'e': true, 'q': true}}
		once := c.changeMain("main.cf", text, []*change{{name: n, value: v}})
		twice := c.changeMain("main.cf", once, []*change{{name: n, value: v}})
		if once != twice {
			t.Fatalf("%q set in %q gives %q, and again %q", line, text, once, twice)
		}
		kept := func(text string) (lines []string) {
			for _, l := range config.LogicalLines(text) {
				if m, _, err := config.SplitNameValue(l.Text); err != nil || m != n || l.Orphan {
					lines = append(lines, l.Text)
				}
			}
			return lines
		}
		if !slices.Equal(kept(text), kept(once)) {
			t.Fatalf("%q set in %q gives %q: other lines changed", line, text, once)
		}
	})
}
