package simtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
	"posthaste/internal/metrics"
	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/service"
	"posthaste/internal/vfs"
)

// Bounds of what takes its time.
const (
	localDelay = 40 * time.Microsecond // of what goes from one process to another
	farDelay   = 20 * time.Millisecond // of what goes over the network
	// signalDelay is that of a signal. It has so many nanoseconds that no two processes hear one at a time.
	signalDelay = time.Millisecond
)

var (
	errKilled = errors.New("simtest: the process has been killed")
	smtpdAddr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 25), Port: 25}
)

// A site is one mail system with the world around it.
type site struct {
	seed    seed
	plan    *Plan
	disk    *vfs.Mem
	sockets map[string]*socket
	zone    *fakezone.Zone
	flow    *service.Flow
	hosts   map[string]*hop
	oddMost int // transactions at a time of the tenant that has a limit, ever
	books   *books
	mail    *mailroom
	drop    *dropbox
	all     sync.WaitGroup // goroutines of processes, hops and clients
	outside outside        // nil: what the plan says

	mu       sync.Mutex
	services []*entry
	steps    int
	counts   map[string]int
	log      bytes.Buffer
	pids     int
	off      bool          // there is no power, or all is stopped
	dark     bool          // there is no power
	past     time.Duration // by how much the clock has been set back
	over     bool          // the run has come to its end
	sick     bool          // syncs fail
	healed   bool          // nothing goes wrong any more
	setting  int           // which of the configurations is in force
	failing  int           // which of those with failing tables is instead, counted from 1; 0: none
}

// An outside is what a site has around it in the place of the plan's next hops, zone and books.
type outside interface {
	// connect connects an agent to a host.
	connect(ctx context.Context, p *process, addr string) (net.Conn, error)
	names() resolver.Exchanger
	line(log []byte) // of a process's log
}

// count numbers the events of a name.
func (s *site) count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[name]++
	return s.counts[name]
}

func (s *site) powered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.off
}

// listening says whether master has the sockets open: until the last process has ended at a stop,
// and not while there is no power.
func (s *site) listening() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.off || slices.ContainsFunc(s.services, func(e *entry) bool { return e.now != nil || e.next != nil || len(e.old) > 0 })
}

func (s *site) syncsFail() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sick
}

// machine says how often the power has failed, and whether there is any.
func (s *site) machine() (cuts int, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts["cut"], !s.dark
}

func (s *site) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

func (s *site) isHealed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.healed
}

// flowPipe makes the pipe of in_flow_delay.
func flowPipe() (f *service.Flow, free func(), err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, nil, err
	}
	return service.NewFlow(p[0], p[1]), func() { unix.Close(p[0]); unix.Close(p[1]) }, nil
}

// A process is one that runs, or has run.
type process struct {
	site    *site
	entry   *entry
	pid     int
	sim     *service.Simulated
	sync    *rand.Rand // how long syncs take
	rnd     *rand.Rand
	rndMu   sync.Mutex
	disk    disk
	listen  []*listener
	config  *config.Config
	metrics *metrics.Set

	mu       sync.Mutex
	killed   bool
	ready    bool // waits for Go
	released bool
	retired  bool
	conns    map[*conn]bool
	order    []*conn
	locks    []interface{ Close() error }
	created  map[string]bool // files that were not synced since
}

func (p *process) name() string {
	if p == nil {
		return "outside"
	}
	return p.entry.name + "/" + strconv.Itoa(p.pid)
}

func (p *process) dead() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed
}

// step is called before whatever the process does to the world. It is where a fault strikes.
func (p *process) step(what string) error {
	if p == nil {
		return nil
	}
	if p.dead() {
		return errKilled
	}
	p.site.step(p, what)
	if p.dead() {
		return errKilled
	}
	return nil
}

func (p *process) syncTime() time.Duration {
	p.rndMu.Lock()
	defer p.rndMu.Unlock()
	return time.Duration(100_000 + p.sync.IntN(4_000_000))
}

// own notes that a connection is the process's. It is false when that is dead.
func (p *process) own(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.owner = p
	if p.killed {
		return false
	}
	if p.conns == nil {
		p.conns = make(map[*conn]bool)
	}
	p.conns[c] = true
	if len(p.order) > 2*len(p.conns)+100 { // most of them have been closed
		p.order = slices.DeleteFunc(p.order, func(o *conn) bool { return !p.conns[o] })
	}
	p.order = append(p.order, c)
	return true
}

func (p *process) disown(c *conn) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *process) holds(l interface{ Close() error }) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.locks = append(p.locks, l)
}

// kill ends the process: nothing that it does has an effect any more, and the kernel closes what it
// has open. Its goroutines wind down by themselves.
func (p *process) kill(power bool) {
	p.mu.Lock()
	if p.killed {
		p.mu.Unlock()
		return
	}
	p.killed = true
	var conns []*conn
	for _, c := range p.order {
		if p.conns[c] {
			conns = append(conns, c)
		}
	}
	locks := p.locks
	p.mu.Unlock()
	for _, l := range p.listen {
		_ = l.Close()
	}
	for _, c := range conns {
		if power {
			c.reset()
		} else {
			_ = c.Close()
		}
	}
	for _, l := range locks {
		_ = l.Close()
	}
	p.sim.Stop()
}

// Write is the process's log.
func (p *process) Write(line []byte) (int, error) {
	if o := p.site.outside; o != nil {
		o.line(line)
		return len(line), nil
	}
	if !p.dead() {
		s := p.site
		s.mu.Lock()
		defer s.mu.Unlock()
		s.log.Write(bytes.Replace(line, realPID, []byte(`"pid":`+strconv.Itoa(p.pid)+","), 1))
	}
	return len(line), nil
}

// world is the World of a process.
type world struct{ p *process }

var _ service.World = world{}

func (w world) Dial(ctx context.Context, path string) (net.Conn, error) {
	return w.p.site.dial(ctx, w.p, path, address(w.p.name()))
}

func (w world) Own(string, string) (net.Listener, error) {
	return &silent{done: make(chan struct{})}, nil
}

func (w world) Files() vfs.FS { return w.p.disk }

func (w world) Connect(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := w.p.step("connect " + addr); err != nil {
		return nil, err
	}
	if o := w.p.site.outside; o != nil {
		return o.connect(ctx, w.p, addr)
	}
	return w.p.site.connectHop(ctx, w.p, addr)
}

func (w world) Names() resolver.Exchanger {
	if o := w.p.site.outside; o != nil {
		return o.names()
	}
	return w.p.site.zone
}

func (w world) Random(b []byte) {
	w.p.rndMu.Lock()
	defer w.p.rndMu.Unlock()
	for i := range b {
		b[i] = byte(w.p.rnd.Uint32())
	}
}

func (s *site) newProcess(e *entry) *process {
	s.pids++
	p := &process{site: s, entry: e, pid: 100 + s.pids}
	p.sync = s.seed.source(fmt.Sprintf("sync %d", p.pid))
	p.rnd = s.seed.source(fmt.Sprintf("random %d", p.pid))
	p.disk = s.diskOf(p, s.disk)
	return p
}
