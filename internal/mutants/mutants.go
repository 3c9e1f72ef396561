// Package mutants plants faults in the code, one at a time, and asks whether a test notices. What none
// notices is a hole in the tests.
//
// Faults come from two sources. Rules make them of the source text: see [Find]. seeds.txt
// has those that reviews have found, or that somebody has thought of, each as a change of a text.
//
// A fault is planted with the go command's -overlay: no file of the tree is changed. The tests
// of the package are run with it, and those of other packages that are there to prove that one (table.go). A fault that does not compile
// does not count.
//
// # The ratchet
//
// accepted.txt names the faults that no test notices and that are let be, each with its reason: mostly that
// the program does the same with them. Its first line says how many there may be. Tests of this package hold that each
// entry is still a fault that can be planted, and that the number is exact: it is lowered with each entry that
// goes, and is not raised.
//
// # Running
//
// "make mutants" runs the seeds and a sample of what the rules make. PKG, N, SEED and TIME say of which package, how
// many, which ones, and for how long; N=0 is all. It prints each fault that no test notices, as a
// difference and as a line for accepted.txt, and fails if there is one.
package mutants

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Mutant is one fault.
type Mutant struct {
	Name string // "rule in function: text", or a seed's title
	File string // below the root of the module, with slashes
	Line int
	Nth  int // of those of the same file and name: 1, 2, ...

	begin, end int    // what is replaced, in octets
	text       string // by what
	Tests      []string
}

// Key names the mutant in accepted.txt. It does not change when lines move.
func (m *Mutant) Key() string {
	key := m.File + " " + m.Name
	if m.Nth > 1 {
		key += " #" + strconv.Itoa(m.Nth)
	}
	return key
}

// Apply returns the file's text with the fault in it.
func (m *Mutant) Apply(src []byte) []byte {
	return slices.Concat(src[:m.begin], []byte(m.text), src[m.end:])
}

// Diff is the lines that change, before and after.
func (m *Mutant) Diff(src []byte) string {
	from := bytes.LastIndexByte(src[:m.begin], '\n') + 1
	to := len(src)
	if i := bytes.IndexByte(src[m.end:], '\n'); i >= 0 {
		to = m.end + i
	}
	after := slices.Concat(src[from:m.begin], []byte(m.text), src[m.end:to])
	var b strings.Builder
	for line := range bytes.Lines(src[from:to]) {
		fmt.Fprintf(&b, "- %s\n", bytes.TrimRight(line, "\n"))
	}
	for line := range bytes.Lines(after) {
		fmt.Fprintf(&b, "+ %s\n", bytes.TrimRight(line, "\n"))
	}
	return b.String()
}

// Package finds the mutants of all files of the package in a directory below root.
func Package(root, dir string) (list []*Mutant, err error) {
	names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		found, err := Find(filepath.ToSlash(filepath.Join(dir, filepath.Base(name))), src)
		if err != nil {
			return nil, err
		}
		list = append(list, found...)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: there is nothing to plant faults in", dir)
	}
	return list, nil
}

// Find makes mutants of a file by these rules:
//
//	negate   a condition is turned round
//	logic    && and || change places
//	bound    < and <=, > and >= change places
//	one      one more, or one less, is none: x+1 is x
//	remove   a statement is left out: a call, an assignment, an increment
//	swap     two arguments next to each other change places
//	bool     true and false change places
//	error    nil is returned for an error
//	jump     break and continue change places
//
// Tests, and files that are generated or for other systems, are the caller's to leave out.
func Find(file string, src []byte) ([]*Mutant, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(tree) {
		return nil, nil
	}
	f := &finder{file: file, src: src, fset: fset, names: make(map[string]int)}
	for _, d := range tree.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			f.function = functionName(fn)
			ast.Inspect(fn.Body, f.node)
		}
	}
	return f.list, nil
}

// functionName is Function, or Type.Method.
func functionName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	t := fn.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
			continue
		case *ast.IndexExpr:
			t = x.X
			continue
		case *ast.Ident:
			return x.Name + "." + fn.Name.Name
		}
		return fn.Name.Name
	}
}

type finder struct {
	file, function string
	src            []byte
	fset           *token.FileSet
	names          map[string]int
	list           []*Mutant
}

func (f *finder) at(p token.Pos) int { return f.fset.Position(p).Offset }

func (f *finder) source(n ast.Node) string { return string(f.src[f.at(n.Pos()):f.at(n.End())]) }

// add notes a mutant that has text in the place of a part; about is what is printed of the place.
func (f *finder) add(rule string, about ast.Node, begin, end token.Pos, text string) {
	what := strings.Join(strings.Fields(f.source(about)), " ")
	if len(what) > 80 {
		what = strings.ToValidUTF8(what[:80], "")
	}
	m := &Mutant{Name: rule + " in " + f.function + ": " + what, File: f.file, Line: f.fset.Position(begin).Line,
		begin: f.at(begin), end: f.at(end), text: text}
	f.names[m.Name]++
	m.Nth = f.names[m.Name]
	f.list = append(f.list, m)
}

// node applies the rules to one node.
func (f *finder) node(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.IfStmt:
		f.negate(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil {
			if b, ok := n.Cond.(*ast.BinaryExpr); !ok || b.Op != token.LSS && b.Op != token.NEQ { // else it would not end, or do nothing
				f.negate(n.Cond)
			}
		}
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok {
			if id, ok := call.Fun.(*ast.Ident); !ok || id.Name != "panic" {
				f.add("remove", n, n.Pos(), n.End(), "")
			}
		}
	case *ast.IncDecStmt:
		f.add("remove", n, n.Pos(), n.End(), "")
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE && !blank(n) {
			f.add("remove", n, n.Pos(), n.End(), "")
		}
	case *ast.CallExpr:
		f.swap(n)
	case *ast.Ident:
		if n.Name == "true" || n.Name == "false" {
			f.add("bool", n, n.Pos(), n.End(), map[string]string{"true": "false", "false": "true"}[n.Name])
		}
	case *ast.ReturnStmt:
		if k := len(n.Results); k > 0 {
			if id, ok := n.Results[k-1].(*ast.Ident); ok && id.Name == "err" {
				f.add("error", n, id.Pos(), id.End(), "nil")
			}
		}
	case *ast.BranchStmt:
		if n.Label == nil && (n.Tok == token.BREAK || n.Tok == token.CONTINUE) {
			f.add("jump", n, n.Pos(), n.End(), map[token.Token]string{token.BREAK: "continue", token.CONTINUE: "break"}[n.Tok])
		}
	}
	return true
}

// blank says whether a statement assigns to nobody: it says that something is not forgotten.
func blank(n *ast.AssignStmt) bool {
	return !slices.ContainsFunc(n.Lhs, func(e ast.Expr) bool {
		id, ok := e.(*ast.Ident)
		return !ok || id.Name != "_"
	})
}

func (f *finder) negate(cond ast.Expr) {
	f.add("negate", cond, cond.Pos(), cond.End(), "!("+f.source(cond)+")")
}

func (f *finder) binary(n *ast.BinaryExpr) {
	op := n.OpPos
	replace := func(rule, text string) { f.add(rule, n, op, op+token.Pos(len(n.Op.String())), text) }
	switch n.Op {
	case token.LAND:
		replace("logic", "||")
	case token.LOR:
		replace("logic", "&&")
	case token.LSS:
		replace("bound", "<=")
	case token.LEQ:
		replace("bound", "<")
	case token.GTR:
		replace("bound", ">=")
	case token.GEQ:
		replace("bound", ">")
	case token.ADD, token.SUB:
		if lit, ok := n.Y.(*ast.BasicLit); ok && lit.Value == "1" {
			f.add("one", n, n.X.End(), n.End(), "")
		}
	}
}

// swap exchanges the first two arguments that are not the same.
func (f *finder) swap(n *ast.CallExpr) {
	for i := 0; i+1 < len(n.Args); i++ {
		a, b := n.Args[i], n.Args[i+1]
		x, y := f.source(a), f.source(b)
		if x == y || literal(a) != literal(b) {
			continue
		}
		f.add("swap", n, a.Pos(), b.End(), y+string(f.src[f.at(a.End()):f.at(b.Pos())])+x)
		return
	}
}

func literal(e ast.Expr) bool {
	_, ok := e.(*ast.BasicLit)
	return ok
}
