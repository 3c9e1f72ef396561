package watch

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"posthaste/internal/ownsocket"
)

// mailUser stands for mail_owner. Nobody has this number.
const mailUser = 60071

// A process of root's makes its socket as the owner of the directory, and a link there
// leads it nowhere.
func TestPlantedWatch(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: there is no other user")
	}
	base, err := os.MkdirTemp("/tmp", "watch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	private, secrets := filepath.Join(base, "private"), filepath.Join(base, "secrets")
	dir := filepath.Join(private, "watch")
	dead := filepath.Join(secrets, "smtpd.999999999") // as of a process that has died
	mine := filepath.Join(secrets, "client."+strconv.Itoa(os.Getpid()))
	if err := errors.Join(os.Chmod(base, 0o755), os.Mkdir(private, 0o700), os.Mkdir(secrets, 0o755),
		os.WriteFile(dead, nil, 0o600), os.WriteFile(mine, nil, 0o600),
		os.Symlink(secrets, dir), os.Chown(private, mailUser, mailUser)); err != nil {
		t.Fatal(err)
	}
	h := New(Client, "smtpd")
	if err := h.serveIn(ownsocket.Listen, dir); err == nil {
		t.Error("made a socket in root's directory")
	}
	h.Close()
	for _, p := range []string{dead, mine} {
		if _, err := os.Lstat(p); err != nil {
			t.Error(err)
		}
	}

	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	h = New(Client, "smtpd")
	if err := h.serveIn(ownsocket.Listen, dir); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(h.listener.Addr().String(), &st); err != nil || st.Uid != mailUser || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		t.Errorf("uid %d, mode %o, %v", st.Uid, st.Mode, err)
	}
	if c, err := net.Dial("unix", h.listener.Addr().String()); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	// Its owner puts a way to root's directory in its place, before it is removed.
	if err := errors.Join(os.Rename(dir, dir+".old"), os.Symlink(secrets, dir)); err != nil {
		t.Fatal(err)
	}
	h.Close()
	if _, err := os.Lstat(mine); err != nil {
		t.Error(err)
	}
}
