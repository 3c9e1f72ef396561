package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// TestBuiltinNames: nothing in the product is called as a built-in function or type is, so
// that "make" and "any" mean the same everywhere. Methods and fields may be: they are never
// taken for a built-in.
func TestBuiltinNames(t *testing.T) {
	t.Parallel()
	_, tree := whole(t)
	for _, p := range tree.Packages {
		for _, f := range p.Files {
			for _, bad := range builtinNames(f.set, f.syntax) {
				t.Error(bad)
			}
		}
	}
	// Each place that declares a name is looked at.
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "x.go", `package x
		const len = 1
		type error int
		func new(make int) (cap int) { return }
		func (any T) close() { append := 1; for min, max := range x { var copy int } }`, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields("len error new make cap any append min max copy") {
		if !slices.ContainsFunc(builtinNames(set, f), func(s string) bool { return strings.Contains(s, ": "+name+" is ") }) {
			t.Errorf("%s is not found", name)
		}
	}
	if n := len(builtinNames(set, f)); n != 10 {
		t.Errorf("%d names are found, want 10", n)
	}
}

// builtinNames are the declarations in a file whose name is a built-in's, a line for each.
func builtinNames(set *token.FileSet, file *ast.File) (bad []string) {
	judge := func(names ...*ast.Ident) {
		for _, id := range names {
			if types.Universe.Lookup(id.Name) != nil {
				bad = append(bad, fmt.Sprintf("%s: %s is a built-in name", set.Position(id.Pos()), id.Name))
			}
		}
	}
	fields := func(list *ast.FieldList) {
		if list != nil {
			for _, f := range list.List {
				judge(f.Names...)
			}
		}
	}
	variables := func(define token.Token, list ...ast.Expr) {
		for _, x := range list {
			if id, ok := x.(*ast.Ident); ok && define == token.DEFINE {
				judge(id)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			variables(n.Tok, n.Lhs...)
		case *ast.RangeStmt:
			variables(n.Tok, n.Key, n.Value)
		case *ast.ValueSpec:
			judge(n.Names...)
		case *ast.TypeSpec:
			judge(n.Name)
		case *ast.FuncDecl:
			if fields(n.Recv); n.Recv == nil {
				judge(n.Name)
			}
		case *ast.FuncType:
			fields(n.Params)
			fields(n.Results)
		}
		return true
	})
	return bad
}
