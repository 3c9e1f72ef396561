package config

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite supported.go from the code that reads parameters")

// accessors are the methods of Config that read one parameter, and the types
// they read. Those of Prefixed have the same names, and read what ends in their argument.
var accessors = map[string][]Type{
	"String":   {String, Int, Bytes, Bool, Duration, List, Raw, Enum},
	"Int":      {Int, Bytes},
	"Bytes":    {Bytes, Int},
	"Bool":     {Bool},
	"Duration": {Duration},
	"List":     {List},
}

// A scan collects what the tree reads.
type scan struct {
	read     map[string]bool
	suffixes []string        // of names that the present package puts together
	prefixed map[string]bool // what the present package calls its values of type Prefixed
	strict   bool            // the present package knows this one
	problems []string
}

// configName is what variables that hold a Config are called. A call on
// something else with the name of an accessor is no read, unless its argument is a parameter.
var configName = regexp.MustCompile(`(?i)(^|\.)(c|cfg|conf|config)$`)

// TestSupported finds every read of a parameter in the tree. A read of an
// undeclared parameter, or with the accessor of another type, fails: it would panic.
func TestSupported(t *testing.T) {
	s := scanTree(t)
	for _, p := range s.problems {
		t.Error(p)
	}
	text := supportedSource(t, s.read)
	old, err := os.ReadFile("supported.go")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(old, text) {
		return
	}
	if *update {
		if err := os.WriteFile("supported.go", text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Error("supported.go does not list what the code reads: run go generate ./internal/config")
}

// TestEveryParameter: what is declared is read by some code, or it is said why it
// has no effect.
func TestEveryParameter(t *testing.T) {
	t.Parallel()
	for _, p := range All() {
		if !Supported(p.Name) && NoEffect(p.Name) == "" {
			t.Errorf("%s is read by nothing", p.Name)
		}
	}
}

func scanTree(t *testing.T) *scan {
	t.Helper()
	// The package itself reads these for computed defaults and entries of master.cf.
	s := &scan{read: map[string]bool{
		"config_directory": true, "myhostname": true, "mydomain": true, "mynetworks": true, "mynetworks_style": true,
		"inet_interfaces": true, "inet_protocols": true, "compatibility_level": true, "default_process_limit": true,
		"smtpd_restriction_classes": true, "known_tcp_ports": true, "alternate_config_directories": true, "multi_instance_directories": true,
		// These are read by values that name them, $process_name.
		"mail_release_date": true, "process_id": true, "process_name": true, "service_name": true,
	}}
	root := filepath.Join("..", "..")
	packages := make(map[string][]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		if rel, err := filepath.Rel(root, dir); err != nil || rel == "internal/config" || rel == "internal/postconf" {
			continue
		}
		s.scanPackage(packages[dir])
	}
	s.addDefaults()
	return s
}

// scanPackage looks at one package, if it imports this one. A file that does
// not parse is being written: its reads are found next time.
func (s *scan) scanPackage(files []string) {
	set := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range files {
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			continue
		}
		parsed = append(parsed, f)
	}
	s.scanFiles(set, parsed)
}

func (s *scan) scanFiles(set *token.FileSet, parsed []*ast.File) {
	imports := false
	for _, f := range parsed {
		for _, i := range f.Imports {
			imports = imports || i.Path.Value == `"posthaste/internal/config"`
		}
	}
	// A package that does not import this one may have a Config behind an
	// interface of its own.
	s.strict, s.suffixes, s.prefixed = imports, nil, prefixedNames(parsed)
	variable := false
	for _, f := range parsed {
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && s.call(set, call) {
				variable = true
			}
			return true
		})
	}
	if variable && imports {
		for _, f := range parsed {
			s.literals(f)
		}
	}
}

// call notes a read, and reports whether it is one whose name is not a literal.
func (s *scan) call(set *token.FileSet, call *ast.CallExpr) (variable bool) {
	for _, suffix := range suffixesHanded(call, s.prefixed) {
		s.readFamily(suffix, accessors["String"])
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	types, ok := accessors[sel.Sel.Name]
	if !ok || len(call.Args) != 1 {
		return false
	}
	isPrefixed := isPrefixed(sel.X, s.prefixed)
	isConfig := configName.MatchString(exprText(sel.X))
	if sum, ok := call.Args[0].(*ast.BinaryExpr); ok {
		if lit, ok := sum.Y.(*ast.BasicLit); ok {
			if suffix, err := strconv.Unquote(lit.Value); err == nil {
				s.suffixes = append(s.suffixes, suffix)
			}
		}
	}
	arg, ok := call.Args[0].(*ast.BasicLit)
	if !ok || arg.Kind != token.STRING {
		return isConfig || isPrefixed
	}
	name, err := strconv.Unquote(arg.Value)
	if err != nil {
		return false
	}
	if isPrefixed {
		if !s.readFamily(name, types) {
			s.problem(set, call, fmt.Sprintf("no parameter ends in _%s, or one is of a type that this accessor does not read", name))
		}
		return false
	}
	p, declared := Lookup(name)
	switch {
	case declared && slices.Contains(types, p.Type):
		s.read[name] = true
	case declared:
		s.problem(set, call, fmt.Sprintf("%s is a %s parameter, it cannot be read with %s", name, p.Type, sel.Sel.Name))
	case isConfig && s.strict:
		s.problem(set, call, fmt.Sprintf("parameter %s is not declared", name))
	}
	return false
}

// readFamily notes a read for every transport: of a family's default and of its
// declared members, or of the parameters of smtp and lmtp that have this suffix.
// It reports whether there are any, all of one of the types.
func (s *scan) readFamily(suffix string, types []Type) bool {
	found := false
	for _, name := range append(transportNames(suffix), "default_"+suffix) {
		p, ok := Lookup(name)
		if _, listed := declared().index[name]; !ok || !listed {
			continue
		}
		found = true
		s.read[name] = true
		if !slices.Contains(types, p.Type) {
			return false
		}
	}
	if f, ok := declared().families[suffix]; ok {
		s.read[f.Fallback] = true
		found = true // for transports of the administrator's own
	}
	return found
}

// transportNames are the declared parameters of the standard transports with this suffix.
func transportNames(suffix string) []string {
	var names []string
	for _, transport := range append(standardTransports[:], "pipe") {
		if _, ok := declared().index[transport+"_"+suffix]; ok {
			names = append(names, transport+"_"+suffix)
		}
	}
	return names
}

func (s *scan) problem(set *token.FileSet, call *ast.CallExpr, text string) {
	s.problems = append(s.problems, fmt.Sprintf("%s: %s", set.Position(call.Pos()), text))
}

// literals notes the parameters that stand in strings of a package that reads
// parameters by variable, in a table of names, say, or as one part of a name. A
// single word could mean anything.
func (s *scan) literals(f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		name, err := strconv.Unquote(lit.Value)
		if err != nil || !strings.Contains(name, "_") {
			return true
		}
		if _, ok := declared().families[name]; ok {
			s.readFamily(name, accessors["String"])
		}
		for _, suffix := range append(s.suffixes, "") {
			if _, ok := declared().index[name+suffix]; ok {
				s.read[name+suffix] = true
			}
		}
		return true
	})
}

// addDefaults adds the parameters that the default of a read one refers to: old
// names, mostly.
func (s *scan) addDefaults() {
	for again := true; again; {
		again = false
		for name := range maps.Clone(s.read) {
			p, _ := Lookup(name)
			references(p.Default, func(other string) {
				if _, ok := Lookup(other); ok && !s.read[other] {
					s.read[other] = true
					again = true
				}
			})
		}
	}
}

func exprText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return exprText(e.X) + "." + e.Sel.Name
	}
	return ""
}

func supportedSource(t *testing.T, read map[string]bool) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("// Code generated by go test -run TestSupported -update; DO NOT EDIT.\n\npackage config\n\n" +
		"// supportedNames are the parameters that some code reads.\nvar supportedNames = []string{\n")
	for _, name := range slices.Sorted(maps.Keys(read)) {
		fmt.Fprintf(&b, "%q,\n", name)
	}
	b.WriteString("}\n")
	text, err := format.Source(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return text
}
