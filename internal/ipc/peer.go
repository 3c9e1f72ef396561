package ipc

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// trusts says whether the peer runs as root, as the present user, or as the
// mail system's. The numbers are those of when it connected, as the kernel
// says them.
func (s *Server) trusts(nc net.Conn) bool {
	uid, ok := peerUID(nc)
	return ok && (uid == 0 || uid == os.Geteuid() || uid == s.Owner)
}

// A peered connection knows itself who connected: one that no kernel carries.
type peered interface{ PeerUID() int }

// peerUID is the effective user of the process that connected.
func peerUID(nc net.Conn) (uid int, ok bool) {
	if p, ok := nc.(peered); ok {
		return p.PeerUID(), true
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return 0, false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, false
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if cerr != nil || err != nil {
		return 0, false
	}
	return int(cred.Uid), true
}

// guarded is the handler for peers that are not trusted.
func (s *Server) guarded(c *Conn, r *Request) {
	if !s.Public(r) {
		r.Fail("permission denied: this is for the mail system and for root")
		return
	}
	s.Handler(c, r)
}
