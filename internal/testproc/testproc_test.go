package testproc

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/testwait"
)

// TestMain lets the test program run itself as one that will be killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("TESTPROC_KILLED"); dir != "" {
		// What it starts has a session of its own, works below the directory, and ignores every signal but one.
		Start(killed{}, exec.Command("/bin/sh", "-c", `mkdir $1/spool; (cd $1/spool; trap "" TERM; exec setsid sleep 1000) & : >$1/started; exec sleep 1000`, "sh", dir), dir)
		if os.WriteFile(dir+"/watched", nil, 0o644) != nil {
			os.Exit(1)
		}
		select {}
	}
	os.Exit(m.Run())
}

// killed is a test that never ends.
type killed struct{ testing.TB }

func (killed) Helper()        {}
func (killed) Cleanup(func()) {}
func (killed) Fatal(...any)   { os.Exit(1) }

// A server is stopped with all that it has started, even with what ignores
// every signal but one.
func TestStop(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/bin/sh", "-c", `(trap "" TERM; echo up; while :; do sleep 1000; done) & trap "exit 0" TERM; wait`)
	mark := "TESTPROC_MARK=" + t.TempDir()
	cmd.Env = append(os.Environ(), mark)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := Start(t, cmd, t.TempDir())
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "up\n" {
		t.Fatal(line, err)
	}
	p.Stop()
	testwait.Until(t, "nothing of it is left", func() bool { return !left(mark) })
	p.Stop()
}

// left says whether a process runs whose environment has the mark.
func left(mark string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	return slices.ContainsFunc(files, func(name string) bool {
		b, _ := os.ReadFile(name)
		return strings.Contains(string(b), mark)
	})
}

// When the test program is killed, the server and its files go too.
func TestKilled(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "server")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "TESTPROC_KILLED="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	testwait.Until(t, "the server has started, and is watched", func() bool { return exists(dir+"/started") && exists(dir+"/watched") })
	cmd.Process.Kill()
	testwait.Until(t, "the files are gone", func() bool { return !exists(dir) })
	testwait.Until(t, "nothing of it is left", func() bool { return !left("TESTPROC_KILLED=" + dir) })
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
