// Package subprocess runs the commands that a configuration names, for the services that need an answer
// of one. No shell is involved.
package subprocess

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"time"
)

// lingering is how long the output of a command is waited for that has ended, while a child of it
// has the output open.
const lingering = time.Second

// New is exec.CommandContext for a command and its arguments, with one difference: all processes that the
// command starts are in a process group of their own, which is killed when ctx ends.
func New(ctx context.Context, command ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = lingering
	return cmd
}

// ErrLong is what a command is told, and says, that prints more than it may.
var ErrLong = errors.New("the command prints too much")

// An Output keeps the first Most octets of what a command prints to it. The zero value keeps none.
type Output struct {
	Most   int
	Refuse bool // end the command when it prints more; else the rest is dropped

	Text []byte // what is kept
	Over bool   // there was more
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	n := min(len(p), max(o.Most-len(o.Text), 0))
	o.Text = append(o.Text, p[:n]...)
	if n < len(p) {
		o.Over = true
		if o.Refuse {
			return n, ErrLong
		}
	}
	return len(p), nil
}
