package subprocess

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"posthaste/internal/testwait"
)

func TestOutput(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		script string
		o      Output
		text   string
		over   bool
		err    bool
	}{
		{name: "short", script: "printf abc", o: Output{Most: 4}, text: "abc"},
		{name: "exact", script: "printf abcd", o: Output{Most: 4, Refuse: true}, text: "abcd"},
		{name: "the rest is dropped", script: "printf abc; printf def", o: Output{Most: 4}, text: "abcd", over: true},
		{name: "the rest is refused", script: "yes", o: Output{Most: 4, Refuse: true}, text: "y\ny\n", over: true, err: true},
		{name: "nothing is kept", script: "printf abc", text: "", over: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd := New(t.Context(), "/bin/sh", "-c", c.script)
			cmd.Stdout = &c.o
			err := cmd.Run()
			if string(c.o.Text) != c.text || c.o.Over != c.over || (err != nil) != c.err {
				t.Errorf("got %q, over %v, error %v", c.o.Text, c.o.Over, err)
			}
		})
	}
}

// What a command has started ends with it when its time is over, although it has the output open.
func TestGroup(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "child")
	ctx, cancel := context.WithCancel(t.Context())
	cmd := New(ctx, "/bin/sh", "-c", "sleep 1000 & echo $! >"+file+".new; mv "+file+".new "+file+"; wait")
	cmd.Stdout = new(Output)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	testwait.Until(t, "the child runs", func() bool {
		text, err := os.ReadFile(file)
		child, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil && child > 0
	})
	cancel()
	var ended *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &ended) && !errors.Is(err, context.Canceled) {
		t.Errorf("the command has ended with %v", err)
	}
	testwait.Until(t, "the child has ended", func() bool { return gone(child) })
}

// gone says whether a process has ended; one that nobody has waited for yet has.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, state, _ := strings.Cut(string(stat), ") ")
	return err != nil || strings.HasPrefix(state, "Z")
}
