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

// Own makes a file in the directory the property of the directory's owner, if
// the process is root's: as that user the service goes on.
func Own(dir *os.Root, name string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	fi, err := dir.Stat(".")
	if err != nil {
		return err
	}
	uid, gid, err := owner(fi)
	if err != nil {
		return err
	}
	return dir.Lchown(name, uid, gid)
}

// giveAway makes a new directory the property of its parent's owner.
func giveAway(path string) error {
	fi, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return err
	}
	uid, gid, err := owner(fi)
	if err != nil {
		return err
	}
	return os.Lchown(path, uid, gid)
}

func owner(fi os.FileInfo) (uid, gid int, err error) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, fmt.Errorf("%s: whose it is cannot be found out", fi.Name())
	}
	return int(st.Uid), int(st.Gid), nil
}
