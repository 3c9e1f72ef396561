package master

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"posthaste/internal/maillog"
)

// letGoTime is how long a process may take to give up its sockets. Its
// successor starts after that in any case: two may accept for a moment.
const letGoTime = 5 * time.Second

// reload reads the configuration again.
func (m *master) reload() {
	if m.stopping {
		return
	}
	m.notify("RELOADING=1")
	defer m.notify("READY=1")
	if err := m.tryReload(); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			m.log.Error("reload refused, the running configuration goes on: %s", line)
		}
	}
}

func (m *master) tryReload() error {
	s, err := loadSettings(m.opts)
	if err != nil {
		return err
	}
	if s.queue != m.settings.queue {
		return fmt.Errorf("queue_directory has changed from %s to %s: stop and start the mail system", m.settings.queue, s.queue)
	}
	problems, err := prepareDirectories(s.config)
	if err != nil {
		return err
	}
	log, err := maillog.OpenDirect(s.config, "master")
	if err != nil {
		return err
	}
	sockets, err := m.openSockets(s, m.sockets)
	if err != nil {
		log.Close()
		return fmt.Errorf("%w\n(to change between all addresses and single ones of the same port, stop and start the mail system)", err)
	}
	for _, w := range append(problems, furnishJail(s, "/")...) {
		log.Warning("%s", w)
	}
	old, before := m.order, m.settings
	was := m.log
	m.log = log
	was.Close()
	m.adopt(s, sockets)
	for _, sv := range old {
		m.retire(sv)
		sv.throttled = false // whoever reloads has perhaps mended it
	}
	m.log.Log(maillog.MasterReloaded{Version: s.version(), ConfigDir: m.opts.ConfigDir})
	m.announce(before)
	for _, sv := range m.order {
		m.listen(sv)
		m.startWakeups(sv)
	}
	return nil
}

// retire has the service's process end when its work is done. The service
// has no other until the sockets are free, or, if it is exclusive, until the
// process has ended.
func (m *master) retire(s *serv) {
	c := s.current
	if c == nil {
		return
	}
	s.current, s.before = nil, c
	m.tell(c, syscall.SIGHUP)
	if s.spec.Exclusive {
		limit := m.settings.config.Duration("application_event_drain_time")
		m.after(limit, func() { m.hurry(c, fmt.Sprintf("has not ended %v after a reload", limit)) })
		return
	}
	m.after(letGoTime, func() {
		if s.before == c {
			s.before = nil
			m.listen(s)
		}
	})
}

// hurry stops a process that should have ended, and kills it a little later.
func (m *master) hurry(c *child, why string) {
	if m.children[c.pid] != c || m.stopping {
		return
	}
	m.log.Warning("%s %s: it is stopped", c, why)
	m.tell(c, syscall.SIGTERM)
	m.after(letGoTime, func() {
		if m.children[c.pid] == c {
			m.log.Warning("%s does not stop: it is killed", c)
			m.tell(c, syscall.SIGKILL)
		}
	})
}
