package local

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/rights"
)

// unprivileged are tests that say something about a mail system that runs as
// an ordinary user, and that need nothing of the source tree.
const unprivileged = "^(TestMailbox|TestHomeMailbox|TestAliases|TestLoopAndTrouble|TestDotForward|TestForwardFilesOfOthers|TestInclude|TestCommands|" +
	"TestUnknownUsers|TestLuserRelayOfStrangers|TestTrace|TestTransports|TestTransportAndForward|TestTransportAndCommand|TestSettings|TestForwardedEnvelope|TestAliasTableOfAll)$"

// TestUnprivileged has the tests run once more, by a user who is not root.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	if !rights.Switching() {
		t.Skip("this run is unprivileged itself")
	}
	const uid = 61999 // nobody has it
	dir, err := os.MkdirTemp("/tmp", "unprivileged")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "local.test") // where it is now may be closed to others
	if err := copyProgram(self, program); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var out []byte
	for {
		cmd := exec.CommandContext(ctx, program, "-test.v", "-test.run="+unprivileged)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=/tmp", "HOME=" + dir}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err = cmd.CombinedOutput()
		// A process that another test starts may have the copy open for writing for a moment.
		if !errors.Is(err, syscall.ETXTBSY) || ctx.Err() != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got, want := strings.Count(string(out), "\n--- PASS: "), strings.Count(unprivileged, "|")+1; got != want {
		t.Errorf("%d of %d tests passed\n%s", got, want, out)
	}
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err = io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	if err := out.Chmod(0o755); err != nil { // whatever the umask
		out.Close()
		return err
	}
	return out.Close()
}
