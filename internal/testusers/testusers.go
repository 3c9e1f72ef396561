// Package testusers gives tests system users that nobody else on the machine
// sees: the test program is executed again in a mount namespace of its own,
// where /etc/passwd and /etc/group are private copies. Programs that it
// starts, and theirs, see the same users; when the last of them has ended
// nothing is left.
//
// It takes root and the right to mount. Where these are missing, tests that
// call [Add] are skipped, and say so; even with PEERS_REQUIRED set, which is
// about programs that can be installed: what a container's owner withholds no
// package brings.
//
// # Security
//
// The real files are never written: Add does nothing unless this process is
// in the namespace that Main has made.
package testusers

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// state is the environment variable that tells the program executed again what
// became of the attempt: "private", or why not.
const state = "POSTHASTE_TEST_USERS"

const private = "private"

// Main runs a package's tests, in a namespace of their own if that can be had.
// TestMain calls it before anything else.
func Main(m interface{ Run() int }) int {
	if os.Getenv(state) == "" && os.Getuid() == 0 {
		verdict := private
		if err := hide(); err != nil {
			verdict = err.Error()
		}
		self, err := os.Executable()
		if err == nil {
			err = unix.Exec(self, os.Args, append(os.Environ(), state+"="+verdict))
		}
		fmt.Fprintf(os.Stderr, "execute the tests again: %v\n", err)
		return 1
	}
	return m.Run()
}

// hide gives the calling thread, and what it executes, its own view of the
// user database.
func hide() error {
	runtime.LockOSThread() // for good: this thread has left the others' file system view
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare the mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, name := range []string{"/etc/passwd", "/etc/group"} {
		if err := cover(name); err != nil {
			return err
		}
	}
	return nil
}

// cover puts a copy of a file over it.
func cover(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp("", "testusers")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // the mount keeps it
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := unix.Mount(f.Name(), name, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount over %s: %w", name, err)
	}
	return nil
}

// Group is the numeric group of the users that Add makes, "users".
const Group = 100

var (
	mu   sync.Mutex
	next = 64100
)

// Add makes a user with a group of everybody's, a home directory that the
// caller makes, and /bin/sh, and returns the uid. A user of that name from
// before gets the new home and keeps the uid.
func Add(t testing.TB, name, home string) (uid int) { return add(t, name, home, false) }

// AddRoot makes another name for root, with a home directory of its own.
func AddRoot(t testing.TB, name, home string) { add(t, name, home, true) }

func add(t testing.TB, name, home string, root bool) (uid int) {
	t.Helper()
	if why := os.Getenv(state); why != private {
		if why == "" {
			why = "the tests do not run as root"
		}
		t.Skipf("SKIPPED, NOT PROVED HERE: no users can be made: %s", why)
	}
	mu.Lock()
	defer mu.Unlock()
	text, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	uid = next
	var kept strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, name+":") {
			kept.WriteString(line)
			continue
		}
		if _, err := fmt.Sscanf(strings.Split(line, ":")[2], "%d", &uid); err != nil {
			t.Fatalf("/etc/passwd: %q: %v", line, err)
		}
	}
	gid := Group
	switch {
	case root:
		uid, gid = 0, 0
	case uid == next:
		next++
	}
	fmt.Fprintf(&kept, "%s:x:%d:%d:Test user:%s:/bin/sh\n", name, uid, gid, home)
	if err := overwrite("/etc/passwd", kept.String()); err != nil {
		t.Fatal(err)
	}
	return uid
}

// overwrite replaces a file's content in place, since a mount point cannot be
// replaced, and without a moment at which there is nothing in it.
func overwrite(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(text)))
}

// Home makes a user with a home directory below dir.
func Home(t testing.TB, dir, name string) (home string, uid int) {
	t.Helper()
	home = dir + "/" + name
	uid = Add(t, name, home)
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(home, uid, Group); err != nil {
		t.Fatal(err)
	}
	return home, uid
}

// As is a command that runs as a user that Add has made.
func As(uid int, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: Group}}
	return cmd
}
