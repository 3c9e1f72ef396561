package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A pulse is when messages arrived somewhere.
type pulse struct {
	mu    sync.Mutex
	times []time.Time
}

func (p *pulse) beat() {
	now := time.Now()
	p.mu.Lock()
	p.times = append(p.times, now)
	p.mu.Unlock()
}

// count is how many messages have arrived so far.
func (p *pulse) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.times)
}

// gap is the longest time within from and to in which nothing arrived.
func (p *pulse) gap(from, to time.Time) (longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := from
	for _, at := range p.times {
		if at.Before(from) {
			continue
		}
		if at.After(to) {
			break
		}
		longest = max(longest, at.Sub(last))
		last = at
	}
	return max(longest, to.Sub(last))
}

// A counter is a host that takes all mail, with little work, and counts by number and recipient what
// the clients of streams send.
type counter struct {
	pulse
	l    net.Listener
	mu   sync.Mutex
	seen map[string]int // by number and recipient
	wg   sync.WaitGroup
}

func newCounter(t testing.TB) *counter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{l: l, seen: make(map[string]int)}
	c.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.wg.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(func() { // behind that of the system, whose agents close their connections
		l.Close()
		c.wg.Wait()
	})
	return c
}

func (c *counter) relayhost() string {
	return fmt.Sprintf("relayhost = [127.0.0.1]:%d\n", c.l.Addr().(*net.TCPAddr).Port)
}

// serve is a session. The replies to what comes together go together.
func (c *counter) serve(conn net.Conn) {
	defer conn.Close()
	in, out := bufio.NewReader(conn), []byte("220 count ESMTP\r\n")
	var to []string
	for {
		if in.Buffered() == 0 {
			if _, err := conn.Write(out); err != nil {
				return
			}
			out = out[:0]
		}
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		switch strings.ToUpper(string(line[:min(4, len(line))])) {
		case "EHLO":
			out = append(out, "250-count\r\n250 PIPELINING\r\n"...)
		case "RCPT":
			address, _, _ := strings.Cut(string(line[len("RCPT TO:<"):]), ">")
			to, out = append(to, address), append(out, "250 ok\r\n"...)
		case "DATA":
			conn.Write(append(out, "354 go\r\n"...))
			out = out[:0]
			if !c.content(in, to) {
				return
			}
			to = nil
			out = append(out, "250 ok\r\n"...)
		case "QUIT":
			conn.Write(append(out, "221 bye\r\n"...))
			return
		default:
			out = append(out, "250 ok\r\n"...)
		}
	}
}

// content reads a message, and counts it for each recipient when it is whole.
func (c *counter) content(in *bufio.Reader, to []string) bool {
	number := 0
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return false
		}
		if strings.HasPrefix(line, "Subject: load ") {
			number, _ = strconv.Atoi(strings.TrimSpace(line[len("Subject: load "):]))
		}
		if line == ".\r\n" {
			break
		}
	}
	c.beat()
	c.mu.Lock()
	for _, address := range to {
		c.seen[delivery(number, address)]++
	}
	c.mu.Unlock()
	return true
}

// delivery is a message's number and one of its recipients.
func delivery(number int, to string) string { return strconv.Itoa(number) + " " + to }

// amiss says which of the messages have not come, and which have come more than once.
func (c *counter) amiss(sent []int, to []string) (missing, twice []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range sent {
		for _, address := range to {
			d := delivery(n, address)
			if c.seen[d] == 0 {
				missing = append(missing, d)
			}
			if c.seen[d] > 1 {
				twice = append(twice, d)
			}
		}
	}
	return missing, twice
}

// mostUnderWay is how many deliveries may be under way before clients wait: where more is accepted
// than is delivered the queue would grow for as long as a test lasts.
const mostUnderWay = 8000

// streams are clients that send one numbered message after the other in a session, and
// begin another session when the server ends one.
type streams struct {
	pulse           // when messages were accepted
	next   *counter // where they go
	stop   atomic.Bool
	number atomic.Int64
	mu     sync.Mutex
	sent   []int // what has been accepted
	wg     sync.WaitGroup
}

func startStreams(s *system, next *counter, clients int, to []string) *streams {
	l := &streams{next: next}
	for range clients {
		l.wg.Go(func() {
			for !l.stop.Load() {
				if c, err := net.Dial("tcp", s.addr()); err == nil {
					l.session(c, to)
					c.Close()
				} else {
					time.Sleep(5 * time.Millisecond)
				}
			}
		})
	}
	return l
}

// session sends until somebody says that it is enough.
func (l *streams) session(c net.Conn, to []string) {
	in := bufio.NewReader(c)
	reply := func() string {
		for {
			line, err := in.ReadSlice('\n')
			if err != nil || len(line) < 4 {
				return ""
			}
			if line[3] == ' ' {
				return string(line[:3])
			}
		}
	}
	expect := func(codes ...string) bool {
		return !slices.ContainsFunc(codes, func(code string) bool { return reply() != code })
	}
	if !expect("220") {
		return
	}
	io.WriteString(c, "EHLO load.test\r\n")
	if !expect("250") {
		return
	}
	command, codes := []byte("MAIL FROM:<load@from.test>\r\n"), []string{"250"}
	for _, address := range to {
		command, codes = fmt.Appendf(command, "RCPT TO:<%s>\r\n", address), append(codes, "250")
	}
	command, codes = append(command, "DATA\r\n"...), append(codes, "354")
	for !l.stop.Load() {
		for len(to)*l.count()-l.next.count() > mostUnderWay && !l.stop.Load() {
			time.Sleep(5 * time.Millisecond)
		}
		if c.Write(command); !expect(codes...) {
			return
		}
		number := int(l.number.Add(1))
		fmt.Fprintf(c, "Subject: load %d\r\n\r\nbody\r\n.\r\n", number)
		if !expect("250") {
			return
		}
		l.beat()
		l.mu.Lock()
		l.sent = append(l.sent, number)
		l.mu.Unlock()
	}
	io.WriteString(c, "QUIT\r\n")
	expect("221")
}

func (l *streams) end() {
	l.stop.Store(true)
	l.wg.Wait()
}

// accepted is what has been accepted so far.
func (l *streams) accepted() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.sent)
}

// A waker is a thread that sleeps for two milliseconds at a time. The gaps of its pulse
// are how long the machine does not get round to a thread that is due.
func newWaker(t testing.TB) *pulse {
	p := &pulse{}
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		for !stop.Load() {
			syscall.Nanosleep(&syscall.Timespec{Nsec: 2e6}, nil)
			p.beat()
		}
	})
	t.Cleanup(func() {
		stop.Store(true)
		wg.Wait()
	})
	return p
}

// deaf are hosts that accept connections and never greet.
type deaf struct {
	hosts []net.Listener
	calls atomic.Int64
	ended atomic.Int64 // calls that the caller has given up
	wg    sync.WaitGroup
	mu    sync.Mutex
	conns []net.Conn
}

func newDeaf(t testing.TB, n int) *deaf {
	d := &deaf{}
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		d.hosts = append(d.hosts, l)
		d.wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				d.mu.Lock()
				d.conns = append(d.conns, c)
				d.mu.Unlock()
				d.wg.Go(func() { // who is not greeted has nothing to say
					io.Copy(io.Discard, c)
					d.ended.Add(1)
				})
				d.calls.Add(1)
			}
		})
	}
	t.Cleanup(func() {
		for _, l := range d.hosts {
			l.Close()
		}
		d.mu.Lock()
		for _, c := range d.conns {
			c.Close()
		}
		d.mu.Unlock()
		d.wg.Wait()
	})
	return d
}

// transports are lines of a transport table: a host for each of the domains
// d0.deaf.test and so on.
func (d *deaf) transports() string {
	var b strings.Builder
	for i, l := range d.hosts {
		fmt.Fprintf(&b, "d%d.deaf.test smtp:[127.0.0.1]:%d\n", i, l.Addr().(*net.TCPAddr).Port)
	}
	return b.String()
}

// addresses are recipients there, one for each host.
func (d *deaf) addresses(generation int) (list []string) {
	for i := range d.hosts {
		list = append(list, fmt.Sprintf("g%d@d%d.deaf.test", generation, i))
	}
	return list
}
