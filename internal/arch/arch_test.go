package arch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/txtar"
)

// parsed is this tree, which is parsed once for all tests: nothing changes it.
var parsed = sync.OnceValues(func() (*Tree, error) {
	root, err := findRoot()
	if err != nil {
		return nil, err
	}
	return ReadTree(os.DirFS(root))
})

// whole is the law and the tree that it is for.
func whole(t *testing.T) (Law, *Tree) {
	t.Helper()
	law, err := TheLaw()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return law, tree
}

func TestImportLaw(t *testing.T) {
	t.Parallel()
	law, tree := whole(t)
	for _, bad := range law.Check(tree) {
		t.Error(bad)
	}
	for _, name := range law.Unused(tree) {
		t.Errorf("the law speaks of %s, which there is not", name)
	}
}

// Each rule finds the small tree that breaks it, and what it says is the comment of
// the tree's file, a line for each finding.
func TestBrokenTrees(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d trees: %v", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			a, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			fsys, err := txtar.FS(a)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			text, err := fs.ReadFile(fsys, "law.txt")
			if err != nil {
				t.Fatal(err)
			}
			law, err := ParseLaw(string(text))
			if err != nil {
				got = append(got, err.Error())
			} else {
				tree, err := ReadTree(fsys)
				if err != nil {
					t.Fatal(err)
				}
				got = law.Check(tree)
				for _, name := range law.Unused(tree) {
					got = append(got, "unused: "+name)
				}
			}
			want := strings.TrimSpace(string(a.Comment))
			if have := strings.Join(got, "\n"); have != want {
				t.Errorf("got:\n%s\nwant:\n%s", have, want)
			}
		})
	}
}

// A bound is a row of the table in docs/internals.md: what is counted, and how much of
// it there may be.
var bound = regexp.MustCompile(`(?m)^\| (longest function|functions over 60 lines|longest file|exported names of ([a-z]+)|comments in ([a-z]+)) \| ([0-9.]+) \|$`)

// The bounds on the figures go one way: what has become better has a bound that says so.
func TestBounds(t *testing.T) {
	t.Parallel()
	law, tree := whole(t)
	page, err := os.ReadFile(filepath.Join(moduleRoot(t), "docs/internals.md"))
	if err != nil {
		t.Fatal(err)
	}
	g := Count(law, tree)
	rows := bound.FindAllStringSubmatch(string(page), -1)
	if want := 3 + 2*len(Services); len(rows) != want {
		t.Errorf("docs/internals.md has %d bounds, want %d", len(rows), want)
	}
	for _, row := range rows {
		limit, err := strconv.ParseFloat(row[4], 64)
		if err != nil {
			t.Fatal(err)
		}
		if row[3] != "" { // comments: at least
			// Two decimals, cut off: a line more or less is no news.
			if have := float64(int(g.Comments[row[3]].Of()*100)) / 100; have < limit {
				t.Errorf("%s: %.2f comment lines for each line of code, the bound in docs/internals.md is %.2f", row[3], have, limit)
			}
			continue
		}
		have := map[string]int{"longest function": g.Functions[0].Lines, "functions over 60 lines": g.Over(60), "longest file": g.Files[0].Lines}[row[1]]
		if row[2] != "" {
			have = g.Exported[row[2]]
		}
		if have > int(limit) {
			t.Errorf("%s: %d, the bound in docs/internals.md is %d (make figures says what is longest)", row[1], have, int(limit))
		}
		if have < int(limit) {
			t.Errorf("%s: %d by now; lower its bound in docs/internals.md, which is %d", row[1], have, int(limit))
		}
	}
}

// TestAlone: what "make test" leaves out of the race detector's sight starts no goroutine and has
// nothing to do with those that others start.
func TestAlone(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile(filepath.Join(moduleRoot(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^ALONE = (.*)$`).FindStringSubmatch(string(makefile))
	if m == nil {
		t.Fatal("the Makefile has no ALONE")
	}
	alone := regexp.MustCompile(strings.ReplaceAll(m[1], "$$", "$"))
	_, tree := whole(t)
	seen := 0
	for _, p := range tree.Packages {
		if !alone.MatchString(tree.Module + "/" + p.Dir) {
			continue
		}
		seen++
		for _, f := range p.Files {
			for _, bad := range f.concurrency(p.Dir + "/" + f.name) {
				t.Errorf("%s: its tests need the race detector; take it out of ALONE in the Makefile", bad)
			}
		}
	}
	if seen < 3 {
		t.Errorf("%d packages are tested without the race detector, want 3 at least", seen)
	}
}

// TestRaced: the end-to-end tests that the Makefile names are there. A name that is not would be left
// out without a word.
func TestRaced(t *testing.T) {
	t.Parallel()
	root := moduleRoot(t)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^RACED = (.+)$`).FindStringSubmatch(string(makefile))
	if m == nil {
		t.Fatal("the Makefile has no RACED")
	}
	tests := ""
	files, _ := filepath.Glob(filepath.Join(root, "internal/e2e/*_test.go"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		tests += string(text)
	}
	for name := range strings.SplitSeq(m[1], "|") {
		if !strings.Contains(tests, "\nfunc "+name+"(t *testing.T) {") {
			t.Errorf("internal/e2e has no %s", name)
		}
	}
}

// writers may open the spool for writing: cleanup; spools, for postsuper and others, which do so
// when the mail system is down and the spool's lock is free; what fills
// spools for the tests of the tools; and what moves a queue to another engine, with the mail system down.
var writers = []string{"cleanup", "spools", "spooltool/faketest", "spoolmove"}

// One package, in one process, writes the spool's log.
func TestOneWriter(t *testing.T) {
	t.Parallel()
	_, tree := whole(t)
	seen := 0
	for _, p := range tree.Packages {
		for _, f := range p.Files {
			if slices.Contains(f.imports, tree.Module+"/internal/spool") && strings.Contains(string(f.text), "spool.Open(") {
				if seen++; !slices.Contains(writers, p.Name) {
					t.Errorf("%s/%s opens the spool for writing: only cleanup may (and the tools, while nothing runs)", p.Dir, f.name)
				}
			}
		}
	}
	if seen < len(writers) {
		t.Errorf("%d openings of the spool were found, want %d", seen, len(writers))
	}
}

// engineUsers know of the log on the local disk. All others speak to the doors, cleanup's engine and
// queueread's Reader, and would not notice another engine. Of those here the tools read a queue
// whose mail system may be down, spools joins several logs, and master, advice and postmulti look for its directories.
var engineUsers = []string{"cleanup", "queueread", "queueclient", "spooltool", "spooltool/faketest", "spooltool/plain",
	"master", "advice", "postmulti", "queuelog", "spools", "spoolmove"}

func TestEngineBehindDoors(t *testing.T) {
	t.Parallel()
	_, tree := whole(t)
	seen := map[string]bool{}
	for _, p := range tree.Packages {
		for _, f := range p.Files {
			if !slices.Contains(f.imports, tree.Module+"/internal/spool") {
				continue
			}
			seen[p.Name] = true
			if !slices.Contains(engineUsers, p.Name) {
				t.Errorf("%s/%s imports the spool: it may speak to package queueread, or to cleanup", p.Dir, f.name)
			}
			if p.Name == "cleanup" && !slices.Contains([]string{"logengine.go", "logsengine.go", "scrub.go", "service.go", "store.go"}, f.name) {
				t.Errorf("cleanup/%s imports the spool: it may speak to the engine", f.name)
			}
		}
	}
	for _, name := range engineUsers {
		if !seen[name] {
			t.Errorf("%s does not import the spool any more: take it from the list", name)
		}
	}
}

// libraries are what the clients of databases are made of.
var libraries = []string{"github.com/go-ldap/", "github.com/go-sql-driver/", "github.com/jackc/", "go.mongodb.org/", "modernc.org/"}

// The libraries of databases are in two programs: posthaste-tables for lookups, and posthaste-pg for the queue. All
// others are spared their memory and their code. The law has the same for our own packages.
func TestClientsInTwoPrograms(t *testing.T) {
	t.Parallel()
	law, tree := whole(t)
	seen := 0
	for _, p := range tree.Packages {
		if l := law.of(p.Name); p.Name == "cmd/posthaste-tables" || p.Name == "cmd/posthaste-pg" || p.Name == "testservers" || p.Name == "nodesim" || l != nil && (l.name == "database" || l.name == "postgresql") {
			seen++
			continue
		}
		for _, f := range p.Files {
			for _, imp := range f.imports {
				if slices.ContainsFunc(libraries, func(l string) bool { return strings.HasPrefix(imp, l) }) || databaseOf(law, tree, imp) {
					t.Errorf("%s/%s imports %s: only cmd/posthaste-tables and cmd/posthaste-pg may", p.Dir, f.name, imp)
				}
			}
		}
	}
	if seen != 12 {
		t.Errorf("%d packages may, want 12", seen)
	}
}

func databaseOf(law Law, tree *Tree, imp string) bool {
	l := law.of(strings.TrimPrefix(imp, tree.Module+"/internal/"))
	return l != nil && l.name == "database"
}

// The top level is as designed.
func TestTopLevel(t *testing.T) {
	t.Parallel()
	top := []string{"smtpd", "cleanup", "pickup", "qmgr", "smtp", "local", "trivialrewrite", "master", "etc", "cmd", "internal"}
	_, tree := whole(t)
	for _, p := range tree.Packages {
		if first, _, _ := strings.Cut(p.Dir, "/"); !slices.Contains(top, first) {
			t.Errorf("%s: no package of this name belongs at the top of the tree", p.Dir)
		}
	}
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// findRoot looks for the directory of go.mod, from the test's own upwards.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above the test's directory")
		}
		dir = filepath.Dir(dir)
	}
}

// The words that processes speak, and who only asks and answers in them, stand on no engine: whoever
// looks an address up is spared the spool, the disk and the client of mail filters.
func TestWordsWithoutEngine(t *testing.T) {
	t.Parallel()
	_, tree := whole(t)
	engine := []string{"vfs", "spool", "milter"}
	for _, name := range []string{"queue", "mailfilter", "proto", "submit", "rewriteclient", "table", "access"} {
		reach := tree.reach(name)
		if reach == nil {
			t.Errorf("there is no package %s", name)
		}
		for _, e := range engine {
			if reach[e] {
				t.Errorf("%s stands on %s", name, e)
			}
		}
	}
	for _, e := range engine { // they would be found
		if !tree.reach("cleanup")[e] {
			t.Errorf("cleanup does not stand on %s any more", e)
		}
	}
}

// reach is what of the tree a package imports, directly or not, by the names that the law has;
// nil if there is no such package.
func (t *Tree) reach(name string) map[string]bool {
	byName := map[string]*Package{}
	for _, p := range t.Packages {
		byName[p.Name] = p
	}
	if byName[name] == nil {
		return nil
	}
	seen := map[string]bool{}
	for next := []string{name}; len(next) > 0; {
		p := byName[next[len(next)-1]]
		next = next[:len(next)-1]
		if p == nil {
			continue
		}
		for _, f := range p.Files {
			for _, imp := range f.imports {
				to, ours := strings.CutPrefix(imp, t.Module+"/")
				if to = strings.TrimPrefix(to, "internal/"); ours && !seen[to] {
					seen[to] = true
					next = append(next, to)
				}
			}
		}
	}
	return seen
}
