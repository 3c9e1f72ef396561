package main

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// maxInit bounds what a package of ours allocates before main, in octets.
const maxInit = 16 << 10

var initLine = regexp.MustCompile(`(?m)^init (posthaste/\S+) .* (\d+) bytes, \d+ allocs$`)

// Every process pays for the initialisation of all packages. What few of them need, such as a regular expression of a
// tool, is made when it is first used.
func TestInitAllocations(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	packages := initLine.FindAllSubmatch(out, -1)
	if len(packages) < 10 {
		t.Fatalf("only %d packages in\n%s", len(packages), out)
	}
	for _, m := range packages {
		if n, err := strconv.Atoi(string(m[2])); err != nil || n > maxInit {
			t.Errorf("%s: %s octets are allocated before main, want %d at most", m[1], m[2], maxInit)
		}
	}
}
