package simtest

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"posthaste/internal/maillog"
	"posthaste/internal/metrics"
	"posthaste/internal/service"
)

// realPID is what the log has of this process in each line.
var realPID = []byte(`"pid":` + strconv.Itoa(os.Getpid()) + ",")

// An entry is a service, as in master.cf, with the process that has it now.
type entry struct {
	site *site
	name string // of the first column
	path string // of its socket
	spec service.Spec
	sock *socket
	most int // sessions at a time; 0: as of any service

	now  *process   // that serves; nil: none
	next *process   // its successor, at a reload
	old  []*process // that retire
}

// demand starts the service of a socket if nobody serves it.
func (s *site) demand(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.services {
		if e.path == path {
			e.start()
		}
	}
}

// start starts a process if there is none, and there is power. Called with mu held.
func (e *entry) start() {
	if e.site.off || e.now != nil {
		return
	}
	e.now = e.launch()
	e.settle()
}

// launch makes a process of the present settings.
func (e *entry) launch() *process {
	s := e.site
	p := s.newProcess(e)
	cfg := s.plan.configs[s.setting][e.spec.Process]
	if s.failing > 0 {
		cfg = s.plan.broken[s.failing-1][e.spec.Process]
	}
	p.config, p.metrics = cfg, metrics.New()
	typ := "unix"
	var addr net.Addr = address(e.path)
	if e.path == "inet" {
		typ, addr = "inet", smtpdAddr
	}
	l := &listener{s: e.sock, p: p, addr: addr}
	p.listen = []*listener{l}
	log := maillog.New(maillog.Tag(cfg, e.spec.Process), maillog.NewWriter(p, maillog.JSON))
	p.sim = service.Simulate(e.spec, service.Setting{Line: &service.CommandLine{Name: e.name, Type: typ, Sockets: 1, MaxProc: e.maxProc()},
		Config: cfg, Log: log, World: world{p}, Flow: s.flow, Metrics: p.metrics, Listeners: []net.Listener{l},
		Tell: func(b byte) { s.heard(p, b) }, Exit: func() { s.all.Go(func() { s.ended(p, nil) }) }})
	s.all.Go(func() {
		err := p.sim.Run()
		s.ended(p, err)
	})
	return p
}

func (e *entry) maxProc() int {
	if e.most > 0 {
		return e.most
	}
	if e.spec.Exclusive {
		return 0
	}
	return 20
}

// heard is what master hears on the status socket.
func (s *site) heard(p *process, b byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch b {
	case service.StatusReady:
		p.ready = true
	case service.StatusReleased:
		p.released = true
	case service.StatusRetired:
		p.retired = true
	}
	p.entry.settle()
	if b == service.StatusRetired && p.entry.now == p && p.entry.next == nil { // idle, or by itself
		p.entry.now = nil
		p.entry.old = append(p.entry.old, p)
		if p.entry.spec.Exclusive || p.entry.sock.waiting() {
			p.entry.start()
		}
	}
}

// settle lets a process serve whose turn it is. Called with mu held.
func (e *entry) settle() {
	if n := e.next; n != nil && n.ready && e.now != nil && e.now.retired {
		e.old = append(e.old, e.now)
		e.now, e.next = n, nil
	}
	if e.now == nil {
		return
	}
	if e.spec.Exclusive && slices.ContainsFunc(e.old, func(p *process) bool { return !p.released }) {
		return
	}
	e.now.sim.Go()
}

// ended is called when a process has ended. Master starts another.
func (s *site) ended(p *process, err error) {
	if s.outside == nil {
		s.books.count(p.metrics.Take())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := p.entry
	p.released = true
	e.old = slices.DeleteFunc(e.old, func(o *process) bool { return o == p })
	if err != nil && !p.dead() {
		text := fmt.Sprintf("%s simtest: %s has failed: %v\n", time.Now().UTC().Format(time.RFC3339Nano), p.name(), err)
		if s.log.WriteString(text); s.outside != nil {
			s.outside.line([]byte(text))
		}
	}
	if e.next == p {
		e.next = nil
	}
	if e.now == p {
		e.now, e.next = e.next, nil
		if e.now == nil {
			time.AfterFunc(throttle(err), func() { s.revive(e) })
		}
	}
	e.settle()
}

func throttle(err error) time.Duration {
	if err != nil {
		return time.Second
	}
	return time.Millisecond
}

// revive starts a process again that has ended, if it is wanted.
func (s *site) revive(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.spec.Exclusive || e.sock.waiting() {
		e.start()
	}
}

// kill kills the process of a service. Its successor takes over if it has one, as at a reload; else
// master starts another.
func (s *site) kill(e *entry, after time.Duration) {
	s.mu.Lock()
	p := e.now
	if p == nil {
		s.mu.Unlock()
		return
	}
	e.now, e.next = e.next, nil
	p.released = true
	s.mu.Unlock()
	p.kill(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.now != nil {
		e.settle()
		return
	}
	time.AfterFunc(after, func() { s.revive(e) })
}

// cut is a power cut. All starts again after a while.
func (s *site) cut(after time.Duration) {
	s.mu.Lock()
	s.off, s.dark = true, true
	var all []*process
	for _, e := range s.services {
		all = append(all, e.old...)
		for _, p := range []*process{e.now, e.next} {
			if p != nil {
				all = append(all, p)
			}
		}
		e.now, e.next, e.old = nil, nil, nil
	}
	s.mu.Unlock()
	for _, p := range all {
		p.kill(true)
	}
	for _, e := range s.services {
		e.sock.clear()
	}
	n := s.count("cut")
	s.disk = s.disk.Cut(lossOf(s.seed, n))
	s.mail.cut(s.seed.source(fmt.Sprintf("mail cut %d", n)))
	s.flow.Put(-s.flow.Level()) // the pipe was master's
	s.drop.cut(s.seed.source(fmt.Sprintf("maildrop cut %d", n)))
	time.AfterFunc(after, s.boot)
}

// boot starts what master starts first. The others start when they are wanted.
func (s *site) boot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off, s.dark = false, false
	for _, e := range s.services {
		if e.spec.Exclusive {
			e.start()
		}
	}
}

// reload has each process replaced by one with the settings that are in force now.
func (s *site) reload() {
	s.mu.Lock()
	var old []*process
	for _, e := range s.services {
		if e.now != nil && e.next == nil && !s.off {
			e.next = e.launch()
			old = append(old, e.now)
		}
	}
	s.mu.Unlock()
	for _, p := range old {
		time.AfterFunc(100*time.Millisecond+p.signalTime(), p.sim.Leave)
	}
}

// signalTime is how long a signal of master's takes to reach a process. No two processes hear of a
// reload at one instant: what they then did to each other would be in an order that Go's scheduler chooses.
func (p *process) signalTime() time.Duration {
	r := p.site.seed.stream("signal " + p.name())
	return time.Duration(r.next() % uint64(signalDelay))
}

// stop stops all, in order, and waits for the end of each rank. A process that does not end in time is killed.
func (s *site) stop() {
	s.mu.Lock()
	s.off = true
	s.mu.Unlock()
	for rank := service.Intake; rank <= service.LogWriter; rank++ {
		var list []*process
		s.mu.Lock()
		for _, e := range s.services {
			if e.spec.Rank == rank {
				list = append(list, e.old...)
				for _, p := range []*process{e.now, e.next} {
					if p != nil {
						list = append(list, p)
					}
				}
			}
		}
		s.mu.Unlock()
		for _, p := range list {
			time.Sleep(p.signalTime())
			p.sim.Stop()
		}
		for range 60 {
			if s.gone(list) {
				break
			}
			time.Sleep(time.Second)
		}
		for _, p := range list {
			s.mu.Lock()
			running := p.entry.now == p || slices.Contains(p.entry.old, p)
			s.mu.Unlock()
			if running {
				p.kill(false)
			}
		}
	}
}

// gone says whether all of list have ended.
func (s *site) gone(list []*process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(list, func(p *process) bool { return p.entry.now == p || p.entry.next == p || slices.Contains(p.entry.old, p) })
}
