package whatif

import (
	"posthaste/internal/mail"
	"posthaste/internal/pace"
)

// lessons are what has been learnt of the destinations of some mail: models, which are not changed by runs. To make them for tens of
// thousands takes as long as a run, and a comparison has six runs.
type lessons struct {
	models []*model // by destination; nil: nothing has been measured of it
	others map[mail.Transport]*others
}

// others are what was measured of all destinations of a transport: of those that answer and of those
// that are down, and how many they are. One of which nothing is known is as either of them.
type others struct {
	alive, down     pace.Behaviour
	nalive, ndown   int
	asAlive, asDown *model
}

// learn makes the models.
func (m *Mail) learn() *lessons {
	l := &lessons{models: make([]*model, len(m.Dests)), others: make(map[mail.Transport]*others)}
	measured := func(d *Dest) bool { return d.Behaviour != nil && weight(d.Behaviour) > 0 }
	for i := range m.Dests {
		d := &m.Dests[i]
		o := l.others[d.Transport]
		if o == nil {
			o = new(others)
			l.others[d.Transport] = o
		}
		switch {
		case !measured(d):
		case isDown(d.Behaviour):
			sum(&o.down, d.Behaviour)
			o.down.Streak = max(o.down.Streak, d.Behaviour.Streak)
			o.ndown++
		default:
			sum(&o.alive, d.Behaviour)
			o.nalive++
		}
	}
	for _, o := range l.others {
		as := func(b *pace.Behaviour, down bool) *model {
			x := newModel(nil, b)
			x.most, x.down = 0, down
			return &x
		}
		o.asAlive, o.asDown = as(&o.alive, false), as(&o.down, true)
	}
	for i := range m.Dests {
		if d := &m.Dests[i]; measured(d) {
			x := newModel(d.Behaviour, &l.others[d.Transport].alive)
			l.models[i] = &x
		}
	}
	return l
}
