// Reload: replacing the configuration and every process without refusing a client.
// Successors prepare while the old processes serve, and all change over together.

package master

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"posthaste/internal/maillog"
	"posthaste/internal/service"
)

// letGoTime is how long a process may take to give up its sockets. After that its
// successor serves in any case: two processes may accept for a moment, which is harmless,
// while none would not be.
const letGoTime = 5 * time.Second

// prepareTime is how long successors may take to prepare. A table on a slow disk or a
// name server that is away must not put a reload off for ever; after that nobody serves
// until they are ready.
const prepareTime = 10 * time.Second

// reload begins a reload. If the new configuration is refused nothing changes, and the
// log says why; a command that waits is told by the progress file.
func (m *master) reload() {
	if m.stopping {
		return
	}
	if m.reloading != nil { // it is read again when the one under way has come to its end
		// Any number of requests is one reload: it reads the configuration after the last
		// of them.
		m.again++
		return
	}
	m.notify("RELOADING=1")
	m.progress.begun++
	m.publish()
	if err := m.tryReload(); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			m.log.Error("reload refused, the running configuration goes on: %s", line)
		}
		m.notify("READY=1")
		// Before settle, which may declare the reload over: a command looks at refused
		// first.
		m.progress.refused = m.progress.begun
		m.settle()
		m.publish()
	}
}

// tryReload reads the configuration and opens what it needs, and then adopts it. Until
// adopt nothing has changed that would have to be undone, except that missing directories
// were made.
func (m *master) tryReload() error {
	s, err := loadSettings(m.opts)
	if err != nil {
		return err
	}
	// Locks and sockets are in the old one.
	if s.queue != m.settings.queue {
		return fmt.Errorf("queue_directory has changed from %s to %s: stop and start the mail system", m.settings.queue, s.queue)
	}
	// The queue's log refers to files in the old one.
	if was, now := m.settings.config.String("spool_content_directory"), s.config.String("spool_content_directory"); was != now {
		return fmt.Errorf("spool_content_directory has changed from %q to %q: stop the mail system, move the files in the one to the other, and start it", was, now)
	}
	// Readers have opened the directories, and refer to them by number.
	for _, name := range []string{"spool_directories", "spool_directories_absent"} {
		if !slices.Equal(m.settings.config.List(name), s.config.List(name)) {
			return fmt.Errorf("%s has changed: stop and start the mail system", name)
		}
	}
	// Before sockets are opened, as the old entries need theirs.
	s.keepFaulty(m.settings)
	problems, err := prepareDirectories(s.config)
	if err != nil {
		return err
	}
	log, err := maillog.OpenDirect(s.config, "master")
	if err != nil {
		return err
	}
	// The last thing that can fail.
	sockets, err := m.openSockets(s, m.sockets)
	if err != nil {
		log.Close()
		return err
	}
	for _, w := range append(problems, furnishJail(s, "/")...) {
		log.Warning("%s", w)
	}
	old := m.order
	was := m.log
	m.log = log
	// Only the lines of before went to it.
	was.Close()
	m.adopt(s, sockets)
	m.prepareSuccessors(old)
	return nil
}

// prepareSuccessors starts a successor for each process of the services in old.
func (m *master) prepareSuccessors(old []*serv) {
	m.reloads++
	this := m.reloads
	m.reloading = old
	for _, s := range old {
		if c := s.next; c != nil { // a store's, which has not had its turn: its settings are out of date
			s.next = nil
			m.tell(c, syscall.SIGTERM)
		}
		// A service without a process starts under the new settings when a client comes.
		if s.current != nil && !s.removed {
			s.next = m.spawn(s)
		}
	}
	m.after(prepareTime, func() {
		if m.reloads != this || m.reloading == nil {
			return
		}
		for _, s := range m.reloading {
			if s.next != nil && !s.next.ready {
				m.log.Warning("%s is not ready to serve after %v: its predecessor does not wait for it", s.next, prepareTime)
				// As if it were: it will serve when it has finished preparing.
				s.next.ready = true
			}
		}
		m.replaceAll()
	})
	m.replaceAll()
}

// replaceAll retires all processes once every successor is ready. It is all at once, so
// that the services have the same settings. It is called whenever a successor is ready or
// has failed.
func (m *master) replaceAll() {
	if m.reloading == nil || m.stopping {
		return
	}
	for _, s := range m.reloading {
		if s.next != nil && !s.next.ready {
			return
		}
	}
	old := m.reloading
	m.reloading = nil
	m.stores = nil
	for _, s := range old {
		s.throttled, s.badStarts = false, 0 // whoever reloads has perhaps mended it
		if s.spec.Rank == service.Store {
			m.stores = append(m.stores, s)
			continue
		}
		m.retire(s)
	}
	this := m.reloads
	m.after(storesWait, func() {
		if m.reloads == this {
			m.retireStores(true)
		}
	})
	m.retireStores(false)
	// One line for each request, as log readers count them.
	for range 1 + m.covered {
		m.log.Log(maillog.MasterReloaded{Version: m.settings.version(), ConfigDir: m.opts.ConfigDir})
	}
	m.announce(m.settings)
	for _, s := range m.order {
		m.listen(s)
		m.startWakeups(s)
	}
	m.notify("READY=1")
	m.covered = 0
	if m.again > 0 {
		m.covered, m.again = m.again-1, 0
		m.reload()
	}
}

// storesWait bounds how long the stores wait for the queue manager, so that they have the
// new settings soon in any case.
const storesWait = 2 * time.Second

// retireStores retires the processes that keep other people's results: now, or when the
// old queue manager has left, which has some for them, and the new one has taken over.
// The new one then has mail to deliver while the stores are replaced. If all were
// replaced at once, it would wait for the stores, which read the queue's log when they
// start.
func (m *master) retireStores(now bool) {
	for _, s := range m.order {
		if !now && (s.spec.Rank == service.Queue && len(s.before) > 0 || s.takingOver()) {
			return
		}
	}
	stores := m.stores
	m.stores = nil
	for _, s := range stores {
		m.retire(s)
		m.listen(s)
	}
	m.settle()
}

// takingOver says that the service's process has not yet begun to do what its predecessor
// did.
func (s *serv) takingOver() bool {
	return s.spec.TakesOver && s.current != nil && !s.current.tookOver
}

// retire has the service's process end when its work is done. Its successor, or the
// process that the next client starts, serves as soon as the sockets are free and, if the
// service is exclusive, the old process has let go of everything it owns.
func (m *master) retire(s *serv) {
	c := s.current
	if c == nil { // it has died meanwhile
		s.current, s.next = s.next, nil
		m.let(s)
		return
	}
	// From here on clients are the successor's.
	s.current, s.next, s.before = s.next, nil, append(s.before, c)
	m.tell(c, syscall.SIGHUP)
	m.let(s)
	if s.spec.Exclusive {
		// Only an exclusive service's successor is held up by an old process.
		limit := m.settings.config.Duration("application_event_drain_time")
		m.after(limit, func() { m.hurry(c, fmt.Sprintf("has not ended %v after a reload", limit)) })
		return
	}
	m.after(letGoTime, func() { m.letGo(c) })
}

// hurry stops a process that should have ended, and kills it if that does not help.
func (m *master) hurry(c *child, why string) {
	if m.children[c.pid] != c || !slices.Contains(c.serv.before, c) || m.stopping {
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
