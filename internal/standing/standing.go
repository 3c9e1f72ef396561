// Package standing counts how mail providers have taken our mail in the last 24 hours, and what came back of it: by provider
// and by the source that it was sent from, what was delivered, deferred and bounced, what bounced after it had been accepted,
// and what was complained of. Complaints over what was delivered are what providers look at.
//
// # Who counts
//
// The queue manager counts outcomes of deliveries, and the suppress service what comes back ([Later], [Complaint]). Each has a [Book]
// of its own, and leaves it to its successor in a file ([Book.Encode]). [Book.Merge] makes one of two.
//
// # Names
//
// A provider is one that shaping_files or destination_provider_maps name, else the site of MX hosts, as the queue manager
// tells agents. Operators choose the names of providers and sources; strangers choose sites, as many as they like.
//
// # Bounds
//
// A Book has at most [MaxNames] pairs of provider and source. What is one too many takes the place of the pair with least
// mail, which is counted under [Other] from then on: so much mail for a provider stays under its name, however many
// names strangers make up. It takes less than 300 KB.
//
// # Time
//
// Time is passed in. It is kept by the hour: what is older than [Span] goes an hour at a time.
package standing

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	// Hours is for how many hours is counted, the one that is under way included.
	Hours = 24
	// Span is the same as a time.
	Span = Hours * time.Hour
	// MaxNames bounds the pairs of provider and source of a Book, [Other] aside.
	MaxNames = 200
	// Other stands for the providers, and for the sources, that have no name of their own.
	Other = "other"
	// maxHosts bounds the names of a site's hosts, in octets, where there are several; maxName bounds any name.
	maxHosts, maxName = 60, 120
)

// A Kind is what has become of mail.
type Kind uint8

// The kinds. Their numbers are in files.
const (
	Sent      Kind = iota // a recipient who has got it
	Deferred              // an attempt that is to be repeated
	Bounced               // a recipient who will not get it
	Later                 // one who has not got it, as a report says that came back after it was accepted
	Complaint             // one who has complained of it
	kinds
)

// Counts are by Kind.
type Counts [kinds]int64

// Add adds others.
func (c *Counts) Add(o *Counts) {
	for k, n := range o {
		c[k] += n
	}
}

func (c *Counts) sum() (n int64) {
	for _, v := range c {
		n += v
	}
	return n
}

// A Name is what is counted together. Source is empty for mail that is sent from none.
type Name struct{ Provider, Source string }

// other is the name of all that have none.
var other = Name{Other, Other}

// A Row is what was counted of one Name.
type Row struct {
	Name
	Counts
}

// A Book counts. It belongs to one goroutine. The zero value has counted nothing.
type Book struct {
	rows map[Name]*row
	// turn grows with each count, and says which row was counted in last.
	turn uint64
}

// A row is kept by the hour: hour h is at h modulo Hours, and counts only if its slot says so.
type row struct {
	slots [Hours]slot
	turn  uint64
}

type slot struct {
	hour int64 // since 1970
	n    Counts
}

func hourOf(t time.Time) int64 { return t.Unix() / int64(time.Hour/time.Second) }

// at is the slot of an hour.
func (r *row) at(hour int64) *slot {
	s := &r.slots[uint64(hour)%Hours]
	if s.hour != hour {
		*s = slot{hour: hour}
	}
	return s
}

// sum is what was counted up to an hour.
func (r *row) sum(hour int64) (c Counts) {
	for i := range r.slots {
		if s := &r.slots[i]; s.hour <= hour && s.hour > hour-Hours {
			c.Add(&s.n)
		}
	}
	return c
}

// Site is the name of a site, which is the names of all its hosts, with as many of them as have room.
func Site(name string) string {
	if len(name) <= maxHosts {
		return name
	}
	if i := strings.LastIndexByte(name[:maxHosts], ','); i > 0 {
		return name[:i] + ",..."
	}
	return name[:min(len(name), maxName)]
}

// Count counts something of one recipient, or one attempt for one. Mail without a provider is not counted.
func (b *Book) Count(now time.Time, provider, source string, k Kind) {
	if provider == "" || k >= kinds {
		return
	}
	hour := hourOf(now)
	b.take(Name{Site(provider), Site(source)}, hour).at(hour).n[k]++
}

// take finds or makes the row of a name, and takes the name of another one away if there are too many.
func (b *Book) take(name Name, hour int64) *row {
	b.turn++
	r := b.rows[name]
	if r == nil {
		if b.rows == nil {
			b.rows = make(map[Name]*row)
		}
		if name != other {
			b.makeRoom(hour)
		}
		// What is kept of a name must not keep the memory that it is part of.
		r = new(row)
		b.rows[Name{strings.Clone(name.Provider), strings.Clone(name.Source)}] = r
	}
	r.turn = b.turn
	return r
}

// makeRoom takes the name of the row away that has least mail, of several the one that was counted in least recently.
func (b *Book) makeRoom(hour int64) {
	n := len(b.rows)
	if b.rows[other] != nil {
		n--
	}
	if n < MaxNames {
		return
	}
	var least Name
	var has int64
	var found *row
	for name, r := range b.rows {
		if name == other {
			continue
		}
		c := r.sum(hour)
		if n := c.sum(); found == nil || n < has || n == has && r.turn < found.turn {
			least, has, found = name, n, r
		}
	}
	delete(b.rows, least)
	if has > 0 {
		b.take(other, hour).add(found, hour)
	}
}

// add adds what another row has counted up to an hour.
func (r *row) add(o *row, hour int64) {
	for i := range o.slots {
		if s := &o.slots[i]; s.hour <= hour && s.hour > hour-Hours {
			r.at(s.hour).n.Add(&s.n)
		}
	}
}

// Merge adds what another Book has counted, which is not changed.
func (b *Book) Merge(now time.Time, o *Book) {
	hour := hourOf(now)
	for _, name := range o.names() {
		from := o.rows[name]
		if c := from.sum(hour); c.sum() > 0 {
			b.take(name, hour).add(from, hour)
		}
	}
}

// names are those that have a row, in an order that does not depend on chance.
func (b *Book) names() []Name {
	list := make([]Name, 0, len(b.rows))
	for name := range b.rows {
		list = append(list, name)
	}
	slices.SortFunc(list, func(x, y Name) int {
		return cmp.Or(strings.Compare(x.Provider, y.Provider), strings.Compare(x.Source, y.Source))
	})
	return list
}

// Rows are what was counted in the Span before now, by name. Those of which nothing was are not there.
func (b *Book) Rows(now time.Time) (list []Row) {
	hour := hourOf(now)
	for _, name := range b.names() {
		if c := b.rows[name].sum(hour); c.sum() > 0 {
			list = append(list, Row{name, c})
		}
	}
	return list
}
