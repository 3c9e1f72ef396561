package manual

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"posthaste/internal/config"
)

// What any page, list or declaration says of differences is in the one list, and nothing that the
// list says of cases is without its case.
func TestDifferencesAreComplete(t *testing.T) {
	t.Parallel()
	files := generate(t)
	text := string(files["docs/differences.md"])
	for path, page := range files {
		if !strings.Contains(string(page), "\n.Ss "+differsTitle) {
			continue
		}
		base := filepath.Base(path)
		name, section, _ := strings.Cut(base, ".")
		if !strings.Contains(text, "### "+name+"("+section+")\n") && !strings.Contains(text, "| "+name+"("+section+") |") {
			t.Errorf("%s has differences that docs/differences.md has not", path)
		}
	}
	for _, p := range config.All() {
		if !config.Supported(p.Name) && !strings.Contains(text, p.Name) {
			t.Errorf("%s does nothing here, and is not listed", p.Name)
		}
	}
	for _, d := range config.Differences() {
		if !strings.Contains(text, "\n| "+d.Name+" | ") {
			t.Errorf("%s has another default, and is not listed", d.Name)
		}
	}
	for _, name := range []string{sessionDifferences, mailDifferences} {
		ar, err := txtar.ParseFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range ar.Files {
			if !regexp.MustCompile(`[|,] ` + regexp.QuoteMeta(f.Name) + `(?:,| \|)`).MatchString(text) {
				t.Errorf("%s: %s is not listed", name, f.Name)
			}
		}
	}
}

// Each row has a reason, and a case that refers to another one has that one's.
func TestReasons(t *testing.T) {
	t.Parallel()
	read := func(text string) ([]compared, error) {
		path := filepath.Join(t.TempDir(), "differences")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return reasons(path)
	}
	list, err := read("About.\n-- b/one --\n# As in \"a\".\n-x\n-- a --\n# It is\n# so.\n+y\n-- c --\n# skip: there is none\n")
	if err != nil || len(list) != 2 || list[0].reason != "It is so." || strings.Join(list[0].cases, " ") != "b/one a" || list[1].reason != "Not played with Postfix: there is none." {
		t.Errorf("%+v, %v", list, err)
	}
	for _, text := range []string{"-- a --\n-x\n", "-- a --\n# As in \"b\".\n-x\n"} {
		if _, err := read(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
	rows, err := os.ReadFile("differences.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(rows)) {
		if cells := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), `\|`, ""), "|"); strings.HasPrefix(line, "| ") && (len(cells) != 5 || strings.TrimSpace(cells[2]) == "" || strings.TrimSpace(cells[3]) == "") {
			t.Errorf("what, here and why are wanted: %s", line)
		}
	}
}

// Each program and each manual page of Postfix has its like here, or a row that says why not.
func TestEveryFileOfPostfix(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("testdata/postfix-files.txt")
	if err != nil {
		t.Fatal(err)
	}
	files := generate(t)
	text := string(files["docs/differences.md"])
	pages := make(map[string]bool)
	for path := range files {
		if dir, base := filepath.Split(path); dir == "docs/man/" {
			name, _, _ := strings.Cut(base, ".")
			pages[base], pages[name] = true, true
		}
	}
	for name := range strings.Lines(string(list)) {
		name = strings.TrimSpace(name)
		program := regexp.MustCompile(`\.[158]$`).ReplaceAllString(name, "")
		if strings.HasPrefix(name, "#") || pages[name] || strings.Contains(text, "`"+program+"`") {
			continue
		}
		t.Errorf("%s is neither here nor in docs/differences.md", name)
	}
}
