package etc

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/testpeers"
)

// The package, with real systemd in a copy of this machine: it takes the place of a Postfix
// that runs, its unit is started, reloaded, stopped, killed, upgraded and removed, and
// what the unit forbids is forbidden. "make deb-test" does the same in a Debian of its own.
func TestPackageWithSystemd(t *testing.T) {
	t.Parallel()
	testpeers.Postfix(t, "postfix")
	for _, program := range []string{"dpkg-shlibdeps", "ip", "make", "systemctl", "perl", "setpriv", "unshare"} {
		testpeers.Program(t, program)
	}
	first, second := build(t)
	cmd := exec.Command("debian/boot.sh", "/", "debian/systemd.sh", "debian/functions.sh", first, second)
	// It takes half a minute here, and several on a machine that does much else; only what hangs takes longer than these.
	cmd.Env = append(os.Environ(), "LIMIT=900")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	limit := time.AfterFunc(25*time.Minute, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer limit.Stop()
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	switch cmd.ProcessState.ExitCode() {
	case 0:
		if !strings.HasSuffix(string(out), "==== All of it works\n") {
			t.Errorf("it did not come to its end:\n%s", out)
		}
	case 77:
		t.Skipf("SKIPPED, NOTHING WAS CHECKED: systemd cannot be booted here\n%s", out)
	default:
		t.Errorf("%v\n%s", err, out)
	}
}

// build makes the package quickly, neither compressed nor position-independent, of what other
// tests have compiled as well, and another one of it with a later version.
func build(t *testing.T) (first, second string) {
	t.Helper()
	dir := t.TempDir()
	first, second = filepath.Join(dir, "first.deb"), filepath.Join(dir, "second.deb") // as systemd.sh knows them
	cmd := exec.Command("sh", "-euc", `
		mv "$(debian/build.sh "$1")" "$1/first.deb"
		dpkg-deb -R "$1/first.deb" "$1/content"
		sed -i 's/^Version: .*/&+upgrade/' "$1/content/DEBIAN/control"
		dpkg-deb --root-owner-group -Znone -b "$1/content" "$1/second.deb"
		rm -r "$1/content" "$1/bin"`, "sh", dir)
	cmd.Env = append(os.Environ(), "BUILDMODE=default", "COMPRESS=none", "TRIMPATH=", "BIN="+filepath.Join(dir, "bin"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the package: %v\n%s", err, out)
	}
	return first, second
}

// An instance's unit is the one instance's unit with another configuration.
func TestUnits(t *testing.T) {
	t.Parallel()
	service := func(path string) string {
		_, text, _ := strings.Cut(file(t, path), "[Service]\n")
		text, _, found := strings.Cut(text, "[Install]\n")
		if !found || text == "" {
			t.Fatalf("%s: not as expected", path)
		}
		return text
	}
	want := strings.ReplaceAll(service("systemd/posthaste.service"), "-c /etc/posthaste ", "-c /etc/posthaste-%i ")
	if got := service("systemd/posthaste@.service"); got != want {
		t.Errorf("posthaste@.service has\n%s\nwant\n%s", got, want)
	}
	if !strings.Contains(want, "-c /etc/posthaste-%i start-fg") {
		t.Error("no instance is started")
	}
}
