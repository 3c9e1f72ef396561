// The poller: who wants a service that has no process? One epoll loop watches all
// listening sockets of such services, as Postfix's master does. master never accepts; it
// starts a process, which does.

package master

import (
	"encoding/binary"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// A poller reports sockets that have become readable. Each is reported once, and not
// again until it is armed again: between the report and the new process's accept, the
// socket stays readable.
//
// arm and forget may be called while the loop runs, by one goroutine at a time.
type poller struct {
	epoll int
	// an eventfd, written to end the loop
	wake   int
	report func(fd int)
	wg     sync.WaitGroup
	began  bool
}

// newPoller makes a poller that calls report, on its own goroutine, with each
// descriptor that has become readable.
func newPoller(report func(fd int)) (*poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	p := &poller{epoll: epoll, wake: wake, report: report}
	if err := p.control(unix.EPOLL_CTL_ADD, wake, unix.EPOLLIN); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// control is epoll_ctl with an error that says so.
func (p *poller) control(op, fd int, events uint32) error {
	err := unix.EpollCtl(p.epoll, op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// arm has the descriptor reported when it is readable.
func (p *poller) arm(fd int) error {
	err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(fd)})
	// Never armed, or forgotten since.
	if err == unix.ENOENT {
		return p.control(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN|unix.EPOLLONESHOT)
	}
	return err
}

// forget takes the descriptor out. It must be called before the descriptor is closed:
// closing alone does not end the watch, because processes have the socket, too.
func (p *poller) forget(fd int) {
	unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, fd, nil) // ENOENT when it never was armed
}

// start begins to report.
func (p *poller) start() {
	p.began = true
	p.wg.Go(p.loop)
}

// loop waits for sockets until close writes to wake. An error of epoll_wait means that
// our descriptors are in disorder; nothing would ever be started again, so it panics, and
// the service manager starts anew.
func (p *poller) loop() {
	events := make([]unix.EpollEvent, 32)
	for {
		n, err := unix.EpollWait(p.epoll, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			panic(fmt.Sprintf("master: epoll_wait: %v", err))
		}
		for _, e := range events[:n] {
			if int(e.Fd) == p.wake {
				return
			}
			p.report(int(e.Fd))
		}
	}
}

// close ends the loop, waits for it, and may be called again.
func (p *poller) close() {
	if p.epoll < 0 {
		return
	}
	if p.began {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		unix.Write(p.wake, one[:])
		p.wg.Wait()
	}
	unix.Close(p.wake)
	unix.Close(p.epoll)
	p.epoll = -1
}
