package smtp

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rogpeppe/go-internal/txtar"
)

// TestFlights: with PIPELINING no more commands are under way than any server has room for; the rest, and DATA with it, goes when
// these have been answered. Without PIPELINING each waits for the answer to the one before.
func TestFlights(t *testing.T) {
	t.Parallel()
	const rcpts, first = 50, 42 // MAIL and so many RCPT are the first over 4096-512 octets
	addr := strings.Repeat("x", 64) + "@dest.test"
	message := strings.Repeat("to: "+addr+"\n", rcpts)
	want := strings.Repeat(fmt.Sprintf("log: Q1: to=<%s>, relay=192.0.2.1[192.0.2.1]:25, delay=%%[1]d, delays=0/0/0/%%[1]d, dsn=2.0.0, status=sent (250 done)\n", addr), rcpts) +
		strings.Repeat("notice: delivered; 192.0.2.1; smtp; 250 done\n", rcpts)
	for name, c := range map[string]struct {
		server string
		end    string
		delay  int
	}{
		"pipelining": {"S: 220 x ESMTP\nC: EHLO me.test\nS: 250-x\nS: 250 PIPELINING\n" +
			fmt.Sprintf("C: MAIL FROM:<from@here.test>\nC+ %d RCPT TO:<%s>\nquiet 1s\nS: 250 ok\nflood %d 250 ok\n", first, addr, first) +
			fmt.Sprintf("C+ %d RCPT TO:<%s>\nC: DATA\nquiet 1s\nflood %d 250 ok\nS: 354 go\n", rcpts-first, addr, rcpts-first), "C* .\nC: QUIT\nS: 250 done\n", 2},
		"none": {"S: 220 x ESMTP\nC: EHLO me.test\nS: 250 x\nC: MAIL FROM:<from@here.test>\nquiet 1s\nS: 250 ok\n" +
			strings.Repeat(fmt.Sprintf("C: RCPT TO:<%s>\nquiet 1s\nS: 250 ok\n", addr), rcpts) + "C: DATA\nquiet 1s\nS: 354 go\n", "C* .\nS: 250 done\nC: QUIT\n", rcpts + 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ar := &txtar.Archive{Files: []txtar.File{{Name: "message", Data: []byte("nexthop: [192.0.2.1]\n" + message)},
				{Name: "server 192.0.2.1:25", Data: []byte(c.server + c.end)},
				{Name: "want", Data: fmt.Appendf(nil, want, c.delay)}}}
			synctest.Test(t, func(t *testing.T) { runDialogue(t, "", ar) })
		})
	}
}
