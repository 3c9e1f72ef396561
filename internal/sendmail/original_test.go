package sendmail

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/testpeers"
)

// A command line that is wrong has the exit status that the original has.
func TestStatusesAsOriginal(t *testing.T) {
	t.Parallel()
	original := testpeers.Postfix(t, "sendmail")
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: the original is tried as root")
	}
	s, theirs := newSite(t), newSite(t) // where the original may leave what it began
	if err := os.WriteFile(filepath.Join(theirs.dir, "master.cf"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"-t", "", "-n x", "-B foo x", "-bz", "-bp x", "-bi x", "-bs x", "-bd x", "-q -t", "-XVabc x", "-XV@- x", "-b", "-qI", "-qR",
		"-qX", "-Z", "-f", "-bv", "-t -bs", "-q foo"} {
		cmd := exec.Command(original, append([]string{"-C", theirs.dir}, strings.Fields(args)...)...)
		_ = cmd.Run()
		if _, status, _, _ := s.run(t, "sendmail", "", strings.Fields(args)...); status != cmd.ProcessState.ExitCode() {
			t.Errorf("sendmail %s: exit status %d, the original's %d", args, status, cmd.ProcessState.ExitCode())
		}
	}
}
