package simtest

import (
	"bufio"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// A talker is one end of a dialogue.
type talker struct {
	c  net.Conn
	in *bufio.Reader
}

func newTalker(c net.Conn) *talker { return &talker{c, bufio.NewReaderSize(c, 512)} }

// say sends text, for no longer than ten minutes. It says whether all of it went away.
func (t *talker) say(text string) bool {
	t.c.SetWriteDeadline(time.Now().Add(10 * time.Minute))
	_, err := t.c.Write([]byte(text))
	return err == nil
}

// line reads one, for no longer than ten minutes; of a long one it gives the end.
func (t *talker) line() (string, bool) {
	t.c.SetReadDeadline(time.Now().Add(10 * time.Minute))
	for {
		b, err := t.in.ReadSlice('\n')
		if err == nil {
			return string(b), true
		}
		if err != bufio.ErrBufferFull {
			return "", false
		}
	}
}

// hang waits until the other side has gone, and takes what it says, but for no longer than that.
func (t *talker) hang(most time.Duration) {
	t.c.SetReadDeadline(time.Now().Add(most))
	var b [512]byte
	for {
		if _, err := t.c.Read(b[:]); err != nil {
			return
		}
	}
}

// A dayHost is one session of a host that mail goes to.
type dayHost struct {
	*talker
	day  *day
	rnd  *rand.Rand
	act  func(*dayHost)
	home bool   // it is that of honest recipients
	mood string // what it does, see serve
}

// hostMoods are those of the hosts of strangers.
var hostMoods = []string{"endless banner", "endless reply", "nul", "421", "421 later", "never closes", "silent", "drip", "binary", "many keywords", "long line",
	"tls junk", "reset", "close at dot", "550", "450", "silent at dot", "refuse", "good"}

// choose says what the host at an address does. Strangers' hosts keep to one way for most of the time.
func (h *dayHost) choose(a netip.Addr) {
	h.act = (*dayHost).serve
	switch a.String() {
	case "203.0.113.1":
		h.home, h.mood = true, "good"
		return
	case "203.0.113.2":
		h.mood = "good"
		return
	}
	h.mood = hostMoods[int(hash(a.String())%uint64(len(hostMoods)))]
	if h.rnd.IntN(4) == 0 {
		h.mood = pick(h.rnd, hostMoods...)
	}
	if h.mood == "refuse" {
		h.act = nil
	}
}

// endless sends text again and again until nobody wants it any more, or as long as it has patience.
func (h *dayHost) endless(text string) {
	end := time.Now().Add(h.day.order.patience)
	for time.Now().Before(end) && h.say(strings.Repeat(text, 1+4000/len(text))) {
		time.Sleep(time.Second)
	}
}

// serve is a session.
func (h *dayHost) serve() {
	greeting := "220 host ESMTP\r\n"
	switch h.mood {
	case "endless banner":
		h.endless("220-and so on\r\n")
		return
	case "silent":
		h.hang(h.day.order.patience)
		return
	case "drip":
		for _, b := range []byte(strings.Repeat("220-slow\r\n", 20)) {
			if time.Sleep(200 * time.Second); !h.say(string(b)) {
				return
			}
		}
		return
	case "binary":
		b := make([]byte, 3000)
		for i := range b {
			b[i] = byte(h.rnd.Uint32())
		}
		greeting = string(b) + "\r\n"
	case "421":
		greeting = "421 4.3.2 go away\r\n"
	case "long line":
		greeting = "220 " + strings.Repeat("x", 100_000) + "\r\n"
	case "nul":
		greeting = "220 ho\x00st\x00 ESMTP\r\n"
	}
	h.say(greeting)
	for h.command() {
	}
	if h.mood == "never closes" {
		h.hang(h.day.order.patience)
	}
}

// command answers one. It says whether there is to be another.
func (h *dayHost) command() bool {
	line, ok := h.line()
	if !ok {
		return false
	}
	verb, arg, _ := strings.Cut(strings.ToUpper(strings.TrimSpace(line)), " ")
	switch {
	case verb == "EHLO" && h.mood == "many keywords":
		return h.say(strings.Repeat("250-X"+strings.Repeat("KEY", 20)+" 1 2 3\r\n", 450) + "250 SIZE\r\n")
	case verb == "EHLO" && h.mood == "tls junk":
		return h.say("250-host\r\n250 STARTTLS\r\n")
	case verb == "STARTTLS":
		return h.say("220 go\r\n" + strings.Repeat("\x16\x03\x01junk", 100))
	case verb == "EHLO" && h.mood == "endless reply":
		h.endless("250-more\r\n")
		return false
	case verb == "EHLO":
		return h.say("250-host\r\n250-PIPELINING\r\n250 8BITMIME\r\n")
	case verb == "QUIT":
		return h.mood != "never closes" && h.say("221 bye\r\n") && false
	case verb == "MAIL" && h.mood == "421 later":
		return h.say("421 4.3.2 not now\r\n") && false
	case verb == "RCPT" && (h.mood == "550" || strings.HasPrefix(arg, "TO:<NEVER")):
		return h.say("550 5.1.1 nobody\r\n")
	case verb == "RCPT" && h.mood == "450":
		return h.say("450-4.2.0 later" + strings.Repeat("\r\n450-4.2.0 later", 80) + "\r\n450 4.2.0 later\r\n")
	case verb == "DATA":
		return h.say("354 go on\r\n") && h.content()
	case h.mood == "nul":
		return h.say("250 o\x00k\r\n")
	}
	return h.say("250 2.0.0 ok\r\n")
}

// content takes a message as DATA has it.
func (h *dayHost) content() bool {
	token := ""
	for n := 0; ; n++ {
		line, ok := h.line()
		switch {
		case !ok:
			return false
		case line == ".\r\n":
			return h.taken(token)
		case strings.HasPrefix(line, "Subject: letter "):
			token = strings.TrimSpace(line[16:])
		}
		if h.mood == "reset" && n > 5 {
			h.c.(*conn).reset()
			return false
		}
	}
}

// taken answers the end of a message.
func (h *dayHost) taken(token string) bool {
	switch h.mood {
	case "close at dot":
		return false
	case "silent at dot":
		h.hang(h.day.order.patience)
		return false
	}
	h.day.delivered.Add(1)
	if h.home {
		h.day.arrived(token)
	}
	return h.say("250 2.0.0 taken\r\n")
}
