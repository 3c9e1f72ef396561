package local

import (
	"fmt"
	"net"
	"strconv"
)

// comsatPort is comsat's where /etc/services does not say.
const comsatPort = 512

// A biff tells comsat(8) of new mail, so that it tells users who are logged in
// and have asked for it, with biff(1). Few systems have a comsat: a datagram
// that nobody takes is no trouble.
type biff struct{ addr string }

// newBiff finds the port out while /etc/services is in sight: chroot may come after.
func newBiff() *biff {
	port, err := net.LookupPort("udp", "biff")
	if err != nil {
		port = comsatPort
	}
	return &biff{net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
}

// notify says where in the user's mailbox the message begins, so that comsat shows its first lines. A
// negative start is no place in a file: nobody is told. A nil biff tells nobody.
func (b *biff) notify(user string, start int64) {
	if b == nil || start < 0 {
		return
	}
	c, err := net.Dial("udp", b.addr)
	if err != nil {
		return
	}
	defer c.Close()
	fmt.Fprintf(c, "%s@%d", user, start)
}
