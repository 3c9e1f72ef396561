package e2e

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
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

// first is when the first message arrived.
func (p *pulse) first() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.times[0]
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

// A counter is a host that takes all mail, with little work, and counts by number what
// the clients of streams send.
type counter struct {
	pulse
	l    net.Listener
	mu   sync.Mutex
	seen map[int]int
	wg   sync.WaitGroup
}

func newCounter(t *testing.T) *counter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{l: l, seen: make(map[int]int)}
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
		case "DATA":
			conn.Write(append(out, "354 go\r\n"...))
			out = out[:0]
			if !c.content(in) {
				return
			}
			out = append(out, "250 ok\r\n"...)
		case "QUIT":
			conn.Write(append(out, "221 bye\r\n"...))
			return
		default:
			out = append(out, "250 ok\r\n"...)
		}
	}
}

// content reads a message, and counts it when it is whole.
func (c *counter) content(in *bufio.Reader) bool {
	number := 0
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return false
		}
		fmt.Sscanf(line, "Subject: load %d", &number)
		if line == ".\r\n" {
			break
		}
	}
	c.beat()
	c.mu.Lock()
	c.seen[number]++
	c.mu.Unlock()
	return true
}

// amiss says which of the messages have not come, and which have come more than once.
func (c *counter) amiss(sent []int) (missing, twice []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range sent {
		if c.seen[n] == 0 {
			missing = append(missing, n)
		}
		if c.seen[n] > 1 {
			twice = append(twice, n)
		}
	}
	return missing, twice
}

// streams are clients that send one numbered message after the other in a session, and
// begin another session when the server ends one.
type streams struct {
	pulse  // when messages were accepted
	stop   atomic.Bool
	number atomic.Int64
	mu     sync.Mutex
	sent   []int // what has been accepted
	wg     sync.WaitGroup
}

func startStreams(s *system, clients int, to string) *streams {
	l := &streams{}
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
func (l *streams) session(c net.Conn, to string) {
	in := bufio.NewReader(c)
	expect := func(codes ...string) bool {
		for _, code := range codes {
			for {
				line, err := in.ReadSlice('\n')
				if err != nil || len(line) < 4 || string(line[:3]) != code {
					return false
				}
				if line[3] == ' ' {
					break
				}
			}
		}
		return true
	}
	if !expect("220") {
		return
	}
	io.WriteString(c, "EHLO load.test\r\n")
	if !expect("250") {
		return
	}
	command := fmt.Appendf(nil, "MAIL FROM:<load@from.test>\r\nRCPT TO:<%s>\r\nDATA\r\n", to)
	for !l.stop.Load() {
		if c.Write(command); !expect("250", "250", "354") {
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
func newWaker(t *testing.T) *pulse {
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

func newDeaf(t *testing.T, n int) *deaf {
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

var holdPause = flag.Bool("reload.pause", false, "fail when a reload holds deliveries up for longer than it may; for a machine that does nothing else")

// reloadPause is how long a reload may hold up deliveries.
const reloadPause = 300 * time.Millisecond

// However many deliveries hang, and for however many reloads: others go on. The
// deliveries that hang are those of earlier generations of agents by then, and are
// not made again; nothing but the end of the test ends them.
//
// What is asserted is that nothing is lost or repeated. With -reload.pause, on a machine that does
// nothing else, each reload is held to reloadPause as well. A busy machine adds to the time without a
// delivery what it also adds without a reload. So two things are allowed for: the
// longest time without a delivery in a span as long, right before the reload or right after
// it, and the longest time for which a thread of the test itself was due and
// did not run, while the reload went on. Should a reload take longer all the same, everything is
// measured anew, once.
//
// The clients send as fast as they are answered. Each message that was accepted is delivered,
// and once.
func TestReloadHoldsNobodyUp(t *testing.T) {
	for _, c := range []struct {
		name    string
		deaf    int
		metrics bool
	}{{"none hangs", 0, false}, {"100 hang", 100, false}, {"metrics", 10, true}} {
		t.Run(c.name, func(t *testing.T) {
			for try := 1; ; try++ {
				pauses := reloadsUnderLoad(t, c.deaf, c.metrics)
				if len(pauses) == 0 {
					return
				}
				if try == 2 {
					t.Fatalf("reloads hold deliveries up, twice: %s", strings.Join(pauses, "; "))
				}
				t.Logf("measured once more: %s", strings.Join(pauses, "; "))
			}
		})
	}
}

// reloadsUnderLoad reloads several times, and says of which reloads the time without a
// delivery was too long.
func reloadsUnderLoad(t *testing.T, hang int, metrics bool) (tooLong []string) {
	const clients, rounds = 40, 4
	arrived := newCounter(t)
	d := newDeaf(t, hang)
	s := systemToReload(t, arrived.relayhost(), d, metrics)
	waker := newWaker(t)
	l := startStreams(s, clients, "x@to.test")
	defer l.end()
	more := func(n int) {
		t.Helper()
		want := arrived.count() + n
		s.eventually("more messages arrive", func() bool { return arrived.count() >= want })
	}
	// without is the longest time without a delivery while nothing is reloaded.
	without := func(span time.Duration) time.Duration {
		began := time.Now()
		more(1000)
		s.eventually("time has passed", func() bool { return time.Since(began) >= span })
		return arrived.gap(began, time.Now())
	}
	more(500)
	span := time.Second
	var agents []int
	for i := range rounds {
		if hang > 0 {
			s.mustSend("a@from.test", d.addresses(i), "Subject: x\n\nx\n")
			s.eventually("deliveries hang", func() bool { return d.calls.Load() >= int64(hang*(i+1)) })
			agents = s.processes("smtp")
		}
		before := without(span)
		old := s.processes("qmgr")
		began := time.Now()
		s.mustTool("reload")
		s.eventually("the old queue manager has gone", func() bool { // to ask the new one would be more load
			now := s.processes("qmgr")
			return len(now) == 1 && !slices.Contains(old, now[0])
		})
		more(1000) // ordered by the successor, while those others go on
		ended := time.Now()
		gap, late, held := arrived.gap(began, ended), waker.gap(began, ended), l.gap(began, ended)
		span = ended.Sub(began)
		goOn(t, s, d, agents)
		after := without(span)
		t.Logf("reload %d: %v without a delivery, in %v; %v before it, %v after it; nothing accepted for %v; a thread was late by %v",
			i+1, gap, span, before, after, held, late)
		if limit := reloadPause + max(before, after) + late; gap > limit && *holdPause {
			tooLong = append(tooLong, fmt.Sprintf("reload %d for %v, limit %v", i+1, gap, limit))
		}
	}
	if n := d.calls.Load(); n != int64(hang*rounds) {
		t.Errorf("%d deliveries hang, of %d that were ordered", n, hang*rounds)
	}
	t.Logf("%.0f messages/s", float64(arrived.count())/time.Since(arrived.first()).Seconds())
	l.end()
	sent := l.accepted()
	s.eventually("all that was accepted is delivered", func() bool {
		missing, _ := arrived.amiss(sent)
		return len(missing) == 0
	})
	if _, twice := arrived.amiss(sent); len(twice) > 0 {
		t.Errorf("%d of %d messages were delivered more than once: %v", len(twice), len(sent), twice[:min(len(twice), 10)])
	}
	return tooLong
}

// systemToReload starts a system that sends to hosts that are deaf, and otherwise to the relay host.
func systemToReload(t *testing.T, relayhost string, d *deaf, metrics bool) (s *system) {
	o := options{main: relayhost + "transport_maps = texthash:{dir}/etc/transport\nsmtp_helo_timeout = 3600\nsmtpd_peername_lookup = no\n", unstarted: true,
		master: "smtp unix - - n - 1000 smtp\n"}
	if metrics {
		o.master += "metrics unix - - n - 1 metrics\n"
		s, _ = newMeasured(t, o)
	} else {
		s = newSystem(t, o)
	}
	s.write("etc/transport", d.transports())
	s.start()
	return s
}

// goOn has the agents that hang still live, and hang: what has been delivered
// meanwhile has not waited for them.
func goOn(t *testing.T, s *system, d *deaf, agents []int) {
	t.Helper()
	now := s.processes("smtp")
	for _, pid := range agents {
		if !slices.Contains(now, pid) {
			t.Errorf("agent %d, whose deliveries hang, has ended", pid)
		}
	}
	if n := d.ended.Load(); n > 0 {
		t.Errorf("%d deliveries that hang have been given up", n)
	}
}

// A reload keeps what has been learnt: a destination that is dead is not tried
// again because of it, and only the recipients whose delivery goes on wait for that.
func TestReloadKeepsWhatIsLearnt(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	refusing := newSink(t, func(line string) string {
		if line == "" {
			calls.Add(1)
			return "421 4.7.0 go away"
		}
		return ""
	})
	next := newSink(t, nil)
	d := newDeaf(t, 1)
	s := newSystem(t, options{main: next.relayhost() + "transport_maps = texthash:{dir}/etc/transport\nsmtp_helo_timeout = 3600\n" +
		"smtp_initial_destination_concurrency = 1\nin_flow_delay = 0\n", unstarted: true})
	s.write("etc/transport", d.transports()+fmt.Sprintf("refusing.test smtp:[127.0.0.1]:%d\n", refusing.port()))
	s.start()
	s.mustSend("a@from.test", []string{"b@refusing.test"}, "Subject: x\n\nx\n")
	s.waitLog(`to=<b@refusing\.test>.*status=deferred`)
	s.mustSend("a@from.test", []string{"c@refusing.test"}, "Subject: x\n\nx\n")
	s.waitLog(`to=<c@refusing\.test>.*delivery temporarily suspended`)
	before := calls.Load()
	s.mustSend("a@from.test", []string{"g0@d0.deaf.test"}, "Subject: x\n\nx\n")
	s.eventually("a delivery hangs", func() bool { return d.calls.Load() == 1 })
	old := s.processes("qmgr")
	for range 3 {
		s.mustTool("reload")
		old = append(old, s.newQueueManager(old...))
	}
	s.mustSend("a@from.test", []string{"d@refusing.test", "e@to.test"}, "Subject: x\n\nx\n")
	s.waitLog(`to=<d@refusing\.test>.*delivery temporarily suspended`)
	s.waitLog(`to=<e@to\.test>.*status=sent`)
	if now := calls.Load(); now != before {
		t.Errorf("a dead destination was tried %d times after the reload", now-before)
	}
	if n := d.calls.Load(); n != 1 {
		t.Errorf("a delivery that goes on was made %d times", n)
	}
	if strings.Contains(s.log(), "to=<g0@d0.deaf.test>") {
		t.Errorf("something is said of a delivery that goes on:\n%s", s.log())
	}
	s.mustTool("flush") // an operator's way to have all tried again
	s.eventually("the dead destination is tried again", func() bool { return calls.Load() > before })
}
