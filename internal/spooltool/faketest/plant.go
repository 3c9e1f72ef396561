package faketest

import (
	"errors"
	"os"
	"path/filepath"
)

// PlantMaildrop puts in place of maildrop what the mail system's user can make of it: a symbolic link to
// a directory that is root's alone. The file name in it has this content, and the mode of a message that
// is complete. It returns the file's path there. It skips the test when there is no other user to be.
func (s *Site) PlantMaildrop(name, content string) (secret string) {
	s.t.Helper()
	if os.Geteuid() != 0 {
		s.t.Skip("not root: there is no other user")
	}
	base, err := os.MkdirTemp("/tmp", "planted")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { os.RemoveAll(base) })
	const owner = 60071 // nobody has this number
	users, secrets := filepath.Join(base, "queue"), filepath.Join(base, "secrets")
	secret = filepath.Join(secrets, name)
	if err := errors.Join(os.Chmod(base, 0o755), os.Mkdir(users, 0o755), os.Mkdir(secrets, 0o700),
		os.WriteFile(secret, []byte(content), 0o700), os.Symlink(secrets, filepath.Join(users, "maildrop")), os.Chown(users, owner, owner),
		os.Rename(filepath.Join(s.Queue, "maildrop"), filepath.Join(s.Queue, "away")),
		os.Symlink(filepath.Join(users, "maildrop"), filepath.Join(s.Queue, "maildrop"))); err != nil {
		s.t.Fatal(err)
	}
	return secret
}
