package config

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// onlyLook are packages that look at parameters for a person, and give none an effect.
var onlyLook = []string{"internal/advice", "internal/config", "internal/manual", "internal/migrate", "internal/postconf", "internal/differential"}

// A readScan finds what the packages of services and commands do with parameters. It is
// stricter than scan: a read counts only if something can come of it.
type readScan struct {
	read map[string]string // parameter: where
	dead map[string]string // parameter: the field that it is put in and that nothing reads
}

// TestEffect: each parameter that supported.go lists is read by a package that acts upon it, and
// what is read goes into no field that nothing reads. A parameter has an effect or a reason why it has none, not both.
func TestEffect(t *testing.T) {
	t.Parallel()
	s := readScan{read: make(map[string]string), dead: make(map[string]string)}
	s.tree(t)
	for _, name := range slices.Sorted(maps.Keys(supported())) {
		if s.read[name] == "" && !s.byDefault(name) && !slices.Contains(ownReads, name) {
			t.Errorf("%s is read by nothing that acts upon it", name)
		}
	}
	for name, field := range s.dead {
		t.Errorf("%s is put in %s, which nothing reads", name, field)
	}
	for name := range noEffect {
		if Supported(name) {
			t.Errorf("%s has an effect, and a reason why it has none", name)
		}
		if _, ok := Lookup(name); !ok {
			t.Errorf("%s is not declared, and has a reason why it has no effect", name)
		}
	}
}

// ownReads are read by this package itself, for computed defaults and the form of files.
var ownReads = []string{"alternate_config_directories", "known_tcp_ports", "mail_release_date", "mynetworks_style"}

// byDefault says whether a parameter is the default of another one that is read.
func (s *readScan) byDefault(name string) bool {
	for _, p := range All() {
		uses := false
		references(p.Default, func(other string) { uses = uses || other == name })
		if uses && p.Name != name && (s.read[p.Name] != "" || s.byDefault(p.Name)) {
			return true
		}
	}
	return false
}

func (s *readScan) tree(t *testing.T) {
	t.Helper()
	root := filepath.Join("..", "..")
	packages := make(map[string][]*ast.File)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || slices.Contains(onlyLook, rel)) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		if f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution); err == nil {
			packages[filepath.Dir(rel)] = append(packages[filepath.Dir(rel)], f)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	used := make(map[string]bool) // fields that something reads, in any package
	for _, files := range packages {
		for _, f := range files {
			usedFields(f, used)
		}
	}
	for dir, files := range packages {
		prefixed := prefixedNames(files)
		for _, f := range files {
			s.literals(dir, f, prefixed)
			s.fields(f, used)
		}
	}
}

// literals notes names of parameters, and of what ends such names. Prefixed are the names of the
// package's values of that type.
func (s *readScan) literals(dir string, f *ast.File, prefixed map[string]bool) {
	suffixes := make(map[*ast.BasicLit]bool) // what ends names, of one parameter for each transport
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) == 1 {
			// What is handed on with a Prefixed has an underscore in it, and is found below.
			sel, isMethod := call.Fun.(*ast.SelectorExpr)
			if lit, ok := call.Args[0].(*ast.BasicLit); ok && isMethod && accessors[sel.Sel.Name] != nil && isPrefixed(sel.X, prefixed) {
				suffixes[lit] = true
			}
		}
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(lit.Value)
		if err != nil {
			return true
		}
		for name := range supported() {
			if name == text || (suffixes[lit] || strings.Contains(text, "_")) && strings.HasSuffix(name, "_"+strings.TrimPrefix(text, "_")) {
				s.read[name] = dir
			}
		}
		return true
	})
}

// usedFields notes the names of fields that an expression reads.
func usedFields(f *ast.File, used map[string]bool) {
	written := make(map[*ast.SelectorExpr]bool)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, l := range n.Lhs {
				if sel, ok := l.(*ast.SelectorExpr); ok {
					written[sel] = true
				}
			}
		case *ast.ValueSpec: // of constants: what has one for a key is an array
			for _, name := range n.Names {
				used[name.Name] = true
			}
		case *ast.SelectorExpr:
			if !written[n] {
				used[n.Sel.Name] = true
			}
		}
		return true
	})
}

// fields notes what is put in fields that nothing reads.
func (s *readScan) fields(f *ast.File, used map[string]bool) {
	put := func(field string, value ast.Expr) {
		if call, ok := value.(*ast.CallExpr); ok && len(call.Args) == 1 && !used[field] {
			sel, isMethod := call.Fun.(*ast.SelectorExpr)
			lit, isName := call.Args[0].(*ast.BasicLit)
			if isMethod && isName && accessors[sel.Sel.Name] != nil {
				if name, err := strconv.Unquote(lit.Value); err == nil {
					s.dead[name] = field
				}
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, l := range n.Lhs {
				if sel, ok := l.(*ast.SelectorExpr); ok && len(n.Rhs) == len(n.Lhs) {
					put(sel.Sel.Name, n.Rhs[i])
				}
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok {
				put(key.Name, n.Value)
			}
		}
		return true
	})
}
