package arch

import (
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// In smtpd calls go one way: from a group of files, in the order of the list in its
// doc.go, to the same group or to one below.
func TestServerOrder(t *testing.T) {
	t.Parallel()
	for _, bad := range wrongWay(t, os.DirFS(moduleRoot(t))) {
		t.Error(bad)
	}
}

// A call that goes up is found, whether of a function or of a method of the session, and so is a
// file that is in no group.
func TestServerOrderBroken(t *testing.T) {
	t.Parallel()
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte("package smtpd\n" + text)} }
	got := wrongWay(t, fstest.MapFS{"go.mod": {Data: []byte("module m\n")},
		"smtpd/doc.go":     file("//\ttop: a\n//\tbottom: b\n"),
		"smtpd/a.go":       file("func f() { g() }\nfunc (s *session) high() { s.low() }\n"),
		"smtpd/b.go":       file("func g() { f() }\nfunc (s *session) low() { s.high(); _ = s.high }\n"),
		"smtpd/strange.go": file("type x struct{}\n")})
	want := "smtpd/b.go calls f of a.go\nsmtpd/b.go calls session.high of a.go\nsmtpd/b.go calls session.high of a.go\nsmtpd/strange.go is in no group of the list in smtpd/doc.go"
	if strings.Join(got, "\n") != want {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), want)
	}
}

var groupLine = regexp.MustCompile(`(?m)^//\t[a-z]+: ([a-z ]+)$`)

// wrongWay says which calls of smtpd go up.
func wrongWay(t *testing.T, fsys fs.FS) (bad []string) {
	t.Helper()
	tree, err := ReadTree(fsys)
	if err != nil {
		t.Fatal(err)
	}
	group, home := map[string]int{}, map[string]string{} // of a file; the file of a function or of session.method
	var files []*File
	for _, p := range tree.Packages {
		if p.Name != "smtpd" {
			continue
		}
		files = p.Files
		for _, f := range files {
			if f.name == "doc.go" {
				for i, m := range groupLine.FindAllStringSubmatch(string(f.text), -1) {
					for _, name := range strings.Fields(m[1]) {
						group[name+".go"] = i + 1
					}
				}
			}
			for _, d := range f.syntax.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
					home[fn.Name.Name] = f.name
				} else if ok && ofSession(fn) != "" {
					home["session."+fn.Name.Name] = f.name
				}
			}
		}
	}
	if len(group) == 0 {
		t.Fatal("smtpd/doc.go has no list of files")
	}
	for _, f := range files {
		if f.name != "doc.go" && group[f.name] == 0 {
			bad = append(bad, fmt.Sprintf("smtpd/%s is in no group of the list in smtpd/doc.go", f.name))
			continue
		}
		for _, callee := range f.callees() {
			if to, ours := home[callee]; ours && group[to] < group[f.name] {
				bad = append(bad, fmt.Sprintf("smtpd/%s calls %s of %s", f.name, callee, to))
			}
		}
	}
	return bad
}

// ofSession is the name of a method's receiver, if that is a *session.
func ofSession(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List[0].Names) == 0 {
		return ""
	}
	star, ok := fn.Recv.List[0].Type.(*ast.StarExpr)
	if !ok {
		return ""
	}
	if id, ok := star.X.(*ast.Ident); ok && id.Name == "session" {
		return fn.Recv.List[0].Names[0].Name
	}
	return ""
}

// callees are the functions that a file calls, and, as session.name, what its methods
// of the session call or hand on of that session's.
func (f *File) callees() (names []string) {
	for _, d := range f.syntax.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		self := ofSession(fn)
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if id, ok := n.Fun.(*ast.Ident); ok {
					names = append(names, id.Name)
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && self != "" && x.Name == self {
					names = append(names, "session."+n.Sel.Name)
				}
			}
			return true
		})
	}
	return names
}
