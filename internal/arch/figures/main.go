// Figures prints what is counted of the tree in the present directory: the lengths of
// functions and files, and for each service its exported names and its share of
// comments. Bounds on them are in docs/internals.md, and the tests of package arch hold
// them. "make figures" runs it.
package main

import (
	"fmt"
	"os"

	"posthaste/internal/arch"
)

func main() {
	law, err := arch.TheLaw()
	if err == nil {
		var tree *arch.Tree
		if tree, err = arch.ReadTree(os.DirFS(".")); err == nil {
			arch.Count(law, tree).Print(os.Stdout, arch.Services)
			return
		}
	}
	fmt.Fprintln(os.Stderr, "figures:", err)
	os.Exit(1)
}
