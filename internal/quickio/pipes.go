package quickio

import (
	"errors"
	"net"
	"os"
	"time"
)

// NewPipes returns a connection that reads from one pipe and writes to another,
// and has nc's names. The files must not block, and are the connection's from now
// on; nc is not.
//
// A unix-domain socket tells whoever has written that there is room again each time
// something has been read, and Go's poller, which always listens for that, is woken in
// vain between any two messages, mostly on another processor. A pipe tells it only
// when it had been full. Two programs that do nothing but answer one another took 7 µs
// for each turn, and 36 to 52 over a socket.
func NewPipes(nc net.Conn, in, out *os.File) (*Conn, error) {
	r, err := in.SyscallConn()
	if err != nil {
		return nil, err
	}
	w, err := out.SyscallConn()
	if err != nil {
		return nil, err
	}
	return newConn(&pipes{nc, in, out}, r, w), nil
}

// pipes makes a connection of two.
type pipes struct {
	net.Conn
	in, out *os.File
}

func (p *pipes) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *pipes) Write(b []byte) (int, error) { return p.out.Write(b) }
func (p *pipes) Close() error                { return errors.Join(p.in.Close(), p.out.Close()) }

func (p *pipes) SetDeadline(t time.Time) error {
	return errors.Join(p.SetReadDeadline(t), p.SetWriteDeadline(t))
}
func (p *pipes) SetReadDeadline(t time.Time) error  { return p.in.SetReadDeadline(t) }
func (p *pipes) SetWriteDeadline(t time.Time) error { return p.out.SetWriteDeadline(t) }
