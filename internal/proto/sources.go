package proto

import (
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// Kinds of messages about egress sources.
const (
	KindSources      = 66
	KindSourcesReply = 67
)

// Sources asks the queue manager how the sources do that mail goes from.
type Sources struct{ empty }

func (*Sources) Kind() uint16 { return KindSources }

// SourcesReply names the sources that mail has gone from since the queue manager started, and
// those that have sent something today while they warm up, by name.
type SourcesReply struct{ Sources []SourceInfo }

// A SourceInfo is how one source does.
type SourceInfo struct {
	Name string
	Spec string // as egress.Parse reads it; "": nothing has been heard of it
	// The day of its warm-up, from 1, and how many recipients it may have in that day at each
	// provider; 0: it does not warm up. Wait says that what is over waits.
	Day       int
	Warmup    int64
	Wait      bool
	Suspended string // who has suspended it, and why; empty: nobody has
	Pools     []SourcePool
	Limits    []SourceLimit
	Dests     []SourceDest
}

// A SourcePool is a pool that the source is in.
type SourcePool struct {
	Name   string
	Weight int
}

// A SourceLimit is where the source is limited, or warms up.
type SourceLimit struct {
	Level, Name  string
	Sent, Warmup int64 // recipients today while it warms up, and how many it may have; 0: it does not
	Text         string
	Waiting      int // destinations that wait for it
}

// A SourceDest is a destination at which the source rests: it is considered dead there.
type SourceDest struct {
	Transport, Dest string
	Until           time.Time
	Reason          string // with its status
}

func (*SourcesReply) Kind() uint16 { return KindSourcesReply }
func (m *SourcesReply) Append(b []byte) []byte {
	for i := range m.Sources {
		b = pack.Nested(b, 's', m.Sources[i].append)
	}
	return b
}

func (s *SourceInfo) append(b []byte) []byte {
	b = pack.String(pack.String(b, 'n', s.Name), 's', s.Spec)
	b = pack.Int(pack.Int(b, 'd', s.Day), 'w', int(s.Warmup))
	b = pack.String(pack.Bool(b, 'x', s.Wait), 'z', s.Suspended)
	for _, p := range s.Pools {
		b = pack.Nested(b, 'p', func(b []byte) []byte { return pack.Int(pack.String(b, 'n', p.Name), 'w', p.Weight) })
	}
	for _, l := range s.Limits {
		b = pack.Nested(b, 'l', func(b []byte) []byte {
			b = pack.String(pack.String(b, 'v', l.Level), 'n', l.Name)
			b = pack.Int(pack.Int(b, 's', int(l.Sent)), 'w', int(l.Warmup))
			return pack.Int(pack.String(b, 't', l.Text), 'q', l.Waiting)
		})
	}
	for _, d := range s.Dests {
		b = pack.Nested(b, 'h', func(b []byte) []byte {
			b = pack.String(pack.String(b, 't', d.Transport), 'd', d.Dest)
			return pack.String(mail.AppendTime(b, 'u', d.Until), 'r', d.Reason)
		})
	}
	return b
}

func (m *SourcesReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() == 's' {
			var s SourceInfo
			if err := s.decode(r.Nested()); err != nil {
				return err
			}
			m.Sources = append(m.Sources, s)
		}
	}
	return r.Err()
}

func (s *SourceInfo) decode(r pack.Reader) error {
	for r.Next() {
		switch r.Tag() {
		case 'n':
			s.Name = r.String()
		case 's':
			s.Spec = r.String()
		case 'd':
			s.Day = int(r.Int())
		case 'w':
			s.Warmup = r.Int()
		case 'x':
			s.Wait = r.Bool()
		case 'z':
			s.Suspended = r.String()
		case 'p':
			var p SourcePool
			if err := p.decode(r.Nested()); err != nil {
				return err
			}
			s.Pools = append(s.Pools, p)
		case 'l':
			var l SourceLimit
			if err := l.decode(r.Nested()); err != nil {
				return err
			}
			s.Limits = append(s.Limits, l)
		case 'h':
			var d SourceDest
			if err := d.decode(r.Nested()); err != nil {
				return err
			}
			s.Dests = append(s.Dests, d)
		}
	}
	return r.Err()
}

func (p *SourcePool) decode(r pack.Reader) error {
	for r.Next() {
		switch r.Tag() {
		case 'n':
			p.Name = r.String()
		case 'w':
			p.Weight = int(r.Int())
		}
	}
	return r.Err()
}

func (l *SourceLimit) decode(r pack.Reader) error {
	for r.Next() {
		switch r.Tag() {
		case 'v':
			l.Level = r.String()
		case 'n':
			l.Name = r.String()
		case 's':
			l.Sent = r.Int()
		case 'w':
			l.Warmup = r.Int()
		case 't':
			l.Text = r.String()
		case 'q':
			l.Waiting = int(r.Int())
		}
	}
	return r.Err()
}

func (d *SourceDest) decode(r pack.Reader) error {
	for r.Next() {
		switch r.Tag() {
		case 't':
			d.Transport = r.String()
		case 'd':
			d.Dest = r.String()
		case 'u':
			d.Until = mail.ReadTime(&r)
		case 'r':
			d.Reason = r.String()
		}
	}
	return r.Err()
}
