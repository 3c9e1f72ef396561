// Wake-ups: services that do something by the clock (the wakeup column of master.cf) are
// triggered over their own sockets, as anybody may do. So a wake-up starts a process if
// there is none, and needs no protocol of its own.

package master

import (
	"errors"
	"io/fs"
	"net"
	"time"

	"posthaste/internal/service"
)

// startWakeups begins a new series of wake-ups, which replaces the one before; the first
// is at once. With "?" in master.cf it waits for the service's first use.
func (m *master) startWakeups(s *serv) {
	// The timers of the series before find another number, and end.
	s.wakeups++
	s.waking = false
	if s.Wakeup == 0 || s.WakeupLazy && s.current == nil && len(s.before) == 0 {
		return
	}
	m.wakeUp(s)
	m.nextWakeup(s, s.wakeups)
}

// nextWakeup schedules the next wake-up of a series.
func (m *master) nextWakeup(s *serv, series int) {
	if s.Wakeup == 0 {
		return
	}
	s.waking = true
	m.after(s.Wakeup, func() {
		if s.wakeups != series || s.removed || m.stopping {
			return
		}
		// A service that fails at its start is not started by the clock.
		if !s.throttled {
			m.wakeUp(s)
		}
		m.nextWakeup(s, series)
	})
}

// wakeUp triggers the service, in a goroutine since connecting may wait. The log is m.log
// as it is now: a reload replaces it.
func (m *master) wakeUp(s *serv) {
	if len(s.socks) == 0 {
		return
	}
	sock, key, log, timeout := s.socks[0], s.key(), m.log, m.settings.config.Duration("trigger_timeout")
	m.wg.Go(func() {
		err := wake(sock.endpoint, timeout)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			log.Warning("service %s: %v; somebody has removed it: \"posthaste reload\" makes it again", key, err)
		case err != nil:
			log.Warning("service %s: %v", key, err)
		}
	})
}

// wake triggers an endpoint with the letter W. The working directory is the queue
// directory, which paths are relative to.
func wake(ep endpoint, timeout time.Duration) error {
	if ep.network == "unix" {
		return service.Trigger(ep.path, "W", timeout)
	}
	network, where := ep.network, ep.path
	if network == "tcp" {
		where = ep.addr.String()
	}
	c, err := net.DialTimeout(network, where, timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	// A service that does not read must not keep the goroutine.
	c.SetDeadline(time.Now().Add(timeout))
	_, err = c.Write([]byte("W"))
	return err
}
