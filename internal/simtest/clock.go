package simtest

import (
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A Stretch is a time that begins when the mail system is started after somebody has set the clock.
type Stretch struct {
	Begin time.Duration // what the clock says then, from the beginning of the run on
	For   time.Duration // how long it lasts
	Well  bool          // nothing goes wrong any more, and no mail may expire
	Late  bool          // the letters that are marked so are sent now
}

// drawClock decides whether the clock is set in a run, which is the only fault then. The mail system is down meanwhile. It
// is set back by all of the time that has passed since the start; or it leaps ahead; or it leaps ahead, mail comes and
// fails by that clock, and it is put right.
func (p *Plan) drawClock(r *rand.Rand) {
	if r.IntN(12) != 0 {
		return
	}
	p.First, p.Faults = span+time.Duration(r.Int64N(int64(span))), nil
	leap := pick(r, 10*time.Minute, 3*time.Hour, 36*time.Hour, 400*24*time.Hour)
	switch r.IntN(3) {
	case 0:
		p.Clock = []Stretch{{For: patientFor, Well: true}}
	case 1:
		p.Clock = []Stretch{{Begin: p.First + leap, For: patientFor, Well: true}}
	default:
		for i := range p.Letters {
			p.Letters[i].Late = r.IntN(2) == 0
		}
		p.Clock = []Stretch{{Begin: p.First + leap, For: span, Late: true}, {Begin: p.First + span, For: patientFor, Well: true}}
	}
}

// again carries out what comes after the first stretch. Each makes a bubble of its own, whose time begins as that of the
// first one did.
func (s *site) again(t *testing.T) {
	passed := s.plan.First
	for _, st := range s.plan.Clock {
		s.stretch(t, st, passed-st.Begin)
		passed += st.For
	}
}

// stretch is one of them. past is by how much the clock is behind the time that has really passed. If all is well, no mail
// may wait for longer than it would have, and nothing is flushed: see patientFor.
func (s *site) stretch(t *testing.T, st Stretch, past time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(st.Begin)
		n := &site{seed: s.seed, plan: s.plan, disk: s.disk, sockets: map[string]*socket{}, zone: s.zone, flow: s.flow, hosts: map[string]*hop{},
			counts: s.counts, setting: s.setting, books: s.books, mail: s.mail, drop: s.drop, steps: s.steps, pids: s.pids, healed: st.Well, past: past}
		n.books.site, n.mail.site, n.drop.site = n, n, n
		n.furnish()
		n.note("the clock is %v behind what it was", past)
		n.boot()
		if st.Late {
			n.post(true)
		}
		n.all.Go(n.wakeful)
		time.Sleep(st.For)
		if st.Well {
			n.books.remaining, n.books.err = n.queued()
		}
		n.close()
		if st.Well && strings.Contains(n.log.String(), "status=expired") {
			n.books.fail("mail has expired because the clock was set by %v", -past)
		}
		log := s.log.String() + n.log.String()
		*s = site{seed: n.seed, plan: n.plan, disk: n.disk, zone: n.zone, flow: n.flow, hosts: n.hosts, counts: n.counts, setting: n.setting,
			books: n.books, mail: n.mail, drop: n.drop, steps: n.steps, pids: n.pids, off: true}
		s.log.WriteString(log)
		s.books.site, s.mail.site, s.drop.site = s, s, s
	})
}

// since is the time as it would be if nobody had set the clock.
func (s *site) since() time.Time { return time.Now().Add(s.past) }

// patientFor is a good deal more than maximal_backoff_time.
const patientFor = 10 * time.Minute
