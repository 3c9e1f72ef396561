package mutants

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A Verdict is what the tests make of a mutant.
type Verdict string

// The verdicts.
const (
	Noticed  Verdict = "noticed"  // a test fails
	Survives Verdict = "survives" // none does
	Invalid  Verdict = "invalid"  // it does not compile
	Endless  Verdict = "endless"  // the tests do not end: that is noticed, too
	Stopped  Verdict = "stopped"  // ctx has ended
)

// Patience bounds how long the tests of one mutant may take. Then it counts as noticed.
const Patience = 5 * time.Minute

// Try plants the mutant in the tree below root, runs the tests that match a pattern (as with go test -run), and returns what came
// of it, with their output.
// Nothing in the tree is changed. An error says that it could not be tried.
func (m *Mutant) Try(ctx context.Context, root, tests string) (Verdict, string, error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(root, filepath.FromSlash(m.File))
	src, err := os.ReadFile(name)
	if err != nil {
		return "", "", err
	}
	planted := filepath.Join(dir, filepath.Base(name))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {name: planted}})
	if err == nil {
		err = os.WriteFile(planted, m.Apply(src), 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay"), overlay, 0o600)
	}
	if err != nil {
		return "", "", err
	}
	out, err := goTest(ctx, root, dir, tests, m.TestsOf(), "-overlay", filepath.Join(dir, "overlay"))
	return m.verdict(ctx, err, out)
}

// Sound runs the tests of packages without a fault. If they fail they prove nothing: that is an error.
func Sound(ctx context.Context, root, tests string, packages []string) error {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if out, err := goTest(ctx, root, dir, tests, packages); err != nil {
		return fmt.Errorf("the tests fail without a fault: %w\n%s", err, out)
	}
	return nil
}

// goTest runs tests, with dir for what they make, and returns what they print.
func goTest(ctx context.Context, root, dir, tests string, packages []string, flags ...string) (string, error) {
	args := append([]string{"test", "-vet=off", "-count=1", "-failfast", "-timeout", Patience.String(), "-run", tests}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	cmd.Dir = root
	os.Chmod(dir, 0o755)                          // servers that tests start run as users of their own
	cmd.Env = append(os.Environ(), "TMPDIR="+dir) // what a test that is killed leaves goes, too
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	return out.String(), err
}

// verdict reads what the go command says.
func (m *Mutant) verdict(ctx context.Context, err error, out string) (Verdict, string, error) {
	switch {
	case ctx.Err() != nil:
		return Stopped, out, nil
	case err == nil:
		return Survives, out, nil
	case strings.Contains(out, "[build failed]"):
		return Invalid, out, nil
	case strings.Contains(out, "[setup failed]"):
		return "", out, fmt.Errorf("the tests cannot be built:\n%s", out)
	case strings.Contains(out, "panic: test timed out after"):
		return Endless, out, nil
	case !strings.Contains(out, "FAIL"):
		return "", out, fmt.Errorf("go test: %w\n%s", err, out)
	}
	return Noticed, out, nil
}
