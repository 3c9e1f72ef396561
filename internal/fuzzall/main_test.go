package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// tree writes a module with one package that has two fuzzers, one of which finds something.
func tree(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.test/m\n\ngo 1.24\n",
		"a/a.go": "package a\n\nfunc Grade(s string) int {\n\tif len(s) < 2 {\n\t\treturn 0\n\t}\n\tif s[0] == 'x' {\n\t\treturn 1\n\t}\n\treturn 2\n}\n",
		"a/a_test.go": "package a\n\nimport \"testing\"\n\nfunc FuzzGrade(f *testing.F) {\n\tf.Add(\"\")\n\tf.Fuzz(func(t *testing.T, s string) {\n\t\tif Grade(s) > 2 {\n\t\t\tt.Fatal(s)\n\t\t}\n\t})\n}\n\n" +
			"func FuzzBroken(f *testing.F) {\n\tf.Add(\"ab\")\n\tf.Fuzz(func(t *testing.T, s string) {\n\t\tif Grade(s) == 1 {\n\t\t\tt.Fatal(s)\n\t\t}\n\t})\n}\n",
		"b/b_test.go": "package b\n\n// func FuzzNot(f *testing.F) is a comment\n",
	} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFind(t *testing.T) {
	t.Parallel()
	list, err := find([]string{tree(t)}, regexp.MustCompile(""))
	if err != nil || len(list) != 1 || filepath.Base(list[0].dir) != "a" || strings.Join(list[0].fuzzers, " ") != "FuzzBroken FuzzGrade" {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := find([]string{tree(t)}, regexp.MustCompile("Grade$")); err != nil || len(list) != 1 || len(list[0].fuzzers) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestExecutions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"": 0, "ok\n": 0,
		"fuzz: elapsed: 3s, execs: 17212 (6523/sec), new interesting: 16\nfuzz: elapsed: 5s, execs: 20000 (0/sec)\nPASS\n": 20000} {
		if got := executions(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestLate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"fuzz: elapsed: 4s, execs: 219 (0/sec)\n--- FAIL: FuzzFile (4.11s)\n    context deadline exceeded\nFAIL\n":                                    true,
		"--- FAIL: FuzzFile (4.11s)\n    --- FAIL: FuzzFile (0.00s)\n        a_test.go:9: context deadline exceeded\n    \n    Failing input\nFAIL\n": false,
	} {
		if late.MatchString(text) != want {
			t.Errorf("%q: want %v", text, want)
		}
	}
}

// TestRun: a fuzzer that finds something fails the run, one that does not has been executed, and of its inputs
// those are kept that execute what none before them did.
func TestRun(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(tree(t), "a")
	execs, bad, err := pkg{dir, []string{"FuzzBroken"}}.run(t.Context(), t.TempDir(), 20*time.Second, true)
	if err != nil || bad != 1 {
		t.Errorf("%d executions, %d bad, %v", execs, bad, err)
	}
	if found, _ := filepath.Glob(filepath.Join(dir, "testdata/fuzz/FuzzBroken/*")); len(found) != 1 {
		t.Errorf("the failing input is %q", found)
	}
	cache := t.TempDir()
	for name, value := range map[string]string{"1": "xy", "2": "xyz", "3": "yz", "4": "y", "5": "yzz"} {
		if err := copyText(filepath.Join(cache, "FuzzGrade", name), "go test fuzz v1\nstring(\""+value+"\")\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := (pkg{dir, []string{"FuzzGrade"}}).keep(t.Context(), t.TempDir(), cache); err != nil {
		t.Fatal(err)
	}
	found, _ := filepath.Glob(filepath.Join(dir, "testdata/fuzz/FuzzGrade/*"))
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	if got := strings.Join(found, " "); got != "1 3" {
		t.Errorf("kept are %s, want 1 and 3", got)
	}
}

func copyText(to, text string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, []byte(text), 0o644)
}
