// Package ownsocket gives each process of a service a socket of its own, by which other
// processes of the mail system find all that run at present: the one that serves, and those
// that retire.
//
// The socket of process 123 of the service smtp is DIR/smtp.123, where DIR is below private in
// the queue directory. Sockets of processes that have died are removed by the next that makes one.
package ownsocket

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"posthaste/internal/rights"
)

// Listen makes the present process's socket under a name, in dir relative to the working
// directory, which is made if it is not there. The listener removes the socket when it closes.
//
// Everything is done with the rights of whoever owns the directory that dir is in: a process
// that is still root makes, removes and follows nothing there that mail_owner could not.
func Listen(dir, name string) (net.Listener, error) {
	above, who, err := rights.OpenDirectory(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	above.Close()
	l := &listener{owner: who, path: filepath.Join(dir, name+"."+strconv.Itoa(os.Getpid()))}
	if err := who.Do(func() error { return l.open(dir) }); err != nil {
		return nil, err
	}
	return l, nil
}

// A listener removes its socket as the owner of the directory.
type listener struct {
	*net.UnixListener
	owner rights.Rights
	path  string
}

func (l *listener) open(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	sweep(dir)
	if err := os.Remove(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	u, err := net.ListenUnix("unix", &net.UnixAddr{Name: l.path, Net: "unix"})
	if err != nil {
		return err
	}
	u.SetUnlinkOnClose(false) // Close does it
	l.UnixListener = u
	return nil
}

// Close removes the socket and ends Accept. A socket that is left the next process sweeps away.
func (l *listener) Close() error {
	_ = l.owner.Do(func() error { return os.Remove(l.path) })
	return l.UnixListener.Close()
}

// A Socket is that of a process.
type Socket struct {
	Name string // that it was made under
	Path string
}

// All are the sockets in dir. Some may be those of processes that have died.
func All(dir string) ([]Socket, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	var all []Socket
	for _, e := range entries {
		if name, _, ok := split(e.Name()); ok {
			all = append(all, Socket{Name: name, Path: filepath.Join(dir, e.Name())})
		}
	}
	return all, nil
}

// split takes a socket's file name apart.
func split(file string) (name string, pid int, ok bool) {
	i := strings.LastIndexByte(file, '.')
	if i < 0 {
		return "", 0, false
	}
	pid, err := strconv.Atoi(file[i+1:])
	return file[:i], pid, err == nil && pid > 0
}

// sweep removes the sockets of processes that have died.
func sweep(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // to listen says what is wrong
	}
	for _, e := range entries {
		if _, pid, ok := split(e.Name()); ok && syscall.Kill(pid, 0) == syscall.ESRCH {
			_ = os.Remove(filepath.Join(dir, e.Name())) // the next process tries again
		}
	}
}
