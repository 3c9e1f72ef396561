package bounceclass

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	own := filepath.Join(dir, "own.toml")
	for name, text := range map[string]string{
		own:                           "[rules]\nOurs = ['^550 5\\.1\\.1 ours']\n",
		filepath.Join(dir, "main.cf"): "compatibility_level = 3.6\nbounce_class_files = " + own + ", builtin\n",
		dir + "/empty/main.cf":        "compatibility_level = 3.6\n",
		dir + "/wrong/main.cf":        "compatibility_level = 3.6\nbounce_class_files = " + own + "x\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args   []string
		stdin  string
		status int
		says   string
	}{
		{[]string{"-c", dir, "550 5.1.1 ours", "552 5.2.2 over quota"}, "", 0, "Ours                 " + own + ": ^550 5\\.1\\.1 ours\nQuotaIssues          builtin: "},
		{[]string{"-c", dir}, "550-5.1.1 ours 550 5.1.1 and more\n\n  554 x\n", 0, "Ours "},
		{[]string{"-c", dir}, "554 x\n", 0, "Uncategorized        no rule\n"},
		{[]string{"-c", dir + "/empty", "550 5.1.1 User unknown"}, "", 0, "InvalidRecipient     builtin: "},
		{[]string{"-c", dir + "/empty", "-f", own, "550 5.1.1 User unknown"}, "", 0, "Uncategorized "},
		{[]string{"-c", dir, "-j", "550-5.1.1 ours 550 5.1.1 and"}, "", 0,
			`{"class": "Ours","file": "` + own + `","pattern": "^550 5\\.1\\.1 ours","text": "550 5.1.1 ours and"}` + "\n"},
		{[]string{"-c", dir, "-j", "x"}, "", 0, `{"class": "Uncategorized","file": "","pattern": "","text": "x"}` + "\n"},
		{[]string{"-x"}, "", 64, "usage: posthaste classify"},
		{[]string{"-c", dir + "/wrong"}, "", 78, "own.tomlx: no such file or directory"},
		{[]string{"-c", dir + "/nothing"}, "", 78, "main.cf"},
		{[]string{"-c", dir}, strings.Repeat("x", 1<<20+1), 66, "standard input: "},
	} {
		var out, errs strings.Builder
		status := Command("posthaste classify", c.args, strings.NewReader(c.stdin), &out, &errs)
		if status != c.status || !strings.HasPrefix(out.String(), c.says) && !strings.Contains(errs.String(), c.says) {
			t.Errorf("%q: exit status %d, %q, %q", c.args, status, out.String(), errs.String())
		}
	}
}
