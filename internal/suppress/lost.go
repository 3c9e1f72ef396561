package suppress

import (
	"errors"
	"fmt"
	"io/fs"

	"posthaste/internal/boltcheck"
	"posthaste/internal/statedir"
)

// A file that is damaged must not end the service again and again, and the list that was in it is not to be taken for
// an empty one: mail would go to those who have complained. So it is set aside, a new file begins, and the mark
// lostName says that the list is lost. While it is there nobody is told that mail may go to an address, and mail under
// the list waits; that it does for maximal_queue_lifetime at most. The end of an import is the operator's word that
// the list is as it should be; but not of one that was for one tenant or one list, which says nothing of the others.
const (
	lostName    = "list.lost"
	asideSuffix = ".damaged"
)

var errLost = errors.New("the suppression list was damaged, and is lost: mail under it waits until \"posthaste suppress import\" without -t and -l has brought an earlier export (or an empty file, to begin anew)")

// setAside looks at the file, and gives it another name if it is damaged. The mark is there first: whatever ends this
// process, the next one finds the damage, or the mark.
func setAside(dir *statedir.Dir, warn func(format string, args ...any)) error {
	f, err := dir.Open(storeName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	damage := boltcheck.Free(f, lockPatience)
	// The library takes an empty file for a new one. Of ours none ever was: see found.
	if st, err := f.Stat(); err != nil {
		return err
	} else if damage == nil && st.Size() == 0 {
		damage = fmt.Errorf("%w: it is empty", boltcheck.ErrDamaged)
	}
	if !errors.Is(damage, boltcheck.ErrDamaged) {
		return damage
	}
	if err := dir.ReplaceDurably(lostName, []byte(damage.Error()+"\n")); err != nil {
		return err
	}
	if err := dir.Rename(storeName, storeName+asideSuffix); err != nil {
		return err
	}
	warn("%s: %v; it is now %s%s", storeName, damage, storeName, asideSuffix)
	return nil
}

// isLost says whether the list is.
func isLost(dir *statedir.Dir) (bool, error) {
	_, err := dir.Lstat(lostName)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// restored takes the mark away: the list is there again. If that fails the list is there until the next start.
func (s *store) restored() {
	if !s.lost.Load() {
		return
	}
	if err := s.dir.Remove(lostName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.warn("%v: the suppression list is there again, and will be taken for lost at the next start", err)
	}
	s.lost.Store(false)
}
