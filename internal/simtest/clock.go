package simtest

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// again is a run in which the clock is set back while the mail system is down: by all of the time that has passed since
// the start. It makes a second bubble, whose time begins as that of the first one did. Nothing goes wrong there any
// more, nothing is flushed, and no mail may wait for longer than it would have: see patientFor.
func (s *site) again(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &site{seed: s.seed, plan: s.plan, disk: s.disk, sockets: map[string]*socket{}, zone: s.zone, flow: s.flow, hosts: map[string]*hop{},
			counts: s.counts, setting: s.setting, books: s.books, mail: s.mail, drop: s.drop, steps: s.steps, pids: s.pids, healed: true, past: s.plan.Back}
		n.log.Write(s.log.Bytes())
		n.books.site, n.mail.site, n.drop.site = n, n, n
		n.furnish()
		n.note("the clock has been set back by %v", s.plan.Back)
		n.boot()
		n.all.Go(n.wakeful)
		time.Sleep(patientFor)
		items, err := n.queued()
		n.books.remaining, n.books.err = items, err
		n.close()
		*s = site{seed: n.seed, plan: n.plan, disk: n.disk, hosts: n.hosts, books: n.books, mail: n.mail, drop: n.drop, steps: n.steps, off: true, all: sync.WaitGroup{}}
		s.log.Write(n.log.Bytes())
		s.books.site, s.mail.site, s.drop.site = s, s, s
	})
}

// since is the time as it would be if nobody had set the clock back.
func (s *site) since() time.Time { return time.Now().Add(s.past) }

// patientFor is a good deal more than maximal_backoff_time.
const patientFor = 10 * time.Minute
