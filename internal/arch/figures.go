package arch

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"io"
	"maps"
	"slices"
	"strings"
)

// Figures are what is counted of a tree.
type Figures struct {
	Functions []Length       // longest first, in lines
	Files     []Length       // those that people write, longest first, in lines
	Exported  map[string]int // exported names at package level, by package; methods are not counted
	Comments  map[string]Share
	Layers    map[string]int // packages in each layer
}

// A Length is how many lines something has, those that are comments alone left out.
type Length struct {
	Name  string
	Lines int
}

// A Share is lines of comments and of code.
type Share struct{ Comments, Code int }

// Of is comment lines for each line of code.
func (s Share) Of() float64 {
	if s.Code == 0 {
		return 0
	}
	return float64(s.Comments) / float64(s.Code)
}

// Count counts a tree's figures.
func Count(law Law, tree *Tree) *Figures {
	g := &Figures{Exported: map[string]int{}, Comments: map[string]Share{}, Layers: map[string]int{}}
	for _, p := range tree.Packages {
		if l := law.of(p.Name); l != nil {
			g.Layers[l.name]++
		}
		for _, f := range p.Files {
			name := p.Dir + "/" + f.name
			kinds := f.kinds()
			if !ast.IsGenerated(f.syntax) {
				g.Files = append(g.Files, Length{name, without(kinds, 1, f.lines)})
			}
			g.Exported[p.Name] += f.exported()
			share := g.Comments[p.Name]
			f.weigh(&share)
			g.Comments[p.Name] = share
			for _, d := range f.syntax.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
					lines := without(kinds, f.set.Position(fn.Pos()).Line, f.set.Position(fn.End()).Line)
					g.Functions = append(g.Functions, Length{name + ": " + fn.Name.Name, lines})
				}
			}
		}
	}
	longest := func(a, b Length) int { return cmp.Or(cmp.Compare(b.Lines, a.Lines), strings.Compare(a.Name, b.Name)) }
	slices.SortFunc(g.Functions, longest)
	slices.SortFunc(g.Files, longest)
	return g
}

// exported counts the file's exported names at package level.
func (f *File) exported() int {
	n := 0
	count := func(id *ast.Ident) {
		if id.IsExported() {
			n++
		}
	}
	for _, d := range f.syntax.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				count(d.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					count(s.Name)
				case *ast.ValueSpec:
					for _, id := range s.Names {
						count(id)
					}
				}
			}
		}
	}
	return n
}

// weigh adds the file's lines of comments and of code to share. Blank lines are
// neither; a line with both is code.
func (f *File) weigh(share *Share) {
	for _, k := range f.kinds() {
		switch k {
		case commentLine:
			share.Comments++
		case codeLine:
			share.Code++
		}
	}
}

// What a line is. A line with code and a comment is code.
const (
	blankLine = iota
	commentLine
	codeLine
)

// kinds says of each line of the file what it is.
func (f *File) kinds() []int {
	comment := make([]bool, f.lines+2)
	for _, g := range f.syntax.Comments {
		for _, c := range g.List {
			for l := f.set.Position(c.Pos()).Line; l <= f.set.Position(c.End()).Line; l++ {
				comment[l] = true
			}
		}
	}
	lines := bytes.Split(f.text, []byte("\n"))
	kinds := make([]int, len(lines))
	for i, line := range lines {
		line = bytes.TrimSpace(line)
		switch {
		case len(line) == 0:
		case comment[i+1] && (bytes.HasPrefix(line, []byte("//")) || bytes.HasPrefix(line, []byte("/*")) || bytes.HasSuffix(line, []byte("*/"))):
			kinds[i] = commentLine
		default:
			kinds[i] = codeLine
		}
	}
	return kinds
}

// without is how many of the lines, from the first to the last and with both, are no comments: a
// bound on lengths must not be a bound on what is explained.
func without(kinds []int, first, last int) (n int) {
	for _, k := range kinds[first-1 : last] {
		if k != commentLine {
			n++
		}
	}
	return n
}

// At is the length that the given share of the functions does not pass.
func (g *Figures) At(share float64) int {
	if len(g.Functions) == 0 {
		return 0
	}
	return g.Functions[int(float64(len(g.Functions)-1)*(1-share))].Lines
}

// Over is the number of functions longer than lines.
func (g *Figures) Over(lines int) int {
	return slices.IndexFunc(append(slices.Clone(g.Functions), Length{}), func(l Length) bool { return l.Lines <= lines })
}

// Print writes the figures for people. Services are the packages whose doors and
// comments are shown.
func (g *Figures) Print(w io.Writer, services []string) {
	fmt.Fprintf(w, "functions: %d; lines p50 %d, p99 %d, longest %d; over 60 lines: %d\n", len(g.Functions), g.At(.5), g.At(.99), g.At(1), g.Over(60))
	for _, l := range g.Functions[:max(min(5, len(g.Functions)), g.Over(60))] {
		fmt.Fprintf(w, "  %4d %s\n", l.Lines, l.Name)
	}
	fmt.Fprintln(w, "longest files:")
	for _, l := range g.Files[:min(5, len(g.Files))] {
		fmt.Fprintf(w, "  %4d %s\n", l.Lines, l.Name)
	}
	fmt.Fprintln(w, "services: exported names, comment lines for each line of code")
	for _, s := range services {
		fmt.Fprintf(w, "  %-14s %3d  %.2f\n", s, g.Exported[s], g.Comments[s].Of())
	}
	fmt.Fprintln(w, "packages in each layer:")
	for _, name := range slices.Sorted(maps.Keys(g.Layers)) {
		fmt.Fprintf(w, "  %-12s %3d\n", name, g.Layers[name])
	}
}

// Services are the services at the top of the tree.
var Services = []string{"smtpd", "cleanup", "pickup", "qmgr", "smtp", "local", "trivialrewrite", "master"}
