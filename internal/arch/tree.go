package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// A Tree is a module's source, without tests.
type Tree struct {
	Module   string     // its path in go.mod
	Packages []*Package // by directory
}

// A Package is a directory with Go files.
type Package struct {
	Dir   string // from the top, with slashes
	Name  string // the same without internal/: what the law calls it
	Files []*File
}

// A File is one Go file, parsed with its comments.
type File struct {
	name    string
	imports []string
	lines   int
	set     *token.FileSet
	syntax  *ast.File
	text    []byte
}

// ReadTree parses all Go files below the root of fsys but tests.
func ReadTree(fsys fs.FS) (*Tree, error) {
	mod, err := fs.ReadFile(fsys, "go.mod")
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(mod), "\n")
	t := &Tree{Module: strings.TrimSpace(strings.TrimPrefix(first, "module"))}
	byDir := map[string]*Package{}
	err = goFiles(fsys, func(name string) error {
		if strings.HasSuffix(name, "_test.go") {
			return nil
		}
		dir := path.Dir(name)
		p := byDir[dir]
		if p == nil {
			p = &Package{Dir: dir, Name: strings.TrimPrefix(dir, "internal/")}
			byDir[dir] = p
			t.Packages = append(t.Packages, p)
		}
		f, err := readFile(fsys, name)
		p.Files = append(p.Files, f)
		return err
	})
	slices.SortFunc(t.Packages, func(a, b *Package) int { return strings.Compare(a.Dir, b.Dir) })
	return t, err
}

// goFiles calls take with the path of each Go file below the root of fsys. It passes over
// directories that the go command passes over, and over "run", "bin" and "dist", which
// a build makes.
func goFiles(fsys fs.FS, take func(name string) error) error {
	return fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); name != "." && (n[0] == '.' || n[0] == '_' || slices.Contains([]string{"testdata", "run", "bin", "dist"}, n)) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		return take(name)
	})
}

func readFile(fsys fs.FS, name string) (*File, error) {
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, err
	}
	f := &File{name: path.Base(name), set: token.NewFileSet(), text: text, lines: strings.Count(string(text), "\n")}
	if f.syntax, err = parser.ParseFile(f.set, name, text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
		return nil, err
	}
	for _, i := range f.syntax.Imports {
		imp, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		f.imports = append(f.imports, imp)
	}
	return f, nil
}

// clockwork are the names of package time that know what time it is, or wait.
var clockwork = []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"}

// concurrency says where the file starts a goroutine or uses a channel, a line for each.
// name is the file's in what is said.
func (f *File) concurrency(name string) (found []string) {
	f.concurrent(func(n ast.Node, what string) {
		found = append(found, fmt.Sprintf("%s:%d: %s", name, f.set.Position(n.Pos()).Line, what))
	})
	return found
}

// concurrent calls say for each go statement, and for each use of a channel that is seen as one.
func (f *File) concurrent(say func(n ast.Node, what string)) {
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			say(n, "a go statement")
		case *ast.CallExpr:
			// sync.WaitGroup has such a method, and errgroup.Group.
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Go" {
				say(n, "a goroutine")
			}
		case *ast.ChanType, *ast.SelectStmt, *ast.SendStmt:
			say(n, "a channel")
		}
		return true
	})
}

// impurities says where the file starts a goroutine, uses a channel, or asks for the
// time. name is the file's in what is said.
func (f *File) impurities(name string) []string {
	clock := ""
	for _, i := range f.syntax.Imports {
		if i.Path.Value == `"time"` {
			clock = "time"
			if i.Name != nil {
				clock = i.Name.Name
			}
		}
	}
	var bad []string
	say := func(n ast.Node, what string) {
		bad = append(bad, fmt.Sprintf("%s:%d: %s in a layer that is pure", name, f.set.Position(n.Pos()).Line, what))
	}
	f.concurrent(say)
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if n, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := n.X.(*ast.Ident); ok && clock != "" && x.Name == clock && slices.Contains(clockwork, n.Sel.Name) {
				say(n, "time."+n.Sel.Name)
			}
		}
		return true
	})
	return bad
}
