// Package licences makes the list of everything that is linked into the programs, with
// its licence: docs/licences.md for people, docs/licences/third-party.txt with the texts
// that a copy of the programs must be accompanied by, and docs/licences/sbom.cdx.json, a
// bill of materials in CycloneDX 1.6.
//
// "make licences" writes the three files. A test compares them with what "go list" says
// of the tree, so a new dependency or a new version fails until they are written again,
// and a licence that this package does not know fails until somebody has read it.
//
// The list is that of Linux on amd64, with the C library where the Makefile links it.
// It does not depend on the machine that makes it. It says nothing of programs that only
// build or test the tree.
//
// # Bugs
//
// The C library is linked at run time and is not in the list. The version of Go's library
// is that of the compiler, which "posthaste version" prints.
package licences

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A module is one module of which a program has at least one package in it.
type module struct {
	path, version string
	dir           string          // where its source is
	programs      map[string]bool // base names of the programs
	packages      map[string]bool // directories of the packages that are linked
	ids           []string        // SPDX identifiers, sorted; all of them apply
	texts         []text          // licence texts and notices, root of the module first
}

// A text is one file of a module that must accompany a copy.
type text struct{ name, body string }

// goPackage is what "go list -json" says of a package.
type goPackage struct {
	ImportPath, Dir, Name string
	Deps                  []string
	Standard              bool
	Module                *struct {
		Path, Version, Dir string
		Main               bool
		Replace            *struct{ Path, Version, Dir string }
	}
}

// Programs with the C library and without, as the Makefile builds them.
var (
	withC    = []string{"./cmd/posthaste", "./cmd/posthaste-tables", "./cmd/posthaste-metrics", "./cmd/posthaste-console", "./cmd/posthaste-inject", "./cmd/posthaste-pg", "./cmd/posthaste-events"}
	withoutC = []string{"./cmd/sendmail", "./cmd/postdrop", "./cmd/postqueue"}
)

// Files returns the generated files by their names below root, which is the directory of
// go.mod. It starts "go list", which downloads modules that are not in the cache.
func Files(root string) (map[string][]byte, error) {
	found := make(map[string]*module)
	if err := errors.Join(linked(root, "1", withC, found), linked(root, "0", withoutC, found)); err != nil {
		return nil, err
	}
	modules := slices.SortedFunc(maps.Values(found), func(a, b *module) int { return cmp.Compare(a.path, b.path) })
	for _, m := range modules {
		if err := m.read(); err != nil {
			return nil, err
		}
	}
	bill, err := sbom(modules)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		"docs/licences.md":              table(modules),
		"docs/licences/third-party.txt": texts(modules),
		"docs/licences/sbom.cdx.json":   bill,
	}, nil
}

// linked adds the modules that the programs have in them to found.
func linked(root, cgo string, programs []string, found map[string]*module) error {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Dir,Name,Deps,Standard,Module"}, programs...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED="+cgo, "GOFLAGS=", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(stderr.Bytes()))
	}
	all := make(map[string]goPackage)
	var mains []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return fmt.Errorf("%s: %w", cmd, err)
		}
		all[p.ImportPath] = p
		if p.Name == "main" && p.Module != nil && p.Module.Main {
			mains = append(mains, p)
		}
	}
	for _, program := range mains {
		for _, path := range program.Deps {
			if err := add(found, all[path], filepath.Base(program.ImportPath)); err != nil {
				return err
			}
		}
	}
	return nil
}

// add notes that the program has the package in it.
func add(found map[string]*module, p goPackage, program string) error {
	if p.Standard || p.Module == nil || p.Module.Main {
		return nil
	}
	if p.Module.Replace != nil {
		return fmt.Errorf("%s is replaced in go.mod: its licence is that of another module", p.Module.Path)
	}
	m := found[p.Module.Path]
	if m == nil {
		m = &module{path: p.Module.Path, version: p.Module.Version, dir: p.Module.Dir, programs: make(map[string]bool), packages: make(map[string]bool)}
		found[m.path] = m
	}
	m.programs[program] = true
	m.packages[p.Dir] = true
	return nil
}

var (
	// A file whose name begins so is part of the conditions of use.
	legal = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents|third-party-notices|authors)`)
	// Of these the name alone says that they state a licence.
	licence = regexp.MustCompile(`(?i)^(licen[cs]e|copying)`)
	// These state licences of others, or of nothing that is linked: modernc.org/memory has
	// a picture.
	others = regexp.MustCompile(`(?i)3RD-PARTY|THIRD-PARTY|-LOGO$`)
)

// read finds the licences and their texts: in the module's directory, in those of the
// packages that are linked, and in all between, since a copied package keeps its own.
func (m *module) read() error {
	dirs := map[string]bool{m.dir: true}
	for dir := range m.packages {
		for ; dir != m.dir && strings.HasPrefix(dir, m.dir); dir = filepath.Dir(dir) {
			dirs[dir] = true
		}
	}
	ids := make(map[string]bool)
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !e.Type().IsRegular() || !legal.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "-LOGO") {
				continue
			}
			body, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(m.dir, filepath.Join(dir, e.Name()))
			if err != nil {
				return err
			}
			m.texts = append(m.texts, text{rel, clean(string(body))})
			if !licence.MatchString(e.Name()) || others.MatchString(e.Name()) {
				continue
			}
			of := identify(string(body))
			if len(of) == 0 {
				return fmt.Errorf("%s: the licence in %s is none that internal/licences knows: read it, then add it there", m.path, rel)
			}
			for _, id := range of {
				ids[id] = true
			}
		}
	}
	if len(ids) == 0 {
		return fmt.Errorf("%s has no licence", m.path)
	}
	m.ids = slices.Sorted(maps.Keys(ids))
	return nil
}

// clean has a file's lines end as those of the tree do, so that git leaves it alone.
func clean(s string) string {
	lines := strings.Split(strings.ReplaceAll(strings.TrimPrefix(s, "\ufeff"), "\r\n", "\n"), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(strings.ReplaceAll(l, "\f", ""), " \t")
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n") + "\n"
}
