package postsuper

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"posthaste/internal/spooltool/faketest"
)

// Where the mail system's user has put a way to root's directory in place of maildrop, root removes
// nothing there.
func TestPlantedMaildrop(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: there is no other user")
	}
	s := faketest.New(t, "")
	base, err := os.MkdirTemp("/tmp", "postsuper")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	const owner = 60071 // nobody has this number
	users, secrets := filepath.Join(base, "queue"), filepath.Join(base, "secrets")
	secret := filepath.Join(secrets, "b2")
	if err := errors.Join(os.Chmod(base, 0o755), os.Mkdir(users, 0o755), os.Mkdir(secrets, 0o755),
		os.WriteFile(secret, nil, 0o744), os.Symlink(secrets, filepath.Join(users, "maildrop")), os.Chown(users, owner, owner),
		os.Rename(filepath.Join(s.Queue, "maildrop"), filepath.Join(s.Queue, "away")),
		os.Symlink(filepath.Join(users, "maildrop"), filepath.Join(s.Queue, "maildrop"))); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"b2", "ALL"} {
		if out, status := run(s, "", "-d", id, "maildrop"); status == 0 {
			t.Errorf("-d %s: %s", id, out)
		}
		if _, err := os.Lstat(secret); err != nil {
			t.Error(err)
		}
	}
}
