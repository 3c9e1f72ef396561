package srstool

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is encoded is decoded again, from arguments and from standard input; what is not ours, or was
// changed, is refused, and does not hold up the others.
func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"main.cf": "compatibility_level = 3.6\nsrs_domain = us.test\nsrs_secret_file = " + dir + "/secret\n", "master.cf": "", "secret": "tops3cr3t\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(stdin string, args ...string) (string, string, int) {
		var out, errs bytes.Buffer
		status := Run("posthaste srs", append([]string{args[0], "-c", dir}, args[1:]...), strings.NewReader(stdin), &out, &errs)
		return out.String(), errs.String(), status
	}
	out, errs, status := run("", "encode", "joe@sender.test", "<ann@else.test>")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if status != 0 || errs != "" || len(lines) != 2 || !strings.HasPrefix(lines[0], "SRS0=") || !strings.HasSuffix(lines[0], "=sender.test=joe@us.test") {
		t.Fatalf("%d %q %q", status, out, errs)
	}
	out, errs, status = run(strings.Join(append(lines, "joe@sender.test", strings.Replace(lines[0], "joe", "eve", 1)), "\n")+"\n", "decode")
	if status != 65 || out != "joe@sender.test\nann@else.test\n" || !strings.Contains(errs, `"joe@sender.test": not an SRS address`) || !strings.Contains(errs, "hash of the SRS address does not match") {
		t.Errorf("%d %q %q", status, out, errs)
	}
	for _, tt := range []struct {
		status int
		stdin  string
		args   []string
	}{{65, "", []string{"encode", "x@us.test"}}, {65, "", []string{"encode", ""}}, {64, "", []string{"show"}}, {64, "", []string{"encode", "-x"}}, {66, strings.Repeat("x", 2*maxLine), []string{"decode"}}, {0, "", []string{"decode"}}} {
		if out, errs, status := run(tt.stdin, tt.args...); status != tt.status || out != "" || (errs == "") != (status == 0) {
			t.Errorf("%q: %d %q %q", tt.args, status, out, errs)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "main.cf"), []byte("compatibility_level = 3.6\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, status := run("", "encode", "joe@sender.test"); status != 78 || !strings.Contains(errs, "srs_domain is not set") {
		t.Errorf("%d %q", status, errs)
	}
}
