package master

import (
	"syscall"
	"time"

	"posthaste/internal/maillog"
	"posthaste/internal/service"
)

// leastTime is what each rank has to stop in, however long others took;
// keeperTime is the same for those that keep other people's results.
const (
	leastTime  = 2 * time.Second
	keeperTime = 5 * time.Second
)

// stop begins to stop the mail system.
func (m *master) stop(s syscall.Signal) {
	if m.stopping {
		return
	}
	m.beginStop(s)
	m.tellRank()
	m.advance()
}

func (m *master) beginStop(s syscall.Signal) {
	m.notify("STOPPING=1")
	m.log.Log(maillog.MasterTerminating{Signal: int(s)})
	m.log.Flush()
	m.stopping, m.stopBegan, m.rank = true, time.Now(), service.Intake
}

// tellRank stops the processes of the present rank.
func (m *master) tellRank() {
	rank := m.rank
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
			if c.serv.spec.Rank <= rank {
				m.log.Warning("%s does not stop: it is killed", c)
				m.tell(c, syscall.SIGKILL)
			}
		}
	})
}

// rankTime is how long the rank may take.
func (m *master) rankTime(r service.Rank) time.Duration {
	least := leastTime
	if r >= service.Helper {
		least = keeperTime
	}
	return max(m.opts.StopTimeout-time.Since(m.stopBegan), least)
}

// advance goes on to the next rank when the present one has ended.
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

// abort stops everything at once.
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

// finished says whether the mail system has stopped.
func (m *master) finished() bool { return m.stopping && m.allTold && len(m.children) == 0 }
