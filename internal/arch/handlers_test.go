package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// A handler that a test gives to a server runs on the server's goroutines: what it shares with the test is
// under a lock, or is an atomic or a channel. That a reply orders the two holds only as long as there is one,
// and the client waits for it; when it does not, the test fails now and then, on a busy machine.
func TestHandlersLock(t *testing.T) {
	t.Parallel()
	bad, handlers := unguarded(t, os.DirFS(moduleRoot(t)))
	for _, b := range bad {
		t.Error(b)
	}
	if handlers < 40 {
		t.Errorf("%d handlers were found: the rule has gone blind", handlers)
	}
}

// What a handler changes, and what is changed behind its back, is found; what is its own, what was complete before it, and what is
// under a lock is left alone.
func TestHandlersLockBroken(t *testing.T) {
	t.Parallel()
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte("package a\n" + text)} }
	got, handlers := unguarded(t, fstest.MapFS{
		"a/changes_test.go": file(`func f() {
	n, list, m, p := 0, []int(nil), map[int]int{}, new(point)
	s.Serve("qmgr", func(r *ipc.Request) { n++ })
	s.ServeConn("qmgr", func(*ipc.Conn, *ipc.Request) { list = append(list, 1) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { m[1], _ = 2, 3 })
	_ = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { if true { func() { p.x += 1 }() } })
	_ = &ipc.Server{OnConn: func(*ipc.Conn) { *p = point{} }}
	w.answer = func(r *ipc.Request) { n-- }
}
`),
		"a/behind_test.go": file(`func f() {
	say := "a"
	s.Serve("qmgr", func(r *ipc.Request) { r.Fail(say) })
	s.Serve("qmgr", func(r *ipc.Request) { r.Fail(p.word, list[0]) })
	say, p.other, list[1] = "b", "c", "d"
}
`),
		"a/fine_test.go": file(`func f() {
	before, n := "", 0
	before = "complete"
	s.Serve("qmgr", func(r *ipc.Request) { mu.Lock(); n++; mu.Unlock(); r.Fail(before) })
	s.Serve("qmgr", func(r *ipc.Request) { n := 1; n++; var m, k int; m = k; for i := range m { i++ }; calls.Add(1) })
	s.Serve("qmgr", func(r *ipc.Request) { r.N, x.y = 1, 2 })
	func() { n++ }()
}
func g(x *point) { x.y = 1 }
`),
		"a/no.go":               file("func f() { s.Serve(\"x\", func() { n++ }) }\n"),
		"a/testdata/no_test.go": file("func f() { s.Serve(\"x\", func() { n++ }) }\n"),
		"m/servertest/fake.go":  file("func (s *S) f() { s.Serve(\"x\", func() { s.n++ }) }\n"),
	})
	want := `a/behind_test.go:4: a handler has no lock for say, which is changed in line 6
a/behind_test.go:5: a handler has no lock for list, which is changed in line 6
a/changes_test.go:4: a handler changes n without a lock
a/changes_test.go:5: a handler changes list without a lock
a/changes_test.go:6: a handler changes m without a lock
a/changes_test.go:7: a handler changes p without a lock
a/changes_test.go:8: a handler changes p without a lock
a/changes_test.go:9: a handler changes n without a lock
a/fine_test.go:7: a handler changes x without a lock
m/servertest/fake.go:2: a handler changes s without a lock`
	if strings.Join(got, "\n") != want || handlers != 12 {
		t.Errorf("%d handlers, got:\n%s\nwant:\n%s", handlers, strings.Join(got, "\n"), want)
	}
}

// unguarded says which handlers share what they should not, in the tests below fsys and in the packages that are
// for tests, and how many handlers there are.
func unguarded(t *testing.T, fsys fs.FS) (bad []string, handlers int) {
	t.Helper()
	err := goFiles(fsys, func(name string) error {
		if !strings.HasSuffix(name, "_test.go") && !strings.HasSuffix(path.Dir(name), "test") {
			return nil
		}
		f, err := readFile(fsys, name)
		if err != nil {
			return err
		}
		for _, d := range f.syntax.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			for _, h := range handlersIn(fn.Body) {
				handlers++
				line := func(pos token.Pos) int { return f.set.Position(pos).Line }
				if problem := shares(fn, h, line); problem != "" {
					bad = append(bad, fmt.Sprintf("%s:%d: %s", name, line(h.Pos()), problem))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(bad)
	return bad, handlers
}

// takers are the functions that are given handlers, and the fields of servers that are.
var takers = []string{"Serve", "ServeConn", "HandleFunc", "HandlerFunc", "Handler", "OnConn", "OnClose", "OnTrigger", "OnFault", "ConnState"}

// handlersIn are the function literals in body that a server is given, or that take what only a server gives.
func handlersIn(body *ast.BlockStmt) (found []*ast.FuncLit) {
	take := func(to ast.Expr, what ...ast.Expr) {
		for _, e := range what {
			if lit, ok := e.(*ast.FuncLit); ok && slices.Contains(takers, lastName(to)) && !slices.Contains(found, lit) {
				found = append(found, lit)
			}
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			take(n.Fun, n.Args...)
		case *ast.KeyValueExpr:
			take(n.Key, n.Value)
		case *ast.FuncLit:
			if !slices.Contains(found, n) && slices.ContainsFunc(n.Type.Params.List, ofServer) {
				found = append(found, n)
			}
		}
		return true
	})
	return found
}

// ofServer says whether a parameter is something that a server gives to its handlers.
func ofServer(param *ast.Field) bool {
	e := param.Type
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	s, ok := e.(*ast.SelectorExpr)
	return ok && (s.Sel.Name == "ResponseWriter" || s.Sel.Name == "Request" && root(s.X) == "ipc")
}

func lastName(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		return s.Sel.Name
	}
	return root(e)
}

// shares says what a handler in fn has in common with it and no lock for, or nothing.
func shares(fn *ast.FuncDecl, h *ast.FuncLit, line func(token.Pos) int) string {
	own, used, locks := declared(h), map[string]bool{}, false
	ast.Inspect(h.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			locks = locks || n.Sel.Name == "Lock" || n.Sel.Name == "RLock"
		case *ast.Ident:
			used[n.Name] = true
		}
		return true
	})
	if locks {
		return ""
	}
	problem := ""
	changes(h.Body, func(e ast.Expr) {
		if name := root(e); !own[name] && problem == "" {
			problem = fmt.Sprintf("a handler changes %s without a lock", name)
		}
	})
	changes(fn.Body, func(e ast.Expr) {
		if _, field := e.(*ast.SelectorExpr); field || e.Pos() < h.End() { // the handler may use other fields
			return
		}
		if name := root(e); used[name] && !own[name] && problem == "" {
			problem = fmt.Sprintf("a handler has no lock for %s, which is changed in line %d", name, line(e.Pos()))
		}
	})
	return problem
}

// declared are the names that h declares, its parameters among them, and the blank one.
func declared(h *ast.FuncLit) map[string]bool {
	own := map[string]bool{"_": true}
	ast.Inspect(h, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			for _, name := range n.Names {
				own[name.Name] = true
			}
		case *ast.ValueSpec:
			for _, name := range n.Names {
				own[name.Name] = true
			}
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				if id, ok := e.(*ast.Ident); ok && n.Tok == token.DEFINE {
					own[id.Name] = true
				}
			}
		case *ast.RangeStmt:
			for _, e := range []ast.Expr{n.Key, n.Value} {
				if id, ok := e.(*ast.Ident); ok && n.Tok == token.DEFINE {
					own[id.Name] = true
				}
			}
		}
		return true
	})
	return own
}

// changes calls say with each variable, or part of one, that is changed in body.
func changes(body *ast.BlockStmt, say func(ast.Expr)) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, e := range n.Lhs {
					say(e)
				}
			}
		case *ast.IncDecStmt:
			say(n.X)
		}
		return true
	})
}

// root is the name of the variable that e is, or is a part of.
func root(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x.Name
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return "_"
		}
	}
}
