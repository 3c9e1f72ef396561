package e2e

import (
	"bufio"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// An ugly is a server that behaves badly at one stage, and well at the others.
type ugly struct {
	name      string
	at        string // the stage: "greeting", a command, "body" or "dot"
	do        func(p *uglyPeer) bool
	transport string // of uglyTransports; "" is smtp
	// differs says why Posthaste does otherwise than Postfix, and want what it
	// does then, as result.String.
	differs, want string
}

// uglyTransports are services of master.cf in which one limit is short enough
// to be waited for: on a slow machine no other must be hit.
var uglyTransports = map[string]string{
	"hanggreeting": "smtp_helo_timeout=3s",
	"hangehlo":     "smtp_helo_timeout=3s",
	"hangmail":     "smtp_mail_timeout=3s",
	"hangrcpt":     "smtp_rcpt_timeout=3s",
	"hangdata":     "smtp_data_init_timeout=3s",
	"hangbody":     "smtp_data_done_timeout=3s",
	"hangdot":      "smtp_data_done_timeout=3s",
	"drip":         "smtp_mail_timeout=3s -o smtp_per_request_deadline=yes",
	"tlsmay":       "smtp_tls_security_level=may",
	"tlsencrypt":   "smtp_tls_security_level=encrypt",
	"tlshang":      "smtp_tls_security_level=encrypt -o smtp_starttls_timeout=3s",
}

// uglyPeer is one connection to an ugly server.
type uglyPeer struct {
	c      net.Conn
	r      *bufio.Reader
	answer string // to the command at hand, if it were answered well
}

// say sends lines.
func (p *uglyPeer) say(lines string) {
	fmt.Fprintf(p.c, "%s\r\n", strings.ReplaceAll(lines, "\n", "\r\n"))
}

// hang waits until the client gives up.
func (p *uglyPeer) hang() bool {
	for {
		if _, err := p.r.ReadByte(); err != nil {
			return false
		}
	}
}

// saying makes a server answer with these lines, and go on.
func saying(lines string) func(*uglyPeer) bool {
	return func(p *uglyPeer) bool { p.say(lines); return true }
}

// sayingLast makes a server answer with these lines, and hang up.
func sayingLast(lines string) func(*uglyPeer) bool {
	return func(p *uglyPeer) bool { p.say(lines); return false }
}

func closing(*uglyPeer) bool { return false }

// uglies are all of them.
func uglies() (list []ugly) {
	for _, at := range []string{"greeting", "EHLO", "MAIL", "RCPT", "DATA", "body", "dot"} {
		stage := strings.ToLower(at)
		away := ugly{name: "421-" + stage, at: at, do: sayingLast("421 4.3.2 going down")}
		if at != "greeting" && at != "EHLO" {
			away.differs = "whoever says 421 is asked for less at any stage: with Postfix only in the greeting and after EHLO"
			away.want = "4.3.2 deferred, throttled"
		}
		list = append(list, away,
			ugly{name: "450-" + stage, at: at, do: saying("450 4.2.1 not now")},
			ugly{name: "550-" + stage, at: at, do: saying("550 5.7.1 no")},
			ugly{name: "550-close-" + stage, at: at, do: sayingLast("550 5.7.1 no")},
			ugly{name: "notext4-" + stage, at: at, do: saying("450")},
			ugly{name: "notext5-" + stage, at: at, do: saying("550 ")},
			ugly{name: "close-" + stage, at: at, do: closing},
			ugly{name: "hang-" + stage, at: at, do: (*uglyPeer).hang, transport: "hang" + stage},
			ugly{name: "code-" + stage, at: at, do: saying("199 what")})
		if at == "body" {
			continue // the reply would be that to the dot, too early
		}
		list = append(list,
			ugly{name: "garbage-" + stage, at: at, do: func(p *uglyPeer) bool { p.say("hello there\n" + p.answer); return true }},
			ugly{name: "mixed-" + stage, at: at, do: saying("250-yes\n450-perhaps\n550 5.1.0 no")},
			ugly{name: "bytes-" + stage, at: at, do: func(p *uglyPeer) bool {
				for _, b := range []byte(strings.ReplaceAll(p.answer, "\n", "\r\n") + "\r\n") {
					p.c.Write([]byte{b})
				}
				return true
			}},
			ugly{name: "lf-" + stage, at: at, do: func(p *uglyPeer) bool { fmt.Fprintf(p.c, "%s\n", p.answer); return true }},
			ugly{name: "long-" + stage, at: at, do: func(p *uglyPeer) bool {
				p.say(p.answer[:3] + " " + strings.Repeat("x", 5000))
				return true
			}},
			ugly{name: "lines-" + stage, at: at, do: func(p *uglyPeer) bool {
				p.say(strings.Repeat(p.answer[:3]+"-x\n", 100) + p.answer)
				return true
			}},
			ugly{name: "enhanced-" + stage, at: at, do: saying("450 5.1.1 which is it")},
			ugly{name: "control-" + stage, at: at, do: saying("550 5.7.1 \x1b[31mred\x00\xff")},
		)
	}
	return append(list, moreUglies()...)
}

// moreUglies are those that are bad in one place only.
func moreUglies() []ugly {
	answered := func(text string) func(*uglyPeer) bool {
		return func(p *uglyPeer) bool { p.say(p.answer + text); return true }
	}
	return []ugly{
		{name: "replies-mail", at: "MAIL", do: answered("\n250 2.0.0 more\n250 2.0.0 and more")},
		{name: "replies-dot", at: "dot", do: answered("\n250 2.0.0 more")},
		{name: "early-354", at: "MAIL", do: saying("354 go ahead")},
		{name: "250-data", at: "DATA", do: saying("250 2.0.0 if you say so")},
		{name: "354-dot", at: "dot", do: saying("354 more")},
		{name: "552-rcpt", at: "RCPT", do: saying("552 5.2.2 full")},
		{name: "quit-close", at: "QUIT", do: closing},
		{name: "quit-550", at: "QUIT", do: saying("550 5.0.0 you stay")},
		{name: "no-esmtp", at: "EHLO", do: saying("502 5.5.1 what is EHLO")},
		{name: "pix", at: "greeting", do: saying("220 ****************************************")},
		{name: "size", at: "EHLO", do: saying("250-ugly.test\n250 SIZE 10")},
		{name: "ehlo-odd", at: "EHLO", do: saying("250-\n250-SIZE x\n250-AUTH\n250-8BITMIME=yes\n250 PIPELINING now")},
		{name: "drip", at: "MAIL", transport: "drip", do: func(p *uglyPeer) bool {
			for {
				if _, err := p.c.Write([]byte("2")); err != nil {
					return false
				}
				time.Sleep(100 * time.Millisecond)
			}
		}},
		{name: "endless-lines", at: "MAIL", transport: "drip", do: func(p *uglyPeer) bool {
			for {
				if _, err := fmt.Fprintf(p.c, "250-and\r\n"); err != nil {
					return false
				}
			}
		}},
		{name: "tls-none-may", at: "greeting", do: answered(""), transport: "tlsmay"},
		{name: "tls-none-encrypt", at: "greeting", do: answered(""), transport: "tlsencrypt"},
		{name: "tls-refused-may", at: "STARTTLS", do: saying("454 4.7.0 not today"), transport: "tlsmay"},
		{name: "tls-refused-encrypt", at: "STARTTLS", do: saying("454 4.7.0 not today"), transport: "tlsencrypt"},
		{name: "tls-refused5-encrypt", at: "STARTTLS", do: saying("501 5.5.4 syntax"), transport: "tlsencrypt",
			differs: "a level that is not met defers the mail, whatever the server calls it: Postfix returns it", want: "4.5.4 deferred, throttled"},
		{name: "tls-421-may", at: "STARTTLS", do: sayingLast("421 4.3.2 going down"), transport: "tlsmay"},
		{name: "tls-421-encrypt", at: "STARTTLS", do: sayingLast("421 4.3.2 going down"), transport: "tlsencrypt"},
		{name: "tls-close-may", at: "STARTTLS", do: closing, transport: "tlsmay"},
		{name: "tls-close-encrypt", at: "STARTTLS", do: closing, transport: "tlsencrypt"},
		{name: "tls-broken-may", at: "STARTTLS", do: sayingLast("220 go"), transport: "tlsmay"},
		{name: "tls-broken-encrypt", at: "STARTTLS", do: sayingLast("220 go"), transport: "tlsencrypt"},
		{name: "tls-garbage-may", at: "STARTTLS", do: func(p *uglyPeer) bool { p.say("220 go"); p.r.ReadByte(); p.say("hello"); return false }, transport: "tlsmay"},
		{name: "tls-garbage-encrypt", at: "STARTTLS", do: func(p *uglyPeer) bool { p.say("220 go"); p.r.ReadByte(); p.say("hello"); return false }, transport: "tlsencrypt"},
		{name: "tls-hang", at: "STARTTLS", do: (*uglyPeer).hang, transport: "tlshang"},
		{name: "tls-hang-shake", at: "STARTTLS", do: func(p *uglyPeer) bool { p.say("220 go"); return p.hang() }, transport: "tlshang"},
	}
}

// serve is a session in which everything goes well but for one thing.
func (u *ugly) serve(c net.Conn) {
	defer c.Close()
	p := &uglyPeer{c: c, r: bufio.NewReader(c)}
	stage := func(at, answer string) bool {
		p.answer = answer
		if at == u.at {
			return u.do(p)
		}
		p.say(answer)
		return true
	}
	if !stage("greeting", "220 ugly.test ESMTP") {
		return
	}
	for {
		line, err := p.r.ReadString('\n')
		if err != nil {
			return
		}
		at, answer := strings.ToUpper(strings.TrimRight(line, "\r\n")), "250 2.0.0 Ok"
		at, _, _ = strings.Cut(at, " ")
		switch at {
		case "EHLO":
			answer = "250-ugly.test\n250-PIPELINING\n250 8BITMIME"
			if strings.HasPrefix(u.transport, "tls") && !strings.HasPrefix(u.name, "tls-none") {
				answer = "250-ugly.test\n250-STARTTLS\n250 PIPELINING"
			}
		case "DATA":
			answer = "354 go ahead"
		}
		if !stage(at, answer) {
			return
		}
		if at == "QUIT" {
			return
		}
		if at == "DATA" && (u.at != "DATA" || strings.HasSuffix(u.name, "s-data") || strings.HasPrefix(u.name, "lf-") ||
			strings.HasPrefix(u.name, "long-") || strings.HasPrefix(u.name, "garbage-")) {
			if u.at == "body" {
				p.answer = "250 2.0.0 Ok"
				p.r.ReadString('\n')
				if !u.do(p) {
					return
				}
			}
			if _, err := readData(p.r); err != nil {
				return
			}
			if u.at != "body" && !stage("dot", "250 2.0.0 Ok: queued") {
				return
			}
		}
	}
}

// listen starts an ugly server and returns its port.
func (u *ugly) listen(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveConns(t, l, u.serve)
	return l.Addr().(*net.TCPAddr).Port
}

// A result is what became of mail for one server.
type result struct {
	dsn, status string
	throttled   bool
	text        string // not compared
}

func (r result) String() string {
	s := r.dsn + " " + r.status
	if r.throttled {
		s += ", throttled"
	}
	return s
}

// uglyResults sends a message to each server, and a second where that was
// deferred: the queue manager keeps it back when the first counts against the
// destination.
func uglyResults(s *system, list []ugly) map[string]result {
	results := make(map[string]result)
	line := func(rcpt string) []string {
		re := regexp.MustCompile(`(?m)to=<` + regexp.QuoteMeta(rcpt) + `>,.* dsn=([0-9.]+), status=(\w+) \((.*)$`) // which the original cuts
		for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(50 * time.Millisecond) {
			if m := re.FindStringSubmatch(s.log()); m != nil {
				return m
			}
		}
		s.t.Errorf("nothing has become of %s", rcpt)
		return make([]string, 4)
	}
	var first, second []string
	for _, u := range list {
		first = append(first, "one@"+u.name+".test")
	}
	s.sendMany(first)
	for i, u := range list {
		m := line(first[i])
		results[u.name] = result{dsn: m[1], status: m[2], text: m[3]}
		if m[2] == "deferred" {
			second = append(second, "two@"+u.name+".test")
		}
	}
	s.sendMany(second)
	for name, r := range results {
		if r.status == "deferred" {
			r.throttled = strings.HasPrefix(line("two@" + name + ".test")[3], "delivery temporarily suspended")
			results[name] = r
		}
	}
	return results
}

// TestUglyServers has the original and us send the same mail to the same bad
// servers, and compares what becomes of it: delivered, deferred or returned,
// with which code, and whether it counts against the destination.
func TestUglyServers(t *testing.T) {
	t.Parallel()
	list := uglies()
	maps, master := "transport_maps = inline:{", ""
	for i := range list {
		u := &list[i]
		transport := u.transport
		if transport == "" {
			transport = "smtp"
		}
		maps += fmt.Sprintf(" {%s.test = %s:[127.0.0.1]:%d}", u.name, transport, u.listen(t))
	}
	for name, setting := range uglyTransports {
		master += fmt.Sprintf("%s unix - - n - - smtp -o %s\n", name, setting)
	}
	main := maps + " }\ninitial_destination_concurrency = 1\ndefault_destination_concurrency_failed_cohort_limit = 1\n" +
		"bounce_notice_recipient = sink@mta.test\nnotify_classes =\nsmtp_tls_security_level = none\n"
	settings := options{main: main, master: master}
	original, ours := newPostfix(t, settings), newSystem(t, settings)
	var theirs, got map[string]result
	var wg sync.WaitGroup
	wg.Go(func() { theirs = uglyResults(original, list) })
	wg.Go(func() { got = uglyResults(ours, list) })
	wg.Wait()
	for _, u := range list {
		o, p := got[u.name], theirs[u.name]
		switch {
		case u.differs == "" && o.String() != p.String():
			t.Errorf("%s: %s (%s)\nPostfix: %s (%s)", u.name, o, o.text, p, p.text)
		case u.differs != "" && o.String() == p.String():
			t.Errorf("%s: %s as with Postfix, though it is said to differ", u.name, o)
		case u.differs != "" && o.String() != u.want:
			t.Errorf("%s: %s (%s), want %s", u.name, o, o.text, u.want)
		}
	}
}
