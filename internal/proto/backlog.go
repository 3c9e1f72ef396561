package proto

import (
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// Kinds of messages about the queue as forecasts need it.
const (
	KindBacklog      = 150
	KindBacklogReply = 151
)

// Backlog asks the queue manager for a part of the queue, by destination: what waits, and how the
// destinations take it. Cursor is 0 at first, and then BacklogReply.Next.
type Backlog struct{ Cursor int }

func (*Backlog) Kind() uint16             { return KindBacklog }
func (m *Backlog) Append(b []byte) []byte { return pack.Int(b, 'c', m.Cursor) }
func (m *Backlog) Decode(payload []byte) error {
	r := pack.NewReader(payload)
	for r.Next() {
		if r.Tag() == 'c' {
			m.Cursor = int(r.Int())
		}
	}
	return r.Err()
}

// A BacklogReply is a part of the queue. What is said of a destination is said once, with the first
// part that has mail for it.
type BacklogReply struct {
	Next  int // where the next part begins; 0: this is the last one
	Dests []BacklogDest
	Rows  []BacklogRow
	Hold  int // messages on hold, which are in no row
	// Suspended are messages that wait for a suspension, which are in no row either.
	Suspended int
}

// A BacklogDest is a destination of Rows.
type BacklogDest struct {
	Transport, Queue, Nexthop string
	State                     int // as sched.DestState
	Until                     time.Time
	Window                    int
	Feedback                  [3]int64 // success, failure, failed cohorts, in millionths
	Most                      int      // set by an operator; 0: nothing is
	Raises                    bool
	Shared                    bool   // it has limits in common with others, or sources
	Behaviour                 []byte // as pace.Behaviour has it; empty: nothing is known
}

// A BacklogRow is messages that are alike: for one destination, of nearly the same age, and due at
// nearly the same time.
type BacklogRow struct {
	Transport, Queue string // empty: it is not known where they go,
	Domain           string // but for whom they are, if this is not empty
	Tenant           string
	Count, Rcpts     int // messages, and recipients of each
	Created          time.Time
	Deferred         bool
	Due              time.Time
	Waits            bool // until the destination answers
}

func (*BacklogReply) Kind() uint16 { return KindBacklogReply }
func (m *BacklogReply) Append(b []byte) []byte {
	b = pack.Int(pack.Int(pack.Int(b, 'n', m.Next), 'h', m.Hold), 's', m.Suspended)
	for i := range m.Dests {
		b = pack.Nested(b, 'd', m.Dests[i].append)
	}
	for i := range m.Rows {
		b = pack.Nested(b, 'r', m.Rows[i].append)
	}
	return b
}

func (m *BacklogReply) Decode(payload []byte) error {
	r := pack.NewReader(payload)
	for r.Next() {
		switch r.Tag() {
		case 'n':
			m.Next = int(r.Int())
		case 'h':
			m.Hold = int(r.Int())
		case 's':
			m.Suspended = int(r.Int())
		case 'd':
			var d BacklogDest
			if err := d.decode(r.Nested()); err != nil {
				return err
			}
			m.Dests = append(m.Dests, d)
		case 'r':
			var row BacklogRow
			if err := row.decode(r.Nested()); err != nil {
				return err
			}
			m.Rows = append(m.Rows, row)
		}
	}
	return r.Err()
}

func (d *BacklogDest) append(b []byte) []byte {
	b = pack.String(pack.String(pack.String(b, 't', d.Transport), 'q', d.Queue), 'n', d.Nexthop)
	b = mail.AppendTime(pack.Int(b, 's', d.State), 'u', d.Until)
	b = pack.Int(b, 'w', d.Window)
	for i, f := range d.Feedback {
		b = pack.Int(b, '0'+byte(i), f)
	}
	b = pack.Bool(pack.Int(b, 'm', d.Most), 'r', d.Raises)
	return pack.Bytes(pack.Bool(b, 'l', d.Shared), 'b', d.Behaviour)
}

func (d *BacklogDest) decode(r pack.Reader) error {
	for r.Next() {
		switch r.Tag() {
		case 't':
			d.Transport = r.String()
		case 'q':
			d.Queue = r.String()
		case 'n':
			d.Nexthop = r.String()
		case 's':
			d.State = int(r.Int())
		case 'u':
			d.Until = mail.ReadTime(&r)
		case 'w':
			d.Window = int(r.Int())
		case '0', '1', '2':
			d.Feedback[r.Tag()-'0'] = r.Int()
		case 'm':
			d.Most = int(r.Int())
		case 'r':
			d.Raises = r.Bool()
		case 'l':
			d.Shared = r.Bool()
		case 'b':
			d.Behaviour = append([]byte(nil), r.Bytes()...)
		}
	}
	return r.Err()
}

func (m *BacklogRow) append(b []byte) []byte {
	b = pack.String(pack.String(pack.String(b, 't', m.Transport), 'q', m.Queue), 'D', m.Domain)
	b = pack.Int(pack.Int(pack.String(b, 'T', m.Tenant), 'n', m.Count), 'r', m.Rcpts)
	b = pack.Bool(mail.AppendTime(b, 'c', m.Created), 'd', m.Deferred)
	return pack.Bool(mail.AppendTime(b, 'u', m.Due), 'w', m.Waits)
}

func (m *BacklogRow) decode(r pack.Reader) error {
	for r.Next() {
		switch r.Tag() {
		case 't':
			m.Transport = r.String()
		case 'q':
			m.Queue = r.String()
		case 'D':
			m.Domain = r.String()
		case 'T':
			m.Tenant = r.String()
		case 'n':
			m.Count = int(r.Int())
		case 'r':
			m.Rcpts = int(r.Int())
		case 'c':
			m.Created = mail.ReadTime(&r)
		case 'd':
			m.Deferred = r.Bool()
		case 'u':
			m.Due = mail.ReadTime(&r)
		case 'w':
			m.Waits = r.Bool()
		}
	}
	return r.Err()
}
