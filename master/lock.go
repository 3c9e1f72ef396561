package master

import (
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

// pidPath is the file that says who is master, and whose lock says that
// somebody is.
func pidPath(cfg *config.Config) string {
	return filepath.Join(pidDirectory(cfg), "master.pid")
}

func pidDirectory(cfg *config.Config) string {
	dir := cfg.String("process_id_directory")
	if filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(cfg.String("queue_directory"), dir)
}

// lockPID makes this process the master of the queue directory for as long
// as the file is open. The lock is one that can be looked at without being
// taken (F_OFD_GETLK), so that "posthaste status" never keeps a master from
// starting.
func lockPID(cfg *config.Config) (*os.File, error) {
	f, err := openLock(pidPath(cfg))
	if err != nil {
		return nil, err
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		pid := readPID(f)
		f.Close()
		if err == unix.EAGAIN || err == unix.EACCES {
			return nil, fmt.Errorf("the %s mail system is %w (process %d)", cfg.String("mail_name"), ErrRunning, pid)
		}
		return nil, fmt.Errorf("lock %s: %w", pidPath(cfg), err)
	}
	if err = f.Truncate(0); err == nil {
		_, err = fmt.Fprintf(f, "%*d\n", 32, os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", pidPath(cfg), err)
	}
	return f, nil
}

func openLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	return f, nil
}

func readPID(f *os.File) int {
	b := make([]byte, 64)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return pid
}

// Running returns the process ID of the master that runs with this
// configuration's queue directory, and whether there is one.
func Running(cfg *config.Config) (pid int, running bool, err error) {
	f, err := os.Open(pidPath(cfg))
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return 0, false, fmt.Errorf("lock %s: %w", pidPath(cfg), err)
	}
	if lock.Type == unix.F_UNLCK {
		return 0, false, nil
	}
	return readPID(f), true, nil
}

// orphanTime is how long a new master waits for the processes of one that
// has died. They notice its death at once and have what a stop gives them.
const orphanTime = 2 * DefaultStopTimeout

// lockServices makes the lock that every service process inherits. While a
// process of an earlier master lives the lock cannot be had.
func lockServices(cfg *config.Config, log *maillog.Logger) (*os.File, error) {
	path := filepath.Join(pidDirectory(cfg), "services.lock")
	f, err := openLock(path)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(orphanTime)
	for said := false; ; said = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if err != unix.EWOULDBLOCK {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if time.Now().After(deadline) {
			f.Close()
			return nil, fmt.Errorf("processes of an earlier master still run (\"fuser -v %s\" shows them): end them, then start again", path)
		}
		if !said {
			log.Info("waiting for processes of an earlier master to end")
			log.Flush()
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// A flowPipe is the pipe of in_flow_delay, see service.Flow.
type flowPipe struct{ r, w int }

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
