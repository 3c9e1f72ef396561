package maildrop

import (
	"io"
	"net"
	"time"
)

// What a peer of pickup's socket says first.
const (
	wakeUp     = 'W' // there is mail in the directory
	OfferFirst = 'M' // a message follows
)

const (
	// maxOffered is how much content is held in memory to be offered: most
	// mail is smaller, and what is larger gains nothing by it.
	maxOffered = 48 << 10
	// MaxOffer bounds a message that is offered, in octets.
	MaxOffer = 64 << 10
	// OfferTime bounds one side's talking: a message is sent at once, and
	// nobody waits for a user's typing.
	OfferTime = 10 * time.Second
	// patience bounds the wait for a word on a message. cleanup may have to
	// wait for a lookup, or for the queue to become shorter (in_flow_delay).
	patience = 5 * time.Minute
)

// taken is what pickup says of a message that is in the queue. Anything else,
// or nothing, leaves it with who has offered it.
const taken = 'Q'

// offer offers a whole message to pickup. It is true when the message is in
// the queue, on stable storage. It saves a file, made, synced, listed, read
// and removed, which is most of what a submission costs.
func (b Box) offer(message []byte) bool {
	if len(message) > MaxOffer {
		return false
	}
	c, err := b.dial()
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetWriteDeadline(time.Now().Add(OfferTime))
	c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.Write(append([]byte{OfferFirst}, message...)); err != nil {
		return false
	}
	var answer [1]byte
	_, err = io.ReadFull(c, answer[:])
	return err == nil && answer[0] == taken
}

// dial connects to pickup.
func (b Box) dial() (net.Conn, error) {
	if b.Dial != nil {
		return b.Dial()
	}
	return net.DialTimeout("unix", b.Socket, time.Second)
}

// TakeOffer is pickup's side: what follows OfferFirst on c is a message, for
// which take is asked whether it is on stable storage now. The caller bounds
// the time. The error is that it is, and that who has offered it cannot be told:
// he has given up, and may have made a file of it.
func TakeOffer(c io.ReadWriter, take func(*Reader) bool) error {
	m, err := NewReader(io.LimitReader(c, MaxOffer))
	if err != nil {
		return nil
	}
	defer m.Free()
	if take(m) {
		_, err = c.Write([]byte{taken})
	}
	return err
}

// wake tells pickup, by its socket, that there is mail. It is no error when
// the mail system is not running: pickup looks when it starts.
func (b Box) wake() {
	c, err := b.dial()
	if err != nil {
		return
	}
	c.SetDeadline(time.Now().Add(time.Second))
	c.Write([]byte{wakeUp})
	c.Close()
}
