package etc

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The version is the tag's, wherever the source is from; it is nothing where there is no
// tag, or one that is no version.
func TestVersionOfTag(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script, err := os.ReadFile("version.sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"etc/version.sh": string(script), ".gitattributes": file(t, "../.gitattributes")} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir),
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	version := func(when, want string) {
		t.Helper()
		if got := run("sh", "etc/version.sh"); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	version("without git", "")
	run("git", "init", "-q")
	run("git", "add", ".")
	run("git", "commit", "-qm", "one")
	version("without a tag", "")
	run("git", "tag", "-a", "v1.2", "-m", "v1.2")
	version("at the tag", "1.2")
	run("git", "commit", "-qm", "two", "--allow-empty")
	commit := run("git", "rev-parse", "--short", "HEAD")
	version("behind the tag", "1.2+1.g"+commit)
	run("git", "tag", "vx") // "vx" is no version, and is passed over
	version("beside a tag that is no version", "1.2+1.g"+commit)

	// What git archives of it knows its version without git.
	out := filepath.Join(dir, "archive")
	run("git", "archive", "--format=tar", "-o", out+".tar", "HEAD")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	run("tar", "-xf", out+".tar", "-C", out)
	if got := run("sh", "archive/etc/version.sh"); got != "1.2+1.g"+commit {
		t.Errorf("in an archive: %q", got)
	}
	run("git", "tag", "v3.0'$(id)")
	if got := run("sh", "etc/version.sh"); strings.ContainsAny(got, "'$()") {
		t.Errorf("a tag with a command in it: %q", got)
	}
}
