// Locks: that there is one master for a queue directory, which process it is, and that no
// services of an earlier one are left. Everything depends on these being right, since two
// masters would deliver the same mail twice.

package master

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
)

// pidPath is the file that says which process is master, and whose lock says that one is.
func pidPath(cfg *config.Config) string {
	return filepath.Join(pidDirectory(cfg), "master.pid")
}

// pidDirectory is process_id_directory, which is below the queue directory unless it is
// absolute.
func pidDirectory(cfg *config.Config) string {
	dir := cfg.String("process_id_directory")
	if filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(cfg.String("queue_directory"), dir)
}

// lockPID makes this process the master of the queue directory for as long as the file is
// open. The lock can be looked at without being taken (F_OFD_GETLK), so that "posthaste
// status" never keeps a master from starting. An errRunning says that there is one.
func lockPID(cfg *config.Config) (*os.File, error) {
	f, sound, err := openLock(pidPath(cfg))
	if err != nil {
		return nil, err
	}
	if !sound {
		f.Close()
		return renewPID(cfg)
	}
	return takePID(cfg, f)
}

// takePID locks f and writes our process ID into it. On error it closes f.
func takePID(cfg *config.Config, f *os.File) (_ *os.File, err error) {
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		// POSIX allows either for a lock that another has.
		if err == unix.EAGAIN || err == unix.EACCES {
			return nil, fmt.Errorf("the %s mail system is %w (process %d)", cfg.String("mail_name"), errRunning, readPID(f))
		}
		return nil, fmt.Errorf("lock %s: %w", pidPath(cfg), err)
	}
	// Only now: the file of a master that runs must keep its number.
	if err = f.Truncate(0); err == nil {
		_, err = fmt.Fprintf(f, "%*d\n", 32, os.Getpid())
	}
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", pidPath(cfg), err)
	}
	return f, nil
}

// renewPID replaces a file that others can open, as earlier versions made it. Somebody
// who has it open keeps that, and any lock on it, whatever its mode becomes; so a new
// file takes its place, unless a master has locked the old one. That lock is a write
// lock, which only the owner could take. The new file is locked before it has the name. A
// guard keeps two masters from doing this at once.
func renewPID(cfg *config.Config) (*os.File, error) {
	guard, sound, err := openLock(filepath.Join(pidDirectory(cfg), "renew.lock"))
	if err != nil {
		return nil, err
	}
	defer guard.Close()
	// An unsound guard cannot be replaced in turn: that would need a guard itself.
	if !sound {
		return nil, fmt.Errorf("%s can be opened by users other than its owner: remove it, and check the owner of its directory", guard.Name())
	}
	// It may wait for another master; that takes a moment only.
	if err := unix.Flock(int(guard.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", guard.Name(), err)
	}
	f, sound, err := openLock(pidPath(cfg))
	if err != nil {
		return nil, err
	}
	if sound { // somebody was faster
		return takePID(cfg, f)
	}
	defer f.Close()
	if locked, err := lockedByMaster(f); err != nil || locked {
		if err == nil {
			err = fmt.Errorf("the %s mail system is %w (process %d)", cfg.String("mail_name"), errRunning, readPID(f))
		}
		return nil, err
	}
	return replaceLock(pidPath(cfg), func(f *os.File) error {
		_, err := takePID(cfg, f)
		return err
	})
}

// lockMode is the mode of lock files. Whoever can open one can lock it, and keep the mail
// system from starting.
const lockMode = 0o600

// openLock opens a lock file, and makes it if there is none. sound says that nobody else
// can open it and that it has no other name.
func openLock(path string) (f *os.File, sound bool, err error) {
	// Neither a link nor a FIFO that somebody has put there must lead or stop us.
	f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, lockMode)
	if err != nil {
		return nil, false, fmt.Errorf("lock file: %w", err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, false, fmt.Errorf("lock file %s: %w", path, err)
	}
	// A second name is a way around the directory's mode.
	return f, st.Mode&0o7777&^lockMode == 0 && int(st.Uid) == os.Geteuid() && st.Nlink == 1, nil
}

// replaceLock makes a new lock file, has it locked, and then gives it the name.
func replaceLock(path string, lock func(*os.File) error) (*os.File, error) {
	temp := path + "." + rand.Text()
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, lockMode)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	// In this order, nobody finds an unlocked file of that name.
	if err = lock(f); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		f.Close()
		return nil, errors.Join(err, os.Remove(temp))
	}
	return f, nil
}

// lockedByMaster says whether f has a write lock. Anybody but a master can at most have
// opened it for reading.
func lockedByMaster(f *os.File) (bool, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return lock.Type == unix.F_WRLCK, nil
}

// readPID is the process ID in f; 0 if there is none, as in the moment before it is
// written.
func readPID(f *os.File) int {
	b := make([]byte, 64)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return pid
}

// findRunning is the process ID of the master that runs with this queue directory, and
// whether there is one. Only the owner of the mail system can ask.
func findRunning(cfg *config.Config) (pid int, running bool, err error) {
	f, err := openPID(cfg)
	if f == nil {
		return 0, false, err
	}
	defer f.Close()
	// The number in a file that nobody has locked is an old one.
	if running, err = lockedByMaster(f); err != nil || !running {
		return 0, false, err
	}
	return readPID(f), true, nil
}

// openPID opens the file to look at it; nil without an error if there is none.
func openPID(cfg *config.Config) (*os.File, error) {
	f, err := os.OpenFile(pidPath(cfg), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

// signalMaster sends the master a signal if it is process pid. The number alone says
// little, since the process may have ended and another may have its number. So the
// process is taken hold of first (a pidfd), then it is checked, and then that very
// process gets the signal. os.ErrProcessDone says that there is no master any more.
func signalMaster(cfg *config.Config, pid int, s os.Signal) error {
	// From here on the number cannot be given to another process without our noticing.
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	defer p.Release()
	f, err := openPID(cfg)
	if f == nil && err == nil {
		err = os.ErrProcessDone
	}
	if err != nil {
		return err
	}
	defer f.Close()
	locked, err := lockedByMaster(f)
	if err != nil {
		return err
	}
	if !locked || readPID(f) != pid {
		return os.ErrProcessDone
	}
	// The number could be that of a process in another PID namespace.
	holds, err := writes(pid, f)
	if errors.Is(err, os.ErrPermission) {
		// The process has capabilities that this one lacks, and so its descriptors are hidden. The
		// owner of the lock wrote the process ID, but perhaps in another container, where the ID
		// means another process: the program's name decides.
		var name []byte
		name, err = os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		holds = strings.TrimSpace(string(name)) == Program
	}
	if err != nil {
		return fmt.Errorf("whether it is the master cannot be seen: %w", err)
	}
	if !holds {
		return fmt.Errorf("it is not the master, which has locked %s: that runs where its processes cannot be seen, in another container perhaps", f.Name())
	}
	return p.Signal(s)
}

// writes says whether a process has f open for writing. A lock file is open like that in
// the process that locked it and in those that inherited it.
func writes(pid int, f *os.File) (bool, error) {
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	proc := "/proc/" + strconv.Itoa(pid)
	list, err := os.ReadDir(proc + "/fd")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, fd := range list {
		// Compared by device and inode: the name may lead elsewhere in that process's
		// view.
		other, err := os.Stat(proc + "/fd/" + fd.Name())
		if errors.Is(err, os.ErrPermission) {
			return false, err
		}
		if err != nil || !os.SameFile(info, other) {
			continue
		}
		text, err := os.ReadFile(proc + "/fdinfo/" + fd.Name())
		// While the master starts a process of another user the two have one memory, and
		// the kernel shows nobody what is in it: the answer may change between two files.
		if errors.Is(err, os.ErrPermission) {
			return false, err
		}
		if err != nil {
			continue // closed meanwhile
		}
		for line := range strings.Lines(string(text)) {
			octal, ok := strings.CutPrefix(line, "flags:")
			flags, err := strconv.ParseUint(strings.TrimSpace(octal), 8, 64)
			if ok && err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY {
				return true, nil
			}
		}
	}
	return false, nil
}

// orphanTime is how long a new master waits for the processes of one that has died. They
// notice its death at once, and may take what a stop would give them.
const orphanTime = 2 * defaultStopTimeout

// lockServices takes the lock that every service process inherits. As long as a process
// of an earlier master lives the lock cannot be taken: that process may still deliver.
func lockServices(cfg *config.Config, log *maillog.Logger) (*os.File, error) {
	path := filepath.Join(pidDirectory(cfg), "services.lock")
	f, sound, err := openLock(path)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(orphanTime)
	for said := false; ; said = true {
		var free bool
		if sound {
			free, err = flock(f)
		} else { // others may have locked it
			free, err = abandoned(f)
		}
		switch {
		case err != nil:
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		// Held from here until this process ends, and by every process that it starts.
		case free && sound:
			return f, nil
		case free:
			f.Close()
			// The old file may be locked by a stranger at any moment; ours cannot.
			return replaceLock(path, func(f *os.File) error {
				_, err := flock(f)
				return err
			})
		}
		// Killing them is for a person: they may be delivering.
		if time.Now().After(deadline) {
			f.Close()
			return nil, fmt.Errorf("processes of an earlier master still run (\"fuser -v %s\" shows them): end them, then start again", path)
		}
		if !said {
			log.Info("waiting for processes of an earlier master to end")
			// A start that waits for half a minute should say why at once.
			log.Flush()
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// flock tries to lock f; free is false if another process has it.
func flock(f *os.File) (free bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return false, nil
	}
	return err == nil, err
}

// abandoned says that no other process has f open, which only its owner can write to. It
// replaces the look at the lock where strangers may have locked the file.
func abandoned(f *os.File) (bool, error) {
	list, err := os.ReadDir("/proc")
	if err != nil {
		return false, err
	}
	for _, e := range list {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// What is hidden from root, without CAP_SYS_PTRACE in a container, is passed over: the
		// spool has a lock of its own.
		if used, err := writes(pid, f); err != nil && !errors.Is(err, os.ErrPermission) || used {
			return false, err
		}
	}
	return true, nil
}

// A flowPipe is the pipe of in_flow_delay, see service.Flow.
type flowPipe struct{ r, w int }

// openFlow makes the pipe. It does not block, for a token that is not there is an answer.
func openFlow() (*flowPipe, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("flow control pipe: %w", err)
	}
	return &flowPipe{p[0], p[1]}, nil
}

func (p *flowPipe) close() {
	unix.Close(p.r)
	unix.Close(p.w)
}
