package master

import (
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBatch executes a program: it is a batch process, and we are not.
func TestBatch(t *testing.T) {
	t.Parallel()
	before, err := unix.SchedGetAttr(os.Getpid(), 0)
	if err != nil {
		t.Skipf("the kernel does not tell the scheduling policy: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	pid, err := forkExec("/bin/cat", []string{"cat"}, &syscall.ProcAttr{Files: []uintptr{r.Fd(), null.Fd(), 2}}, false)
	if err != nil {
		w.Close()
		t.Fatal(err)
	}
	defer syscall.Wait4(pid, nil, 0, nil)
	defer w.Close() // which ends it
	attr, err := unix.SchedGetAttr(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	if before.Policy == unix.SCHED_NORMAL && attr.Policy != unix.SCHED_BATCH {
		t.Errorf("the program has scheduling policy %d, want %d (SCHED_BATCH)", attr.Policy, unix.SCHED_BATCH)
	}
	if attr.Nice != before.Nice {
		t.Errorf("nice is %d, was %d", attr.Nice, before.Nice)
	}
}
