package shaping

import (
	"slices"
	"time"
)

// A Report is what came of one recipient, as far as automation sees it.
type Report struct {
	At   time.Time
	Unit string // where limits are counted: a site, or a domain; with its source it is what a rule counts by
	Source,
	Domain string // the recipient's next hop
	Tenant, Campaign string   // whose mail it was; empty: nobody's, none
	Sections         []string // those that hold there ([Settings.Sections])
	Text             string   // the reply, as bounceclass.Text has it
	Internal         bool     // no server has said it
}

// An Act is what a rule does on account of a report.
type Act struct {
	Rule   *Rule
	Report *Report
	Count  int // replies that have matched, as far as they count
	Until  time.Time
}

// Bounds of what a Watcher remembers.
const (
	maxCounters = 20_000
	maxTimes    = 500_000 // in all counters
	// restTime is how long a destination that has made an expression take too long is without those that go back.
	// maxTired bounds the destinations of which that is known.
	restTime = time.Minute
	maxTired = 1000
)

// A Watcher counts replies, and says which rules act. It is for one goroutine. It does no I/O and reads no
// clock but to bound the time of expressions.
//
// # Security
//
// Replies are the work of strangers. Of each the first [MaxText] octets are looked at. An expression that goes back has
// a hundredth of a second, and all of them together a twentieth; one that finds no answer in that does not match, and
// Late says so once. Where that happens no expression that goes back is tried for a minute, so that one destination
// has about a thousandth of the time. The same reply to many recipients is looked at once. Counters are as many as
// rules and destinations, up to a bound: beyond it the oldest half is forgotten.
type Watcher struct {
	Rules *Rules
	// Late is called once for each rule of which an expression took too long; nil: nobody is told.
	Late  func(*Rule)
	late  map[*Rule]bool
	count map[counterKey]*counter
	times int
	// Until when expressions that go back are not tried at a unit.
	tired map[string]time.Time
	// The latest reply, and which rules match it, in the order in which they act.
	latest  Report
	matched []*Rule
}

// A counterKey names a counter: of a rule, where mail goes and what from.
type counterKey struct {
	rule         string // its ID
	unit, source string
}

// A counter has the times of the latest replies that matched, at most as many as make the rule act.
type counter struct {
	times []time.Time
	last  time.Time
}

// See takes in a report, and appends what rules do about it to acts. Each rule counts by itself. N replies within the
// period make it act, and so does each further one while there are N within the period.
func (w *Watcher) See(r *Report, acts []Act) []Act {
	if w.Rules == nil {
		return acts
	}
	for _, rule := range w.matching(r) {
		if n := w.tally(rule, r); n >= rule.Trigger.N {
			acts = append(acts, Act{rule, r, n, r.At.Add(rule.Duration)})
		}
	}
	return acts
}

// matching are the rules that hold where a reply came from and match it. The list holds until the next call.
func (w *Watcher) matching(r *Report) []*Rule {
	if o := &w.latest; w.matched != nil && o.Text == r.Text && o.Internal == r.Internal && o.Unit == r.Unit && slices.Equal(o.Sections, r.Sections) {
		return w.matched
	}
	w.latest, w.matched = *r, make([]*Rule, 0, 4)
	var l *look
	for _, name := range r.Sections {
		for _, rule := range w.Rules.Section(name) {
			if r.Internal && !rule.Internal {
				continue
			}
			if l == nil {
				l = w.look(r)
			}
			yes, late := l.matches(rule)
			if late && !l.rests {
				w.tooLate(rule, r)
			}
			if yes {
				w.matched = append(w.matched, rule)
			}
		}
	}
	return w.matched
}

// look prepares to match a reply, without expressions that go back where one has just taken too long.
func (w *Watcher) look(r *Report) *look {
	l := w.Rules.filter.look(r.Text)
	if until, ok := w.tired[r.Unit]; ok && r.At.Before(until) {
		l.left, l.rests = 0, true
	}
	return l
}

// tooLate notes that an expression of a rule took too long for a reply.
func (w *Watcher) tooLate(rule *Rule, r *Report) {
	if w.tired == nil || len(w.tired) >= maxTired {
		w.tired = make(map[string]time.Time)
	}
	w.tired[r.Unit] = r.At.Add(restTime)
	if w.Late != nil && !w.late[rule] {
		if w.late == nil {
			w.late = make(map[*Rule]bool)
		}
		w.late[rule] = true
		w.Late(rule)
	}
}

// tally counts a match, and says how many there are within the rule's period.
func (w *Watcher) tally(rule *Rule, r *Report) int {
	if rule.Trigger.Per == 0 {
		return 1
	}
	k := counterKey{rule.ID, r.Unit, r.Source}
	c := w.count[k]
	if c == nil || w.times >= maxTimes {
		w.room()
		if c = w.count[k]; c == nil {
			c = new(counter)
			w.count[k] = c
		}
	}
	c.last = r.At
	// They are in order: what is too old, or more than the rule needs, is at the beginning.
	from := max(len(c.times)-rule.Trigger.N+1, 0)
	for from < len(c.times) && r.At.Sub(c.times[from]) >= rule.Trigger.Per {
		from++
	}
	keep := append(c.times[from:], r.At)
	w.times += len(keep) - len(c.times)
	c.times = keep
	return len(keep)
}

// room makes room for a counter.
func (w *Watcher) room() {
	if w.count == nil {
		w.count = make(map[counterKey]*counter)
	}
	if len(w.count) < maxCounters && w.times < maxTimes {
		return
	}
	// What has matched longer ago than half of the others is the least that is lost.
	oldest, newest := time.Time{}, time.Time{}
	for _, c := range w.count {
		if oldest.IsZero() || c.last.Before(oldest) {
			oldest = c.last
		}
		if c.last.After(newest) {
			newest = c.last
		}
	}
	middle := oldest.Add(newest.Sub(oldest) / 2)
	for k, c := range w.count {
		if !c.last.After(middle) || newest.Equal(oldest) {
			w.times -= len(c.times)
			delete(w.count, k)
		}
	}
}
