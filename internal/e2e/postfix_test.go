package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// newPostfix is the original with the same settings, for comparing. It needs
// root, as the original does.
func newPostfix(t testing.TB, main string) *system {
	t.Helper()
	return newPostfixIn(t, main, func(*system) {})
}

// newPostfixIn is newPostfix with something to prepare before it starts.
func newPostfixIn(t testing.TB, main string, prepare func(*system)) *system {
	t.Helper()
	postfix := need(t, "postfix")
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: the original Postfix only runs as root")
	}
	dir, err := os.MkdirTemp("", "pfix")
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(dir, 0o755)
	s := &system{t: t, dir: dir, port: freePort(t)}
	for _, d := range []string{"etc", "spool", "data"} {
		if err := os.Mkdir(s.path(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := strings.NewReplacer("{dir}", dir, "{port}", fmt.Sprint(s.port), "command_directory = {bin}\n", "", "mail_owner = {owner}\n", "",
		"setgid_group = {group}\n", "")
	s.write("etc/main.cf", lastOfEach(r.Replace(usualMain+main)))
	s.write("etc/master.cf", r.Replace(usualMaster))
	if out, err := exec.Command("chown", "postfix", s.path("data")).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	prepare(s)
	control := func(word string) (string, error) {
		out, err := exec.Command(postfix, "-c", s.path("etc"), word).CombinedOutput()
		return string(out), err
	}
	if out, err := control("start"); err != nil {
		t.Fatalf("postfix start: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the original:\n%s", s.log())
		}
		if out, err := control("stop"); err != nil {
			t.Errorf("postfix stop: %v\n%s", err, out)
		}
		// It says that it has stopped before its last process has.
		s.eventually("the original has ended", func() bool {
			b, err := os.ReadFile(s.path("spool", "pid", "master.pid"))
			return err != nil || len(strings.TrimSpace(string(b))) == 0 || !running(strings.TrimSpace(string(b)))
		})
		os.RemoveAll(dir)
	})
	return s
}

// lastOfEach leaves out settings that a later one overrides. The original warns
// of each, in every process; its logger's own warning waits for itself for ever
// when the others' have filled its socket.
func lastOfEach(main string) string {
	lines := strings.SplitAfter(main, "\n")
	last := map[string]int{}
	for i, line := range lines {
		if name, _, ok := strings.Cut(line, "="); ok && !strings.ContainsAny(line[:1], " \t#") {
			last[strings.TrimSpace(name)] = i
		}
	}
	var kept strings.Builder
	keep := true
	for i, line := range lines {
		if line != "" && !strings.ContainsAny(line[:1], " \t#") { // what follows it belongs to it
			name, _, _ := strings.Cut(line, "=")
			keep = last[strings.TrimSpace(name)] == i
		}
		if keep {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

func running(pid string) bool {
	_, err := os.Stat(filepath.Join("/proc", pid))
	return err == nil
}
