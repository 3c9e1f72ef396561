package master

import (
	"encoding/binary"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// A poller watches the sockets of the services that have no process. A socket
// is reported once, and not again until it is armed again.
type poller struct {
	epoll  int
	wake   int // eventfd
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
	if err == unix.ENOENT {
		return p.control(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN|unix.EPOLLONESHOT)
	}
	return err
}

// forget takes the descriptor out, before it is closed: closing alone does
// not, because processes have it too.
func (p *poller) forget(fd int) {
	unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, fd, nil) // ENOENT when it never was armed
}

func (p *poller) start() {
	p.began = true
	p.wg.Go(p.loop)
}

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

// close ends the loop and waits for it.
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
