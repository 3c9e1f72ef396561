package simtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/vfs"
)

// A Fault is something that goes wrong, or that an operator does, in a run.
type Fault struct {
	Step int           // it strikes before that step of the run; 0: at a time
	At   time.Duration // of this time after the start
	Kind string
	On   string        // a service, or a token of a letter
	For  time.Duration // how long it lasts
	N    int64
}

func (f Fault) String() string {
	when := fmt.Sprintf("at %v", f.At)
	if f.Step > 0 {
		when = fmt.Sprintf("at step %d", f.Step)
	}
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s", when, f.Kind, f.On))
}

// A Plan is what happens in a run.
type Plan struct {
	Seed    uint64
	Letters []Letter
	Faults  []Fault
	Setting int           // which of the configurations
	Digest  bool          // make Outcome.Sum
	First   time.Duration // how long it is until the clock is set, while the mail system is down; 0: it is not
	Clock   []Stretch     // what comes then; empty: the clock is not set

	trouble map[string]float64  // of each next hop
	moods   map[string][]string // of which it has some
	boxes   map[string]box      // of local users
	trace   bool
	configs []map[string]*config.Config
	broken  []map[string]*config.Config
}

// span is how long things go wrong. After that all is well, and the queue must become empty.
const span = 30 * time.Minute

// kinds of faults that strike at a step, and at a time.
const (
	kill      = "kill"
	powerCut  = "power cut"
	reload    = "reload"
	restart   = "stop and start"
	badSyncs  = "failing syncs"
	fullDisk  = "full disk"
	flush     = "flush"
	hold      = "hold"
	release   = "release"
	requeue   = "requeue"
	remove    = "delete"
	suspend   = "suspend"
	badTables = "failing tables"
)

var killable = []string{"smtpd", "pickup", "cleanup", "cleanup", "qmgr", "qmgr", "smtp", "smtp", "local", "local", "bounce", "trivial-rewrite"}

// NewPlan draws a plan.
func NewPlan(n uint64, w *World) *Plan {
	r := seed(n).source("plan")
	p := &Plan{Seed: n, configs: w.configs, broken: w.broken, Setting: r.IntN(len(w.configs)), trouble: map[string]float64{}, moods: map[string][]string{}, boxes: map[string]box{}}
	for i := range 1 + r.IntN(6) {
		p.Letters = append(p.Letters, newLetter(r, i))
	}
	if local := seed(n).source("submission"); local.IntN(2) == 0 {
		for i := range p.Letters {
			l := &p.Letters[i]
			l.Local, l.File = local.IntN(2) == 0, local.IntN(2) == 0
		}
	}
	for _, h := range hopAddrs {
		p.trouble[h] = pick(r, 0, 0, 0.3, 0.7, 1)
		for range 1 + r.IntN(3) {
			mood := pick(r, moods...)
			if h == originHop && (mood == dot554 || mood == twoReplies) {
				mood = dot451 // a notice that is refused for good is nobody's
			}
			p.moods[h] = append(p.moods[h], mood)
		}
	}
	for _, u := range localUsers {
		name, _, _ := strings.Cut(u, "@")
		p.boxes[name] = box{pick(r, 0, 0, 0.5, 1), pick[error](r, syscall.EDQUOT, syscall.ENOSPC)}
	}
	for range pick(r, 0, 1, 1, 2, 3, 5) {
		p.Faults = append(p.Faults, p.newFault(r))
	}
	if r := seed(n).source("tables"); r.IntN(6) == 0 {
		p.Faults = append(p.Faults, Fault{Kind: badTables, At: time.Duration(r.Int64N(int64(pick(r, 100*time.Millisecond, 10*time.Second, span/2)))),
			For: pick(r, 500*time.Millisecond, time.Minute, span/3), N: int64(r.IntN(len(p.broken)))})
	}
	if r := seed(n).source("pair"); r.IntN(4) == 0 {
		p.Faults = append(p.Faults, newPair(r)...)
	}
	p.drawClock(seed(n).source("clock"))
	if w.events {
		p.strikeEvents()
	}
	return p
}

func newLetter(r *rand.Rand, i int) Letter {
	l := Letter{At: time.Duration(r.Int64N(int64(pick(r, 100*time.Millisecond, 10*time.Second, span/2)))), Token: fmt.Sprintf("letter%d", i),
		From: fmt.Sprintf("sender%d@origin.test", i), Lines: pick(r, 0, 5, 5, 20, 400), Chunks: r.IntN(3) == 0, Ahead: r.IntN(2) == 0}
	for j := range 1 + r.IntN(4) {
		who := "user"
		if r.IntN(8) == 0 {
			who = "never"
		}
		rcpt := fmt.Sprintf("%s%d@%s", who, j, pick(r, "one.test", "two.test", "three.test"))
		if r.IntN(3) == 0 {
			rcpt = pick(r, "ann@local.test", "bob@local.test", "staff@local.test", "all@local.test", "never@local.test")
		}
		if !slices.Contains(l.Rcpts, rcpt) {
			l.Rcpts = append(l.Rcpts, rcpt)
		}
	}
	if r.IntN(8) == 0 {
		l.GiveUp = pick(r, "MAIL", "RCPT", "DATA", "content", "dot", "dot")
	}
	return l
}

func (p *Plan) newFault(r *rand.Rand) Fault {
	f := Fault{Kind: pick(r, kill, kill, kill, kill, powerCut, powerCut, reload, restart, badSyncs, fullDisk, flush, hold, release, requeue, remove, suspend)}
	switch f.Kind {
	case kill, powerCut:
		f.Step, f.For = 1+r.IntN(pick(r, 200, 600, 2000)), pick(r, time.Millisecond, time.Second, time.Minute)
		if f.Kind == kill {
			f.On = pick(r, killable...)
		}
		return f
	case badSyncs, fullDisk, suspend, restart:
		f.For = pick(r, 10*time.Millisecond, time.Second, 2*time.Minute)
	}
	if f.Kind == badSyncs {
		f.For = min(f.For, 3*time.Second) // what the spool makes anew each time takes long to make
	}
	if f.Kind == suspend {
		f.On = pick(r, "one.test", "two.test", "three.test")
	}
	if f.Kind == hold || f.Kind == release || f.Kind == requeue || f.Kind == remove {
		f.On = p.Letters[r.IntN(len(p.Letters))].Token
	}
	f.N = int64(r.IntN(30))
	f.At = time.Duration(r.Int64N(int64(pick(r, 100*time.Millisecond, 10*time.Second, span))))
	return f
}

// newPair draws the deaths of a queue manager and of an agent within moments, in one order or the other.
// Then nobody is left who knows what the agent had in hand.
func newPair(r *rand.Rand) []Fault {
	first := Fault{Kind: kill, On: "qmgr", Step: 1 + r.IntN(pick(r, 200, 600)), For: pick(r, time.Millisecond, time.Second)}
	second := Fault{Kind: kill, On: pick(r, "smtp", "smtp", "local"), Step: first.Step + 1 + r.IntN(pick(r, 4, 20)), For: pick(r, time.Millisecond, time.Second)}
	if r.IntN(2) == 0 {
		first.On, second.On = second.On, first.On
	}
	return []Fault{first, second}
}

// lossOf is what a power cut leaves.
func lossOf(s seed, n int) vfs.Loss {
	return vfs.RandomLoss(s.source(fmt.Sprintf("cut %d", n)))
}

func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, setting %d\n", p.Seed, p.Setting)
	if len(p.Clock) > 0 {
		fmt.Fprintf(&b, "  the clock is set after %v: %+v\n", p.First, p.Clock)
	}
	for _, l := range p.Letters {
		how := l.GiveUp
		if l.Local {
			how = map[bool]string{false: "by sendmail", true: "in a file"}[l.File]
		}
		fmt.Fprintf(&b, "  %v: %s from <%s> to %v, %d lines %s\n", l.At, l.Token, l.From, l.Rcpts, l.Lines, how)
	}
	for _, h := range hopAddrs {
		fmt.Fprintf(&b, "  %s: trouble %v of %v\n", h, p.trouble[h], p.moods[h])
	}
	for i, f := range p.Faults {
		fmt.Fprintf(&b, "  fault %d %s for %v\n", i, f, f.For)
	}
	return b.String()
}

// add sums up.
func (c *Counts) add(o Counts) {
	c.Letters += o.Letters
	c.Acknowledged += o.Acknowledged
	c.Deliveries += o.Deliveries
	c.Notices += o.Notices
	c.Repeated += o.Repeated
	c.Faults += o.Faults
	c.Followed += o.Followed
	c.Unfollowed += o.Unfollowed
	c.Parked += o.Parked
	c.Told += o.Told
	c.Tenants += o.Tenants
	c.Virtual += o.Virtual
}

// Masked is the plan without some of its faults and letters: those of which the bit in mask is set,
// faults first.
func (p *Plan) Masked(mask uint64) *Plan {
	q := *p
	q.Faults, q.Letters = slices.Clone(p.Faults), slices.Clone(p.Letters)
	for i := range q.Faults {
		if mask>>i&1 != 0 {
			q.Faults[i].Kind, q.Faults[i].Step = "", 0
		}
	}
	for i := range q.Letters {
		if mask>>(len(q.Faults)+i)&1 != 0 {
			q.Letters[i].Token = ""
		}
	}
	return &q
}

// Shrink finds a mask with which the plan still fails, as large as it can be had by leaving things out one
// after another.
func (p *Plan) Shrink(fails func(*Plan) bool) (mask uint64) {
	for i := range len(p.Faults) + len(p.Letters) {
		if try := mask | 1<<i; fails(p.Masked(try)) {
			mask = try
		}
	}
	return mask
}
