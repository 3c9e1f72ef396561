package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"posthaste/internal/testwait"
)

// killedBin is the environment variable by which a test program that will be killed knows that it is one, and where the programs under
// test are.
const killedBin = "E2E_KILLED_BIN"

// TestToBeKilled starts a mail system, has one of its processes stand still, and waits to be killed, when TestKilledTest asks for it.
func TestToBeKilled(t *testing.T) {
	if os.Getenv(killedBin) == "" {
		return // TestKilledTest is the test
	}
	s := newSystem(t, options{})
	var still []int
	s.eventually("the queue manager runs", func() bool { still = s.processes("qmgr"); return len(still) > 0 })
	signal(still, syscall.SIGSTOP)
	fmt.Printf("\nmail system: %s %d\n", s.dir, len(still))
	select {}
}

// When the test program is killed, the mail systems that it has started go too, also those of their processes that stand still, with
// their files.
func TestKilledTest(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestToBeKilled$", "-test.v")
	cmd.Env = append(os.Environ(), killedBin+"="+binDir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &system{t: t}
	for lines := bufio.NewScanner(out); s.dir == "" && lines.Scan(); {
		still := 0
		if where, ok := strings.CutPrefix(lines.Text(), "mail system: "); ok {
			fmt.Sscan(where, &s.dir, &still)
		}
		if s.dir != "" && still != 1 {
			t.Errorf("%d queue managers stand still", still)
		}
	}
	left := s.processes()
	cmd.Process.Kill()
	cmd.Wait()
	if len(left) == 0 {
		t.Fatal("no mail system was started")
	}
	testwait.Until(t, "the files are gone", func() bool { _, err := os.Stat(s.dir); return os.IsNotExist(err) })
	for _, pid := range left {
		if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil && strings.HasPrefix(cwd, s.dir) {
			t.Errorf("process %d is left", pid)
		}
	}
}
