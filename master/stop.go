// Stopping, rank by rank: first what takes mail in, then what delivers, then the queue
// manager, then what keeps other people's results, and the log last. So no process loses
// a service that it needs to finish its work.

package master

import (
	"syscall"
	"time"

	"posthaste/internal/maillog"
	"posthaste/internal/service"
)

// leastTime is what each rank has to stop in, however long the ranks before took;
// keeperTime is the same for services that keep other people's results.
const (
	leastTime  = 2 * time.Second
	keeperTime = 5 * time.Second
)

// stop begins to stop the mail system. s is the signal that asked for it, for the log.
func (m *master) stop(s syscall.Signal) {
	if m.stopping {
		return
	}
	m.beginStop(s)
	m.tellRank()
	m.advance()
}

// beginStop says that the mail system stops, before anything ends.
func (m *master) beginStop(s syscall.Signal) {
	m.notify("STOPPING=1")
	m.log.Log(maillog.MasterTerminating{Signal: int(s)})
	m.log.Flush()
	m.stopping, m.stopBegan, m.rank = true, time.Now(), service.Intake
}

// tellRank tells the processes of the present rank to stop, and kills those that have not
// ended after its time.
func (m *master) tellRank() {
	rank := m.rank
	// A rank without processes needs no time.
	some := false
	for _, c := range m.children {
		if c.serv.spec.Rank == rank {
			m.tell(c, syscall.SIGTERM)
			some = true
		}
	}
	if !some {
		return
	}
	m.after(m.rankTime(rank), func() {
		for _, c := range m.children {
			// A process of an earlier rank may have been started again by one that still
			// needed it.
			if c.serv.spec.Rank <= rank {
				m.log.Warning("%s does not stop: it is killed", c)
				m.tell(c, syscall.SIGKILL)
			}
		}
	})
}

// rankTime is how long a rank may take: what is left of StopTimeout, and at least its
// least time.
func (m *master) rankTime(r service.Rank) time.Duration {
	least := leastTime
	if r >= service.Helper {
		least = keeperTime
	}
	return max(m.opts.StopTimeout-time.Since(m.stopBegan), least)
}

// advance goes on to the next rank when no process of the present and earlier ranks is
// left.
func (m *master) advance() {
	for m.stopping && !m.allTold {
		for _, c := range m.children {
			if c.serv.spec.Rank <= m.rank {
				return
			}
		}
		if m.rank == service.LogWriter {
			m.allTold = true
			return
		}
		m.rank++
		m.tellRank()
	}
}

// abort stops everything at once, and kills a second later. Nothing is lost by that: what
// was acknowledged is on disk.
func (m *master) abort(s syscall.Signal) {
	if !m.stopping {
		m.beginStop(s)
	}
	m.allTold = true
	for _, c := range m.children {
		m.tell(c, syscall.SIGTERM)
	}
	m.after(time.Second, func() {
		for _, c := range m.children {
			m.tell(c, syscall.SIGKILL)
		}
	})
}

// finished says whether the mail system has stopped and serve may return.
func (m *master) finished() bool { return m.stopping && m.allTold && len(m.children) == 0 }
