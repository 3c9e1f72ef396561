package spooltool

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What Postfix's user has planted in its queue leads root neither to read nor to remove
// what only root may.
func TestPlantedQueue(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: there is no other user")
	}
	dir, err := os.MkdirTemp("/tmp", "planted")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	queue, secrets := filepath.Join(dir, "deferred"), filepath.Join(dir, "secrets")
	secret := filepath.Join(secrets, "s")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(secrets, 0o755), os.WriteFile(secret, []byte("secret"), 0o600),
		os.Mkdir(queue, 0o700), os.Symlink(secrets, filepath.Join(queue, "A")), os.Symlink(secret, filepath.Join(queue, "B")),
		os.Link(secret, filepath.Join(queue, "C")), os.Chown(queue, 60071, 60071)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"A/s", "B", "C"} {
		s := source{path: filepath.Join(queue, name), queue: "deferred"}
		if f, err := s.open(s.path); err == nil {
			f.Close()
			t.Errorf("%s: opened", name)
		}
		if name == "A/s" {
			_ = s.remove()
		}
	}
	if text, err := os.ReadFile(secret); string(text) != "secret" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if err := errors.Join(unix.Mkfifo(filepath.Join(queue, "D"), 0o666), os.Chmod(filepath.Join(queue, "D"), 0o666)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"A/s", "B", "C", "D"} { // of a directory of exported mail, which may be any user's
		s := source{path: filepath.Join(queue, name)}
		if f, err := s.open(s.path); err == nil {
			f.Close()
			t.Errorf("%s: opened", name)
		} else if !strings.Contains(err.Error(), "with the rights of user 60071") && name != "D" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (source{path: filepath.Join(queue, "A/s")}).remove(); err == nil {
		t.Error("A/s: removed")
	}
	if who, err := ownerOf(queue); err != nil || who.UID != 60071 {
		t.Errorf("%+v, %v", who, err)
	}
}
