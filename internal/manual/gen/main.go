// Gen writes the generated files of package manual. It is run in the
// directory of the module, and removes pages that are no longer generated.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"posthaste/internal/manual"
)

func main() {
	if err := generate("."); err != nil {
		fmt.Fprintf(os.Stderr, "gen: %v\n", err)
		os.Exit(1)
	}
}

func generate(root string) error {
	files, err := manual.Files(root)
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(root, "docs", "man", "*.[158]"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if rel, err := filepath.Rel(root, path); err != nil || files[rel] == nil {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
