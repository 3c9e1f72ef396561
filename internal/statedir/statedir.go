// Package statedir opens directories in which a service keeps what it learns.
//
// A service opens its files before it gives up the rights of root and its view
// of the file system; what it opens here can be written to afterwards, by the
// user that it then is, and from inside a chroot.
package statedir

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Open makes a directory, if it does not exist, and opens it. What root makes
// belongs to the owner of the directory above it: data_directory is the mail
// system's user's.
func Open(path string) (*os.Root, error) {
	err := os.Mkdir(path, 0o700)
	if err == nil && os.Geteuid() == 0 {
		err = giveAway(path)
	}
	if err != nil && !os.IsExist(err) {
		return nil, err
	}
	return os.OpenRoot(path)
}

// giveAway makes a new directory the property of its parent's owner.
func giveAway(path string) error {
	fi, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: whose it is cannot be found out", filepath.Dir(path))
	}
	return os.Lchown(path, int(st.Uid), int(st.Gid))
}
