package spooltool

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
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
		_ = s.remove() // B and C themselves may go
	}
	if text, err := os.ReadFile(secret); string(text) != "secret" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if who, err := ownerOf(queue); err != nil || who.UID != 60071 {
		t.Errorf("%+v, %v", who, err)
	}
}
