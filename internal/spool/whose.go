package spool

import (
	"errors"
	"io/fs"
	"path"

	"posthaste/internal/vfs"
)

// An Identity tells one spool from all others. It is drawn when the spool is made, and stays as long as it is there.
type Identity [16]byte

// IdentityOf reads the identity of the spool in dir, of which nobody need have the lock. found says that there is a
// spool: an IDENTITY, or a segment. known says that IDENTITY tells; else Open finds out, or refuses.
func IdentityOf(fsys vfs.FS, dir string) (id Identity, found, known bool, err error) {
	if fsys == nil {
		fsys = vfs.OfOwner(dir)
	}
	is, found, copies, err := readIdentity(fsys, dir, asItIs)
	if err != nil || copies > 0 {
		return is.uuid, found, copies > 0, err
	}
	names, err := fsys.List(path.Join(dir, segDir))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return id, found || len(names) > 0, false, err
}

// Identity is the spool's own.
func (s *Spool) Identity() Identity { return s.e.uuid }
