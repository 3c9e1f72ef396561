package simtest

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// A foe is a hostile client in one session.
type foe struct {
	*talker
	day *day
	rnd *rand.Rand
	raw *conn
}

// A troop is clients of one kind: how many of them come in an hour, and what each does.
type troop struct {
	name string
	rate float64
	act  func(*foe)
}

// kinds are all troops.
var kinds = []troop{
	{"passes by", 500, (*foe).passBy}, {"slow octets", 12, (*foe).slow}, {"never reads", 8, (*foe).deaf},
	{"half closed", 30, (*foe).halfClose}, {"resets", 40, (*foe).resets}, {"commands", 20, (*foe).flood},
	{"logs in", 20, (*foe).logIn}, {"speaks first", 30, (*foe).speakFirst}, {"begins TLS", 12, (*foe).beginTLS},
	{"chunks", 20, (*foe).chunks}, {"endless message", 4, (*foe).endless}, {"slow message", 6, (*foe).slowMessage},
	{"header bomb", 2, (*foe).headerBomb}, {"MIME bomb", 2, (*foe).mimeBomb}, {"recipients", 2, (*foe).manyRecipients},
	{"guesses users", 20, (*foe).guess}, {"backscatter", 20, (*foe).backscatter}, {"loop", 6, (*foe).loop},
	{"forges return paths", 15, (*foe).forge}, {"smuggles", 20, (*foe).smuggle}, {"octets", 10, (*foe).octets},
	{"stolen account", 30, (*foe).spam}, {"hostile domains", 30, (*foe).wild},
}

// troop has the clients of a kind come, one after another and each by itself, until the day is over.
func (d *day) troop(k troop) {
	r := d.seed.source("troop " + k.name)
	for !d.ended() {
		wait := time.Duration(r.ExpFloat64() / (k.rate * d.order.rate) * float64(time.Hour))
		time.Sleep(min(wait, d.order.length))
		if d.ended() {
			return
		}
		f := &foe{day: d, rnd: rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))}
		d.all.Go(func() { f.attack(k) })
	}
}

// attack is one session. Most clients have not been here before; some have, and some have passed postscreen's tests long ago.
func (f *foe) attack(k troop) {
	id := f.anyOf(1 << 29)
	a := netip.AddrFrom4([4]byte{byte(20 + id>>24), byte(id >> 16), byte(id >> 8), byte(id)})
	switch n := f.rnd.IntN(10); {
	case k.name == "stolen account":
		a = netip.AddrFrom4([4]byte{198, 18, 0, byte(f.rnd.IntN(200))})
	case n == 0:
		a = netip.AddrFrom4([4]byte{20, 0, 0, byte(f.rnd.IntN(250))})
	case n < 4:
		id := f.anyOf(max(f.day.order.known, 1))
		a = netip.AddrFrom4([4]byte{11, byte(id >> 16), byte(id >> 8), byte(id)})
	}
	f.raw = f.day.call(a)
	f.talker = newTalker(f.raw)
	defer func() { f.c.Close() }()
	k.act(f)
}

// anyOf draws one of so many, or of as many as there are in a short day's world.
func (f *foe) anyOf(n int) int {
	if c := f.day.order.crowd; c > 0 {
		n = min(n, c)
	}
	return f.rnd.IntN(n)
}

// patience is a time that is drawn, up to most, and up to what the day has for it.
func (f *foe) patience(most time.Duration) time.Duration {
	return time.Duration(f.rnd.Int64N(int64(min(most, f.day.order.patience))))
}

// send sends text and counts the lines of it, as commands.
func (f *foe) send(text string) bool {
	f.day.commands.Add(int64(strings.Count(text, "\n")))
	return f.say(text)
}

// reply reads one; 0: there is none.
func (f *foe) reply() int {
	for {
		line, ok := f.line()
		if !ok || len(line) < 4 {
			return 0
		}
		if line[3] != '-' {
			code, _ := strconv.Atoi(line[:3])
			return code
		}
	}
}

func (f *foe) ask(text string) int {
	if !f.send(text) {
		return 0
	}
	return f.reply()
}

// greet goes as far as EHLO.
func (f *foe) greet() bool { return f.reply() == 220 && f.ask("EHLO foe.wild.test\r\n") == 250 }

// envelope goes as far as the recipients, one of whom has to be taken.
func (f *foe) envelope(from string, to ...string) (ok bool) {
	if !f.greet() || f.ask("MAIL FROM:<"+from+">\r\n") != 250 {
		return false
	}
	for _, r := range to {
		ok = f.ask("RCPT TO:<"+r+">\r\n") == 250 || ok
	}
	return ok
}

// message sends content, and takes leave.
func (f *foe) message(content string) {
	if f.ask("DATA\r\n") != 354 || !f.say(content) {
		return
	}
	if f.ask(".\r\n") == 250 {
		f.day.taken.Add(1)
	}
	f.ask("QUIT\r\n")
}

// mail is a message with a little text.
func (f *foe) mail(from string, to ...string) {
	if f.envelope(from, to...) {
		f.message("Subject: win\r\nFrom: <" + from + ">\r\n\r\n" + strings.Repeat("buy it now\r\n", f.rnd.IntN(200)))
	}
}

func (f *foe) user() string { return fmt.Sprintf("user%d@relay.test", f.rnd.IntN(20)) }

// strange is a domain of those whose hosts and name servers are hostile. There is no end of them.
func (f *foe) strange() string { return fmt.Sprintf("d%d.wild.test", f.anyOf(1<<30)) }

// stages are how far somebody may get before going away.
var stages = []string{"", "EHLO foe.wild.test\r\n", "MAIL FROM:<a@victim.test>\r\n", "RCPT TO:<user1@relay.test>\r\n", "DATA\r\n", "Subject: half\r\n\r\nsome"}

// reach goes to a stage that is drawn.
func (f *foe) reach() {
	for i, text := range stages[:1+f.rnd.IntN(len(stages))] {
		if i == len(stages)-1 {
			f.say(text)
			return
		}
		if text == "" && f.rnd.IntN(3) == 0 {
			continue // before the greeting
		}
		if f.ask(text) == 0 {
			return
		}
	}
}

func (f *foe) passBy() {
	if f.reply() == 220 {
		f.ask("QUIT\r\n")
	}
}

// slow sends an octet every 290 seconds, for hours.
func (f *foe) slow() {
	text := "EHLO slow.wild.test\r\nMAIL FROM:<" + strings.Repeat("a", 50)
	end := time.Now().Add(f.patience(3 * time.Hour))
	for i := 0; time.Now().Before(end) && f.say(text[i%len(text):][:1]); i++ {
		time.Sleep(290 * time.Second)
	}
}

// deaf sends commands and never reads a reply, until nothing goes away any more.
func (f *foe) deaf() {
	for range 2000 {
		if !f.send("EHLO foe.wild.test\r\n" + strings.Repeat("HELP\r\nNOOP\r\n", 100)) {
			break
		}
	}
	time.Sleep(f.patience(time.Hour))
}

func (f *foe) halfClose() {
	f.reach()
	f.raw.closeWrite()
	f.hang(f.patience(time.Hour))
}

func (f *foe) resets() {
	f.reach()
	f.raw.reset()
}

func (f *foe) flood() {
	if !f.greet() {
		return
	}
	verbs := []string{"RSET", "NOOP", "VRFY user1@relay.test", "VRFY root", "EXPN all", "ETRN wild.test", "XYZZY", "HELP", "GET / HTTP/1.1", "", "MAIL", "RCPT TO:<>",
		"MAIL FROM:<" + strings.Repeat("x", 600) + ">", strings.Repeat("y", 5000), "XCLIENT NAME=x", "AUTH", "STARTTLS now"}
	for range 300 {
		if f.ask(pick(f.rnd, verbs...)+"\r\n") == 0 {
			return
		}
	}
}

func (f *foe) logIn() {
	if !f.greet() {
		return
	}
	for range 20 {
		junk := make([]byte, f.rnd.IntN(300))
		for i := range junk {
			junk[i] = byte(f.rnd.Uint32())
		}
		text := base64.StdEncoding.EncodeToString(junk)
		switch code := f.ask(pick(f.rnd, "AUTH PLAIN "+text, "AUTH LOGIN", "AUTH PLAIN", "AUTH LOGIN "+text, "AUTH CRAM-MD5", "AUTH NONE =", "AUTH PLAIN AGpvZQB3cm9uZw==") + "\r\n"); code {
		case 0:
			return
		case 334:
			for code == 334 {
				code = f.ask(pick(f.rnd, text, "*", "====", string(junk)) + "\r\n")
			}
		}
	}
}

func (f *foe) speakFirst() {
	f.send(pick(f.rnd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "EHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<user1@relay.test>\r\nDATA\r\nx\r\n.\r\nQUIT\r\n", "\x16\x03\x01\x02\x00\x01", strings.Repeat("NOOP\r\n", 500)))
	f.hang(time.Minute)
}

// beginTLS leaves before, in the middle of and behind the handshake, and speaks nonsense in it.
func (f *foe) beginTLS() {
	if !f.greet() || f.ask("STARTTLS\r\n"+pick(f.rnd, "", "", "", "MAIL FROM:<>\r\n")) != 220 {
		return
	}
	switch f.rnd.IntN(4) {
	case 0:
		return
	case 1:
		f.say("\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03")
		f.hang(f.patience(20 * time.Minute))
	case 2:
		f.say(strings.Repeat("junk", 1+f.rnd.IntN(5000)))
		f.hang(time.Minute)
	default:
		c := tls.Client(f.raw, &tls.Config{InsecureSkipVerify: true, ServerName: "mail.sim.test"})
		f.raw.SetDeadline(time.Now().Add(time.Minute))
		if c.Handshake() != nil {
			return
		}
		f.talker = newTalker(c)
		if f.ask("EHLO foe.wild.test\r\n") == 250 && f.rnd.IntN(2) == 0 {
			f.raw.reset()
		}
	}
}

func (f *foe) chunks() {
	if !f.envelope("a@victim.test", f.user()) {
		return
	}
	f.send(pick(f.rnd, "BDAT 1000\r\nshort", "BDAT 99999999999999999999\r\n", "BDAT -1\r\n", "BDAT 0\r\nBDAT 0 LAST\r\n", "BDAT 3 LAST\r\nfar too much\r\nQUIT\r\n",
		"BDAT 900000000\r\n"+strings.Repeat("x", 50_000), "BDAT\r\n", "BDAT 5\r\nx\r\n.\r\n", "BDAT 10 LAST LAST\r\n"))
	f.hang(f.patience(15 * time.Minute))
}

// endless is a message without an end, as fast as it goes.
func (f *foe) endless() {
	if !f.envelope("a@victim.test", f.user()) || f.ask("DATA\r\n") != 354 {
		return
	}
	line := strings.Repeat("x", pick(f.rnd, 70, 990, 8000)) + pick(f.rnd, "\r\n", "\r\n", "")
	for n := 0; n < 3_000_000 && f.say(line); n += len(line) {
	}
}

// slowMessage is one of which a line comes every four minutes, for hours.
func (f *foe) slowMessage() {
	if !f.envelope("a@victim.test", f.user()) || f.ask("DATA\r\n") != 354 {
		return
	}
	for range f.patience(3*time.Hour) / (4 * time.Minute) {
		if time.Sleep(4 * time.Minute); !f.say("and another line\r\n") {
			return
		}
	}
}

func (f *foe) headerBomb() {
	if f.envelope("a@victim.test", f.user()) {
		f.message(pick(f.rnd, strings.Repeat("X-Y: z\r\n", 100_000), "Subject: "+strings.Repeat("x", 900_000)+"\r\n", strings.Repeat("To: "+strings.Repeat("a@b.test, ", 90)+"c\r\n", 900), "X: "+strings.Repeat("y\r\n ", 200_000)) + "\r\n")
	}
}

func (f *foe) mimeBomb() {
	if !f.envelope("a@victim.test", f.user()) {
		return
	}
	var b strings.Builder
	b.WriteString("MIME-Version: 1.0\r\n")
	if f.rnd.IntN(2) == 0 {
		for i := range pick(f.rnd, 90, 500) {
			fmt.Fprintf(&b, "Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n", i, i)
		}
	} else {
		b.WriteString("Content-Type: multipart/mixed; boundary=b\r\n\r\n" + strings.Repeat("--b\r\n\r\n", 100_000))
	}
	f.message(b.String())
}

func (f *foe) manyRecipients() {
	if !f.greet() || f.ask("MAIL FROM:<a@victim.test>\r\n") != 250 {
		return
	}
	kind, taken := f.rnd.IntN(3), 0
	for i := range 1100 {
		to := []string{fmt.Sprintf("user%d@relay.test", i), fmt.Sprintf("nobody%d@relay.test", i), fmt.Sprintf("x%d@%s", i, "d1.wild.test")}[kind]
		code := f.ask("RCPT TO:<" + to + ">\r\n")
		if code == 0 {
			return
		}
		if code == 250 {
			taken++
		}
	}
	if taken > 0 {
		f.message("Subject: to all\r\n\r\nx\r\n")
	}
}

func (f *foe) guess() {
	var to []string
	for range 30 {
		to = append(to, fmt.Sprintf("nobody%d@relay.test", f.anyOf(1<<30)))
	}
	f.mail("a@"+f.strange(), to...)
}

// backscatter has reports sent to people who have sent nothing.
func (f *foe) backscatter() {
	f.mail(pick(f.rnd, "", "", fmt.Sprintf("someone%d@victim.test", f.anyOf(1<<30)), "x@"+f.strange(), "MAILER-DAEMON@sim.test"), fmt.Sprintf("never%d@relay.test", f.anyOf(1<<30)))
}

func (f *foe) loop() {
	if f.envelope("a@victim.test", f.user()) {
		f.message(strings.Repeat("Received: from a by b; Sat, 1 Jan 2000 00:00:00 +0000\r\n", pick(f.rnd, 49, 51, 2000)) + pick(f.rnd, "", "Delivered-To: user1@relay.test\r\n") + "\r\nx\r\n")
	}
}

// forge uses return paths and links of lists that nobody has made.
func (f *foe) forge() {
	if !f.greet() {
		return
	}
	code := f.ask(pick(f.rnd, "MAIL FROM:<list@victim.test> XVERP\r\n", "MAIL FROM:<list-@victim.test-@[]> XVERP==+\r\n", "MAIL FROM:<>\r\n", "MAIL FROM:<SRS0=AAAA=BB=victim.test=x@sim.test>\r\n"))
	if code != 250 {
		return
	}
	n := f.anyOf(1 << 30)
	if f.ask(fmt.Sprintf("RCPT TO:<user%d+%d=victim.test@relay.test>\r\n", n%20, n)) != 250 && f.ask(fmt.Sprintf("RCPT TO:<user%d@relay.test>\r\n", n%20)) != 250 {
		return
	}
	f.message(fmt.Sprintf("List-Unsubscribe: <mailto:leave+%d@relay.test>, <https://mail.sim.test/u/%d>\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n\r\nx\r\n", n, n))
}

func (f *foe) smuggle() {
	if f.envelope("a@victim.test", f.user()) {
		f.message("Subject: two\r\n\r\nx" + pick(f.rnd, "\n.\n", "\r\n.\n", "\n.\r\n", "\r.\r", "\r\n\x00.\r\n", "\x00\xff") + "MAIL FROM:<root@relay.test>\r\nRCPT TO:<user2@relay.test>\r\nDATA\r\nbad\r\n")
	}
}

// octets sends what no program would.
func (f *foe) octets() {
	f.reach()
	for range 20 {
		b := make([]byte, f.rnd.IntN(4000))
		for i := range b {
			b[i] = byte(f.rnd.Uint32())
		}
		if !f.send(string(b) + "\r\n") {
			return
		}
	}
	f.hang(time.Minute)
}

// spam is what comes of a client that may send anywhere, and has been taken over.
func (f *foe) spam() {
	var to []string
	for range 1 + f.rnd.IntN(4) {
		to = append(to, "x@"+f.strange())
	}
	f.mail("user1@relay.test", to...)
}

// wild sends to domains that we are a second host of, and that are hostile.
func (f *foe) wild() { f.mail("a@"+f.strange(), "x@"+f.strange()) }
