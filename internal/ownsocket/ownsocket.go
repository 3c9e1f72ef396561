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
)

// Listen makes the present process's socket under a name, in dir relative to the working
// directory, which is made if it is not there. The listener removes the socket when it closes.
func Listen(dir, name string) (net.Listener, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	sweep(dir)
	path := filepath.Join(dir, name+"."+strconv.Itoa(os.Getpid()))
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
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
