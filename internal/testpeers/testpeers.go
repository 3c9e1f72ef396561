// Package testpeers finds the foreign programs that tests use. Where one is not
// installed the test is skipped, and says so; with PEERS_REQUIRED set in the
// environment, as in CI, that is a failure. "make peers" installs all of them.
package testpeers

import (
	"os"
	"os/exec"
	"testing"
)

// Program returns the path of a program, which is looked for where $PATH says and
// in the directories for administrators.
func Program(t testing.TB, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if _, err := os.Stat(dir + name); err == nil {
			return dir + name
		}
	}
	Missing(t, name)
	return ""
}

// PostfixServices is where Debian's package of Postfix has its services.
const PostfixServices = "/usr/lib/postfix/sbin"

// Postfix returns the path of a command of the original Postfix, such as postmap. A command of
// that name is not enough: Posthaste's package has the same names.
func Postfix(t testing.TB, name string) string {
	t.Helper()
	path := "/usr/sbin/" + name
	for _, file := range []string{PostfixServices + "/master", path} {
		if _, err := os.Stat(file); err != nil {
			Missing(t, "Postfix ("+file+")")
		}
	}
	return path
}

// Missing ends the test for want of what.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("PEERS_REQUIRED") != "" {
		t.Fatalf("%s is not installed: run \"make peers\"", what)
	}
	t.Skipf("SKIPPED: %s is not installed: \"make peers\" installs it", what)
}
