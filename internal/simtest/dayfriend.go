package simtest

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Bounds of virtual time that hold for honest mail in the middle of all this: until it is taken, with what its client tries
// again after a temporary refusal, and from then on until it is where it belongs.
const (
	honest        = 4 // clients
	acceptWithin  = 30 * time.Minute
	deliverWithin = 20 * time.Minute
)

// correspond is an honest client, who sends a letter every ten minutes.
func (d *day) correspond(i int) {
	r := d.seed.source(fmt.Sprintf("honest %d", i))
	for n := 0; ; n++ {
		time.Sleep(time.Duration(r.Int64N(int64(20 * time.Minute))))
		if d.ended() {
			return
		}
		token, begun := fmt.Sprintf("h%d-%d", i, n), time.Now()
		for d.post(token, netip.AddrFrom4([4]byte{203, 0, 113, byte(101 + i)})) != 250 {
			if time.Since(begun) > acceptWithin {
				d.complain("an honest letter was not taken: " + token)
				break
			}
			time.Sleep(3 * time.Minute)
		}
		d.rmu.Lock()
		d.accept = max(d.accept, time.Since(begun))
		d.rmu.Unlock()
	}
}

// post has one session, and gives the reply to the message; 0: it did not come to that.
func (d *day) post(token string, from netip.Addr) int {
	c := d.call(from)
	defer c.Close()
	f := &foe{talker: newTalker(c), day: d, raw: c}
	if !f.envelope("friend@victim.test", "user1@relay.test", "user2@relay.test") || f.ask("DATA\r\n") != 354 {
		return 0
	}
	f.say("Subject: letter " + token + "\r\nFrom: <friend@victim.test>\r\n\r\n" + strings.Repeat("a line of an honest letter\r\n", 30))
	d.rmu.Lock()
	d.letters[token] = time.Now()
	d.rmu.Unlock()
	code := f.ask(".\r\n")
	if code == 250 {
		d.taken.Add(1)
		f.ask("QUIT\r\n")
		return code
	}
	d.rmu.Lock()
	delete(d.letters, token)
	d.rmu.Unlock()
	return code
}

// arrived is told of a message at the host of honest recipients.
func (d *day) arrived(token string) {
	d.rmu.Lock()
	defer d.rmu.Unlock()
	sent, ok := d.letters[token]
	if !ok {
		return
	}
	delete(d.letters, token)
	if d.deliver = max(d.deliver, time.Since(sent)); time.Since(sent) > deliverWithin {
		d.complaints = append(d.complaints, fmt.Sprintf("an honest letter took %v: %s", time.Since(sent), token))
	}
}
