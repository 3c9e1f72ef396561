package master

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
)

// lockHelper is the environment variable that makes the test program hold locks for
// somebody else: "KIND PATH".
const lockHelper = "POSTHASTE_TEST_LOCK"

// holdLock is that program. It locks what it can open, says so, and waits to be ended.
func holdLock(what string) {
	kind, path, _ := strings.Cut(what, " ")
	f, err := os.Open(path)
	if err == nil && kind == "flock" {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err == nil && kind == "fcntl" {
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK})
	}
	fmt.Println("locked:", err)
	os.Stdin.Read(make([]byte, 1))
	os.Exit(0)
}

// stranger runs holdLock as a user who is nobody here, and returns what it says.
func stranger(t *testing.T, kind, path string) (cmd *exec.Cmd, said string) {
	t.Helper()
	self, err := os.Open("/proc/self/exe") // by a descriptor: no other user gets to the program
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	cmd = exec.Command("/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{self}
	cmd.Env = []string{lockHelper + "=" + kind + " " + path}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}

// openSite is a site whose directories other users get to.
func openSite(t *testing.T) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: there is no other user")
	}
	s := newSite(t, "", echoService+needed)
	s.mustCommand("check") // makes the directories
	for dir := s.path("queue/pid"); dir != "/" && dir != os.TempDir(); dir = dir[:strings.LastIndexByte(dir, '/')] {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// Nobody else can open the lock files, before the start, while the system runs, and after it.
func TestLockFilesArePrivate(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	look := func(when string) {
		t.Helper()
		for _, name := range []string{"master.pid", "services.lock"} {
			path := s.path("queue/pid/" + name)
			info, err := os.Stat(path)
			if err != nil || info.Mode() != 0o600 {
				t.Errorf("%s: %s: %v, %v", when, name, info, err)
			}
			for _, kind := range []string{"flock", "fcntl"} {
				if _, said := stranger(t, kind, path); !strings.Contains(said, "permission denied") {
					t.Errorf("%s: %s by another user: %s", when, name, said)
				}
			}
		}
	}
	s.mustCommand("start")
	look("running")
	s.mustCommand("stop")
	look("stopped")
}

// Files that an earlier version has left for everybody to read are put in order, also when
// somebody holds a lock on them, or has just had them open. Nobody takes that for a
// mail system that runs, nor does anybody get a signal.
func TestLockFilesOfEarlierVersion(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"flock", "fcntl", "open"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := openSite(t)
			for _, name := range []string{"master.pid", "services.lock"} {
				path := s.path("queue/pid/" + name)
				if err := errors.Join(os.WriteFile(path, nil, 0o644), os.Chmod(path, 0o644)); err != nil {
					t.Fatal(err)
				}
				cmd, said := stranger(t, kind, path)
				if said != "locked: <nil>" {
					t.Fatal(said)
				}
				if name == "master.pid" { // the number is the stranger's
					if err := os.WriteFile(path, fmt.Appendf(nil, "%32d\n", cmd.Process.Pid), 0); err != nil {
						t.Fatal(err)
					}
				}
			}
			if status, text := s.command("status"); status != 1 || !strings.Contains(text, "is not running") {
				t.Errorf("status: %d %s", status, text)
			}
			for _, c := range []string{"stop", "abort", "reload"} {
				if status, text := s.command(c); status != 1 || !strings.Contains(text, "is not running") {
					t.Errorf("%s: %d %s", c, status, text)
				}
			}
			s.mustCommand("start")
			s.dial("public/echo").ask("hello")
			for _, name := range []string{"master.pid", "services.lock"} {
				if info, err := os.Stat(s.path("queue/pid/" + name)); err != nil || info.Mode() != 0o600 {
					t.Errorf("%s: %v, %v", name, info, err)
				}
			}
			if status, text := s.command("start"); status != 1 || !strings.Contains(text, "already running") {
				t.Errorf("second start: %d %s", status, text)
			}
			s.mustCommand("stop")
		})
	}
}

// A mail system that an earlier version has started is known, although others can read its
// files; and the processes that it has left are waited for.
func TestEarlierVersionRuns(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	for _, name := range []string{"master.pid", "services.lock"} {
		if err := os.WriteFile(s.path("queue/pid/"+name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Load(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.OpenFile(pidPath(cfg), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if old, err = takePID(cfg, old); err != nil { // as the earlier version did
		t.Fatal(err)
	}
	if pid, running, err := findRunning(cfg); pid != os.Getpid() || !running || err != nil {
		t.Errorf("%d, %v, %v", pid, running, err)
	}
	if _, err := lockPID(cfg); !errors.Is(err, errRunning) {
		t.Errorf("a second master: %v", err)
	}
	if err := signalMaster(cfg, os.Getpid(), syscall.Signal(0)); err != nil {
		t.Errorf("signal: %v", err)
	}
	old.Close()
	// A process that another test is just starting has the lock, too, until it executes its program.
	s.eventually("the lock is free", func() bool { _, running, err := findRunning(cfg); return err == nil && !running })

	orphan := exec.Command("sleep", "600")
	f, err := os.OpenFile(s.path("queue/pid/services.lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	orphan.ExtraFiles = []*os.File{f} // inherits it, as services do
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	started := make(chan struct{})
	go func() {
		defer close(started)
		s.command("start")
	}()
	s.eventually("the new master waits", func() bool { return s.count("maillog", "waiting for processes of an earlier master") == 1 })
	orphan.Process.Kill()
	orphan.Wait()
	<-started
	s.dial("public/echo").ask("hello")
	s.mustCommand("stop")
}

// Only the process that has the lock gets a signal, whatever number the file has.
func TestSignalMaster(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	s.mustCommand("start")
	cfg, err := config.Load(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	bystander := exec.Command("sleep", "600")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- bystander.Wait() }()
	pid := s.pid()
	s.write("queue/pid/master.pid", fmt.Sprintf("%32d\n", bystander.Process.Pid)) // as if the number were another's by now
	for _, c := range []string{"stop", "abort", "reload"} {
		if status, text := s.command(c); status != 1 || !strings.Contains(text, "it is not the master") {
			t.Errorf("%s: %d %s", c, status, text)
		}
	}
	if err := signalMaster(cfg, pid, syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a signal for a number that the file does not have: %v", err)
	}
	select {
	case err := <-ended:
		t.Errorf("the bystander has ended: %v", err)
	case <-time.After(200 * time.Millisecond):
		bystander.Process.Kill()
		<-ended
	}
	s.write("queue/pid/master.pid", "       "+strconv.Itoa(pid)+"\n")
	s.mustCommand("stop")
	// Now nobody has the lock, and the number may be anybody's.
	s.write("queue/pid/master.pid", strconv.Itoa(os.Getpid())+"\n")
	if status, text := s.command("stop"); status != 1 || !strings.Contains(text, "is not running") {
		t.Errorf("stop: %d %s", status, text)
	}
	if err := signalMaster(cfg, os.Getpid(), syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a signal for a stale number: %v", err)
	}
}

// Of many that start at a time in a directory of an earlier version one becomes master.
func TestRenewRaced(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	cfg, err := config.Load(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		os.Remove(pidPath(cfg))
		if err := os.WriteFile(pidPath(cfg), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		won := make(chan *os.File, 8)
		for range cap(won) {
			go func() {
				f, err := lockPID(cfg)
				if err != nil && !errors.Is(err, errRunning) {
					t.Error(err)
				}
				won <- f
			}()
		}
		masters := 0
		for range cap(won) {
			if f := <-won; f != nil {
				defer f.Close()
				masters++
			}
		}
		if masters != 1 {
			t.Fatalf("%d masters", masters)
		}
	}
}

// In a container, or under systemd, root lacks capabilities. The control commands find the master
// all the same.
func TestControlWithoutPtrace(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: there are no capabilities to lack")
	}
	s := newSite(t, "", echoService)
	pid := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := withoutPtrace(); err != nil {
			t.Error(err)
			return
		}
		for _, c := range []string{"start", "status", "reload", "status", "stop"} {
			if status, text := s.command(c); status != 0 {
				t.Errorf("%s: %d %s", c, status, text)
			}
			if pid != 0 {
				continue
			}
			pid = s.pid()
			f, err := os.Open(s.path("queue/pid/master.pid"))
			if err != nil {
				t.Error(err)
				continue
			}
			if holds, err := writes(pid, f); !holds || err != nil {
				t.Errorf("the master does not show what it has open: %v, %v", holds, err)
			}
			f.Close()
		}
	})
	wg.Wait()
	if s.pid() != 0 {
		t.Error("it has not stopped")
	}
	// One with more capabilities than the command.
	s.mustCommand("start")
	wg.Go(func() {
		if err := withoutPtrace(); err != nil {
			t.Error(err)
			return
		}
		if status, text := s.command("stop"); status != 0 {
			t.Errorf("stop: %d %s", status, text)
		}
	})
	wg.Wait()
}

// withoutPtrace takes CAP_SYS_PTRACE from the calling thread, and from what it executes, for
// good: the thread ends with the goroutine.
func withoutPtrace() error {
	runtime.LockOSThread()
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(header, &caps[0]); err != nil {
		return err
	}
	caps[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
	caps[0].Permitted &^= 1 << unix.CAP_SYS_PTRACE
	caps[0].Inheritable &^= 1 << unix.CAP_SYS_PTRACE
	return errors.Join(unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_PTRACE, 0, 0, 0), unix.Capset(header, &caps[0]))
}
