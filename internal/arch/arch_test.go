// Package arch holds the law of imports: which package may know of which. The
// law is text, and this test reads it. It is changed deliberately, when the
// design changes, and never to make a build pass.
package arch

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// law has one line a group of packages: their names, a colon, and what of
// ours they may import. "@name" stands for another group's packages. "std"
// on the right, with what follows it, limits the standard library too.
//
//   - Vocabulary is what everybody may speak and what knows nobody.
//   - The scheduler's core is pure: no I/O, no clock, no goroutine, and so
//     nothing that has them.
//   - Services never know each other, nor master; they speak proto over ipc.
//   - Only the programs, the whole-system tests and what plays dialogues
//     with real services know everything.
const law = `
vocabulary: pack dsn mail smtpwire rfc5322 feedback selection : @vocabulary
core:       qmgr/sched qmgr/sched/simulate : @vocabulary @core
services:   smtpd cleanup pickup qmgr smtp local local/* trivialrewrite : @vocabulary @core @mechanisms @own
master:     master : @vocabulary @mechanisms
mechanisms: * : @vocabulary @mechanisms
`

// impure are packages of the standard library that the scheduler's core may not
// have: it is told the time and it waits for nothing.
var impure = []string{"os", "net", "sync", "context", "math/rand", "io/fs", "log", "syscall", "os/exec", "sync/atomic"}

type pkg struct {
	dir     string
	imports []string // of ours, as directories
	std     []string
}

func TestImportLaw(t *testing.T) {
	t.Parallel()
	for _, p := range load(t) {
		for _, imp := range p.imports {
			if !allowed(p.dir, imp) {
				t.Errorf("%s imports %s: the law of imports does not allow it", p.dir, imp)
			}
		}
		if group(p.dir) == "core" && p.dir == "qmgr/sched" {
			for _, s := range p.std {
				if slices.Contains(impure, s) {
					t.Errorf("%s imports %s: the scheduler's core is pure", p.dir, s)
				}
			}
		}
	}
}

// writers may open the spool for writing: cleanup; postsuper, which does
// when the mail system is down and the spool's lock is free; and what fills
// spools for the tests of the tools.
var writers = []string{"cleanup", "internal/postsuper", "internal/spooltool/faketest"}

// One package, in one process, writes the spool's log.
func TestOneWriter(t *testing.T) {
	t.Parallel()
	root := moduleRoot(t)
	for _, p := range load(t) {
		if !slices.Contains(p.imports, "internal/spool") {
			continue
		}
		for _, f := range goFiles(t, filepath.Join(root, p.dir)) {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(b), "spool.Open(") && !slices.Contains(writers, p.dir) {
				t.Errorf("%s opens the spool for writing: only cleanup may (and the tools, while nothing runs)", f)
			}
		}
	}
}

// clients are the packages that bring the clients of databases with them. One
// program has them, posthaste-tables; all others are spared their memory and their code.
var clients = []string{"internal/table/ldaptable", "internal/table/sqltable", "internal/table/memcache", "internal/table/mongotable"}

// The clients of databases, and the libraries that they are made of, are in one
// program.
func TestClientsInOneProgram(t *testing.T) {
	t.Parallel()
	libraries := []string{"github.com/go-ldap/", "github.com/go-sql-driver/", "github.com/jackc/", "go.mongodb.org/", "modernc.org/"}
	seen := 0
	for _, p := range load(t) {
		if p.dir == "cmd/posthaste-tables" || slices.Contains(clients, p.dir) {
			seen++
			continue
		}
		for _, imp := range p.imports {
			if slices.Contains(clients, imp) {
				t.Errorf("%s imports %s: only cmd/posthaste-tables may", p.dir, imp)
			}
		}
		for _, imp := range p.std {
			if i := slices.IndexFunc(libraries, func(l string) bool { return strings.HasPrefix(imp, l) }); i >= 0 && p.dir != "internal/testservers" {
				t.Errorf("%s imports %s: only the packages of cmd/posthaste-tables may", p.dir, imp)
			}
		}
	}
	if seen != len(clients)+1 {
		t.Errorf("%d packages of clients were found, want %d", seen, len(clients)+1)
	}
}

func allowed(from, to string) bool {
	f, g := group(from), group(to)
	switch f {
	case "programs":
		return true
	case "vocabulary":
		return g == "vocabulary"
	case "core":
		return g == "vocabulary" || g == "core"
	case "services":
		return g == "vocabulary" || g == "mechanisms" || g == "core" && strings.HasPrefix(from, "qmgr") || own(from, to)
	case "master", "mechanisms":
		return g == "vocabulary" || g == "mechanisms"
	}
	return false
}

// own says whether to lies below from's service directory, or beside it.
func own(from, to string) bool {
	top := strings.SplitN(from, "/", 2)[0]
	return to == top || strings.HasPrefix(to, top+"/")
}

// group is the first group in the law that names the package.
func group(dir string) string {
	if strings.HasPrefix(dir, "cmd/") || dir == "internal/simtest" || dir == "internal/e2e" || dir == "internal/script" {
		return "programs"
	}
	name := strings.TrimPrefix(dir, "internal/")
	for line := range strings.Lines(law) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		for _, pattern := range strings.Fields(fields[1]) {
			if pattern == name || pattern == "*" && strings.HasPrefix(dir, "internal/") ||
				strings.HasSuffix(pattern, "/*") && strings.HasPrefix(name, strings.TrimSuffix(pattern, "*")) {
				return fields[0]
			}
		}
	}
	return "nowhere"
}

// Every package has a place in the law, and the top level is as designed.
func TestEveryPackageHasAPlace(t *testing.T) {
	t.Parallel()
	top := []string{"smtpd", "cleanup", "pickup", "qmgr", "smtp", "local", "trivialrewrite", "master", "etc", "cmd", "internal"}
	for _, p := range load(t) {
		first := strings.SplitN(p.dir, "/", 2)[0]
		if !slices.Contains(top, first) {
			t.Errorf("%s: no package of this name belongs at the top of the tree", p.dir)
		}
		if group(p.dir) == "nowhere" && first != "etc" {
			t.Errorf("%s has no place in the law of imports", p.dir)
		}
	}
}

func load(t *testing.T) []pkg {
	t.Helper()
	root := moduleRoot(t)
	byDir := map[string]*pkg{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); path != root && (strings.HasPrefix(n, ".") || n == "testdata" || n == "run" || n == "bin" || n == "dist") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		p := byDir[dir]
		if p == nil {
			p = &pkg{dir: filepath.ToSlash(dir)}
			byDir[dir] = p
		}
		return p.read(path)
	})
	if err != nil {
		t.Fatal(err)
	}
	var out []pkg
	for _, p := range byDir {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b pkg) int { return strings.Compare(a.dir, b.dir) })
	return out
}

func (p *pkg) read(path string) error {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, i := range f.Imports {
		name, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return err
		}
		if dir, ours := strings.CutPrefix(name, "posthaste/"); ours {
			p.imports = append(p.imports, dir)
		} else {
			p.std = append(p.std, name)
		}
	}
	return nil
}

func goFiles(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test's directory")
		}
		dir = filepath.Dir(dir)
	}
}
