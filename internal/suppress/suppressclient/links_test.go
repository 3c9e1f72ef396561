package suppressclient

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/config"
)

// TestLinksSettings: what is wrong with the settings is an error at the start, and no secret that others can read is taken.
func TestLinksSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return "unsubscribe_secret_file = " + path + "\n"
	}
	const url = "unsubscribe_url = https://u.test/u/\n"
	good := file("good", "a secret of sixteen\n\nanother secret of sixteen\n", 0o600)
	for _, tt := range []struct{ main, want string }{
		{"", ""},
		{url + good, ""},
		{url + file("group", "a secret of sixteen\n", 0o640), ""},
		{url + file("others", "a secret of sixteen\n", 0o644), "unsubscribe_secret_file: "},
		{url + file("shared", "a secret of sixteen\n", 0o660), "chmod 600"},
		{url + file("short", "a secret\n", 0o600), "at least 16 characters"},
		{url + file("empty", "\n", 0o600), "there is no secret in it"},
		{url + "unsubscribe_secret_file = " + dir + "/none\n", "unsubscribe_secret_file: open"},
		{"unsubscribe_url = http://u.test/u/\n" + good, "unsubscribe_url: "},
		{"unsubscribe_url = https://u.test/u\n" + good, "unsubscribe_url: "},
		{"unsubscribe_url = https://u.test/u/?x=\n" + good, "unsubscribe_url: "},
		{"unsubscribe_url = https://a@u.test/u/\n" + good, "unsubscribe_url: "},
		{"unsubscribe_url = https:///u/\n" + good, "unsubscribe_url: "},
		{"unsubscribe_url = https://u.test/" + strings.Repeat("u", 200) + "/\n" + good, "unsubscribe_url: "},
	} {
		cfg, err := config.LoadString("compatibility_level = 3.6\n" + tt.main)
		if err != nil {
			t.Fatal(err)
		}
		_, err = ReadLinks(cfg)
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, expected %q", tt.main, err, tt.want)
		}
	}
}
