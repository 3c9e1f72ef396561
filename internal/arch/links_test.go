package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
)

// What a document refers to is there: files, and sections of documents.
func TestLinks(t *testing.T) {
	t.Parallel()
	root := moduleRoot(t)
	pages := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "testdata" || d.Name() == "dist" || d.Name() == "run") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".md") {
			return nil
		}
		pages++
		for _, m := range link.FindAllStringSubmatch(prose(t, path), -1) {
			checkLink(t, path, m[1])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 10 {
		t.Errorf("only %d documents were found", pages)
	}
}

// prose is a page without its blocks.
func prose(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fenced.ReplaceAllString(string(text), "")
}

func checkLink(t *testing.T, page, to string) {
	t.Helper()
	if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
		return
	}
	name, section, _ := strings.Cut(to, "#")
	file := page
	if name != "" {
		file = filepath.Join(filepath.Dir(page), name)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("%s refers to %s, which is not there", page, to)
		return
	}
	if section == "" {
		return
	}
	for _, m := range heading.FindAllStringSubmatch(prose(t, file), -1) {
		if anchor(m[1]) == section {
			return
		}
	}
	t.Errorf("%s refers to %s: there is no such section", page, to)
}

// anchor is what a heading is referred to by.
func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', '0' <= r && r <= '9', 'a' <= r && r <= 'z', r > 127:
			return r
		}
		return -1
	}, strings.ToLower(title))
}

// pageWidth is how many characters a line of a document has at most.
const pageWidth = 100

// unwrapped are the lines of a page that are too long, by their numbers. Rows of tables, code,
// comments, and lines without a blank to break them at may be as long as they like.
func unwrapped(text string) (bad []int) {
	fence, comment := false, false
	for i, line := range strings.Split(text, "\n") {
		bare := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(bare, "```"):
			fence = !fence
		case fence:
		case comment, strings.HasPrefix(bare, "<!--"):
			comment = !strings.Contains(bare, "-->")
		case strings.HasPrefix(line, "    "), strings.HasPrefix(line, "\t"), strings.HasPrefix(bare, "|"):
		case utf8.RuneCountInString(line) > pageWidth && strings.Contains(bare, " "):
			bad = append(bad, i+1)
		}
	}
	return bad
}

// TestPageWidth: documents are wrapped, so that a change of one can be reviewed line by line.
func TestPageWidth(t *testing.T) {
	t.Parallel()
	root := moduleRoot(t)
	pages := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		list, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range list {
			pages++
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range unwrapped(string(text)) {
				t.Errorf("%s:%d: the line has more than %d characters", page, n, pageWidth)
			}
		}
	}
	if pages < 20 {
		t.Errorf("only %d documents were found", pages)
	}
	long := strings.Repeat("word ", 21)
	for text, want := range map[string]int{long: 1, "- " + long: 1, "| " + long: 0, "```\n" + long + "\n```\n": 0, "```\n```\n" + long: 1, "<!-- " + long + "\n" + long + "\n-->\n": 0, "    " + long: 0,
		strings.Repeat("x", 200): 0} {
		if got := len(unwrapped(text)); got != want {
			t.Errorf("%.20q: %d lines are found, want %d", text, got, want)
		}
	}
}

// README's tree has each package directly below internal.
func TestTree(t *testing.T) {
	t.Parallel()
	root := moduleRoot(t)
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if missing := notInTree(t, root, string(text)); len(missing) > 0 {
		t.Errorf("README.md has no row for %s", strings.Join(missing, ", "))
	}
	if missing := notInTree(t, root, strings.Replace(string(text), "`internal/arch`", "`internal/nothing`", 1)); len(missing) != 1 || missing[0] != "arch" {
		t.Errorf("without its row arch is not missed: %v", missing)
	}
}

// notInTree are the packages directly below internal that no cell of the tree's first column names.
func notInTree(t *testing.T, root, readme string) (missing []string) {
	t.Helper()
	_, tree, _ := strings.Cut(readme, "\n## The tree\n")
	tree, _, _ = strings.Cut(tree, "\n## ")
	named := map[string]bool{}
	for row := range strings.Lines(tree) {
		cells := strings.SplitN(row, "|", 3)
		if len(cells) < 3 {
			continue
		}
		for i, name := range strings.Split(cells[1], "`") {
			if i%2 == 1 {
				named[strings.TrimPrefix(name, "internal/")] = true
			}
		}
	}
	dirs, err := os.ReadDir(filepath.Join(root, "internal"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if d.IsDir() && !named[d.Name()] {
			missing = append(missing, d.Name())
		}
	}
	return missing
}
