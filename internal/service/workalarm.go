package service

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A userTimeAlarm is a workAlarm by the kernel's timer of this process's user time (setitimer, ITIMER_VIRTUAL), which
// stands still while the process sleeps. Time in the kernel does not count, so that it rings a little later in a process
// that does little else than system calls. The runtime uses SIGPROF, and nothing else uses SIGVTALRM. A child does not
// inherit the timer.
type userTimeAlarm struct{ signals chan os.Signal }

func newUserTimeAlarm() userTimeAlarm {
	// One ring is as good as several.
	a := userTimeAlarm{make(chan os.Signal, 1)}
	// Without this the signal would end the process.
	signal.Notify(a.signals, syscall.SIGVTALRM)
	return a
}

func (a userTimeAlarm) set() {
	// A ring from before says nothing about now.
	select {
	case <-a.signals:
	default:
	}
	if _, err := unix.Setitimer(unix.ItimerVirtual, once(governWake)); err != nil {
		// It cannot fail for this timer and value. Should it, the governor looks at once and again.
		a.signals <- syscall.SIGVTALRM
	}
}

func (a userTimeAlarm) rings() <-chan os.Signal { return a.signals }

// stop stops the timer. The signal stays ignored: one may be on its way.
func (a userTimeAlarm) stop() {
	unix.Setitimer(unix.ItimerVirtual, unix.Itimerval{})
	signal.Ignore(syscall.SIGVTALRM)
}

// once is a timer that rings once, after d.
func once(d time.Duration) unix.Itimerval {
	return unix.Itimerval{Value: unix.NsecToTimeval(d.Nanoseconds())}
}
