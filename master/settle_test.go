package master

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// saved is by how much the memory of a process is less than it once was, in KB.
func saved(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	kb := func(name string) int {
		m := regexp.MustCompile(name + `:\s+(\d+) kB\n`).FindSubmatch(status)
		if m == nil {
			t.Fatalf("process %d has no %s:\n%s", pid, name, status)
		}
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return kb("VmHWM") - kb("VmRSS")
}

// Master and its services give memory back, a while after they have started.
func TestSettled(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "echo unix n - n - - echo\n")
	s.mustCommand("start")
	s.dial("public/echo").ask("hello")
	pids := append(s.processes(), s.pid())
	if len(pids) < 2 { // this one and master
		t.Fatalf("processes %v", pids)
	}
	for _, pid := range pids {
		s.eventually("a process has given memory back", func() bool { return saved(t, pid) > 1000 })
		t.Logf("process %d: %d KB less than it had", pid, saved(t, pid))
	}
}
