package qshape

import (
	"bytes"
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/selection"
)

// A shape is what has been counted. It belongs to one goroutine.
type shape struct {
	now     time.Time
	senders bool
	// campaigns are counted in place of domains: TENANT/CAMPAIGN, which has no @ in it.
	campaigns bool
	parents   bool
	linear    bool
	buckets   int
	tick      int // minutes
	minSub    int
	total     *row
	domains   map[string]*row
	others    int // domains without a row of their own, of an earlier time; those of each queue
	// suspended are the targets of suspensions; empty: there are none, or the mail system is down.
	suspended []selection.Target
	// limited are the destinations that have a limit for now; empty likewise.
	limited []selection.Target
	// diverted is the mail that goes by another next hop for now; empty likewise.
	diverted []selection.Target
}

// A row is one domain.
type row struct {
	name   string
	count  []int // total, then by age
	parent bool
	sub    int // of a parent: different names right below it
}

func newShape(now time.Time) *shape {
	return &shape{now: now, buckets: 10, tick: 5, minSub: 5, domains: make(map[string]*row)}
}

// same is an empty shape with the settings of s.
func (s *shape) same() *shape {
	n := *s
	n.total, n.domains = nil, make(map[string]*row)
	return &n
}

// add counts one address of a message that arrived at a time.
func (s *shape) add(addr string, arrival time.Time) {
	if s.total == nil {
		s.total = &row{name: "TOTAL", count: make([]int, s.buckets+1)}
	}
	b := s.bucket(s.now.Sub(arrival))
	s.total.count[0]++
	s.total.count[b]++
	name := addr
	if !s.campaigns { // their names have letters of both cases
		name = domainOf(addr)
	}
	r := s.row(name)
	r.count[0]++
	r.count[b]++
}

func (s *shape) row(name string) *row {
	r := s.domains[name]
	if r == nil {
		r = &row{name: strings.Clone(name), count: make([]int, s.buckets+1)}
		s.domains[r.name] = r
	}
	return r
}

// bucket is the column of an age: 1 for the youngest.
func (s *shape) bucket(age time.Duration) int {
	n := int64(age / (time.Duration(s.tick) * time.Minute))
	b := 1
	switch {
	case n < 1:
	case s.linear:
		b = int(min(n, int64(s.buckets))) + 1
	default:
		b = 1 + bits.Len64(uint64(n))
	}
	return min(b, s.buckets)
}

// edges are the times at which one column begins and another ends, latest
// first: a message that came then is in the older one.
func (s *shape) edges() []time.Time {
	list := make([]time.Time, 0, s.buckets-1)
	for n := 1; len(list) < s.buckets-1; {
		age := time.Duration(n) * time.Duration(s.tick) * time.Minute
		if age/time.Minute != time.Duration(n)*time.Duration(s.tick) || n > 1<<40 {
			break // older than anything
		}
		list = append(list, s.now.Add(-age))
		if s.linear {
			n++
		} else {
			n *= 2
		}
	}
	return list
}

// addRow adds what the queue manager has counted by those edges.
func (s *shape) addRow(domain string, counts []int) {
	if len(counts) > s.buckets {
		counts = counts[:s.buckets]
	}
	s.addCounts(domainOf(domain), counts)
}

// addCounts adds counts by those edges to the row of a name.
func (s *shape) addCounts(name string, counts []int) {
	if s.total == nil {
		s.total = &row{name: "TOTAL", count: make([]int, s.buckets+1)}
	}
	r := s.row(name)
	for i, n := range counts {
		for _, to := range [...]*row{r, s.total} {
			to.count[0] += n
			to.count[i+1] += n
		}
	}
}

// nullSender is what stands for the null sender.
const nullSender = "MAILER-DAEMON"

// domainOf is what an address is counted for.
func domainOf(addr string) string {
	if addr == "" {
		return nullSender
	}
	d := addr[strings.LastIndexByte(addr, '@')+1:]
	for strings.Contains(d, "..") {
		d = strings.ReplaceAll(d, "..", ".")
	}
	if t := strings.Trim(d, "."); t != "" {
		d = t
	}
	return strings.ToLower(d)
}

// merge adds what another has counted.
func (s *shape) merge(o *shape) {
	if o.total == nil {
		return
	}
	if s.total == nil {
		s.total = &row{name: "TOTAL", count: make([]int, s.buckets+1)}
	}
	for i, n := range o.total.count {
		s.total.count[i] += n
	}
	for name, r := range o.domains {
		mine := s.row(name)
		for i, n := range r.count {
			mine.count[i] += n
		}
	}
}

// rows are the domains, and with parents theirs, the largest first.
func (s *shape) rows() []*row {
	var list []*row
	all := s.domains
	if s.parents {
		all = s.withParents()
	}
	for _, r := range all {
		if !r.parent || r.sub >= s.minSub {
			list = append(list, r)
		}
	}
	last := func(r *row) int {
		if r.name == othersName && s.others > 0 {
			return 1
		}
		return 0
	}
	slices.SortFunc(list, func(a, b *row) int {
		return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(b.count[0], a.count[0]), cmp.Compare(len(a.name), len(b.name)), cmp.Compare(a.name, b.name))
	})
	return list
}

// withParents adds the parent domains, those at the top aside, as ".name",
// with the sums of what is below them.
func (s *shape) withParents() map[string]*row {
	all := make(map[string]*row, 2*len(s.domains))
	for name, r := range s.domains {
		all[name] = r
	}
	for name, r := range s.domains {
		fresh := true // the name below has just appeared
		for rest := name; ; {
			_, parent, ok := strings.Cut(rest, ".")
			if !ok || !strings.Contains(parent, ".") {
				break
			}
			rest = parent
			p := all["."+parent]
			isNew := p == nil
			if isNew {
				p = &row{name: "." + parent, parent: true, count: make([]int, s.buckets+1)}
				all[p.name] = p
			}
			if fresh {
				p.sub++
			}
			for i, n := range r.count {
				p.count[i] += n
			}
			fresh = isNew
		}
	}
	return all
}

// These are behind the rows of mail that is suspended, or for a destination that has a limit or
// another next hop for now. Where there is none the table is Postfix's.
const (
	suspendedMark = "  suspended"
	limitedMark   = "  limited"
	divertedMark  = "  diverted"
)

// covers says whether one of the targets is for all mail that a row counts, as far as its domain
// tells.
func (s *shape) covers(targets []selection.Target, r *row) bool {
	name := r.name
	if name == nullSender && s.senders {
		name = ""
	}
	return slices.ContainsFunc(targets, func(t selection.Target) bool {
		_, value := t.Condition()
		switch {
		case t.IsGroup():
			return false
		case r.parent:
			return value == "*" || !s.senders && value == name || s.senders && value == "@"+name
		case s.senders:
			return t.From(name)
		}
		return t.Place(name)
	})
}

// minDomain is the least width of the first column.
const minDomain = 18

// table prints the result for a terminal of so many columns; top bounds the
// rows, the headings aside, if it is not zero.
func (s *shape) table(width, top int) []byte {
	total := s.total
	if total == nil {
		total = &row{name: "TOTAL", count: make([]int, s.buckets+1)}
	}
	heads, limit := []string{"T"}, 0
	for i := 1; i <= s.buckets; i++ {
		switch {
		case i == s.buckets:
			heads = append(heads, strconv.Itoa(limit)+"+")
			continue
		case limit == 0 || s.linear:
			limit += s.tick
		default:
			limit *= 2
		}
		heads = append(heads, strconv.Itoa(limit))
	}
	widths := make([]int, len(heads))
	for i, h := range heads {
		widths[i] = 1 + max(2, len(h), len(strconv.Itoa(total.count[i])))
		width -= widths[i]
	}
	width = max(width, minDomain)
	var b bytes.Buffer
	fmt.Fprintf(&b, "%*s", width, "")
	for i, h := range heads {
		fmt.Fprintf(&b, "%*s", widths[i], h)
	}
	b.WriteByte('\n')
	for i, r := range append([]*row{total}, s.rows()...) {
		if top > 0 && i >= top {
			break
		}
		b.WriteString(fit(r.name, width))
		for j, n := range r.count {
			fmt.Fprintf(&b, "%*d", widths[j], n)
		}
		if r != total && s.covers(s.suspended, r) {
			b.WriteString(suspendedMark)
		}
		if r != total && !s.senders && s.covers(s.limited, r) {
			b.WriteString(limitedMark)
		}
		if r != total && !s.senders && s.covers(s.diverted, r) {
			b.WriteString(divertedMark)
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// fit makes a name as wide as its column. Of one that is too long the end is kept.
func fit(name string, width int) string {
	if len(name) <= width {
		return fmt.Sprintf("%*s", width, name)
	}
	if strings.HasPrefix(name, ".") {
		return ".+" + name[len(name)-width+2:]
	}
	return "+" + name[len(name)-width+1:]
}
