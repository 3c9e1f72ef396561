package vfs

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// mailUser stands for mail_owner. Nobody has this number.
const mailUser = 60071

// plantSite makes a directory of mailUser's and one of root's, with files in both.
func plantSite(t *testing.T) (dir, secrets string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: there is no other user")
	}
	base, err := os.MkdirTemp("/tmp", "owner")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	dir, secrets = filepath.Join(base, "spool"), filepath.Join(base, "secrets")
	if err := errors.Join(os.Chmod(base, 0o755), os.Mkdir(dir, 0o700), os.Mkdir(secrets, 0o755),
		os.WriteFile(filepath.Join(secrets, "s"), []byte("secret"), 0o600),
		os.Symlink(secrets, filepath.Join(dir, "away")), os.Symlink(filepath.Join(secrets, "s"), filepath.Join(dir, "link")),
		os.Link(filepath.Join(secrets, "s"), filepath.Join(dir, "second")), syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
		os.Chown(filepath.Join(dir, "fifo"), mailUser, mailUser), os.Chown(dir, mailUser, mailUser)); err != nil {
		t.Fatal(err)
	}
	return dir, secrets
}

// What the owner of a directory has planted there leads root neither to open, to make nor to
// remove what the owner could not, and nothing is waited for.
func TestPlantedFiles(t *testing.T) {
	t.Parallel()
	dir, secrets := plantSite(t)
	fsys := OfOwner(dir)
	opens := map[string]func(string) (File, error){"Open": fsys.Open, "OpenWrite": fsys.OpenWrite,
		"OpenShared": fsys.OpenShared, "OpenIdle": fsys.OpenIdle}
	for how, open := range opens {
		for _, name := range []string{"away/s", "link", "second", "fifo"} {
			if f, err := open(filepath.Join(dir, name)); err == nil {
				f.Close()
				t.Errorf("%s %s: opened", how, name)
			}
		}
	}
	away := filepath.Join(dir, "away")
	if f, err := fsys.Create(filepath.Join(away, "new")); err == nil {
		f.Close()
		t.Error("made a file in root's directory")
	}
	if f, err := fsys.CreateTemp(away); err == nil {
		f.Close()
		t.Error("made an unnamed file in root's directory")
	}
	if c, err := fsys.Lock(filepath.Join(away, "LOCK")); err == nil {
		c.Close()
		t.Error("made a lock in root's directory")
	}
	for what, err := range map[string]error{"remove": fsys.Remove(filepath.Join(away, "s")),
		"rename": fsys.Rename(filepath.Join(away, "s"), filepath.Join(away, "t")), "mkdir": fsys.MkdirAll(filepath.Join(away, "d"))} {
		if err == nil {
			t.Errorf("%s: done", what)
		}
	}
	entries, err := os.ReadDir(secrets)
	if err != nil || len(entries) != 1 || entries[0].Name() != "s" {
		t.Errorf("%v, %v", entries, err)
	}
}

// What root makes in somebody's directory is theirs, and works.
func TestOwnersFiles(t *testing.T) {
	t.Parallel()
	dir, _ := plantSite(t)
	later := filepath.Join(dir, "later")
	fsys := OfOwner(later)
	if err := fsys.MkdirAll(later); err != nil {
		t.Fatal(err)
	}
	name, other := filepath.Join(later, "a"), filepath.Join(later, "b")
	f, err := fsys.CreateTemp(later)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("text"), 0)
	err = errors.Join(err, f.Datasync(), fsys.Link(f, name), f.Close(), fsys.SyncDir(later), fsys.Rename(name, other))
	if err != nil {
		t.Fatal(err)
	}
	for _, open := range []func(string) (File, error){fsys.Open, fsys.OpenWrite, fsys.OpenShared} {
		f, err := open(other)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	var st unix.Stat_t
	for _, p := range []string{later, other} {
		if err := unix.Stat(p, &st); err != nil || st.Uid != mailUser || st.Gid != mailUser {
			t.Errorf("%s: uid %d, gid %d, %v", p, st.Uid, st.Gid, err)
		}
	}
	if names, err := fsys.List(later); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
	if n, err := fsys.Free(later); n <= 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if err := fsys.Remove(other); err != nil {
		t.Error(err)
	}
}
