package master

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A planting is a directory of somebody else's beside a file that only root may
// touch.
type planting struct {
	t           *testing.T
	dir, secret string
	private     string // the directory, which user 60071 can do everything in
}

func plant(t *testing.T) *planting {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: there is no other user")
	}
	dir, err := os.MkdirTemp("/tmp", "socket")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &planting{t: t, dir: dir, secret: filepath.Join(dir, "secret"), private: filepath.Join(dir, "private")}
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(p.secret, []byte("secret"), 0o600),
		os.Mkdir(p.private, 0o700), os.Chown(p.private, 60071, 60072)); err != nil {
		t.Fatal(err)
	}
	return p
}

// unharmed says that the secret is what it was.
func (p *planting) unharmed() {
	p.t.Helper()
	info, err := os.Lstat(p.secret)
	if err != nil {
		p.t.Fatal(err)
	}
	text, err := os.ReadFile(p.secret)
	st := info.Sys().(*syscall.Stat_t)
	if info.Mode() != 0o600 || st.Uid != 0 || st.Gid != 0 || string(text) != "secret" || err != nil {
		p.t.Errorf("the file of root's is %v, of %d:%d, %q, %v", info.Mode(), st.Uid, st.Gid, text, err)
	}
}

func TestSocketIsOfItsDirectorysOwner(t *testing.T) {
	t.Parallel()
	p := plant(t)
	for _, network := range []string{"unix", "unixgram"} {
		s, err := openUnix(p.dir, endpoint{network: network, path: "private/" + network})
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(s.path)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); info.Mode() != os.ModeSocket|0o666 || st.Uid != 60071 || st.Gid != 60072 {
			t.Errorf("%s: %v, %d:%d", network, info.Mode(), st.Uid, st.Gid)
		}
		if c, err := net.Dial(network, s.path); err != nil {
			t.Error(err)
		} else {
			c.Close()
		}
		again, err := openUnix(p.dir, s.endpoint) // over what a master that died has left
		if err != nil {
			t.Fatal(err)
		}
		s.remove() // the name is another's by now
		if again.lost() {
			t.Errorf("%s: the new socket has gone with the old one", network)
		}
		again.remove()
		if _, err := os.Lstat(s.path); !os.IsNotExist(err) {
			t.Errorf("%s: after remove: %v", network, err)
		}
	}
}

// What stands in a socket's place is not touched.
func TestSocketPlanted(t *testing.T) {
	t.Parallel()
	for name, occupy := range map[string]func(p *planting, path string) error{
		"a link":           func(p *planting, path string) error { return os.Symlink(p.secret, path) },
		"a second name":    func(p *planting, path string) error { return os.Link(p.secret, path) },
		"a dangling link":  func(p *planting, path string) error { return os.Symlink(filepath.Join(p.dir, "new"), path) },
		"a directory":      func(p *planting, path string) error { return os.Mkdir(path, 0o700) },
		"a directory link": func(p *planting, path string) error { return os.Symlink(p.dir, path) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := plant(t)
			if err := occupy(p, filepath.Join(p.private, "x")); err != nil {
				t.Fatal(err)
			}
			if _, err := openUnix(p.dir, endpoint{network: "unix", path: "private/x"}); err == nil || !strings.Contains(err.Error(), "is not a socket") {
				t.Errorf("error %v", err)
			}
			p.unharmed()
			if list, err := os.ReadDir(p.dir); err != nil || len(list) != 2 {
				t.Errorf("%v, %v", list, err)
			}
		})
	}
}

// mail_owner exchanges the socket for links and second names of a file of root's all the
// time that it is made and removed.
func TestSocketRaced(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"link", "second name"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p := plant(t)
			bait, path := filepath.Join(p.private, "bait"), filepath.Join(p.private, "x")
			stop := make(chan struct{})
			var racer sync.WaitGroup
			racer.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if kind == "link" {
						os.Symlink(p.secret, bait)
					} else {
						os.Link(p.secret, bait)
					}
					unix.Renameat2(unix.AT_FDCWD, bait, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
					os.Remove(bait)
				}
			})
			made, failed := 0, 0
			for range 3000 {
				s, err := openUnix(p.dir, endpoint{network: "unix", path: "private/x"})
				if err != nil {
					failed++
					os.Remove(path)
					continue
				}
				made++
				s.remove()
			}
			close(stop)
			racer.Wait()
			if made == 0 || failed == 0 {
				t.Errorf("made %d times, failed %d times: nothing was raced", made, failed)
			}
			p.unharmed()
		})
	}
}

// A directory that is to be mended is one, and not where a link leads.
func TestMendPlanted(t *testing.T) {
	t.Parallel()
	p := plant(t)
	target := filepath.Join(p.dir, "target")
	if err := os.Mkdir(target, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"file": p.secret, "dir": target} {
		path := filepath.Join(p.private, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		if err := (directory{path: path, mode: 0o777, uid: 60071, gid: 60072}).mend(); err == nil {
			t.Errorf("%s: mended", name)
		}
	}
	p.unharmed()
	info, err := os.Stat(target)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o700 || st.Uid != 0 {
		t.Errorf("%v, of %d", info.Mode(), st.Uid)
	}
}

// In the queue directory nothing is written where a link leads out of it.
func TestFurnishPlanted(t *testing.T) {
	t.Parallel()
	p := plant(t)
	root := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(root, "etc"), 0o755), os.WriteFile(filepath.Join(root, "etc/hosts"), []byte("hosts"), 0o644)); err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(p.private, "etc")); err != nil {
		t.Fatal(err)
	}
	queue, err := os.OpenRoot(p.private)
	if err != nil {
		t.Fatal(err)
	}
	defer queue.Close()
	if err := copyInto(queue, filepath.Join(root, "etc/hosts"), "etc/hosts"); err == nil {
		t.Error("copied through a link that leads out of the queue directory")
	}
	if list, err := os.ReadDir(outside); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}
