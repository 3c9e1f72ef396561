// Package course remembers how destinations have fared, minute by minute: the window, the deliveries at
// once, the feedback, and what became of the sessions. An operator sees there what a change has done.
//
// # What is kept
//
// A minute has what the scheduler had of the destination when the first session of that minute ended,
// and sums of all that ended in it. A minute without one is not there. Besides, there are the kinds of
// security that connections had: protocol, cipher, certificate and policy, in words.
//
// # Bounds
//
// A [Book] has at most [MaxDestinations] destinations; that heard of least recently goes first. Each has
// at most [MaxMinutes] minutes, and [MaxSecurities] kinds of security; that seen least recently goes
// first. All of it takes less than three megabytes. To add a session takes constant time, and the
// scheduler is asked once a minute for each destination.
//
// # Security
//
// Strangers choose destinations and what their servers can do. Names are only compared and stored, and
// their length is bounded.
package course

import (
	"container/list"
	"slices"
	"time"
)

const (
	// MaxDestinations bounds the destinations of a Book, MaxMinutes and MaxSecurities what is kept of each.
	MaxDestinations = 512
	MaxMinutes      = 120
	MaxSecurities   = 4
	// maxText bounds the octets of a kind of security.
	maxText = 200
)

// A State is what the scheduler has of a destination. Feedback is in hundredths of a step: at 100 the
// window grows, or shrinks.
type State struct {
	Window, Limit, Busy, Todo int32
	Positive, Negative        int32
}

// A Session is a delivery that has ended.
type Session struct {
	Took     time.Duration
	Away     bool   // the destination took no part in it, or wanted less
	Opened   bool   // a connection was opened for it, or that was tried
	Security string // of the connection that was opened, in words; empty: there is none
}

// A Minute is one minute of a destination.
type Minute struct {
	At int64 // its number since 1970
	State
	Sessions, Away, Opened int32
	Took                   time.Duration // of all sessions together
}

// Begin is when the minute began.
func (m *Minute) Begin() time.Time { return time.Unix(60*m.At, 0) }

// A Security is one kind of it.
type Security struct {
	Text        string
	Connections int
	Last        time.Time
}

// A Course is how one destination has fared. It is not to be changed by who reads it, and changes with
// the next session.
type Course struct {
	name       string
	minutes    []Minute // a ring when it is full: the earliest is at first
	first      int
	securities []Security // seen last first
}

// Minutes are those that there are since a time, the earliest first.
func (c *Course) Minutes(since time.Time) []Minute {
	all := slices.Concat(c.minutes[c.first:], c.minutes[:c.first])
	at := slices.IndexFunc(all, func(m Minute) bool { return !m.Begin().Before(since) })
	if at < 0 {
		return nil
	}
	return all[at:]
}

// Securities are the kinds of security of its connections, seen last first.
func (c *Course) Securities() []Security { return c.securities }

// minute is that with a number, which is the last one or a new one; begun says which.
func (c *Course) minute(at int64) (m *Minute, begun bool) {
	if n := len(c.minutes); n > 0 {
		// A clock that was set back adds to the last minute until it is there again.
		if last := &c.minutes[(c.first+n-1)%n]; last.At >= at {
			return last, false
		}
	}
	if len(c.minutes) < MaxMinutes {
		c.minutes = append(c.minutes, Minute{At: at})
		return &c.minutes[len(c.minutes)-1], true
	}
	m = &c.minutes[c.first]
	*m = Minute{At: at}
	c.first = (c.first + 1) % MaxMinutes
	return m, true
}

// secured counts a connection by its security.
func (c *Course) secured(now time.Time, text string) {
	text = text[:min(len(text), maxText)]
	at := slices.IndexFunc(c.securities, func(s Security) bool { return s.Text == text })
	s := Security{Text: text}
	switch {
	case at >= 0:
		s = c.securities[at]
		c.securities = slices.Delete(c.securities, at, at+1)
	case len(c.securities) == MaxSecurities:
		c.securities = c.securities[:MaxSecurities-1]
	}
	s.Connections++
	s.Last = now
	c.securities = slices.Insert(c.securities, 0, s)
}

// A Book is the courses of all destinations. It belongs to one goroutine. The zero value has none.
type Book struct {
	byName map[string]*list.Element
	order  list.List // heard of last first
}

// Add counts a session of the destination of that name. If it begins a minute, it returns that minute's
// State, to be filled in at once; else nil.
func (b *Book) Add(now time.Time, name string, s Session) *State {
	e := b.byName[name]
	if e == nil {
		if b.byName == nil {
			b.byName = make(map[string]*list.Element)
		}
		if len(b.byName) >= MaxDestinations {
			last := b.order.Back()
			delete(b.byName, last.Value.(*Course).name)
			b.order.Remove(last)
		}
		e = b.order.PushFront(&Course{name: name})
		b.byName[name] = e
	}
	b.order.MoveToFront(e)
	c := e.Value.(*Course)
	if s.Security != "" {
		c.secured(now, s.Security)
	}
	m, begun := c.minute(now.Unix() / 60)
	m.Sessions++
	m.Took += max(s.Took, 0)
	if s.Away {
		m.Away++
	}
	if s.Opened {
		m.Opened++
	}
	if begun {
		return &m.State
	}
	return nil
}

// Of is the course of the destination of that name; nil: nothing is known of it.
func (b *Book) Of(name string) *Course {
	if e := b.byName[name]; e != nil {
		return e.Value.(*Course)
	}
	return nil
}
