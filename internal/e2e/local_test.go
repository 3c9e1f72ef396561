package e2e

import (
	"os"
	"os/user"
	"strconv"
	"testing"
)

// localUser is a user to deliver to: ourselves, or, when we are root, somebody
// who is not.
func localUser(t testing.TB) string {
	t.Helper()
	if os.Getuid() == 0 {
		return firstKnown(t, "user", []string{"games", "nobody"}, func(n string) error { _, err := user.Lookup(n); return err })
	}
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return u.Username
}

// mailDir is a mail spool directory in which the user may make a mailbox.
func mailDir(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "phbox")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, uid, gid); err != nil && os.Getuid() == 0 {
		t.Fatal(err)
	}
	return dir
}
