package e2e

import (
	"os"
	"os/user"
	"testing"
)

// mailOwner is a user and a group for the mail system to run as: when the
// tests run as root, an unprivileged pair that the machine has; else our own.
func mailOwner(t testing.TB) (owner, group string) {
	t.Helper()
	if os.Getuid() != 0 {
		u, err := user.Current()
		if err != nil {
			t.Fatal(err)
		}
		g, err := user.LookupGroupId(u.Gid)
		if err != nil {
			t.Fatal(err)
		}
		return u.Username, g.Name
	}
	owner = firstKnown(t, "user", []string{"posthaste", "postfix", "mail"}, func(n string) error { _, err := user.Lookup(n); return err })
	group = firstKnown(t, "group", []string{"postdrop", "games", "nogroup"}, func(n string) error { _, err := user.LookupGroup(n); return err })
	return owner, group
}

func firstKnown(t testing.TB, what string, names []string, lookup func(string) error) string {
	t.Helper()
	for _, n := range names {
		if lookup(n) == nil {
			return n
		}
	}
	t.Fatalf("none of the %ss %v exists on this machine", what, names)
	return ""
}
