// Package manual writes what people read about Posthaste and what their shells
// know of it, from what the program itself declares: the manual pages of
// docs/man, docs/parameters.md, docs/differences.md, and the completions of etc/completion.
//
// The pages of commands are tables here (commands.go), next to each other, so
// that their words agree; a test compares their options with those that the
// commands take. The pages of services are made of their package comments,
// those of files and kinds of tables of the texts in formats/ (format.go).
// main.cf(5) and parameters.md are made of package config's declarations, and of the
// longer texts in internal/config/docs.
//
// After a change:
//
//	go run ./internal/manual/gen
package manual

import (
	"fmt"
	"path/filepath"
)

// date is the date of the pages. It is set by hand when their words change,
// so that generating them twice gives the same bytes.
const date = "November 21, 2026"

// Files returns every generated file, by its path below root, the directory
// of the module.
func Files(root string) (map[string][]byte, error) {
	files := make(map[string][]byte)
	for _, c := range commands() {
		files[manPath(c.name, 1)] = c.page()
		for _, alias := range c.aliases {
			files[manPath(alias, 1)] = link(c.name, 1)
		}
	}
	for _, s := range servicePages() {
		page, err := s.page(root)
		if err != nil {
			return nil, err
		}
		files[manPath(s.name, 8)] = page
		for _, alias := range s.aliases {
			files[manPath(alias, 8)] = link(s.name, 8)
		}
	}
	formats, err := formatPages(root)
	if err != nil {
		return nil, err
	}
	for _, f := range formats {
		files[manPath(f.name, 5)] = f.page()
		for _, alias := range f.aliases {
			files[manPath(alias, 5)] = link(f.name, 5)
		}
	}
	for _, s := range standIns {
		files[manPath(s.name, 8)] = s.page()
	}
	for _, name := range []string{"oqmgr", "nqmgr"} { // as master.cf may call it
		files[manPath(name, 8)] = link("qmgr", 8)
	}
	files[manPath("master", 5)] = link("master.cf", 5)
	files[manPath("postconf", 5)] = link("main.cf", 5) // as Postfix calls it
	long, err := longTexts(root)
	if err != nil {
		return nil, err
	}
	files[manPath("main.cf", 5)] = mainPage(long)
	files[manPath("master.cf", 5)] = masterPage()
	files["internal/usage/usage.txt"] = usages()
	files["docs/parameters.md"] = parameterTable()
	if files["docs/differences.md"], err = differenceList(root); err != nil {
		return nil, err
	}
	files["etc/completion/posthaste.bash"] = bashCompletion()
	files["etc/completion/_posthaste"] = zshCompletion()
	return files, nil
}

func manPath(name string, section int) string {
	return filepath.Join("docs", "man", fmt.Sprintf("%s.%d", name, section))
}

// link is a page that is another page.
func link(name string, section int) []byte {
	return fmt.Appendf(nil, ".so man%d/%s.%d\n", section, name, section)
}
