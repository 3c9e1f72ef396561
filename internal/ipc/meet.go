package ipc

import (
	"errors"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"posthaste/internal/quickio"
)

// flagPipes is a preface's fifth octet: a client would rather have pipes than the
// socket, or a server sends it two.
const flagPipes = 1

// What a pipe takes without being read: more on the way to a server, since the content
// of messages goes there. A user may have 64 MB of pipes (fs.pipe-user-pages-soft),
// which is a hundred connections, and gets smaller ones after that: then a socket is better.
const (
	sizeToServer = 512 << 10
	sizeToClient = 64 << 10
)

func preface(flags byte) []byte { return []byte{0, 'P', 'H', Version, flags, 0, 0, 0} }

// greeted reads the peer's preface. Ours is the first of what is written.
func (c *Conn) greeted() error {
	_, err := readPreface(c.nc)
	return err
}

func readPreface(r io.Reader) (flags byte, err error) {
	var h [prefaceLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, err
	}
	if h[0] != 0 || h[1] != 'P' || h[2] != 'H' || h[3] != Version {
		return 0, ErrVersion
	}
	return h[4], nil
}

// newClientConn is newConn for a client that wants pipes.
func newClientConn(nc net.Conn, handler Handler) *Conn {
	return newConn(quickio.New(nc), handler).meeting((*Conn).ask)
}

// newServerConn is newConn for a client that is to have pipes if it asks for them.
func newServerConn(nc net.Conn, handler Handler) *Conn {
	return newConn(nc, handler).meeting((*Conn).offer)
}

// meeting has prefaces, and frames after them, wait for how, if c is over a socket
// that files can be passed over.
func (c *Conn) meeting(how func(*Conn, *net.UnixConn) error) *Conn {
	if socket := unixSocket(c.nc); socket != nil {
		c.out, c.ready = nil, false
		c.meet = func() error { return how(c, socket) }
	}
	return c
}

// unixSocket is the unix-domain socket that nc stands for, or nil.
func unixSocket(nc net.Conn) *net.UnixConn {
	for {
		switch t := nc.(type) {
		case *net.UnixConn:
			return t
		case *quickio.Conn:
			nc = t.Conn
		case *sniffed:
			nc = t.Conn
		default:
			return nil
		}
	}
}

// ask is the client's part of meeting.
func (c *Conn) ask(socket *net.UnixConn) error {
	if _, err := c.nc.Write(preface(flagPipes)); err != nil {
		return err
	}
	from := passing{socket: socket}
	flags, err := readPreface(&from)
	if err == nil && (flags&flagPipes != 0) != (len(from.files) == 2) {
		err = errors.New("ipc: the peer did not send two pipes")
	}
	if err != nil {
		closeAll(from.files)
		return err
	}
	return c.goOn(from.files)
}

// passing reads from a socket, and collects the files that are passed.
type passing struct {
	socket *net.UnixConn
	files  []*os.File
}

func (p *passing) Read(b []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(2*4))
	n, oobn, _, _, err := p.socket.ReadMsgUnix(b, oob)
	if err != nil {
		return n, err
	}
	files, err := passedFiles(oob[:oobn])
	p.files = append(p.files, files...)
	return n, err
}

// offer is the server's part of meeting. When no pipes can be had the socket must do.
func (c *Conn) offer(socket *net.UnixConn) error {
	flags, err := readPreface(c.nc)
	if err != nil {
		return err
	}
	var ours []*os.File
	var theirs []int // never files of ours, which would make them block
	if flags&flagPipes != 0 {
		ours, theirs = makePipes()
	}
	if theirs == nil {
		_, err = c.nc.Write(preface(0))
	} else {
		_, _, err = socket.WriteMsgUnix(preface(flagPipes), unix.UnixRights(theirs...), nil)
		unix.Close(theirs[0])
		unix.Close(theirs[1])
	}
	if err != nil {
		closeAll(ours)
		return err
	}
	return c.goOn(ours)
}

// goOn has frames go over these pipes, to read from and to write to, or over the
// socket if there are none.
func (c *Conn) goOn(files []*os.File) error {
	stream := c.nc
	if len(files) == 2 {
		p, err := quickio.NewPipes(c.nc, files[0], files[1])
		if err != nil {
			closeAll(files)
			return err
		}
		stream = p
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.closed != nil { // and nobody else would close them
		closeAll(files)
		return c.closed
	}
	c.stream, c.ready = stream, true
	c.wcond.Broadcast()
	return nil
}

// makePipes makes two pipes: each side's ends, to read from and to write to. They
// are nil when there are none to be had. No end belongs to both sides, so that neither can make
// the other's block.
func makePipes() (ours []*os.File, theirs []int) {
	toUs, ok := makePipe(sizeToServer)
	if !ok {
		return nil, nil
	}
	toThem, ok := makePipe(sizeToClient)
	if !ok {
		unix.Close(toUs[0])
		unix.Close(toUs[1])
		return nil, nil
	}
	return asFiles(toUs[0], toThem[1]), []int{toThem[0], toUs[1]}
}

// makePipe makes a pipe of that size at least.
func makePipe(size int) (p [2]int, ok bool) {
	if unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		return p, false
	}
	now, err := unix.FcntlInt(uintptr(p[0]), unix.F_GETPIPE_SZ, 0)
	if err == nil && now < size {
		now, err = unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, size)
	}
	if err != nil || now < size {
		unix.Close(p[0])
		unix.Close(p[1])
		return p, false
	}
	return p, true
}

func asFiles(fds ...int) (files []*os.File) {
	for _, fd := range fds {
		files = append(files, os.NewFile(uintptr(fd), "pipe"))
	}
	return files
}

// passedFiles are the files that came with a message.
func passedFiles(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range list {
		fds, err := unix.ParseUnixRights(&list[i])
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, asFiles(fds...)...)
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
