package table

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A Writer builds a new version of a table. Readers see nothing of it before
// Commit, and then all of it. It is used by one goroutine.
type Writer interface {
	// Add adds an entry. added is false, and nothing is changed, if the key is
	// there already. Keys are not folded here.
	Add(key, value string) (added bool, err error)

	// Commit puts the table in place of the one before, durably, with the
	// permissions of mode. uid and gid are its owner, -1 to leave them as
	// the process makes them.
	Commit(mode os.FileMode, uid, gid int) error

	// Abort gives up. After Commit it does nothing.
	Abort() error
}

// ErrNotWritable is returned by Create for types that are not built from a source.
var ErrNotWritable = errors.New("tables of this type are not built by postmap")

// WriterPath is the name of the file that Create makes for spec.
func WriterPath(spec string) (string, error) {
	kind, name, ok := strings.Cut(spec, ":")
	if !ok || name == "" {
		return "", fmt.Errorf("table %q: expected type:name", spec)
	}
	switch kind {
	case "hash", "btree", "lmdb", "dbm", "sdbm":
		return name + Suffix, nil
	case "cdb":
		return name + CDBSuffix, nil
	}
	return "", fmt.Errorf("table %s: %w", spec, ErrNotWritable)
}

// Create starts a new version of the table that spec, type:name, names.
func Create(spec string) (Writer, error) {
	path, err := WriterPath(spec)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(path, CDBSuffix) && strings.HasPrefix(spec, "cdb:") {
		return newCDBWriter(path)
	}
	return newIndexedWriter(path)
}

// commitFile puts a file that is written in place, or removes it if err says that something has
// failed or if this does.
func commitFile(err error, f *os.File, path string, mode os.FileMode, uid, gid int) error {
	if err == nil {
		err = installFile(f, path, mode, uid, gid)
	}
	if err != nil {
		return errors.Join(err, abandonFile(f))
	}
	return nil
}

// abandonFile closes and removes a file that is not in place; one that has been closed is let be.
func abandonFile(f *os.File) error {
	err := f.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return errors.Join(err, os.Remove(f.Name()))
}

// installFile makes f durable under its final name.
func installFile(f *os.File, path string, mode os.FileMode, uid, gid int) error {
	if uid >= 0 || gid >= 0 {
		if err := f.Chown(uid, gid); err != nil {
			return err
		}
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
