package etc

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/config"
)

func file(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The scripts of the packages are scripts; what they do is for "make deb-test".
func TestScripts(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"install.sh", "tarball.sh", "version.sh", "debian/boot.sh", "debian/build.sh", "debian/functions.sh", "debian/inside.sh", "debian/systemd.sh", "debian/postinst", "debian/postrm", "debian/prerm", "debian/test.sh"} {
		if out, err := exec.Command("sh", "-n", path).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", path, err, out)
		}
	}
}

// The package is built only with a changelog of the program's version, and has
// nothing in its description that nobody fills in.
func TestPackage(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("")
	if err != nil {
		t.Fatal(err)
	}
	want := "posthaste (" + cfg.String("mail_version") + ") "
	if log := file(t, "debian/changelog"); !strings.HasPrefix(log, want) {
		t.Errorf("debian/changelog does not begin with %q", want)
	}
	build := file(t, "debian/build.sh")
	names := regexp.MustCompile(`@[A-Z]+@`).FindAllString(file(t, "debian/control"), -1)
	if len(names) == 0 {
		t.Error("debian/control has nothing to fill in")
	}
	for _, name := range names {
		if !strings.Contains(build, "s|"+name+"|") {
			t.Errorf("build.sh does not know %s of debian/control", name)
		}
	}
}
