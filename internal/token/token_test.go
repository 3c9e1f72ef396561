package token

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The command makes, lists and removes tokens, and says what is wrong by its exit status.
func TestCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.cf"), []byte("compatibility_level = 3.6\ndata_directory = "+dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "master.cf"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(verb string, args ...string) (string, string, int) {
		var out, errs bytes.Buffer
		status := Run("posthaste token", append([]string{verb, "-c", dir}, args...), &out, &errs)
		return out.String(), errs.String(), status
	}
	out, errs, status := run("add", "-s", "example.com", "-s", "<>", "-t", "acme", "-q", "1000", "-e", "30", "app")
	if status != 0 || !regexp.MustCompile(`^pht_[\w-]{43}\n$`).MatchString(out) {
		t.Fatalf("%d %q %q", status, out, errs)
	}
	if _, errs, status := run("add", "-r", "operate", "-r", "look", "ops"); status != 0 {
		t.Fatalf("%d %q", status, errs)
	}
	out, _, status = run("list")
	if status != 0 || !regexp.MustCompile(`^app: inject; tenant acme; from example\.com, <>; 1000 recipients a day; made 20..-..-..; expires 20..-..-..\nops: operate, look; made 20..-..-..\n$`).MatchString(out) {
		t.Errorf("%d %q", status, out)
	}
	out, _, _ = run("list", "-j")
	var l Listed
	if err := json.Unmarshal([]byte(strings.Split(out, "\n")[0]), &l); err != nil || l.Name != "app" || l.Quota != 1000 || l.Expired || strings.Contains(out, "hash") {
		t.Errorf("%v %+v %s", err, l, out)
	}
	for _, tt := range []struct {
		status int
		args   []string
	}{
		{65, []string{"add", "-s", "x", "app"}}, {65, []string{"add", "none"}}, {65, []string{"add", "-r", "root", "x"}}, {64, []string{"add", "-q", "0", "-s", "x", "y"}},
		{64, []string{"add", "-e", "x", "-s", "x", "y"}}, {64, []string{"add", "-e", "36501", "-s", "x", "y"}}, {64, []string{"add", "-s", "x"}}, {64, []string{"list", "x"}}, {64, []string{"remove"}}, {66, []string{"remove", "none"}},
		{64, []string{"show"}}, {0, []string{"remove", "app", "ops"}}, {66, []string{"remove", "app"}},
	} {
		if _, errs, status := run(tt.args[0], tt.args[1:]...); status != tt.status || (errs == "") != (status == 0) {
			t.Errorf("%q: %d %q", tt.args, status, errs)
		}
	}
	if out, _, status := run("list"); status != 0 || out != "" {
		t.Errorf("%d %q", status, out)
	}
}
