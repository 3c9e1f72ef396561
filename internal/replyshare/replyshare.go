// Package replyshare counts what the hosts of each destination answer, over a sliding time, by
// what they say: of the sessions of the last 15 minutes so many were accepted, so many were told
// "421 4.7.0 too many connections", and so many could not connect.
//
// # Sessions
//
// A session is one delivery of a message to some recipients. Several that share a connection
// count each. A session has one answer: the one that most of its recipients got.
//
// # Groups
//
// Replies differ from one session to the next by what has nothing to do with their sense: the
// host's name, our address, an ID, a count, a link. [Parse] takes those out, and what is left is
// the group: the code, the status code (RFC 3463) and the words, in which * stands for what was
// taken out. All sessions in which the message was accepted are one group.
//
// # Bounds
//
// A [Book] has at most [MaxDestinations] destinations, of each at most [MaxGroups] groups, and of
// each group a text of at most [MaxText] octets. The destination that was heard of least recently
// goes first; further groups of a destination are counted together. So strangers, who choose
// destinations and replies, cannot fill the memory: it is about a megabyte at most.
//
// # Time
//
// Time is passed in. It is kept by the minute: what is older than [Span] goes a minute at a time.
// A clock that is set back forgets what was counted in times that are yet to come.
//
// # Security
//
// Texts are those of strangers: they have no control characters and are UTF-8, but may say
// anything. Whoever shows them must escape them.
package replyshare

import (
	"cmp"
	"container/list"
	"slices"
	"time"
)

const (
	// Span is the sliding time.
	Span = slots * slotTime
	// MaxDestinations bounds the destinations of a Book.
	MaxDestinations = 512
	// MaxGroups bounds the groups of a destination.
	MaxGroups = 8
	// MaxText bounds the octets of a group's words, and of its example.
	MaxText = 200

	slotTime = time.Minute
	slots    = 15
)

// An Answer is what a session was told, as far as it tells one group from another. It can be
// compared.
type Answer struct {
	Accepted bool
	Code     int    // of SMTP: 421; 0: no host has answered, or it was accepted
	Status   string // RFC 3463: 4.7.0; empty: none was given
	Text     string // the words, with * for what was taken out; empty: accepted
}

// A Group is sessions that got the same answer.
type Group struct {
	Answer
	Sessions int
	Example  string    // one of the replies, with everything in it; empty: accepted
	Last     time.Time // when the last of the sessions ended
}

// Shares are the sessions of one destination.
type Shares struct {
	Sessions int     // all
	Groups   []Group // those with most sessions first
	Others   int     // sessions that are in none of the groups
}

// Percent is the share of n sessions, rounded; a share that is not 0 is at least 1.
func (s *Shares) Percent(n int) int {
	if s.Sessions == 0 || n == 0 {
		return 0
	}
	return max(1, (100*n+s.Sessions/2)/s.Sessions)
}

// A Book is the shares of all destinations. It belongs to one goroutine. The zero value has none.
type Book struct {
	byName map[string]*list.Element // of *destination
	order  list.List                // the one heard of last first
}

// A destination is what was counted of one.
type destination struct {
	name   string
	groups []*group
	others counts
}

// A group is counted by the minute.
type group struct {
	Group
	counts counts
}

// counts are by the minute: those of minute m are at m modulo slots, and count only if minute[] says so.
type counts struct {
	n      [slots]int32
	minute [slots]int64
}

func (c *counts) add(minute int64) {
	i := int(uint64(minute) % slots)
	if c.minute[i] != minute {
		c.minute[i], c.n[i] = minute, 0
	}
	c.n[i]++
}

// sum is what was counted in the minutes up to now.
func (c *counts) sum(minute int64) (n int) {
	for i, m := range c.minute {
		if m <= minute && m > minute-slots {
			n += int(c.n[i])
		}
	}
	return n
}

func minuteOf(t time.Time) int64 { return t.Unix() / int64(slotTime/time.Second) }

// Add counts a session that has ended. example is the reply; it is cleaned and cut.
func (b *Book) Add(now time.Time, name string, a Answer, example string) {
	d, minute := b.take(name), minuteOf(now)
	i := slices.IndexFunc(d.groups, func(g *group) bool { return g.Answer == a })
	if i < 0 {
		if len(d.groups) >= MaxGroups { // what has passed makes room
			d.groups = slices.DeleteFunc(d.groups, func(g *group) bool { return g.counts.sum(minute) == 0 })
		}
		if len(d.groups) >= MaxGroups {
			d.others.add(minute)
			return
		}
		i = len(d.groups)
		d.groups = append(d.groups, &group{Group: Group{Answer: a}})
	}
	g := d.groups[i]
	g.Last = now
	if !a.Accepted {
		g.Example = Clean(example)
	}
	g.counts.add(minute)
}

// take finds or makes a destination, and forgets another if there are too many.
func (b *Book) take(name string) *destination {
	if e := b.byName[name]; e != nil {
		b.order.MoveToFront(e)
		return e.Value.(*destination)
	}
	if b.byName == nil {
		b.byName = make(map[string]*list.Element)
	}
	if len(b.byName) >= MaxDestinations {
		last := b.order.Back()
		delete(b.byName, last.Value.(*destination).name)
		b.order.Remove(last)
	}
	d := &destination{name: name}
	b.byName[name] = b.order.PushFront(d)
	return d
}

// Of is what the sessions of a destination were told in the Span before now. It is not counted as
// hearing of the destination.
func (b *Book) Of(now time.Time, name string) (s Shares) {
	e := b.byName[name]
	if e == nil {
		return s
	}
	d, minute := e.Value.(*destination), minuteOf(now)
	for _, g := range d.groups {
		if n := g.counts.sum(minute); n > 0 {
			out := g.Group
			out.Sessions = n
			s.Groups = append(s.Groups, out)
			s.Sessions += n
		}
	}
	s.Others = d.others.sum(minute)
	s.Sessions += s.Others
	slices.SortFunc(s.Groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Sessions, a.Sessions), b.Last.Compare(a.Last), cmp.Compare(a.Status, b.Status), cmp.Compare(a.Text, b.Text))
	})
	return s
}

// Names are the destinations that are known, the one heard of last first.
func (b *Book) Names(yield func(string) bool) {
	for e := b.order.Front(); e != nil; e = e.Next() {
		if !yield(e.Value.(*destination).name) {
			return
		}
	}
}
