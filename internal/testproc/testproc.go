// Package testproc runs servers for tests, and sees to it that nothing of them
// stays: not when the test ends, not when the server does not do as it is
// told, and not when the test program is killed.
package testproc

import (
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a server may take to end. It is only ever reached by a
// failure.
const patience = 40 * time.Second

// A Process is a server that Start has started, and what it has started in its
// process group.
type Process struct {
	// Done is closed when the server has ended.
	Done chan struct{}

	t   testing.TB
	cmd *exec.Cmd
}

// watchdog waits for its standard input to end, which it does when the test
// program has been killed, stops the server, and removes the files.
const watchdog = `read -r _
kill "$1"
for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$1" || break; sleep 1; done
kill -0 "$1" && kill -9 "-$1"
rm -rf "$2"`

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
	dog, err := startWatchdog(cmd.Process.Pid, dir)
	go func() { // Stop waits for it
		defer close(p.Done)
		p.wait()
		if err == nil {
			dog.Process.Kill()
			dog.Wait()
		}
	}()
	t.Cleanup(p.Stop)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// startWatchdog starts the watchdog. The kernel's signal for the death of a
// parent (prctl PR_SET_PDEATHSIG) would not do: it is lost when a server changes
// its user, as the original Postfix does.
func startWatchdog(pid int, dir string) (*exec.Cmd, error) {
	dog := exec.Command("/bin/sh", "-c", watchdog, "watchdog", strconv.Itoa(pid), dir)
	dog.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C does not end it
	if _, err := dog.StdinPipe(); err != nil {            // held open by dog
		return nil, err
	}
	return dog, dog.Start()
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
