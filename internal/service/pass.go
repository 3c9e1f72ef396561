package service

import (
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// passTime is how long somebody may take to hand a connection over.
const passTime = 5 * time.Second

// A passListener is the socket of a service of type pass: whoever connects
// hands over a connection with a client, as an open descriptor, and Accept
// returns that one.
type passListener struct{ net.Listener }

// Accept returns the next connection that was handed over. Somebody who
// connects and hands over nothing is ignored.
func (l passListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		passed, err := receiveConn(c)
		c.Close()
		if err == nil {
			return passed, nil
		}
	}
}

func receiveConn(c net.Conn) (net.Conn, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("a connection cannot be handed over by a %T", c)
	}
	u.SetDeadline(time.Now().Add(passTime))
	// Whoever hands over may say something about the client along with it; what
	// is said is not believed.
	oob := make([]byte, unix.CmsgSpace(4*4))
	_, n, _, _, err := u.ReadMsgUnix(make([]byte, 4096), oob)
	if err != nil {
		return nil, err
	}
	fds, err := rights(oob[:n])
	if err != nil || len(fds) != 1 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("%d descriptors were handed over, not one: %w", len(fds), err)
	}
	unix.CloseOnExec(fds[0])
	f := os.NewFile(uintptr(fds[0]), "passed")
	defer f.Close()
	return net.FileConn(f)
}

// rights returns the descriptors in a control message.
func rights(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		got, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // credentials and the like
		}
		fds = append(fds, got...)
	}
	return fds, nil
}
