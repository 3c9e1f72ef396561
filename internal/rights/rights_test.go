package rights

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		r  Rights
		ok bool
	}{{Rights{UID: 0, GID: 5}, false}, {Rights{UID: 5, GID: 0}, false}, {Rights{UID: -1, GID: 5}, false}, {Rights{UID: 5, GID: 5}, true},
		{Rights{UID: 5, GID: 5, Groups: []int{7, 0}}, false}, {Rights{UID: 5, GID: 5, Groups: []int{7}}, true}} {
		if err := tt.r.Check(); (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt.r, err)
		}
	}
}

// publicDir is a directory that every user can reach, which t.TempDir is not.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "rights")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestDo(t *testing.T) {
	t.Parallel()
	if !Switching() {
		if err := (Rights{}).Do(func() error { return nil }); err != nil {
			t.Errorf("an unprivileged process does everything as itself: %v", err)
		}
		t.Skip("not root: switching was not tested")
	}
	dir := publicDir(t)
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(dir, "shared")
	if err := os.WriteFile(shared, []byte("x"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(shared, 0, 60077); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			r := Rights{UID: 60000 + i, GID: 61000 + i}
			own := filepath.Join(dir, string(rune('A'+i)))
			if err := os.Mkdir(own, 0o700); err != nil {
				t.Error(err)
			}
			if err := os.Chown(own, r.UID, r.GID); err != nil {
				t.Error(err)
			}
			err := r.Do(func() error {
				if _, err := os.ReadFile(secret); !errors.Is(err, fs.ErrPermission) {
					t.Errorf("uid %d reads root's file: %v", r.UID, err)
				}
				if _, err := os.ReadFile(shared); !errors.Is(err, fs.ErrPermission) {
					t.Errorf("uid %d reads a group's file: %v", r.UID, err)
				}
				if err := os.Chown(own, 0, 0); err == nil {
					t.Errorf("uid %d gives files away", r.UID)
				}
				return os.WriteFile(filepath.Join(own, "f"), nil, 0o600)
			})
			if err != nil {
				t.Error(err)
			}
			st, err := os.Stat(filepath.Join(own, "f"))
			if err != nil {
				t.Error(err)
				return
			}
			if s := st.Sys().(*syscall.Stat_t); int(s.Uid) != r.UID || int(s.Gid) != r.GID {
				t.Errorf("file belongs to %d:%d", s.Uid, s.Gid)
			}
			if _, err := os.ReadFile(secret); err != nil {
				t.Errorf("afterwards root is not root: %v", err)
			}
		})
	}
	wg.Wait()
	if err := (Rights{UID: 60000, GID: 61000, Groups: []int{60077}}).Do(func() error { _, err := os.ReadFile(shared); return err }); err != nil {
		t.Errorf("supplementary group: %v", err)
	}
	if err := (Rights{UID: 0, GID: 1}).Do(func() error { t.Error("called as root"); return nil }); err == nil {
		t.Error("root was not refused")
	}
}

// TestCapabilities: while somebody else's rights are used there are no
// capabilities but those of coming back, and afterwards all are there again.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	if !Switching() {
		t.Skip("not root")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	of := func() [2]unix.CapUserData {
		var caps [2]unix.CapUserData
		if err := unix.Capget(header(), &caps[0]); err != nil {
			t.Error(err)
		}
		return caps
	}
	before := of()
	const back = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	for range 20 { // threads that are used again
		err := Rights{UID: 60000, GID: 61000}.Do(func() error {
			if got := of(); got[0].Effective&^back != 0 || got[1].Effective != 0 {
				t.Errorf("capabilities %x %x", got[1].Effective, got[0].Effective)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var after [2]unix.CapUserData
		done := make(chan struct{})
		go func() { defer close(done); after = of() }()
		<-done
		if after != before {
			t.Errorf("afterwards %x, before %x", after, before)
		}
	}
}

// TestDoWithin: who uses somebody's rights within another's has the other's again
// afterwards, not root's.
func TestDoWithin(t *testing.T) {
	t.Parallel()
	if !Switching() {
		t.Skip("not root")
	}
	dir := publicDir(t)
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(secret, 60001, 61001); err != nil {
		t.Fatal(err)
	}
	roots, group := filepath.Join(dir, "root"), filepath.Join(dir, "group")
	for name, mode := range map[string]os.FileMode{roots: 0o600, group: 0o040} {
		if err := os.WriteFile(name, []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) error { _, err := os.ReadFile(name); return err }
	err := Rights{UID: 60000, GID: 61000}.Do(func() error {
		if err := (Rights{UID: 60001, GID: 61001}).Do(func() error { return read(secret) }); err != nil {
			t.Errorf("the owner: %v", err)
		}
		for _, name := range []string{secret, roots, group} {
			if err := read(name); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("another user, after the owner, reads %s: %v", name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := read(secret); err != nil {
		t.Errorf("root, after both: %v", err)
	}
}

func TestDoPanic(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() != "boom" {
			t.Error("the panic did not reach the caller")
		}
	}()
	Rights{UID: 60000, GID: 61000}.Do(func() error { panic("boom") })
}
