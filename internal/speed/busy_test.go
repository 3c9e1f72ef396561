package main

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A command runs beside compilers that are at work, and what it says and how it ends is passed on.
func TestBesideCompilers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	var out bytes.Buffer
	o := &options{dir: dir, busy: 1, command: []string{"sh", "-c", `cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' | grep -c "^GOCACHE=` + dir + `"`}}
	if lost, err := run(ctx, o, &out); lost || err != nil || strings.TrimSpace(out.String()) == "0" {
		t.Errorf("%v, %q compilers", err, out.String())
	}
	o.command = []string{"sh", "-c", "exit 3"}
	_, err := run(ctx, o, &out)
	if failed, ok := err.(*exec.ExitError); !ok || failed.ExitCode() != 3 {
		t.Errorf("a command that fails: %v", err)
	}
	for _, o := range []*options{{busy: 1}, {busy: -1, command: []string{"true"}}, {command: []string{"true"}}} {
		if _, err := run(ctx, o, &out); err == nil || !strings.Contains(err.Error(), "-busy") {
			t.Errorf("%d compilers, command %q: %v", o.busy, o.command, err)
		}
	}
}
