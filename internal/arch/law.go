// Package arch holds the law of imports, which says which package may know of
// which, and bounds on the code's figures that may only go down. Its tests look at the
// whole tree. The law is text, law.txt, and all of that text is evaluated: what a layer
// may import is what its line says and nothing else. The bounds are the table in
// docs/internals.md.
package arch

import (
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strings"
)

//go:embed law.txt
var lawText string

// A layer is a line of the law.
type layer struct {
	name     string
	packages []string // patterns: a name, or one that ends in "*"
	ours     []string // @layer, @own, "*", or a package
	others   []string // std, pure, modules, or a path
}

// A Law is a list of layers. A package is of the first that names it.
type Law []layer

// TheLaw is what this tree obeys.
func TheLaw() (Law, error) { return ParseLaw(lawText) }

// ParseLaw reads a law's text. A name on a right-hand side that nothing defines is an
// error, since it would allow or forbid nothing.
func ParseLaw(text string) (Law, error) {
	var law Law
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		part := strings.Split(line, ":")
		if len(part) != 4 {
			return nil, fmt.Errorf("law: %q has %d parts, want 4", line, len(part))
		}
		law = append(law, layer{strings.TrimSpace(part[0]), strings.Fields(part[1]), strings.Fields(part[2]), strings.Fields(part[3])})
	}
	return law, law.defined()
}

func (law Law) defined() error {
	for _, l := range law {
		for _, w := range l.ours {
			name, isLayer := strings.CutPrefix(w, "@")
			switch {
			case w == "*" || w == "@own":
			case isLayer && !slices.ContainsFunc(law, func(o layer) bool { return o.name == name }):
				return fmt.Errorf("law: layer %s: there is no layer %s", l.name, w)
			case !isLayer && law.of(w) == nil:
				return fmt.Errorf("law: layer %s: no layer has the package %s", l.name, w)
			}
		}
	}
	return nil
}

// of is the layer of a package, nil when the law does not name it.
func (law Law) of(name string) *layer {
	i := slices.IndexFunc(law, func(l layer) bool {
		return slices.ContainsFunc(l.packages, func(p string) bool { return matches(p, name) })
	})
	if i < 0 {
		return nil
	}
	return &law[i]
}

func matches(pattern, name string) bool {
	below, wild := strings.CutSuffix(pattern, "*")
	return pattern == name || wild && strings.HasPrefix(name, below)
}

// pure says whether the layer's source is looked through.
func (l *layer) pure() bool { return slices.Contains(l.others, "pure") }

// mayImport says whether a package of the layer may import another of this tree.
func (law Law) mayImport(l *layer, from, to string) bool {
	target := law.of(to)
	return slices.ContainsFunc(l.ours, func(w string) bool {
		switch w {
		case "*", to:
			return true
		case "@own":
			return own(from, to)
		}
		return target != nil && w == "@"+target.name
	})
}

// own says whether to lies in the directory at the top of the tree that from is in.
func own(from, to string) bool {
	top, _, _ := strings.Cut(from, "/")
	return to == top || strings.HasPrefix(to, top+"/")
}

// mayUse says whether a package of the layer may import what is not of this tree.
func (l *layer) mayUse(imp string) bool {
	return slices.ContainsFunc(l.others, func(w string) bool {
		switch w {
		case "std":
			return isStd(imp)
		case "pure":
			return isStd(imp) && !slices.ContainsFunc(impure, func(p string) bool { return imp == p || strings.HasPrefix(imp, p+"/") })
		case "modules":
			return !isStd(imp)
		}
		return imp == w || strings.HasPrefix(imp, w+"/")
	})
}

// isStd says whether a path is of Go's library: the first part of others has a dot.
func isStd(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return !strings.Contains(first, ".")
}

// impure are the packages of Go's library, with what is below them, that do I/O, wait,
// start something, or draw what nobody can repeat.
var impure = []string{"os", "net", "sync", "context", "math/rand", "crypto/rand", "io/fs", "io/ioutil", "log", "syscall",
	"runtime", "database", "embed", "expvar", "plugin", "testing", "unsafe"}

// Check says what in a tree the law does not allow, a line for each, with the file.
func (law Law) Check(tree *Tree) []string {
	var bad []string
	for _, p := range tree.Packages {
		l := law.of(p.Name)
		if l == nil {
			bad = append(bad, fmt.Sprintf("%s has no place in the law of imports", p.Name))
			continue
		}
		for _, f := range p.Files {
			for _, imp := range f.imports {
				name, ours := strings.CutPrefix(imp, tree.Module+"/")
				name = strings.TrimPrefix(name, "internal/")
				if ours && !law.mayImport(l, p.Name, name) || !ours && !l.mayUse(imp) {
					bad = append(bad, fmt.Sprintf("%s imports %s: the law does not allow that to the layer %s", path.Join(p.Dir, f.name), imp, l.name))
				}
			}
			if l.pure() {
				bad = append(bad, f.impurities(path.Join(p.Dir, f.name))...)
			}
		}
	}
	return bad
}

// Unused names the packages that a law speaks of and a tree has not: words that hold
// nobody. Patterns are let off.
func (law Law) Unused(tree *Tree) []string {
	var none []string
	for _, l := range law {
		for _, name := range l.packages {
			if !strings.HasSuffix(name, "*") && !slices.ContainsFunc(tree.Packages, func(p *Package) bool { return p.Name == name }) {
				none = append(none, name)
			}
		}
	}
	return none
}
