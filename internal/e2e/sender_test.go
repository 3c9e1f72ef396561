package e2e

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/testwait"
)

// gone is how many destinations of docs/sending.md take connections and say nothing.
const gone = 20

// senderZone is the DNS of docs/sending.md.
func senderZone() string {
	var b strings.Builder
	b.WriteString(`one.example. MX 10 in.bigmail.example.
two.example. MX 10 in.bigmail.example.
in.bigmail.example. A 198.51.100.20
three.example. MX 10 mx.strict.example.
mx.strict.example. A 198.51.100.30
four.example. MX 10 mx.largemail.example.
mx.largemail.example. A 198.51.100.40
`)
	for i := range gone {
		fmt.Fprintf(&b, "gone%[1]d.example. MX 10 mx.gone%[1]d.example.\nmx.gone%[1]d.example. A 203.0.113.%[2]d\n", i+1, 100+i)
	}
	return b.String()
}

// senderWorld is what docs/sending.md has around it: a checkout of the source in ann's home directory, of which make
// needs not compile anything, since the tests have built the programs; the shaping files that are fetched there; and
// the hosts that mail is sent to, each of which follows a file that the page writes.
func senderWorld(t *testing.T, _ *network, m *machine) {
	// The page counts what has been sent on the first day of a warm-up, which must not end meanwhile.
	testwait.Until(t, "the day is not about to end", func() bool {
		now := time.Now().UTC()
		return now.Add(testwait.Patience).Day() == now.Day()
	})
	for from, to := range map[string]string{
		"../../Makefile":                   "home/ann/posthaste/Makefile",
		"../../etc/version.sh":             "home/ann/posthaste/etc/version.sh",
		"../../etc/metrics/dashboard.json": "home/ann/posthaste/etc/metrics/dashboard.json",
		"testdata/shaping-base.toml":       "home/ann/posthaste/base.toml",
		"testdata/shaping-community.toml":  "home/ann/posthaste/community.toml",
	} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		m.write(to, string(text)+communityText(t, to))
	}
	m.write("usr/local/bin/go", "#!/bin/sh\n")
	m.must("root", `chmod 755 /usr/local/bin/go
cd /home/ann/posthaste
mkdir bin
mount --bind /usr/lib/posthaste bin
touch bin/posthaste
mount --bind /usr/sbin/posthaste bin/posthaste
cp /usr/sbin/postdrop bin
ln -sf ../../home/ann/posthaste/run/mail.log /var/log/mail.log
chown -R ann /home/ann`)
	for name, address := range map[string]string{"bigmail": "198.51.100.20", "strict": "198.51.100.30", "largemail": "198.51.100.40"} {
		newMoody(t, address+":25", m.path("tmp/"+name))
	}
	for i := range gone {
		newMoody(t, fmt.Sprintf("203.0.113.%d:25", 100+i), m.path("tmp/gone"))
	}
}

// communityText is what the community's own shaping file has besides a test's, where somebody has a checkout of KumoMTA
// (KUMOMTA): all but the values for every destination, which the test's file says. "": nobody has.
func communityText(t *testing.T, to string) string {
	name, ok := map[string]string{"home/ann/posthaste/base.toml": "assets/policy-extras/shaping.toml", "home/ann/posthaste/community.toml": "assets/community/shaping.toml"}[to]
	dir := os.Getenv("KUMOMTA")
	if !ok || dir == "" {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	inDefault := false
	for line := range strings.Lines("\n" + string(text)) {
		if strings.HasPrefix(line, "[") {
			inDefault = strings.TrimSpace(line) == `["default"]`
		}
		if !inDefault {
			b.WriteString(line)
		}
	}
	t.Logf("%s has %d octets of the community's", to, b.Len())
	return b.String()
}

// A moody server is a mail server that does what a file says, from then on at which that changes:
//
//	refuse REPLY        answers every greeting and every MAIL so
//	block ADDRESS REPLY the same, for connections from one address
//	hold N              takes N messages more, and has the content of others wait until the file changes
//	silent              says nothing
//
// Without the file it takes everything.
type moody struct {
	file  string
	over  chan struct{}
	mu    sync.Mutex
	mood  string // as the file was when there was something to decide
	taken int    // messages in that mood
}

func newMoody(t *testing.T, address, file string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &moody{file: file, over: make(chan struct{})}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				stop := make(chan struct{})
				defer close(stop)
				go func() {
					select {
					case <-s.over:
						c.Close()
					case <-stop:
					}
				}()
				s.serve(c)
			})
		}
	})
	t.Cleanup(func() { close(s.over); l.Close(); all.Wait() })
}

// now is the mood: its first word, and the rest.
func (s *moody) now() (word, rest string) {
	text, _ := os.ReadFile(s.file)
	s.mu.Lock()
	defer s.mu.Unlock()
	if mood := strings.TrimSpace(string(text)); mood != s.mood {
		s.mood, s.taken = mood, 0
	}
	word, rest, _ = strings.Cut(s.mood, " ")
	return word, rest
}

// refusal is what a client is told in place of being served; empty: nothing.
func (s *moody) refusal(c net.Conn) string {
	switch word, rest := s.now(); word {
	case "refuse":
		return rest
	case "block":
		address, reply, _ := strings.Cut(rest, " ")
		if host, _, _ := net.SplitHostPort(c.RemoteAddr().String()); host == address {
			return reply
		}
	}
	return ""
}

// accept waits until a message may be accepted. ok is false when the test is over.
func (s *moody) accept() (ok bool) {
	for {
		word, rest := s.now()
		n := 0
		fmt.Sscan(rest, &n)
		s.mu.Lock()
		if word != "hold" || s.taken < n {
			s.taken++
			s.mu.Unlock()
			return true
		}
		s.mu.Unlock()
		select {
		case <-s.over:
			return false
		case <-time.After(20 * time.Millisecond): // the file may have changed
		}
	}
}

func (s *moody) serve(c net.Conn) {
	if word, _ := s.now(); word == "silent" {
		<-s.over
		return
	}
	if reply := s.refusal(c); reply != "" {
		fmt.Fprintf(c, "%s\r\n", reply)
		return
	}
	fmt.Fprint(c, "220 mx.test ESMTP\r\n")
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		reply := "250 2.0.0 Ok"
		switch strings.ToUpper(line[:min(4, len(line))]) {
		case "EHLO":
			reply = "250-mx.test\r\n250 ENHANCEDSTATUSCODES"
		case "MAIL":
			if reply = s.refusal(c); reply != "" {
				fmt.Fprintf(c, "%s\r\n", reply)
				return
			}
			reply = "250 2.1.0 Ok"
		case "DATA":
			fmt.Fprint(c, "354 go on\r\n")
			if _, err := readData(r); err != nil || !s.accept() {
				return
			}
		case "QUIT":
			fmt.Fprint(c, "221 2.0.0 Bye\r\n")
			return
		}
		fmt.Fprintf(c, "%s\r\n", reply)
	}
}
