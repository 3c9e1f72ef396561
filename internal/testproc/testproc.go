// Package testproc runs servers for tests, and sees to it that nothing of them
// stays: not when the test ends, not when the server does not do as it is
// told, and not when the test program is killed.
package testproc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/testwait"

	"golang.org/x/sys/unix"
)

// patience is how long a server may take to end. It is only ever reached by a
// failure.
const patience = testwait.Patience

// A Process is a server that Start has started, and what it has started in its
// process group.
type Process struct {
	// Done is closed when the server has ended.
	Done chan struct{}

	t   testing.TB
	cmd *exec.Cmd
}

// watchdog waits for its standard input to end, which it does when the test
// program has been killed. Then it stops the process $1, if that is still the
// one that began at $2, kills what is left of its group, and all processes whose
// working directory is in $3, and removes that directory.
const watchdog = `pid=$1 began=$2 dir=$3
alive() {
	IFS= read -r stat <"/proc/$pid/stat" || return 1
	set -- ${stat##*) }
	[ "$1" != Z ] && [ "${20}" = "$began" ]
}
exec 2>/dev/null
read -r _
if alive; then
	kill "$pid"
	kill -CONT "$pid"
	for i in 1 2 3 4 5 6 7 8 9 10; do alive || break; sleep 1; done
	alive && kill -9 "$pid"
	kill -9 "-$pid"
fi
dir=$(readlink -f "$dir")
case $dir in /*/*) ;; *) exit ;; esac
for i in 1 2 3 4 5 6 7 8 9 10; do
	found=
	for p in /proc/[0-9]*; do
		case $(readlink "$p/cwd")/ in "$dir"/*) kill -9 "${p#/proc/}"; found=1 ;; esac
	done
	[ "$found" ] || break
	sleep 0.2
done
rm -rf "$dir"`

// Start starts cmd as the leader of a process group of its own, and stops it at
// the latest when the test ends. dir is the server's temporary directory. It is
// removed when the test program is killed; otherwise that is the test's business.
func Start(t testing.TB, cmd *exec.Cmd, dir string) *Process {
	t.Helper()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &Process{Done: make(chan struct{}), t: t, cmd: cmd}
	unwatch, err := watch(cmd, dir)
	go func() { // Stop waits for it
		defer close(p.Done)
		p.wait()
		unwatch()
	}()
	t.Cleanup(p.Stop)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Watch is for a process that the caller has started, and ends by itself: when the
// test program is killed the process is stopped, its group is killed, and so are
// those that work below dir, which is removed. dir may be empty. unwatch ends that.
// It is called when the process has ended.
func Watch(t testing.TB, cmd *exec.Cmd, dir string) (unwatch func()) {
	t.Helper()
	unwatch, err := watch(cmd, dir)
	if err != nil {
		cmd.Process.Kill()
		t.Fatal(err)
	}
	return unwatch
}

// watch starts the watchdog. The kernel's signal for the death of a parent (prctl
// PR_SET_PDEATHSIG) would not do: it comes when the thread ends that made the child,
// it is lost when a server changes its user, as the original Postfix does, and it
// does not reach what the child has started.
func watch(cmd *exec.Cmd, dir string) (unwatch func(), err error) {
	unwatch = func() {}
	pid := cmd.Process.Pid
	began, err := began(pid)
	if err != nil {
		return unwatch, err
	}
	dog := exec.Command("/bin/sh", "-c", watchdog, "watchdog", strconv.Itoa(pid), began, dir)
	dog.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C does not end it
	if _, err := dog.StdinPipe(); err != nil {            // held open by dog
		return unwatch, err
	}
	if err := dog.Start(); err != nil {
		return unwatch, err
	}
	return sync.OnceFunc(func() {
		dog.Process.Kill()
		dog.Wait()
	}), nil
}

// began is when a process began, as the kernel counts: nobody else with its number
// has the same.
func began(pid int) (string, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat: %s", pid, stat)
	}
	return fields[19], nil
}

// wait waits until the server has ended, and kills what is left of its group.
// The server is still a zombie then, so that nobody else has its number.
func (p *Process) wait() {
	pid := p.cmd.Process.Pid
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	syscall.Kill(-pid, syscall.SIGKILL)
	p.cmd.Wait()
}

// Stop asks the server to end, and waits until it has. One that does not is an
// error of the test, and killed. Stop may be called again.
func (p *Process) Stop() {
	select {
	case <-p.Done:
		return
	default:
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.Done:
	case <-time.After(patience):
		p.t.Errorf("%s does not stop", p.cmd.Path)
		p.cmd.Process.Kill()
		<-p.Done
	}
}

// An Output gathers what a process prints, and may be read meanwhile. The zero value is empty.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write adds to it.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// String is what has been printed so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Inside has a shell of a user run a command in name spaces of the process pid, and below its root, within limit. spaces
// are nsenter's options that name them. It returns what the command prints, and its exit status.
func Inside(t testing.TB, pid int, spaces []string, limit time.Duration, user, command string) (out string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	args := append([]string{"--target", strconv.Itoa(pid)}, spaces...)
	args = append(args, "--root", "--",
		"env", "-i", "-C", "/", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TZ=UTC", "LC_ALL=C.UTF-8", "HOME=/root")
	if user != "root" {
		args = append(args, "runuser", "-u", user, "--", "env", "HOME=/home/"+user)
	}
	cmd := exec.CommandContext(ctx, "nsenter", append(args, "/bin/sh", "-c", command)...)
	// Not a pipe: what the command leaves running may keep it open.
	file, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatalf("%s: %v", command, err)
	}
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}
