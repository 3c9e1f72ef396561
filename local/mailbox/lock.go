package mailbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/dsn"
)

// firstPoll is how soon a lock that another program holds is tried again at
// first. Later tries are further apart, up to the configured delay: locks are
// mostly held for milliseconds.
const firstPoll = time.Millisecond

// attempt calls try until it says that the lock was had, fails, or the time
// that LockAttempts and LockDelay give is over.
func (s *Store) attempt(ctx context.Context, try func() (bool, error)) (bool, error) {
	end := time.Now().Add(time.Duration(s.opt.LockAttempts-1) * s.opt.LockDelay)
	for pause := firstPoll; ; pause = min(2*pause, max(s.opt.LockDelay, firstPoll)) {
		ok, err := try()
		if ok || err != nil || !time.Now().Add(pause).Before(end) {
			return ok, err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return false, ctx.Err()
		}
	}
}

// lockFile is the lock of other programs: path.lock exists while somebody
// has the mailbox.
func lockFile(path string) string { return path + ".lock" }

// dotlock makes the lock file. ErrExist says that somebody has it; otherwise is
// the status of another failure.
func (s *Store) dotlock(ctx context.Context, path string, otherwise dsn.Status) error {
	name := lockFile(path)
	ok, err := s.attempt(ctx, func() (bool, error) {
		fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err == nil {
			return true, unix.Close(fd)
		}
		if !errors.Is(err, fs.ErrExist) {
			return false, err
		}
		if s.staleLock(name) {
			os.Remove(name) // whoever was first at this makes the next one
		}
		return false, nil
	})
	if err == nil && !ok {
		err = fs.ErrExist
	}
	if err != nil {
		if errors.Is(err, fs.ErrExist) {
			return &Error{Status: dsn.S(4, 2, 0), Text: "unable to create lock file " + name, Err: unix.EEXIST}
		}
		return failure(err, otherwise, "unable to create lock file %s", name)
	}
	return nil
}

// staleLock says whether a lock file is so old that its maker must be dead.
func (s *Store) staleLock(name string) bool {
	st, err := os.Lstat(name)
	return err == nil && s.opt.StaleLock > 0 && time.Since(st.ModTime()) > s.opt.StaleLock
}

// kernelLocks takes the locks on an open file; unlock gives them up.
func (s *Store) kernelLocks(ctx context.Context, fd int, l Lock) error {
	ok, err := s.attempt(ctx, func() (bool, error) {
		if l&Flock != 0 {
			if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
				return false, busy(err)
			}
		}
		if l&Fcntl != 0 {
			// A lock of the open file description, not of the process, which
			// would not keep our own deliveries apart.
			whole := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0}
			if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &whole); err != nil {
				return false, busy(err)
			}
		}
		return true, nil
	})
	if err == nil && !ok {
		err = unix.EAGAIN
	}
	if err != nil {
		return &Error{Status: dsn.S(4, 2, 0), Text: "unable to lock for exclusive access", Err: err}
	}
	return nil
}

// unlock gives up kernel locks before the file is closed: a process that is
// being started at this moment has a copy of the descriptor until it executes
// its program, and would keep them.
func unlock(fd int, l Lock) {
	if l&Flock != 0 {
		unix.Flock(fd, unix.LOCK_UN)
	}
	if l&Fcntl != 0 {
		whole := unix.Flock_t{Type: unix.F_UNLCK, Whence: 0}
		unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &whole)
	}
}

// busy is nil when err says that somebody else has the lock.
func busy(err error) error {
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINTR) {
		return nil
	}
	return fmt.Errorf("lock: %w", err)
}
