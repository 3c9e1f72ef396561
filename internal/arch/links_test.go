package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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
