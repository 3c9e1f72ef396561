package console

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/proto"
)

const (
	// dayTime is for how long before now charts are.
	dayTime = 24 * time.Hour
	// dayMoments is how many moments of it are kept, and thinned out to half of them when there are
	// more.
	dayMoments = 2 * chartPoints
)

// A day is what the charts show: moments of the last day, in memory. Reading a day of full samples
// takes seconds, and a page waits for nothing. Methods may be called concurrently.
type day struct {
	mu      sync.Mutex
	moments []moment          // by time
	names   map[string]string // one string for each name in moments
}

// A moment is what a sample says that is drawn.
type moment struct {
	at      time.Time
	totals  proto.Totals
	waiting int64        // recipients in the deferred and the active queue
	domains []domainWait // of them by domain, by name
	// whole says that no domain lacks a row: one that is not there has nothing.
	whole bool
}

// A domainWait is how many recipients in a domain wait.
type domainWait struct {
	name string
	n    int64
}

// load reads the samples of the day before now. A history that cannot be read is charts without
// lines.
func (d *day) load(dir string, now time.Time) {
	var before day
	_ = history.Between(dir, now.Add(-dayTime), now, 0, func(s *history.Sample) bool {
		before.add(s)
		return true
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	// What has come meanwhile is later, and has names of its own until it is thinned out.
	later := slices.DeleteFunc(d.moments, func(m moment) bool {
		return len(before.moments) > 0 && !m.at.After(before.moments[len(before.moments)-1].at)
	})
	d.moments, d.names = append(before.moments, later...), before.names
}

// add adds a sample that has just been taken. One that is not later than the last is passed over.
func (d *day) add(s *history.Sample) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.moments); n > 0 && !s.At.After(d.moments[n-1].at) {
		return
	}
	d.moments = append(d.moments, d.momentOf(s))
	first := slices.IndexFunc(d.moments, func(m moment) bool { return s.At.Sub(m.at) <= dayTime })
	d.moments = d.moments[first:]
	if len(d.moments) > dayMoments {
		d.thin()
	}
}

// thin leaves out moments that are close to the one before, so that about chartPoints are left.
func (d *day) thin() {
	step := d.moments[len(d.moments)-1].at.Sub(d.moments[0].at) / chartPoints
	var next time.Time
	kept := d.moments[:0:0]
	for i, m := range d.moments {
		if last := i == len(d.moments)-1; last || !m.at.Before(next) {
			kept, next = append(kept, m), m.at.Add(step)
		}
	}
	d.moments = kept
	// The names of domains that are gone go with them.
	names := make(map[string]string)
	for _, m := range kept {
		for _, w := range m.domains {
			names[w.name] = w.name
		}
	}
	d.names = names
}

// momentOf is what is drawn of a sample. d.mu is held.
func (d *day) momentOf(s *history.Sample) moment {
	m := moment{at: s.At, totals: s.Totals, whole: true}
	sums := make(map[string]int64)
	for i := range s.Tables {
		t := &s.Tables[i]
		if !t.Domains() || t.Queue != "deferred" && t.Queue != "active" {
			continue
		}
		for j := range t.Rows {
			sums[strings.ToLower(t.Rows[j].Domain)] += t.Rows[j].Counts.Sum()
		}
		m.waiting += t.Others.Sum()
		m.whole = m.whole && t.Names == 0
	}
	for name, n := range sums {
		m.waiting += n
		if d.names == nil {
			d.names = make(map[string]string)
		}
		if _, ok := d.names[name]; !ok {
			d.names[name] = name
		}
		m.domains = append(m.domains, domainWait{d.names[name], n})
	}
	slices.SortFunc(m.domains, func(a, b domainWait) int { return strings.Compare(a.name, b.name) })
	return m
}

// waiting is how many recipients waited in the deferred and the active queue.
func (d *day) waiting() (list []point) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.moments {
		list = append(list, point{d.moments[i].at, d.moments[i].waiting})
	}
	return list
}

// waitingFor is the same for one domain. Times at which it was too small to have a row of its own
// have no point.
func (d *day) waitingFor(domain string) (list []point) {
	domain = strings.ToLower(domain)
	d.mu.Lock()
	defer d.mu.Unlock()
	known := false
	for i := range d.moments {
		m := &d.moments[i]
		at, ok := slices.BinarySearchFunc(m.domains, domain, func(w domainWait, name string) int { return cmp.Compare(w.name, name) })
		if known = known || ok; ok {
			list = append(list, point{m.at, m.domains[at].n})
		} else if m.whole {
			list = append(list, point{m.at, 0})
		}
	}
	if !known { // a line of nothing
		return nil
	}
	return list
}

// A series is one line of a chart of its own.
type series struct {
	Name   string
	Points []point
}

// flow is what came in and went out by the minute. A time without the queue manager, or without
// samples, has no point.
func (d *day) flow() []series {
	list := []series{{"Messages in, by the minute", nil}, {"Recipients delivered to, by the minute", nil}, {"Attempts deferred, by the minute", nil}, {"Recipients bounced, by the minute", nil}}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := 1; i < len(d.moments); i++ {
		a, b := &d.moments[i-1], &d.moments[i]
		r, ok := history.RatesBetween(&history.Sample{At: a.at, Totals: a.totals}, &history.Sample{At: b.at, Totals: b.totals})
		if !ok {
			continue
		}
		for k, v := range [...]float64{r.In, r.Sent, r.Deferred, r.Bounced} {
			list[k].Points = append(list[k].Points, point{b.at, int64(v + 0.5)})
		}
	}
	return list
}
