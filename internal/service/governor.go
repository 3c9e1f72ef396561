package service

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A governor gives a process as many processors as it has work for, one at
// first.
//
// A Go process that may use several processors uses them: what becomes ready
// to run wakes another thread, although the present one would have come to it
// a few microseconds later. In a mail system the services work hand in hand,
// each in slices of some ten microseconds, and waking threads cost a seventh of
// all its processor time, and a third when one message was under way at a
// time. One processor carries thousands of messages a second in a service that
// waits for sockets; one that needs more gets more within a fraction of a second.
//
// It is not for services that wait for disks: a thread that waits there
// holds the processor for a while before the runtime gives it to another.
type governor struct {
	limit int           // as many as the runtime would have taken
	procs int           // as many as there are
	calm  time.Duration // for so long one less would have done
	set   func(procs int)
	used  func() time.Duration // processor time of this process so far
	// The kernel's alarm for a process that has worked for a while. It is set when the governor goes to rest.
	alarm workAlarm
}

// A workAlarm wakes who rests when there is work again.
type workAlarm interface {
	// set has the next signal of rings sent when the process has had governWake of processor time from now on.
	set()
	rings() <-chan os.Signal
	stop()
}

// The governor's measures.
const (
	// governPeriod is how often it looks while there is work. Without work it
	// looks less and less often, down to governIdle; then it rests, until the
	// process has had governWake of processor time: an idle process is not woken.
	governPeriod = 50 * time.Millisecond
	governIdle   = 400 * time.Millisecond
	governWake   = 10 * time.Millisecond
	// governFull is the share of the present processors in use above which
	// there are twice as many.
	governFull = 0.6
	// governSpare is the share of one processor less that may be in use for
	// there being one less after governCalm of it.
	governSpare = 0.4
	governCalm  = 2 * time.Second
	// governWork is how much of one processor is work.
	governWork = 0.1
)

// newGovernor returns the process's governor, nil where the environment says
// how many processors there are, or where there is nothing to govern.
func newGovernor(spec Spec) *governor {
	limit := runtime.GOMAXPROCS(0)
	if !spec.Frugal || limit < 2 || os.Getenv("GOMAXPROCS") != "" {
		return nil
	}
	return &governor{limit: limit, set: func(procs int) { runtime.GOMAXPROCS(procs) }, used: processorTime,
		alarm: newUserTimeAlarm()}
}

// spread gives a service whose threads wait for disks more processors than there
// are. A thread that waits in a system call keeps the one that the runtime has
// given it, unused, until the runtime has noticed, some tens of microseconds later; with
// two syncs a message that is a tenth of the time of a Maildir delivery and
// more. With twice as many it is somebody else's turn at once. It does
// nothing where the environment says how many processors there are.
func spread(spec Spec, set func(procs int)) {
	if n := runtime.GOMAXPROCS(0); spec.Syncs && os.Getenv("GOMAXPROCS") == "" {
		set(n + min(n, maxSpread))
	}
}

// maxSpread is how many processors more there are at most: enough for all the
// syncs that one disk does at a time.
const maxSpread = 8

// run governs until quit is closed.
func (g *governor) run(quit <-chan struct{}) {
	if g == nil {
		return
	}
	defer g.alarm.stop()
	g.procs = 1
	g.set(1)
	for g.watch(quit) {
		g.alarm.set()
		select {
		case <-quit:
			return
		case <-g.alarm.rings():
		}
	}
}

// watch governs while there is work. It is false when quit is closed.
func (g *governor) watch(quit <-chan struct{}) (idle bool) {
	period := governPeriod
	last, used := time.Now(), g.used()
	timer := time.NewTimer(period)
	defer timer.Stop()
	for {
		select {
		case <-quit:
			return false
		case <-timer.C:
		}
		now, u := time.Now(), g.used()
		length := max(now.Sub(last), 1)
		busy := float64(u-used) / float64(length)
		last, used = now, u
		if procs := g.decide(busy, length); procs != g.procs {
			g.procs = procs
			g.set(procs)
		}
		switch {
		case busy >= governWork:
			period = governPeriod
		case period < governIdle:
			period *= 2
		// What is spare is given back first.
		case g.procs == 1:
			return true
		}
		timer.Reset(period)
	}
}

// decide says how many processors there are to be when so many were busy,
// on average, in the last period.
func (g *governor) decide(busy float64, period time.Duration) int {
	if busy > governFull*float64(g.procs) {
		g.calm = 0
		return min(2*g.procs, g.limit)
	}
	if g.procs == 1 || busy > governSpare*float64(g.procs-1) {
		g.calm = 0
		return g.procs
	}
	if g.calm += period; g.calm < governCalm {
		return g.procs
	}
	g.calm = 0
	return g.procs - 1
}

// processorTime is what this process has had of processors, user and system.
func processorTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0 // cannot fail; the process stays with what it has
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
