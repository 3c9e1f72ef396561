package smtp

import (
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// packageDirs are the directories of the packages whose tests docs/smtp.md names.
var packageDirs = map[string]string{"smtp": ".", "trivialrewrite": "../trivialrewrite", "e2e": "../internal/e2e",
	"mtasts": "../internal/tlspolicy/mtasts"}

// Each row of a table of docs/smtp.md names what shows it, and what is named is
// there, and has the outcome that the row says. That the dialogues come out as
// they are written is for TestDialogues.
func TestManual(t *testing.T) {
	t.Parallel()
	manual, err := os.ReadFile("../docs/smtp.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := make(map[string]bool)
	for pkg, dir := range packageDirs {
		goTests(t, pkg, dir, tests)
	}
	rows, cells := 0, 0
	for _, table := range manualTables(string(manual)) {
		last := len(table[0]) - 1
		if table[0][last] != "shown by" || len(table) < 3 {
			t.Errorf("a table whose last column is %q, with %d rows", table[0][last], len(table)-2)
			continue
		}
		for _, row := range table[2:] {
			rows++
			if len(row) != len(table[0]) {
				t.Errorf("%q: %d columns, want %d", row, len(row), len(table[0]))
				continue
			}
			dialogues := namedBy(t, row, tests)
			if table[0][1] == "none" {
				cells += checkLevels(t, table[0], row, dialogues)
			} else if outcome := row[last-1]; table[0][last-1] == "outcome" && outcome != "" {
				checkOutcome(t, row[0], outcome, dialogues)
			}
		}
	}
	if rows < 100 || cells != 64 {
		t.Errorf("%d rows, %d of them levels against servers: the tables are not being read", rows, cells)
	}
}

// manualTables are the tables of a text in Markdown.
func manualTables(text string) (tables [][][]string) {
	var table [][]string
	for line := range strings.Lines(text + "\n") {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if table != nil {
				tables, table = append(tables, table), nil
			}
			continue
		}
		var row []string
		for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		table = append(table, row)
	}
	return tables
}

// goTests notes the tests of a package that do something.
func goTests(t *testing.T, pkg, dir string, tests map[string]bool) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatal(dir, err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && len(f.Body.List) > 1 {
				tests[pkg+"."+f.Name.Name] = true
			}
		}
	}
}

var quoted = regexp.MustCompile("`([^`]+)`")

// namedBy reads the dialogues that a row's last column names. Go tests only need to be there.
func namedBy(t *testing.T, row []string, tests map[string]bool) (dialogues []*txtar.Archive) {
	names := quoted.FindAllStringSubmatch(row[len(row)-1], -1)
	if len(names) == 0 {
		t.Errorf("%s: nothing shows it", row[0])
	}
	for _, m := range names {
		if strings.Contains(m[1], ".") {
			if !tests[m[1]] {
				t.Errorf("%s: there is no test %s that does anything", row[0], m[1])
			}
			continue
		}
		ar, err := txtar.ParseFile(filepath.Join("testdata", m[1]+".txt"))
		if err != nil {
			t.Errorf("%s: %v", row[0], err)
			continue
		}
		dialogues = append(dialogues, ar)
	}
	return dialogues
}

// part is a section of a dialogue.
func part(ar *txtar.Archive, name string) string {
	for _, f := range ar.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

var outcomeLine = regexp.MustCompile(`^log: Q\d+: to=<([^>]*)>.*, dsn=([0-9.]+), status=(\w+) `)

// outcomes are what a dialogue says has become of recipients, in the words of the manual.
func outcomes(ar *txtar.Archive) (list []string, byRcpt map[string]string) {
	byRcpt = make(map[string]string)
	rcpt := ""
	for line := range strings.Lines(part(ar, "want")) {
		if m := outcomeLine.FindStringSubmatch(line); m != nil {
			outcome := m[2] + " " + m[3]
			if m[3] == "sent" {
				outcome = "sent"
			}
			rcpt = m[1]
			list, byRcpt[rcpt] = append(list, outcome), outcome
		} else if strings.HasPrefix(line, "site failure: ") && len(list) > 0 {
			list[len(list)-1] += ", throttled"
			byRcpt[rcpt] += ", throttled"
		}
	}
	return list, byRcpt
}

// checkOutcome wants an outcome in one of the dialogues.
func checkOutcome(t *testing.T, what, outcome string, dialogues []*txtar.Archive) {
	var all []string
	for _, ar := range dialogues {
		list, _ := outcomes(ar)
		all = append(all, list...)
		for _, o := range list {
			if o == outcome {
				return
			}
		}
	}
	t.Errorf("%s: %q is shown by none; there are %q", what, outcome, all)
}

// checkLevels holds a row of the table of levels against the dialogue in which
// recipient to@LEVEL.test has a message to itself.
func checkLevels(t *testing.T, head, row []string, dialogues []*txtar.Archive) (cells int) {
	if len(dialogues) != 1 {
		t.Errorf("%s: %d dialogues, want one", row[0], len(dialogues))
		return 0
	}
	ar := dialogues[0]
	_, byRcpt := outcomes(ar)
	for i, level := range head[1 : len(head)-1] {
		rcpt := "to@" + level + ".test"
		port := ""
		for _, f := range ar.Files {
			if m := regexp.MustCompile(`nexthop: dest.test:(\d+)`).FindSubmatch(f.Data); m != nil && strings.Contains(string(f.Data), rcpt) {
				port = string(m[1])
			}
		}
		if !strings.Contains(part(ar, "config"), fmt.Sprintf("{dest.test:%s = %s}", port, level)) {
			t.Errorf("%s: the dialogue has nothing for level %s", row[0], level)
			continue
		}
		got := byRcpt[rcpt]
		if code, ok := strings.CutSuffix(got, " deferred, throttled"); ok {
			got = code
		} else if code, ok := strings.CutSuffix(got, " deferred"); ok {
			got = "(" + code + ")"
		} else if got == "sent" {
			got = "clear"
			if strings.Contains(part(ar, "server 192.0.2.1:"+port), "\ntls ") {
				got = "TLS"
			}
		}
		if got != row[1+i] {
			t.Errorf("%s, level %s: %q, the dialogue has %q", row[0], level, row[1+i], got)
		}
		cells++
	}
	return cells
}
