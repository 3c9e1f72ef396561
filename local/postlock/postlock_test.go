package postlock

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/testpeers"
)

// box is a configuration directory that gives up soon, and a mailbox in it that is not there yet.
func box(t *testing.T) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	text := "compatibility_level = 3.6\nqueue_directory = " + dir + "\ndeliver_lock_attempts = 1\n"
	if err := os.WriteFile(filepath.Join(dir, "main.cf"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir, filepath.Join(dir, "box")
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	dir, file := box(t)
	original := ""
	t.Run("original", func(t *testing.T) { original = testpeers.Postfix(t, "postlock") })
	for _, c := range []struct {
		args   string
		status int
	}{
		{"", 75},
		{"-x", 75},
		{file, 75},
		{file + " true", 0},
		{file + " false", 1},
		{file + " test -e " + file + ".lock", 0},
		{"-l fcntl " + file + " test -e " + file + ".lock", 1},
		{"-l flock,fcntl " + file + " true", 0},
		{"-l nothing " + file + " true", 75},
		{file + " /nonexistent", 1},
		{dir + "/none/box true", 75},
	} {
		args := append([]string{"-c", dir}, strings.Fields(c.args)...)
		var errs bytes.Buffer
		if got := Run(args, nil, &errs, &errs); got != c.status {
			t.Errorf("%s: status %d, want %d: %s", c.args, got, c.status, errs.String())
		}
		if original != "" {
			cmd := exec.Command(original, args...)
			_ = cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != c.status {
				t.Errorf("%s: the original's status is %d, not %d", c.args, got, c.status)
			}
		}
		if _, err := os.Stat(file + ".lock"); err == nil {
			t.Fatalf("%s: the lock file is left", c.args)
		}
	}
}

// While one program has the lock another one does not get it, of whichever kind it is.
func TestExcludes(t *testing.T) {
	t.Parallel()
	for _, style := range []string{"dotlock", "fcntl", "flock"} {
		dir, file := box(t)
		inner := "busy"
		again := func(args []string) int { return Run(args, nil, &bytes.Buffer{}, &bytes.Buffer{}) }
		// The command waits for a line, which comes once the second attempt has been made.
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		out, ready, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan int)
		go func() {
			done <- Run([]string{"-c", dir, "-l", style, file, "sh", "-c", "echo " + inner + "; read line"}, r, ready, &bytes.Buffer{})
		}()
		b := make([]byte, len(inner)+1)
		if _, err := out.Read(b); err != nil {
			t.Fatal(err)
		}
		if got := again([]string{"-c", dir, "-l", style, file, "true"}); got != 75 {
			t.Errorf("%s: a second one has it too: status %d", style, got)
		}
		if _, err := w.WriteString("go on\n"); err != nil {
			t.Fatal(err)
		}
		if got := <-done; got != 0 {
			t.Errorf("%s: status %d", style, got)
		}
		if got := again([]string{"-c", dir, "-l", style, file, "true"}); got != 0 {
			t.Errorf("%s: afterwards: status %d", style, got)
		}
		for _, f := range []*os.File{r, w, out, ready} {
			f.Close()
		}
	}
}
