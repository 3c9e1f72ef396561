package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPermitted(t *testing.T) {
	t.Parallel()
	standard := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(standard, "main.cf"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("alternate_config_directories = /etc/other /etc/third\nmulti_instance_directories = /etc/second\n")
	for dir, want := range map[string]string{
		standard: "", standard + "/": "", "/etc/other": "", "/etc/third/.": "", "/etc/second": "",
		"/tmp/mine": "not a permitted", "/etc/other/../../tmp": "not a permitted", "/etc/other/below": "not a permitted", "": "not a permitted",
	} {
		err := permitted(dir, standard)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", dir, err)
		}
	}
	if err := os.Remove(filepath.Join(standard, "main.cf")); err != nil {
		t.Fatal(err)
	}
	if err := permitted("/etc/other", standard); err == nil {
		t.Error("without a main.cf that lists it")
	}
	if err := Permitted("/tmp/mine"); err != nil {
		t.Errorf("who lends his own right: %v", err)
	}
}

// TestPermittedMalformed: a program that runs with more rights than its caller
// does not end in a panic on a mistake in main.cf.
func TestPermittedMalformed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"alternate_config_directories", "multi_instance_directories"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "main.cf"), []byte(name+" = {\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := permitted("/elsewhere", dir); err == nil || !strings.Contains(err.Error(), "main.cf:1: "+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
