package differential

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/testpostfix"
)

const mistypedMain = `relayhost = ${maybe?x}${maybe2:y}$gone
myorigin = $used
used = example.test
foo = bar
bad = $alsogone
smtpd_restriction_classes = klass, klass2, klass3
klass = permit
relay_domains = $rely $myfoo
virtual_alias_maps = ldap:acc
acc_server_host = x
acc_server_hsot = x
command_time_limt = 5
local_transport = $local_transportt:$myhostname
smtpd_client_restrictions = check_client_access inline:{ {a=$foo2} }
default_rbl_reply = $rbl_code Service $undefinedraw
forservice = 1
forother = 1
`

const mistypedMaster = `smtp inet n - n - - smtpd
  -o myx=y
  -o smtpd_tls_foo=$zot
  -o { klass2 = reject }
  -o mydest=$myx2
  -o myy=$maybe
  -o relay_domains=$forservice$own
  -o own=1
alpha unix - - n - - smtp
  -o myfoo=1 -o used=3 -o own=2 -o forother=2
beta unix - - n - - smtp
  -o smtp_helo_name=$forother
`

// Names that are mistyped in main.cf and master.cf are found as Postfix's
// postconf finds them, and said in its words.
func TestPostconfNames(t *testing.T) {
	t.Parallel()
	testpostfix.Need(t)
	p := testpostfix.New(t)
	p.Configure(mistypedMain, mistypedMaster)
	warnings := func(out string) (list []string) {
		for line := range strings.Lines(out) {
			if _, text, ok := strings.Cut(line, ": warning: "); ok {
				list = append(list, text)
			}
		}
		slices.Sort(list)
		return slices.Compact(list) // Postfix says a name again that is met again
	}
	for _, args := range [][]string{{"-n"}, {}, {"myorigin"}, {"-d", "myorigin"}, {"-M"}, {"-F", "smtp/inet"}, {"-P", "alpha/unix"}} {
		theirs, err := p.Tool("", "postconf", args...)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := exec.Command(filepath.Join(binDir, "posthaste"), append([]string{"postconf", "-c", p.Path("etc")}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, ours)
		}
		got, want := warnings(string(ours)), warnings(theirs)
		if !slices.Equal(got, want) {
			t.Errorf("postconf %q: (-ours +Postfix)\n%s", args, lineDiff(strings.Join(got, ""), strings.Join(want, "")))
		}
		if len(want) == 0 && !slices.Contains(args, "-d") {
			t.Errorf("postconf %q: Postfix warns of nothing:\n%s", args, theirs)
		}
	}
}
