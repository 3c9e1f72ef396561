package e2e

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A ledger is what clients have sent, what they were told, and what has arrived, of all messages of a storm.
type ledger struct {
	mu       sync.Mutex
	letters  map[int]*letter
	next     int
	refused  int
	unknown  int
	problems []string
}

// A letter is one message.
type letter struct {
	from     string // the node it was sent to
	to       []string
	sum      [sha256.Size]byte // of its content
	id       string            // its queue ID, if it was acknowledged
	arrived  []int             // how often, for each recipient
	arrivals []string          // when, and from which node
}

// complain notes what must not be.
func (l *ledger) complain(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.problems) < 50 {
		l.problems = append(l.problems, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	}
}

// write makes a new letter and its content.
func (l *ledger) write(node string, to []string, size int) (n int, content string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	n = l.next
	var b strings.Builder
	fmt.Fprintf(&b, "X-Storm: %d\r\nFrom: a@from.test\r\nTo: b@plain.test\r\nDate: Sat, 21 Nov 2026 16:06:31 +0000\r\nMessage-Id: <%d@from.test>\r\nSubject: storm\r\n\r\n", n, n)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "line %d of the letter %d, \x01\x7f and so on ........................................\r\n", i, n)
	}
	content = b.String()
	l.letters[n] = &letter{from: node, to: to, sum: sha256.Sum256([]byte(content)), arrived: make([]int, len(to))}
	return n, content
}

// answered notes what the client was told.
func (l *ledger) answered(n int, id string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.letters[n].id = id
	case replyCode(err) != 0:
		l.refused++
	default:
		l.unknown++
	}
}

var stormHeader = regexp.MustCompile(`(?m)^X-Storm: (\d+)\r$`)

// arrive notes a letter that a next hop has taken.
func (l *ledger) arrive(node string, to []string, content string) {
	at := stormHeader.FindStringSubmatchIndex(content)
	if at == nil {
		l.complain("there arrived to %v: %.1000s", to, content)
		return
	}
	n, _ := strconv.Atoi(content[at[2]:at[3]])
	l.mu.Lock()
	it := l.letters[n]
	if it != nil {
		for _, r := range to {
			if i := slices.Index(it.to, r); i >= 0 {
				it.arrived[i]++
			} else {
				it = nil
				break
			}
		}
	}
	if it != nil {
		it.arrivals = append(it.arrivals, time.Now().UTC().Format("15:04:05.000")+" from "+node)
	}
	l.mu.Unlock()
	switch {
	case it == nil:
		l.complain("letter %d arrived to %v", n, to)
	case sha256.Sum256([]byte(content[at[0]:])) != it.sum:
		l.complain("letter %d is not what was sent: %.1000s", n, content)
	}
}

// missing is how many deliveries of acknowledged letters have not been made, but for those to addresses that end so.
func (l *ledger) missing(but string) (list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(l.letters)) {
		it := l.letters[n]
		for i, r := range it.to {
			if it.id != "" && it.arrived[i] == 0 && !strings.HasSuffix(r, but) {
				list = append(list, fmt.Sprintf("%s, letter %d, sent to %s for %s", it.id, n, it.from, r))
			}
		}
	}
	return list
}

// A stormHop is a next hop that counts: deliveries at a time, those of a minute and of a day.
type stormHop struct {
	led    *ledger
	name   string
	takes  time.Duration // a delivery, at least
	slow   time.Duration // one of twelve, so that something is under way whatever happens
	atOnce int           // the limit of deliveries at a time
	minute int           // and of those that begin in a minute; 0: none
	day    int

	mu      sync.Mutex
	now     map[*stormDelivery]bool
	most    int
	exempt  map[string]bool // nodes whose deliveries are not counted: they were stopped
	begun   []time.Time     // of the last minute
	today   int             // the day that is counted
	ofDay   int
	watched string      // a node that has no part of the queue
	strange []time.Time // when it made deliveries
}

type stormDelivery struct {
	node    string
	began   time.Time
	counted bool
}

// oldDelivery is how long a delivery is counted. It takes a small part of that, but where its agent waits for leave to send the content,
// since its node does not reach the database: the others get that node's shares a second after it has stopped to use them, and do not count
// what it has under way.
const oldDelivery = 900 * time.Millisecond

// nodeSlack is how many more deliveries each node may begin in the time of a rate.
const nodeSlack = 2

// begin notes that a node begins a delivery to so many recipients.
func (h *stormHop) begin(node string) *stormDelivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := time.Now()
	d := &stormDelivery{node: node, began: t, counted: !h.exempt[node]}
	h.now[d] = true
	n := 0
	for o := range h.now {
		if o.counted && t.Sub(o.began) < oldDelivery {
			n++
		}
	}
	h.most = max(h.most, n)
	if n > h.atOnce {
		h.led.complain("%s has %d deliveries at a time, %d are allowed", h.name, n, h.atOnce)
	}
	if h.minute > 0 && d.counted {
		h.begun = append(h.begun, t)
		for t.Sub(h.begun[0]) > time.Minute {
			h.begun = h.begun[1:]
		}
		if allowed := h.minute + 3*nodeSlack; len(h.begun) > allowed {
			h.led.complain("%s has %d deliveries within %v, %d are allowed", h.name, len(h.begun), t.Sub(h.begun[0]), allowed)
		}
	}
	return d
}

// made counts the recipients of a delivery of a node whose content has arrived: for that an agent needs leave.
func (h *stormHop) made(node string, recipients int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if node == h.watched {
		h.strange = append(h.strange, time.Now())
	}
	if day := time.Now().UTC().YearDay(); day != h.today {
		h.today, h.ofDay = day, 0
	}
	if h.ofDay += recipients; h.day > 0 && h.ofDay > h.day {
		h.led.complain("%s has %d recipients in a day, %d are allowed", h.name, h.ofDay, h.day)
	}
}

func (h *stormHop) end(d *stormDelivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.now, d)
}

// forget says that a node was stopped: what it has under way is not counted, nor what it begins, until that is over.
func (h *stormHop) forget(node string, over bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.exempt[node] = !over
	for d := range h.now {
		d.counted = d.counted && d.node != node
	}
}

// listen starts the hop. Nodes are named by their addresses.
func (h *stormHop) listen(t *testing.T, addr string, nodes map[string]string) {
	t.Helper()
	h.now, h.exempt = map[*stormDelivery]bool{}, map[string]bool{}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	serveConns(t, l, func(c net.Conn) {
		ip, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		h.serve(c, nodes[ip])
	})
}

func (h *stormHop) serve(c net.Conn, node string) {
	r, w := bufio.NewReader(c), bufio.NewWriter(c)
	say := func(text string) {
		w.WriteString(text + "\r\n")
		if r.Buffered() == 0 {
			w.Flush()
		}
	}
	var to []string
	var d *stormDelivery
	done := func() {
		if d != nil {
			h.end(d)
		}
		d, to = nil, nil
	}
	defer done()
	say("220 " + h.name + " ESMTP")
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		switch strings.ToUpper(line[:min(4, len(line))]) {
		case "EHLO":
			say("250-" + h.name + "\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 SIZE 0")
		case "MAIL":
			done()
			d = h.begin(node)
			say("250 2.1.0 Ok")
		case "RCPT":
			to = append(to, between(line))
			say("250 2.1.5 Ok")
		case "DATA":
			say("354 go")
			w.Flush()
			content, err := readCRLF(r)
			if err != nil {
				return
			}
			takes := h.takes // each delivery takes a while: that is what is counted
			if h.slow > 0 && rand.IntN(12) == 0 {
				takes = h.slow
			}
			time.Sleep(takes)
			h.led.arrive(node, to, content)
			h.made(node, len(to))
			done()
			say("250 2.0.0 Ok")
		case "QUIT":
			say("221 2.0.0 Bye")
			w.Flush()
			return
		default:
			say("250 2.0.0 Ok")
		}
	}
}

// readCRLF reads a message as it is on the wire, without the dots.
func readCRLF(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if line == ".\r\n" {
			return b.String(), nil
		}
		b.WriteString(strings.TrimPrefix(line, "."))
	}
}

// A stormClient sends to one node, on and on, unless it is told to pause.
type stormClient struct {
	led    *ledger
	node   string
	addr   string
	rng    *rand.Rand
	pause  *sync.RWMutex // held for writing: nobody sends
	stop   chan struct{}
	ofDay  *atomic.Int64 // how many more go to the hop with a limit of a day
	every  time.Duration
	failed *atomic.Int64
}

// recipients draws whom a letter is for.
func (c *stormClient) recipients() []string {
	plain := fmt.Sprintf("u%d@plain.test", c.rng.IntN(10))
	switch n := c.rng.IntN(100); {
	case n < 15:
		return []string{"a@narrow.test"}
	case n < 25:
		return []string{plain, "a@narrow.test"}
	case n < 33:
		return []string{"a@rate.test"}
	case n < 36 && c.ofDay.Add(-1) >= 0:
		return []string{"a@day.test"}
	case n < 40:
		return []string{"x@plain.test", "y@plain.test", "z@plain.test"}
	}
	return []string{plain}
}

func (c *stormClient) run() {
	for {
		select {
		case <-c.stop:
			return
		case <-time.After(c.every):
		}
		size := 300 + c.rng.IntN(3000)
		if c.rng.IntN(40) == 0 {
			size = 100_000 + c.rng.IntN(200_000)
		}
		to := c.recipients()
		if to[0] == "a@rate.test" || to[0] == "a@day.test" {
			// What waits is a good part of what the database has, so that segments stay which a former owner knows, too.
			size = 30_000 + c.rng.IntN(30_000)
		}
		c.pause.RLock()
		c.one(to, size)
		c.pause.RUnlock()
	}
}

// one sends a letter, over a connection of its own.
func (c *stormClient) one(to []string, size int) error {
	n, content := c.led.write(c.node, to, size)
	id, err := sendTo(c.addr, to, content)
	c.led.answered(n, id, err)
	if err != nil {
		c.failed.Add(1)
	}
	return err
}

var queuedAs = regexp.MustCompile(`queued as ([0-9A-Za-z]+)`)

// sendTo sends a message and returns the queue ID that it is acknowledged with. A server that says nothing is given up.
func sendTo(addr string, to []string, content string) (id string, err error) {
	conn, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	c := textproto.NewConn(conn)
	if _, _, err := c.ReadResponse(220); err != nil {
		return "", err
	}
	commands := []string{"EHLO client.test", "MAIL FROM:<a@from.test>"}
	for _, r := range to {
		commands = append(commands, "RCPT TO:<"+r+">")
	}
	for _, line := range append(commands, "DATA") {
		code := 250
		if line == "DATA" {
			code = 354
		}
		if err := c.PrintfLine("%s", line); err != nil {
			return "", err
		}
		if _, _, err := c.ReadResponse(code); err != nil {
			return "", err
		}
	}
	c.W.WriteString(content + ".\r\n")
	if err := c.W.Flush(); err != nil {
		return "", err
	}
	_, text, err := c.ReadResponse(250)
	if err != nil {
		return "", err
	}
	m := queuedAs.FindStringSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("no queue ID in %q", text)
	}
	return m[1], nil
}
