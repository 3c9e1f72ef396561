package e2e

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// What the Go runtime reads of the environment is without effect in the programs
// that are set-gid, as installed and run by a user who has no rights: and it has
// effect in one that is built without the entry of package scrub.
func TestSetGIDEnvironment(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("needs root, and a processor that package scrub has an entry for")
	}
	_, name := mailOwner(t)
	group, err := user.LookupGroup(name)
	if err != nil {
		t.Fatal(err)
	}
	gid, _ := strconv.Atoi(group.Gid)
	dir, err := os.MkdirTemp("", "ph")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Flags&unix.ST_NOSUID != 0 {
		t.Fatalf("programs in %s are not set-gid: %v", dir, err)
	}
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	run := func(path string, env ...string) string {
		t.Helper()
		if err := os.Chown(path, 0, gid); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o755|os.ModeSetgid); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(path, "-c", "/nonexistent")
		cmd.Env, cmd.SysProcAttr, cmd.Dir = append(env, "GOPHER=1", "PATH=/bin"), nobody, "/"
		out, err := cmd.CombinedOutput()
		if exit, ok := err.(*exec.ExitError); !ok || !exit.Exited() {
			t.Errorf("%s with %s: %v", path, env, err)
		}
		return string(out)
	}
	for _, p := range []string{"postdrop", "postqueue"} {
		with, without := filepath.Join(dir, p), filepath.Join(dir, p+"-plain")
		for path, flag := range map[string]string{with: entryFlag(p), without: ""} {
			build := exec.Command("go", "build", "-ldflags", "-w "+flag, "-o", path, "posthaste/cmd/"+p)
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		usual := run(with)
		if want := regexp.MustCompile(`^` + p + `: fatal: `); !want.MatchString(usual) {
			t.Errorf("%s says %q, want %s", p, usual, want)
		}
		for env, sign := range map[string]string{
			"GODEBUG=inittrace=1,gctrace=1": "init runtime @",
			"GOMEMLIMIT=much":               "malformed GOMEMLIMIT",
		} {
			if out := run(with, env, "GOTRACEBACK=crash", "GOGC=1", "GOMAXPROCS=1", "GOCOVERDIR=/tmp"); out != usual {
				t.Errorf("%s with %s says %q, without it %q", p, env, out, usual)
			}
			if out := run(without, env); !strings.Contains(out, sign) {
				t.Errorf("%s without the entry, with %s, says %q, want %q: the test shows nothing", p, env, out, sign)
			}
		}
	}
	// The program that sendmail runs is the one that was tested.
	makefile := readAll(t, filepath.Join("..", "..", "Makefile"))
	for _, want := range []string{"SETGID = postdrop postqueue\n", "'$(LDFLAGS) $(STAMP) $(SCRUB)' -o $(BIN)/ $(SETGID:%=./cmd/%)\n", entryFlag("postdrop")} {
		if !strings.Contains(makefile, want) {
			t.Errorf("the Makefile lacks %q", want)
		}
	}
}
