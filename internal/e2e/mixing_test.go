package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// What is somebody's stays theirs: many clients at once send, break off, start
// over and are refused, and everything about a message has a token of its own, each line
// of the content too. Memory that is used again for another message and not
// emptied, or used by two at a time, would bring two tokens together: at the next host,
// in a mailbox, in a notice, or in the log.
func TestNothingMixed(t *testing.T) {
	t.Parallel()
	next := newSink(t, putOff())
	uid := os.Getuid()
	if uid == 0 {
		uid = 65534
	}
	s := newSystem(t, options{unstarted: true, main: next.relayhost() + fmt.Sprintf(`virtual_alias_maps = regexp:{dir}/aliases
virtual_mailbox_domains = box.test
virtual_mailbox_base = {dir}/box
virtual_mailbox_maps = static:all/
virtual_uid_maps = static:%d
virtual_gid_maps = static:%d
header_checks = regexp:{dir}/checks
smtpd_recipient_restrictions = check_recipient_access inline:{refused.test=REJECT}, permit_mynetworks, reject
message_size_limit = 300000
minimal_backoff_time = 1s
maximal_backoff_time = 2s
queue_run_delay = 1s
smtpd_forbid_bare_newline = no
`, uid, uid)})
	s.write("aliases", `/^alias-(.*)@to\.test$/ one-$1@to.test, two-$1@to.test`+"\n")
	s.write("checks", "/^X-Refuse:/ REJECT\n")
	if err := os.Mkdir(s.path("box"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(s.path("box"), uid, -1); err != nil {
		t.Fatal(err)
	}
	s.start()
	var wg sync.WaitGroup
	clients := make([]*mixer, 12)
	for i := range clients {
		m := &mixer{s: s, number: i, rng: rand.New(rand.NewPCG(uint64(i), 1)), accepted: map[string]*mixed{}}
		clients[i] = m
		wg.Go(func() {
			if err := m.run(30); err != nil {
				t.Errorf("client %d: %v", m.number, err)
			}
		})
	}
	wg.Wait()
	accepted := map[string]*mixed{}
	for _, m := range clients {
		for token, sent := range m.accepted {
			accepted[token] = sent
		}
	}
	if len(accepted) < 150 || t.Failed() {
		t.Fatalf("%d messages were accepted", len(accepted))
	}
	s.eventually("every message that was accepted is delivered", func() bool { return len(missing(accepted, s.arrivals(next))) == 0 })
	s.eventually("the queue is empty", func() bool { out, _ := s.tool(nil, "postqueue", "-p"); return strings.Contains(out, "queue is empty") })
	arrivals := s.arrivals(next)
	for _, what := range missing(accepted, arrivals) {
		t.Errorf("not delivered: %s", what)
	}
	for _, a := range arrivals {
		if err := a.check(accepted); err != nil {
			t.Errorf("%v: from <%s> to %q, %d octets:\n%.2000s", err, a.from, a.to, len(a.data), a.data)
		}
	}
	s.logsApart(accepted)
}

// putOff is a next host that has some wait for the second try and does not know
// others.
func putOff() func(line string) string {
	var mu sync.Mutex
	tried := map[string]bool{}
	return func(line string) string {
		if !strings.HasPrefix(line, "RCPT") {
			return ""
		}
		mu.Lock()
		defer mu.Unlock()
		switch to := between(line); {
		case strings.HasPrefix(to, "gone-"):
			return "550 5.1.1 <" + to + "> is not known"
		case strings.HasPrefix(to, "late-") && !tried[to]:
			tried[to] = true
			return "450 4.2.1 <" + to + "> is to wait"
		}
		return ""
	}
}

// A mixed is a message that was accepted.
type mixed struct {
	id   string // as the reply said
	body string // lines ended by LF
	to   []string
}

var tokens = regexp.MustCompile(`tok\d+x\d+x`)

// oneToken is the only token in the texts.
func oneToken(texts ...string) (string, error) {
	token := ""
	for _, text := range texts {
		for _, found := range tokens.FindAllString(text, -1) {
			if token != "" && found != token {
				return "", fmt.Errorf("something of %s is in %s", found, token)
			}
			token = found
		}
	}
	if token == "" {
		return "", errors.New("there is no token")
	}
	return token, nil
}

// An arrival is a message where it was to go.
type arrival struct{ sunk }

// arrivals are the messages that the next host has, and those in the mailbox.
func (s *system) arrivals(next *sink) (list []arrival) {
	for _, m := range next.received() {
		list = append(list, arrival{m})
	}
	names, _ := filepath.Glob(s.path("box/all/new/*"))
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			s.t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(b), "\n\n")
		to := regexp.MustCompile(`(?m)^Delivered-To: (.*)$`).FindStringSubmatch(head)
		if to == nil {
			s.t.Fatalf("%s has no Delivered-To", name)
		}
		list = append(list, arrival{sunk{to: []string{to[1]}, data: string(b)}})
	}
	return list
}

// missing says what was accepted and has not arrived, or been sent back.
func missing(accepted map[string]*mixed, arrivals []arrival) (list []string) {
	there, returned := map[string]int{}, map[string]bool{}
	for _, a := range arrivals {
		for _, to := range a.to {
			there[to]++
			returned[to] = returned[to] || a.from == ""
		}
	}
	for token, m := range accepted {
		for _, to := range m.to {
			want := []string{to}
			local, _, _ := strings.Cut(to, "@")
			if kind, _, _ := strings.Cut(local, "-"); kind == "alias" {
				want = []string{strings.Replace(to, "alias-", "one-", 1), strings.Replace(to, "alias-", "two-", 1)}
			} else if kind == "gone" {
				want = []string{"f-" + token + "@from.test"}
			}
			for _, to := range want {
				if n := there[to]; n == 0 || n > 1 && !returned[to] {
					list = append(list, fmt.Sprintf("%s, %d times", to, n))
				}
			}
		}
	}
	slices.Sort(list)
	return list
}

// check says what is wrong with a message.
func (a *arrival) check(accepted map[string]*mixed) error {
	token, err := oneToken(append(a.to, a.from, a.data)...)
	if err != nil {
		return err
	}
	m := accepted[token]
	if m == nil {
		return fmt.Errorf("%s was not accepted", token)
	}
	if strings.HasPrefix(a.to[0], "f-") {
		return nil // a notice
	}
	if _, body, _ := strings.Cut(a.data, "\n\n"); body != m.body {
		return fmt.Errorf("the body of %s is not as it was sent, %d octets", token, len(m.body))
	}
	return nil
}

// logsApart looks for tokens of two messages under one queue ID.
func (s *system) logsApart(accepted map[string]*mixed) {
	s.t.Helper()
	of := map[string]string{}
	for token, m := range accepted {
		of[m.id] = token
	}
	lines, met := regexp.MustCompile(`postfix/[a-z/]+\[\d+\]: ([0-9A-Za-z]{10,}): (.*)`), 0
	for _, l := range strings.Split(s.log(), "\n") {
		g := lines.FindStringSubmatch(l)
		if g == nil || !tokens.MatchString(g[2]) {
			continue
		}
		token, err := oneToken(g[2], of[g[1]])
		if err != nil {
			s.t.Errorf("%v: %s", err, l)
			continue
		}
		of[g[1]] = token
		met++
	}
	if met < 3*len(accepted) {
		s.t.Errorf("%d lines of the log have tokens", met)
	}
}

// A mixer is a client that does all kinds of things.
type mixer struct {
	s        *system
	number   int
	rng      *rand.Rand
	c        net.Conn
	r        *bufio.Reader
	accepted map[string]*mixed
}

func (m *mixer) run(messages int) error {
	defer m.hangUp()
	for n := range messages {
		if m.c == nil {
			if err := m.connect(); err != nil {
				return err
			}
		}
		if err := m.one(n); err != nil {
			return fmt.Errorf("message %d: %w", n, err)
		}
		if m.c != nil && m.rng.IntN(5) == 0 {
			if _, err := m.say("QUIT"); err != nil {
				return err
			}
			m.hangUp()
		}
	}
	return nil
}

func (m *mixer) connect() (err error) {
	if m.c, err = net.Dial("tcp", m.s.addr()); err != nil {
		return err
	}
	m.c.SetDeadline(time.Now().Add(3 * patience))
	m.r = bufio.NewReader(m.c)
	if _, err = m.reply(); err != nil {
		return err
	}
	_, err = m.say("EHLO client.test")
	return err
}

func (m *mixer) hangUp() {
	if m.c != nil {
		m.c.Close()
		m.c = nil
	}
}

// say sends commands together and gives the reply to the last one.
func (m *mixer) say(commands ...string) (last string, err error) {
	if _, err = m.c.Write([]byte(strings.Join(commands, "\r\n") + "\r\n")); err != nil {
		return "", err
	}
	for range commands {
		if last, err = m.reply(); err != nil {
			return "", err
		}
	}
	return last, nil
}

// reply reads one reply, and gives its last line.
func (m *mixer) reply() (string, error) {
	for {
		l, err := m.r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if len(l) < 4 || l[3] != '-' {
			return strings.TrimRight(l, "\r\n"), nil
		}
	}
}

// What becomes of a message.
const (
	wholeData = iota
	wholeChunks
	startedOver // RSET after the recipients
	brokenOff   // the connection ends within the content
	brokenChunks
	tooLong
	refusedHeader
	kinds
)

// one sends a message, or a part of it.
func (m *mixer) one(n int) error {
	kind := wholeData
	if m.rng.IntN(2) == 0 {
		kind = m.rng.IntN(kinds)
	}
	token := fmt.Sprintf("tok%dx%dx", m.number, n)
	to, commands := m.envelope(token)
	if _, err := m.say(commands...); err != nil {
		return err
	}
	head, body := m.content(token, kind)
	text := strings.ReplaceAll(head+"\n"+body, "\n", "\r\n")
	var reply string
	var err error
	switch kind {
	case startedOver:
		_, err = m.say("RSET")
		return err
	case brokenOff:
		if _, err = m.say("DATA"); err == nil {
			_, err = m.c.Write([]byte(text[:m.rng.IntN(len(text))]))
		}
		m.hangUp()
		return err
	case brokenChunks:
		_, err = m.chunk(text, false)
		m.hangUp()
		return err
	case wholeChunks:
		for len(text) > 0 && err == nil {
			k := 1 + m.rng.IntN(len(text))
			reply, err = m.chunk(text[:k], k == len(text))
			text = text[k:]
		}
	default:
		if _, err = m.say("DATA"); err == nil {
			reply, err = m.say(text + ".")
		}
	}
	want := map[int]string{tooLong: "552 ", refusedHeader: "550 "}[kind]
	if want == "" {
		want = "250 "
	}
	if err != nil || !strings.HasPrefix(reply, want) {
		return fmt.Errorf("%q is answered with %q, %v", token, reply, err)
	}
	if want == "250 " {
		_, id, _ := strings.Cut(reply, "queued as ")
		m.accepted[token] = &mixed{id: id, body: body, to: to}
	}
	return nil
}

// chunk sends a piece with BDAT, in two writes.
func (m *mixer) chunk(piece string, last bool) (string, error) {
	command := fmt.Sprintf("BDAT %d\r\n", len(piece))
	if last {
		command = fmt.Sprintf("BDAT %d LAST\r\n", len(piece))
	}
	half := m.rng.IntN(len(piece) + 1)
	for _, b := range []string{command + piece[:half], piece[half:]} {
		if _, err := m.c.Write([]byte(b)); err != nil {
			return "", err
		}
	}
	return m.reply()
}

// envelope makes up who a message is for, and the commands that say so.
func (m *mixer) envelope(token string) (to, commands []string) {
	commands = []string{"MAIL FROM:<f-" + token + "@from.test>"}
	count := 1 + m.rng.IntN(3)
	if m.rng.IntN(15) == 0 {
		count = 60
	}
	for i := range count {
		class := []string{"to", "to", "to", "late", "gone", "alias", "box", "refused"}[m.rng.IntN(8)]
		if i == 0 && class == "refused" {
			class = "to"
		}
		address := fmt.Sprintf("%s-%d-%s@to.test", class, i, token)
		switch class {
		case "box", "refused":
			address = strings.Replace(address, "@to.", "@"+class+".", 1)
		}
		commands = append(commands, "RCPT TO:<"+address+">")
		if class != "refused" {
			to = append(to, address)
		}
	}
	return to, commands
}

// content makes up a message. Each line says whose it is.
func (m *mixer) content(token string, kind int) (head, body string) {
	head = fmt.Sprintf("From: f-%s@from.test\nTo: people of %s:;\nSubject: %s\nMessage-ID: <%s@from.test>\nDate: Sun, 22 Nov 2026 06:00:00 +0000\n", token, token, token, token)
	if kind == refusedHeader {
		head += "X-Refuse: " + token + "\n"
	}
	size := m.rng.IntN(8000)
	switch {
	case kind == tooLong:
		size = 310_000
	case m.rng.IntN(8) == 0:
		size = m.rng.IntN(250_000)
	}
	var b strings.Builder
	for i := 0; b.Len() < size || i == 0; i++ {
		fmt.Fprintf(&b, "%d %s %s\n", i, token, strings.Repeat(string(rune('a'+m.rng.IntN(26))), m.rng.IntN(60)))
	}
	return head, b.String()
}
