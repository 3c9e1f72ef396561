package mailbox

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"posthaste/internal/dsn"
)

// Hold locks an mbox file as a delivery does, for another program that is to work on it. It
// makes a file that is not there. The result gives the locks up.
func (s *Store) Hold(ctx context.Context, path string, l Lock) (release func(), err error) {
	m := &Mbox{Path: path, Lock: l, Otherwise: dsn.S(4, 2, 0)}
	turn, err := s.lockInProcess(ctx, path)
	if err != nil {
		return nil, err
	}
	undo := []func(){turn}
	all := func() {
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	}
	defer func() {
		if err != nil {
			all()
		}
	}()
	if l&Dotlock != 0 {
		if err := s.dotlock(ctx, path, m.Otherwise); err != nil {
			return nil, err
		}
		undo = append(undo, func() { os.Remove(lockFile(path)) })
	}
	f, err := s.open(m, unix.S_IFREG)
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { f.Close() })
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return nil, failure(err, m.Otherwise, "cannot look at the open file")
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &Error{Status: m.Otherwise, Err: errors.ErrUnsupported, Text: "not a regular file"}
	}
	if err := m.acceptable(s, f, &st); err != nil {
		return nil, err
	}
	if err := s.kernelLocks(ctx, f.fd, l); err != nil {
		return nil, err
	}
	undo = append(undo, func() { unlock(f.fd, l) })
	return all, nil
}
