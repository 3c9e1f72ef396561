package bounce

import (
	"os/exec"
	"strings"
	"testing"

	"posthaste/internal/testpeers"
)

// whatSisimaiSees prints a line for each recipient of the report in its argument.
const whatSisimaiSees = `use Sisimai;
my $v = Sisimai->make($ARGV[0], delivered => 1) or exit;
print join(" ", map { $_ // "-" } $_->smtpagent, $_->recipient->address, $_->deliverystatus, $_->reason), "\n" for @$v;`

// Programs that read notices look for the words of Postfix's: a site that moves
// here keeps the reports about its mail apart as it did.
func TestReaders(t *testing.T) {
	t.Parallel()
	perl := testpeers.Program(t, "perl")
	if exec.Command(perl, "-MSisimai", "-e", "1").Run() != nil {
		testpeers.Missing(t, "Sisimai (libsisimai-perl)")
	}
	for file, want := range map[string]string{
		"failure": "Postfix bob@far.test 5.1.1 userunknown\nPostfix \"odd name\\\"\"@here.test 5.1.1 userunknown\n",
		"expired": "Postfix carl@slow.test 4.4.1 expired\n",
		"delay":   "RFC3464 carl@slow.test 4.4.1 expired\n",
		"success": "RFC3464 dora@example.org 2.0.0 delivered\n",
		"hostile": "Postfix x@y.test 5.0.0 onhold\n",
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			out, err := exec.Command(perl, "-e", whatSisimaiSees, "testdata/"+file+".eml").CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got := string(out); strings.TrimSpace(got) != strings.TrimSpace(want) {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}
