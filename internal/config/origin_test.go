package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Debian's main.cf says myorigin = /etc/mailname.
func TestOriginFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mailname")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("example.org\nignored\n")
	c, err := LoadString("myorigin = " + path + "\nmasquerade_domains = $myorigin\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.String("myorigin"); got != "example.org" {
		t.Errorf("myorigin is %q", got)
	}
	if got := c.String("masquerade_domains"); got != "example.org" {
		t.Errorf("$myorigin is %q", got)
	}
	for _, text := range []string{"", "\nexample.org\n", "two words\n"} {
		write(text)
		if _, err := LoadString("myorigin = " + path + "\n"); err == nil || !strings.Contains(err.Error(), "a domain in the first line") {
			t.Errorf("%q: %v", text, err)
		}
	}
	os.Remove(path)
	if with, err := c.With(Override{Name: "masquerade_domains", Value: "$myorigin"}); err != nil || with.String("masquerade_domains") != "example.org" {
		t.Errorf("a copy made where the file is not seen, as in chroot: %v", err)
	}
	if _, err := LoadString("myorigin = " + path + "\n"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no file: %v", err)
	}
}
