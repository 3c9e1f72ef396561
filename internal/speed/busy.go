package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// compilers are what a busy machine does besides: each compiles Go's library again and again, one package at a time.
// Between busy rounds they stand still.
type compilers struct {
	cmds []*exec.Cmd
	outs []*bytes.Buffer
}

// startCompilers starts so many, with their files below dir. They stand still at first.
func startCompilers(n int, dir string) (*compilers, error) {
	c := &compilers{}
	for i := range n {
		place := filepath.Join(dir, fmt.Sprintf("compiler%d", i))
		if err := os.MkdirAll(place, 0o755); err != nil {
			c.stop()
			return nil, err
		}
		cmd := exec.Command("/bin/sh", "-c", "while go build -a -p 1 std; do :; done")
		cmd.Env = append(os.Environ(), "GOCACHE="+place, "GOTMPDIR="+place, "GOMAXPROCS=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out := new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			c.stop()
			return nil, err
		}
		c.cmds, c.outs = append(c.cmds, cmd), append(c.outs, out)
	}
	c.halt()
	return c, nil
}

// besideCompilers runs a command while so many compile, and returns when it has ended.
func besideCompilers(ctx context.Context, o *options, w io.Writer) error {
	if o.busy <= 0 || len(o.command) == 0 {
		return errors.New("-busy needs a number of compilers, and -beside or a command to run beside them; a command needs -busy")
	}
	dir, remove, err := o.place()
	if err != nil {
		return err
	}
	defer remove()
	c, err := startCompilers(o.busy, dir)
	if err != nil {
		return err
	}
	defer c.stop()
	if err := c.run(ctx); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, o.command[0], o.command[1:]...)
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	return cmd.Run()
}

// signal gives all of them, and what they have started, a signal: SIGSTOP has them stand still, and SIGCONT go on.
func (c *compilers) signal(sig syscall.Signal) {
	for _, cmd := range c.cmds {
		syscall.Kill(-cmd.Process.Pid, sig)
	}
}

// run has them compile, and returns when each has begun to.
func (c *compilers) run(ctx context.Context) error {
	before := c.used()
	c.signal(syscall.SIGCONT)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		begun := true
		for group, t := range c.used() {
			begun = begun && t > before[group]
		}
		switch {
		case begun:
			return nil
		case ctx.Err() != nil:
			return errors.New("the compilers do not compile")
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// halt has them stand still.
func (c *compilers) halt() { c.signal(syscall.SIGSTOP) }

// used is the processor time of each of them, by process group.
func (c *compilers) used() map[int]time.Duration {
	times := map[int]time.Duration{}
	for _, cmd := range c.cmds {
		times[cmd.Process.Pid] = 0
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		b, err := os.ReadFile(d + "/stat")
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		group, _ := strconv.Atoi(f[2])
		if _, ok := times[group]; ok {
			_, own, ended := usedOf(b)
			times[group] += own + ended
		}
	}
	return times
}

// stop ends them.
func (c *compilers) stop() {
	c.signal(syscall.SIGKILL)
	for _, cmd := range c.cmds {
		cmd.Wait()
	}
}
