package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A helper is a server that a mail system asks: a mail filter, a database.
type helper struct {
	addr string
	cmd  *exec.Cmd
	quit syscall.Signal
	done chan struct{} // closed at its end
	out  bytes.Buffer  // what it printed, to be read after that
}

// help starts a helper of the mail system and waits until it listens on addr. Its working directory is one of its own,
// by which its processes are known. as is whose it is; nil: ours.
func (e *entrant) help(name, addr string, as *syscall.Credential, program ...string) (*helper, error) {
	dir := filepath.Join(e.dir, "helpers", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	h := &helper{addr: addr, cmd: exec.Command(program[0], program[1:]...), quit: syscall.SIGTERM, done: make(chan struct{})}
	h.cmd.Dir, h.cmd.Stdout, h.cmd.Stderr = dir, &h.out, &h.out
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: as}
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // stop waits for it
		h.cmd.Wait()
		close(h.done)
	}()
	e.helpers = append(e.helpers, h)
	if err := answers(addr, h.done); err != nil {
		h.stop() // before what it printed is read
		return nil, fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(h.out.String()))
	}
	return h, nil
}

// stop ends it. It may be called again.
func (h *helper) stop() {
	select {
	case <-h.done:
		return
	default:
	}
	h.cmd.Process.Signal(h.quit)
	select {
	case <-h.done:
	case <-time.After(time.Minute):
		syscall.Kill(-h.cmd.Process.Pid, syscall.SIGKILL)
		<-h.done
	}
}

// installed says whether a program is on the path, or where Debian has those of root.
func installed(name string) func() bool {
	return func() bool { return programPath(name) != "" }
}

// programPath is where a program is, or empty.
func programPath(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	found = append(found, "/usr/sbin/"+name)
	for i := len(found) - 1; i >= 0; i-- { // the newest first
		if _, err := os.Stat(found[i]); err == nil {
			return found[i]
		}
	}
	return ""
}
