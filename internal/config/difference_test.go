package config

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// packaged are parameters whose defaults a packager chooses when Postfix is built.
var packaged = map[string]bool{
	"command_directory": true, "mailq_path": true, "newaliases_path": true, "sendmail_path": true, "manpage_directory": true,
	"mail_version": true, "mail_release_date": true, "daemon_directory": true, "shlib_directory": true, "meta_directory": true,
	"html_directory": true, "readme_directory": true, "sample_directory": true, "default_database_type": true,
}

// TestDifferences compares every default with those of Postfix: each either is the
// same or is listed.
func TestDifferences(t *testing.T) {
	t.Parallel()
	postconf := realPostconf(t)
	version, err := exec.Command(postconf, "-dh", "mail_version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(version), "3.7.") {
		t.Skipf("SKIPPED: the defaults are those of Postfix 3.7, installed is %s", version)
	}
	dir := t.TempDir()
	for _, name := range []string{"main.cf", "master.cf"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(postconf, "-c", dir, "-d").Output()
	if err != nil {
		t.Fatal(err)
	}
	c := mustLoad(t, "")
	listed := make(map[string]string)
	for _, d := range Differences() {
		listed[d.Name] = d.Postfix
		if p, ok := Lookup(d.Name); !ok || p.Origin != Postfix {
			t.Errorf("Differences lists %s, which is no parameter of Postfix 3.7", d.Name)
		}
	}
	n := 0
	for line := range strings.Lines(string(out)) {
		name, theirs, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " =")
		theirs = strings.TrimSpace(theirs)
		p, ok := Lookup(name)
		if !ok {
			t.Errorf("parameter %s of Postfix 3.7 is not declared", name)
			continue
		}
		n++
		if p.Origin != Postfix {
			t.Errorf("%s is declared as not in Postfix 3.7, but it is", name)
		}
		ours := strings.Join(strings.Fields(c.RawDefault(name)), " ")
		want, different := listed[name]
		switch {
		case name == "process_id" || name == "process_name": // of another process
		case different && want != theirs && !packaged[name]:
			t.Errorf("Differences says that %s is %q in Postfix, it is %q", name, want, theirs)
		case !different && ours != theirs && !packaged[name]:
			t.Errorf("default of %s is %q, Postfix's is %q, and Differences does not list it", name, ours, theirs)
		case different && ours == theirs && name != "mail_owner":
			t.Errorf("Differences lists %s, but its default is Postfix's", name)
		}
	}
	if n < 800 {
		t.Errorf("postconf -d listed %d known parameters, expected more than 800", n)
	}
}
