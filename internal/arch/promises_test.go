package arch

import (
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// promisesPage has a table in which each row is a promise, the pages that make it, and the tests that
// fail if it is broken.
const promisesPage = "docs/proof.md"

var (
	promiseTest = regexp.MustCompile("^`([a-z0-9_/]+)\\.((?:Test|Fuzz)[A-Za-z0-9_]*)(?:/([A-Za-z0-9_.-]+))?`$")
	promisePage = regexp.MustCompile(`^\[[^]]+\]\(([^)#]+)\)$`)
)

// A promise is a row of the table.
type promise struct{ text, pages, tests string }

// promises reads the rows of the chapter "Promises".
func promises(page string) (rows []promise) {
	_, rest, _ := strings.Cut(page, "\n## Promises\n")
	chapter, _, _ := strings.Cut(rest, "\n## ")
	for line := range strings.Lines(chapter) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 3 || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| promise |") {
			continue
		}
		rows = append(rows, promise{strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])})
	}
	return rows
}

// check says what is wrong with a row, and counts the pages that it names.
func (p promise) check(in *tests, pages map[string]int) (bad []string) {
	for cell := range strings.SplitSeq(p.pages, ", ") {
		m := promisePage.FindStringSubmatch(cell)
		if m == nil {
			bad = append(bad, "no page: "+cell)
			continue
		}
		pages[path.Join("docs", m[1])]++
	}
	for cell := range strings.SplitSeq(p.tests, ", ") {
		m := promiseTest.FindStringSubmatch(cell)
		if m == nil {
			bad = append(bad, "no test: "+cell)
		} else if !in.has(m[1], m[2], m[3]) {
			bad = append(bad, "the tree has no "+cell)
		}
	}
	return bad
}

// A tests answers whether packages have tests. It reads each package once, and is not for
// use by several goroutines.
type tests struct {
	root fs.FS
	text map[string]string // the test files of a directory
}

// has says whether a package, whose name may lack "internal/", has a test. A subtest is a file below
// testdata, or its name is in quotes in one of the package's tests.
func (s *tests) has(pkg, test, sub string) bool {
	declared, named := false, sub == ""
	for _, dir := range []string{pkg, "internal/" + pkg} {
		text := s.of(dir)
		declared = declared || strings.Contains(text, "\nfunc "+test+"(")
		named = named || strings.Contains(text, `"`+sub+`"`)
		for _, pattern := range []string{"/testdata/" + sub + ".*", "/testdata/*/" + sub + ".*"} {
			found, _ := fs.Glob(s.root, dir+pattern)
			named = named || len(found) > 0
		}
	}
	return declared && named
}

// of is all that the tests of a directory say.
func (s *tests) of(dir string) string {
	if text, ok := s.text[dir]; ok {
		return text
	}
	text := ""
	files, _ := fs.Glob(s.root, dir+"/*_test.go")
	for _, name := range files {
		b, err := fs.ReadFile(s.root, name)
		if err != nil {
			return "" // a file that has just gone
		}
		text += string(b)
	}
	s.text[dir] = text
	return text
}

// TestPromises: each promise names tests, and these are in the tree; and each page makes a promise, but
// for the one that has the table.
func TestPromises(t *testing.T) {
	t.Parallel()
	root := os.DirFS(moduleRoot(t))
	text, err := fs.ReadFile(root, promisesPage)
	if err != nil {
		t.Fatal(err)
	}
	rows := promises(string(text))
	if len(rows) < 100 {
		t.Errorf("%s has %d promises, want 100 at least", promisesPage, len(rows))
	}
	pages, in := map[string]int{}, &tests{root, map[string]string{}}
	said := map[string]bool{}
	for _, p := range rows {
		for _, bad := range p.check(in, pages) {
			t.Errorf("%s: %s: %s", promisesPage, p.text, bad)
		}
		if said[p.text] {
			t.Errorf("%s: %s: there are two rows", promisesPage, p.text)
		}
		said[p.text] = true
	}
	want, err := fs.Glob(root, "docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, "README.md")
	for _, page := range want {
		if pages[page] == 0 && page != promisesPage {
			t.Errorf("%s: no promise of %s has a row", promisesPage, page)
		}
	}
	for _, page := range slices.Sorted(maps.Keys(pages)) {
		if !slices.Contains(want, page) {
			t.Errorf("%s: there is no %s", promisesPage, page)
		}
	}
}

// What TestPromises is there to find is found.
func TestPromisesBroken(t *testing.T) {
	t.Parallel()
	in := &tests{os.DirFS(moduleRoot(t)), map[string]string{}}
	for row, want := range map[string]string{
		"| a | [x](../README.md) | `arch.TestPromises`, `qmgr/sched.TestStories/dead` |": "",
		"| a | [x](queue.md) | `arch.TestNowhere` |":                                     "the tree has no `arch.TestNowhere`",
		"| a | [x](queue.md) | `qmgr/sched.TestStories/nothing` |":                       "the tree has no `qmgr/sched.TestStories/nothing`",
		"| a | [x](queue.md) | `nowhere.TestStories` |":                                  "the tree has no `nowhere.TestStories`",
		"| a | [x](queue.md) |  |":                                                       "no test: ",
		"| a | queue | `arch.TestPromises` |":                                            "no page: queue",
	} {
		rows := promises("\n## Promises\n\n| promise | made in | tests |\n|---|---|---|\n" + row + "\n\n## Figures\n| b | c | d |\n")
		if len(rows) != 1 {
			t.Errorf("%s: %d rows", row, len(rows))
			continue
		}
		if got := strings.Join(rows[0].check(in, map[string]int{}), "; "); got != want {
			t.Errorf("%s: %q, want %q", row, got, want)
		}
	}
}
