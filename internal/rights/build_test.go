package rights

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// build makes what text says, a line each: "dir NAME OWNER MODE", "group NAME GROUP MODE"
// (a directory of root's and that group), "file NAME OWNER MODE TEXT", "link NAME OWNER
// TARGET", "hard NAME OTHER". An owner's group has the same number.
func build(t *testing.T, dir, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		path := filepath.Join(dir, w[1])
		var err error
		switch w[0] {
		case "dir", "group":
			err = os.Mkdir(path, 0o700)
		case "file":
			err = os.WriteFile(path, []byte(w[4]), 0o600)
		case "link":
			err = os.Symlink(w[3], path)
		case "hard":
			err = os.Link(filepath.Join(dir, w[2]), path)
		default:
			err = fmt.Errorf("unknown: %s", line)
		}
		if w[0] != "hard" && err == nil {
			id, _ := strconv.Atoi(w[2])
			owner := id
			if w[0] == "group" {
				owner = 0
			}
			err = os.Lchown(path, owner, id)
		}
		if (w[0] == "dir" || w[0] == "group" || w[0] == "file") && err == nil {
			mode, _ := strconv.ParseUint(w[3], 8, 32)
			m := os.FileMode(mode & 0o777)
			if mode&0o1000 != 0 {
				m |= os.ModeSticky
			}
			err = os.Chmod(path, m)
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
}
