package master

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"posthaste/internal/service"
)

// A socket is a listening socket. It stays a bare descriptor: the services'
// processes share it with us, and the net package would set modes on it that
// are theirs too.
type socket struct {
	endpoint
	fd   int
	path string      // absolute, for unix-domain sockets
	name unix.Stat_t // what path led to
}

// backlog is how many connections may wait. The kernel cuts it to
// net.core.somaxconn.
const backlog = 4096

// openSockets opens the sockets that s needs and have does not hold, or not any more. On error
// it closes what it has opened. The map it returns has those of have that are
// still needed.
func (m *master) openSockets(s *settings, have map[string]*socket) (map[string]*socket, error) {
	need := make(map[string]*socket)
	var opened []*socket
	var errs []error
	for _, e := range s.services {
		kept := e.endpoints[:0:0]
		for _, ep := range e.endpoints {
			name := ep.String()
			sock := have[name]
			if sock == nil || sock.lost() {
				var err error
				sock, err = m.openSocket(s, ep)
				if err != nil && ep.optional && absent(err) {
					m.log.Warning("service %s: not listening on %s: %v", e.key(), name, err)
					continue
				}
				if err != nil {
					errs = append(errs, explain(e, ep, err))
					continue
				}
				opened = append(opened, sock)
			}
			need[name] = sock
			kept = append(kept, ep)
		}
		e.endpoints = kept
		e.line.Sockets = len(kept)
	}
	if err := errors.Join(errs...); err != nil {
		for _, sock := range opened {
			sock.remove()
		}
		return nil, err
	}
	return need, nil
}

// absent says whether the system has no such address.
func absent(err error) bool {
	return errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT)
}

// explain says what a person can do about a socket that cannot be opened.
func explain(e *entry, ep endpoint, err error) error {
	where := fmt.Sprintf("%s:%d: service %s: listen on %s: %v", e.File, e.Line, e.key(), ep, err)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%s; another program has the port: stop it (\"ss -ltnp\" shows which), or change the port in master.cf", where)
	case errors.Is(err, unix.EACCES) && ep.network == "tcp":
		return fmt.Errorf("%s; ports below 1024 are for root: start as root, or use a higher port in master.cf", where)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%s; no interface has this address: correct inet_interfaces in main.cf, or master.cf", where)
	}
	return errors.New(where)
}

func (m *master) openSocket(s *settings, ep endpoint) (*socket, error) {
	if ep.network == "tcp" {
		return m.openInet(ep, s.config.Int("tcp_windowsize"))
	}
	return openUnix(s.queue, ep)
}

// openInet opens a TCP socket. A window over 0 is what its connections get for
// their buffers.
func (m *master) openInet(ep endpoint, window int) (*socket, error) {
	var sa unix.Sockaddr
	domain := unix.AF_INET
	if a := ep.addr.Addr(); a.Is4() {
		sa = &unix.SockaddrInet4{Port: int(ep.addr.Port()), Addr: a.As4()}
	} else {
		domain = unix.AF_INET6
		sa = &unix.SockaddrInet6{Port: int(ep.addr.Port()), Addr: a.As16()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil && domain == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if window > 0 {
		for _, err := range service.SetWindow(fd, window) {
			m.log.Warning("%s: %v", ep, err)
		}
	}
	return listenOn(&socket{endpoint: ep, fd: fd}, sa, err)
}

// listenOn binds and listens, unless something went wrong before.
func listenOn(s *socket, sa unix.Sockaddr, err error) (*socket, error) {
	if err == nil {
		err = unix.Bind(s.fd, sa)
	}
	if err == nil && s.network != "unixgram" {
		err = unix.Listen(s.fd, backlog)
	}
	if err != nil {
		unix.Close(s.fd)
		return nil, err
	}
	return s, nil
}

func openUnix(queue string, ep endpoint) (*socket, error) {
	kind := unix.SOCK_STREAM
	if ep.network == "unixgram" {
		kind = unix.SOCK_DGRAM
	}
	s := &socket{endpoint: ep, path: filepath.Join(queue, ep.path)}
	// What an earlier master left. Nobody else listens: we have the lock.
	if info, err := os.Lstat(s.path); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("%s exists and is not a socket; remove it", s.path)
		}
		if err := os.Remove(s.path); err != nil {
			return nil, err
		}
	}
	var err error
	if s.fd, err = unix.Socket(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, err
	}
	// A socket address has room for 107 bytes: go by way of the directory.
	dir, err := unix.Open(filepath.Dir(s.path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(s.fd)
		return nil, fmt.Errorf("%s: %w", filepath.Dir(s.path), err)
	}
	defer unix.Close(dir)
	sa := &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(s.path))}
	if s, err = listenOn(s, sa, nil); err != nil {
		return nil, err
	}
	if err = unix.Lstat(s.path, &s.name); err == nil {
		err = os.Chmod(s.path, 0o666) // the directory decides who may come
	}
	if err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

// lost says that nobody can come any more: somebody has removed the socket, or
// the directory that it was in.
func (s *socket) lost() bool {
	var now unix.Stat_t
	return s.path != "" && (unix.Lstat(s.path, &now) != nil || now.Dev != s.name.Dev || now.Ino != s.name.Ino)
}

// remove closes the socket and takes its name away, unless that is another's by now.
func (s *socket) remove() {
	if s.fd < 0 {
		return
	}
	unix.Close(s.fd)
	s.fd = -1
	if s.path != "" && !s.lost() {
		os.Remove(s.path)
	}
}
