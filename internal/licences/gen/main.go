// Gen writes docs/licences.md and the files in docs/licences. It is run in the directory of
// the module; "make licences" does so.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"posthaste/internal/licences"
)

func main() {
	if err := generate(); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func generate() error {
	files, err := licences.Files(".")
	if err != nil {
		return err
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
