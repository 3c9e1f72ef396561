// Listening sockets: opening them, keeping them over reloads, and removing those that are
// not needed any more. They are opened before any service starts, so that a client may
// come at any moment.

package master

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"posthaste/internal/occupant"
	"posthaste/internal/rights"
	"posthaste/internal/service"
)

// A socket is a listening socket of master. It is a bare descriptor: service processes
// share it, and package net would set modes on the shared file description.
type socket struct {
	endpoint
	// -1 once it is closed
	fd   int
	path string      // absolute, for unix-domain sockets
	name unix.Stat_t // what path led to
}

// backlog is how many connections may wait while a service starts. The kernel cuts it to
// net.core.somaxconn.
const backlog = 4096

// openSockets opens the sockets that s needs and that have does not hold, or holds under
// a name that somebody has removed. The result has those of have that are still needed.
// On error everything that was opened is closed, and have is as it was. Endpoints without
// a socket are taken out of their entries.
func (m *master) openSockets(s *settings, have map[string]*socket) (map[string]*socket, error) {
	need := make(map[string]*socket)
	var opened []*socket
	var errs []error
	for _, e := range s.services {
		kept := e.endpoints[:0:0]
		for _, ep := range e.endpoints {
			name := ep.String()
			sock := have[name]
			// A socket whose name is gone cannot be reached; a new one is made in its
			// place.
			if sock == nil || sock.lost() {
				var err error
				if sock, err = m.openSocket(s, ep); errors.Is(err, unix.EADDRINUSE) {
					sock, err = m.openBeside(s, ep, have)
				}
				// IPv6 may be turned off in the kernel.
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
		// The process is told how many sockets it inherits, and must not count on one
		// that is not there.
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

// openBeside opens a TCP socket whose port is taken, should that be by sockets of ours that s no longer
// has: those of single addresses, when all are to be listened on, or the reverse. They share the port
// until they are closed, so that no client is refused, and go on if the reload is refused. The error is
// EADDRINUSE if somebody else has the port, or s has it twice.
func (m *master) openBeside(s *settings, ep endpoint, have map[string]*socket) (*socket, error) {
	if ep.network != "tcp" || s.crowds(ep) {
		return nil, unix.EADDRINUSE
	}
	for name, sock := range have {
		if sock.network != "tcp" || sock.addr.Port() != ep.addr.Port() || s.needs(name) {
			continue
		}
		// Both must have the option while the other is bound and listens; sockets of other users may
		// not share the port by it (socket(7)).
		if err := shareable(sock.fd, true); err != nil {
			return nil, err
		}
		defer shareable(sock.fd, false)
	}
	return m.openInet(ep, s.config.Int("tcp_windowsize"), true)
}

// crowds says whether a service has an endpoint, and another one all addresses of its port, or this
// endpoint is all and the other a single one. The kernel would not say so of shareable sockets.
func (s *settings) crowds(ep endpoint) bool {
	return slices.ContainsFunc(s.services, func(e *entry) bool {
		return slices.ContainsFunc(e.endpoints, func(other endpoint) bool {
			a, b := ep.addr, other.addr
			return other.network == "tcp" && a != b && a.Port() == b.Port() && a.Addr().Is4() == b.Addr().Is4() &&
				(a.Addr().IsUnspecified() || b.Addr().IsUnspecified())
		})
	})
}

// shareable says whether another socket may be bound to a socket's port.
func shareable(fd int, yes bool) error {
	value := 0
	if yes {
		value = 1
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, value)
}

// needs says whether a socket of this name belongs to one of the services.
func (s *settings) needs(name string) bool {
	return slices.ContainsFunc(s.services, func(e *entry) bool {
		return slices.ContainsFunc(e.endpoints, func(ep endpoint) bool { return ep.String() == name })
	})
}

// absent says that the system does not have such an address.
func absent(err error) bool {
	return errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT)
}

// explain adds to an error what a person can do about it.
func explain(e *entry, ep endpoint, err error) error {
	where := fmt.Sprintf("%s:%d: service %s: listen on %s: %v", e.File, e.Line, e.key(), ep, err)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		who := "another program"
		if p, ok := occupant.Of(ep.addr); ok {
			who = p.String()
		}
		return fmt.Errorf("%s; %s has the port: stop it, or change the port in master.cf", where, who)
	case errors.Is(err, unix.EACCES) && ep.network == "tcp":
		return fmt.Errorf("%s; ports below 1024 are for root: start as root, or use a higher port in master.cf", where)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%s; no interface has this address: correct inet_interfaces in main.cf, or master.cf", where)
	}
	return errors.New(where)
}

// openSocket opens the socket of one endpoint.
func (m *master) openSocket(s *settings, ep endpoint) (*socket, error) {
	if ep.network == "tcp" {
		return m.openInet(ep, s.config.Int("tcp_windowsize"), false)
	}
	return openUnix(s.queue, ep)
}

// openInet opens a TCP socket. window, if it is positive, is tcp_windowsize; it must be
// set before listen, for connections inherit it. A socket may be opened beside others of its port
// that are shareable.
func (m *master) openInet(ep endpoint, window int, beside bool) (*socket, error) {
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
	// Connections of the mail system that ran before may still be in TIME_WAIT.
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil && domain == unix.AF_INET6 {
		// IPv4 has sockets of its own.
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if window > 0 {
		// Not worth a service that does not start.
		for _, err := range service.SetWindow(fd, window) {
			m.log.Warning("%s: %v", ep, err)
		}
	}
	if err == nil && beside {
		err = shareable(fd, true)
	}
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err == nil && beside {
		err = shareable(fd, false)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &socket{endpoint: ep, fd: fd}, nil
}

// openUnix makes a unix-domain socket with the rights of its directory's owner,
// mail_owner: what root did there by name, mail_owner could lead elsewhere.
func openUnix(queue string, ep endpoint) (*socket, error) {
	kind := unix.SOCK_STREAM
	if ep.network == "unixgram" {
		kind = unix.SOCK_DGRAM
	}
	s := &socket{endpoint: ep, fd: -1, path: filepath.Join(queue, ep.path)}
	err := s.inDirectory(func(dir int, name string) (err error) {
		if err := s.clear(dir, name); err != nil {
			return err
		}
		if s.fd, err = unix.Socket(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		// A socket address has room for 107 bytes: go by way of the directory.
		if err := unix.Bind(s.fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, name)}); err != nil {
			return err
		}
		if s.name, err = allow(dir, name); err != nil || kind == unix.SOCK_DGRAM {
			return err
		}
		// Only after the mode is right: before, nobody can connect.
		return unix.Listen(s.fd, backlog)
	})
	if err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

// inDirectory calls f with the socket's directory and its name there, and with the file
// rights of the directory's owner.
func (s *socket) inDirectory(f func(dir int, name string) error) error {
	dir, who, err := rights.OpenDirectory(filepath.Dir(s.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if who.IsOwn() {
		return f(int(dir.Fd()), filepath.Base(s.path))
	}
	defer visible()
	return who.Do(func() error { return f(int(dir.Fd()), filepath.Base(s.path)) })
}

// visible ends that our descriptors are hidden from who has not CAP_SYS_PTRACE, as in most containers and with our
// unit of systemd, which follows from having had another user's file rights: the control commands want to see them, to
// know the master. Nothing of ours is another user's to see all the same.
func visible() { unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) }

// clear removes the socket that an earlier master left. Nobody listens on it, as we have
// the lock.
func (s *socket) clear(dir int, name string) error {
	var old unix.Stat_t
	switch err := unix.Fstatat(dir, name, &old, unix.AT_SYMLINK_NOFOLLOW); {
	case err == unix.ENOENT:
		return nil
	case err != nil:
		return err
	// Somebody's file is not removed on a guess.
	case old.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return fmt.Errorf("%s exists and is not a socket; remove it", s.path)
	}
	return unix.Unlinkat(dir, name, 0)
}

// allow lets everybody connect who can get to the directory: the directory's mode
// decides. It goes by a descriptor of what was made, and returns its state, so that lost
// can tell later whether the name still leads there.
func allow(dir int, name string) (st unix.Stat_t, err error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return st, err
	}
	defer unix.Close(fd)
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		err = fmt.Errorf("%s has been exchanged for something that is not a socket", name)
	}
	if err == nil {
		err = unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0o666)
	}
	return st, err
}

// lost says that nobody can connect any more, because somebody has removed the socket or
// its directory.
func (s *socket) lost() bool {
	var now unix.Stat_t
	return s.path != "" && (unix.Lstat(s.path, &now) != nil || now.Dev != s.name.Dev || now.Ino != s.name.Ino)
}

// remove closes the socket and removes its name, unless that is another's by now. What
// cannot be removed the next master clears.
func (s *socket) remove() {
	if s.fd < 0 {
		return
	}
	unix.Close(s.fd)
	s.fd = -1
	if s.path != "" && !s.lost() {
		_ = s.inDirectory(func(dir int, name string) error { return unix.Unlinkat(dir, name, 0) })
	}
}
