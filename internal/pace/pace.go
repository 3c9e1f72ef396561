// Package pace remembers how destinations take mail: how long a delivery takes, and how many are
// turned away, by how many went on at once. A forecast is made of it.
//
// # What is counted
//
// A delivery is served if the destination took part in it, whatever it said of the recipients, and
// turned away if it did not, or wanted less: a connection that failed, or 421. Both depend on
// how many deliveries go on at once, so they are counted by that number, exactly up to 8, then in
// four steps for each doubling. Of those served, the time is also summed with the number of their
// recipients, which gives the time of a delivery and of each of its recipients. What comes of
// recipients is counted for first attempts and for later ones apart: a full mailbox is deferred
// again and again, and is no sign of what becomes of new mail.
//
// Counts lose half of their weight in [Half], so that what was long ago does not count.
//
// # Bounds
//
// A [Book] has at most [MaxDestinations] destinations; that heard of least recently goes first. It
// takes less than a megabyte. To add a delivery takes constant time.
//
// # Security
//
// Strangers choose destinations, and how long they take. Names are only compared and stored.
package pace

import (
	"container/list"
	"math"
	"math/bits"
	"time"
)

const (
	// Half is the time in which counts lose half of their weight.
	Half = 15 * time.Minute
	// MaxDestinations bounds the destinations of a Book.
	MaxDestinations = 512
	// exact is up to how many deliveries at once each number has a level of its own.
	exact = 8
	// Levels is how many levels there are. The last one has no end.
	Levels = exact + 4*7 + 1
)

// A Delivery is one that has ended.
type Delivery struct {
	Took   time.Duration
	Busy   int  // deliveries to the destination at once, with this one; at least 1
	Away   bool // it was turned away
	Again  bool // an attempt of the message was made before
	Rcpts  int  // at least 1
	Later  int  // recipients that are to be tried again
	Failed int  // recipients that failed for good
}

// A Level is what was counted while so many deliveries went on at once.
type Level struct {
	Served, Away         float64 // deliveries
	ServedTime, AwayTime float64 // seconds, of all together
	Rcpts                float64 // of those served
}

// Rcpts are what came of recipients.
type Rcpts struct{ All, Later, Failed float64 }

// A Behaviour is how one destination takes mail. The zero value is that of one of which nothing
// is known.
type Behaviour struct {
	Levels       [Levels]Level
	First, Again Rcpts // of first and of later attempts, served
	// Sums over deliveries that were served: of recipients, their squares, and times in seconds
	// with recipients and squared.
	R, RR, TR, TT float64
	// Streak is how many deliveries have been turned away since one was served, and Longest the most
	// that were before one was.
	Streak, Longest int
	at              time.Time // when the counts had the weight that they have
}

// LevelOf is the level of so many deliveries at once.
func LevelOf(busy int) int {
	if busy <= exact {
		return max(busy, 1) - 1
	}
	octave := bits.Len(uint(busy-1)) - 4 // 9..16 is 0
	if octave >= 7 {
		return Levels - 1
	}
	return exact + 4*octave + (busy-1-exact<<octave)>>(octave+1)
}

// Busy is how many deliveries at once a level stands for: the most of those that belong to it.
func Busy(level int) int {
	if level < exact {
		return level + 1
	}
	octave := (level - exact) / 4
	return exact<<octave + ((level-exact)%4+1)<<(octave+1)
}

// Add counts a delivery that ended at a time.
func (b *Behaviour) Add(now time.Time, d Delivery) {
	b.fade(now)
	l, t := &b.Levels[LevelOf(d.Busy)], max(d.Took, 0).Seconds()
	if d.Away {
		l.Away++
		l.AwayTime += t
		b.Streak++
		return
	}
	b.Longest, b.Streak = max(b.Longest, b.Streak), 0
	l.Served++
	l.ServedTime += t
	n := float64(max(d.Rcpts, 1))
	l.Rcpts += n
	b.R, b.RR, b.TR, b.TT = b.R+n, b.RR+n*n, b.TR+t*n, b.TT+t*t
	r := &b.First
	if d.Again {
		r = &b.Again
	}
	r.All += n
	r.Later += float64(d.Later)
	r.Failed += float64(d.Failed)
}

// fade takes away the weight that time has taken. It is done once a minute at most.
func (b *Behaviour) fade(now time.Time) {
	past := now.Sub(b.at)
	if b.at.IsZero() || past < 0 {
		b.at = now
		return
	}
	if past < time.Minute {
		return
	}
	b.at = now
	f := math.Exp2(-float64(past) / float64(Half))
	for i := range b.Levels {
		l := &b.Levels[i]
		l.Served, l.Away, l.ServedTime, l.AwayTime, l.Rcpts = l.Served*f, l.Away*f, l.ServedTime*f, l.AwayTime*f, l.Rcpts*f
	}
	for _, p := range []*float64{&b.First.All, &b.First.Later, &b.First.Failed, &b.Again.All, &b.Again.Later, &b.Again.Failed, &b.R, &b.RR, &b.TR, &b.TT} {
		*p *= f
	}
}

// Book is the behaviour of all destinations. It belongs to one goroutine. The zero value has none.
type Book struct {
	byName map[string]*list.Element
	order  list.List // heard of last first
}

type named struct {
	name string
	Behaviour
}

// Add counts a delivery to the destination of that name.
func (b *Book) Add(now time.Time, name string, d Delivery) {
	e := b.byName[name]
	if e == nil {
		if b.byName == nil {
			b.byName = make(map[string]*list.Element)
		}
		if len(b.byName) >= MaxDestinations {
			last := b.order.Back()
			delete(b.byName, last.Value.(*named).name)
			b.order.Remove(last)
		}
		e = b.order.PushFront(&named{name: name})
		b.byName[name] = e
	}
	b.order.MoveToFront(e)
	e.Value.(*named).Add(now, d)
}

// Of is how the destination of that name behaves; nil if nothing is known of it. It is not to be
// changed, and changes with the next Add.
func (b *Book) Of(name string) *Behaviour {
	if e := b.byName[name]; e != nil {
		return &e.Value.(*named).Behaviour
	}
	return nil
}
