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
	// Tenants are those of Rows for which something is said besides their weight in main.cf, or of which that is not known.
	Tenants []BacklogTenant
	// Members are destinations of Dests from whose sources mail of one pool goes, as far as that is known: of mail that is in
	// the active queue, or was a moment ago.
	Members []BacklogMember
	// Quotas are what tenants may send to destinations of Rows, besides what holds for either.
	Quotas []BacklogQuota
}

// A BacklogQuota is what a tenant may send to the domain, the site or the provider that a destination of Dests is.
type BacklogQuota struct {
	Transport, Queue, Tenant string
	Limits                   []BacklogLimit
}

// A BacklogMember is a source of a pool, for one destination.
type BacklogMember struct {
	Transport, Queue string // that of Dests; all with the same name but for the source are one pool's
	Weight           int
	Wait             bool // what is over its warm-up waits for the next day
}

// A BacklogLimit is a limit that a destination or a tenant has, mostly in common with others. Zero is no limit.
type BacklogLimit struct {
	Level       int    // as sched.Level
	Source      bool   // it holds for the destination's mail from its source alone
	Name        string // what has the same level, name and source is one limit
	Concurrency int
	// Of connections, messages, recipients, and recipients while the source warms up: how many in how long, and how
	// many were counted today of those that are by the day.
	N, Today [4]int64
	Per      [4]time.Duration
}

// A BacklogTenant is what the tables say of a tenant.
type BacklogTenant struct {
	Name                     string
	Untold                   bool // the tables have not been asked yet
	Weight                   int  // 0: as in main.cf
	Limit                    BacklogLimit
	Lifetime, BounceLifetime time.Duration // 0: as in main.cf
	Places                   bool          // it has limits at single places, and not all that may hold are told
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
	Source                    string         // that its mail goes from, which is the end of Queue; empty: it has none
	Limits                    []BacklogLimit // besides its window
	Untold                    bool           // there may be such limits, and the queue manager learns of them when it tries the mail
	Learnt                    bool           // its answers are followed (smtp_destination_adaptive)
	Shared                    bool           // there are Limits or a Source: who does not know of these makes no forecast
	Behaviour                 []byte         // as pace.Behaviour has it; empty: nothing is known
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
	for i := range m.Tenants {
		b = pack.Nested(b, 't', m.Tenants[i].append)
	}
	for i := range m.Members {
		b = pack.Nested(b, 'm', m.Members[i].append)
	}
	for i := range m.Quotas {
		b = pack.Nested(b, 'q', m.Quotas[i].append)
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
		case 't':
			var t BacklogTenant
			if err := t.decode(r.Nested()); err != nil {
				return err
			}
			m.Tenants = append(m.Tenants, t)
		case 'm':
			var mb BacklogMember
			if err := mb.decode(r.Nested()); err != nil {
				return err
			}
			m.Members = append(m.Members, mb)
		case 'q':
			var q BacklogQuota
			if err := q.decode(r.Nested()); err != nil {
				return err
			}
			m.Quotas = append(m.Quotas, q)
		}
	}
	return r.Err()
}

func (q *BacklogQuota) append(b []byte) []byte {
	b = pack.String(pack.String(pack.String(b, 't', q.Transport), 'q', q.Queue), 'T', q.Tenant)
	for i := range q.Limits {
		b = pack.Nested(b, 'x', q.Limits[i].append)
	}
	return b
}

func (q *BacklogQuota) decode(r pack.Reader) error {
	for r.Next() {
		switch r.Tag() {
		case 't':
			q.Transport = r.String()
		case 'q':
			q.Queue = r.String()
		case 'T':
			q.Tenant = r.String()
		case 'x':
			var l BacklogLimit
			if err := l.decode(r.Nested()); err != nil {
				return err
			}
			q.Limits = append(q.Limits, l)
		}
	}
	return r.Err()
}

func (m *BacklogMember) append(b []byte) []byte {
	b = pack.String(pack.String(b, 't', m.Transport), 'q', m.Queue)
	return pack.Bool(pack.Int(b, 'w', m.Weight), 'x', m.Wait)
}

func (m *BacklogMember) decode(r pack.Reader) error {
	for r.Next() {
		switch r.Tag() {
		case 't':
			m.Transport = r.String()
		case 'q':
			m.Queue = r.String()
		case 'w':
			m.Weight = int(r.Int())
		case 'x':
			m.Wait = r.Bool()
		}
	}
	return r.Err()
}

func (l *BacklogLimit) append(b []byte) []byte {
	b = pack.String(pack.Bool(pack.Int(b, 'l', l.Level), 's', l.Source), 'n', l.Name)
	b = pack.Int(b, 'c', l.Concurrency)
	for i := range l.N {
		b = pack.Int(pack.Int(b, 'A'+byte(i), l.N[i]), 'E'+byte(i), l.Per[i])
		b = pack.Int(b, 'I'+byte(i), l.Today[i])
	}
	return b
}

func (l *BacklogLimit) decode(r pack.Reader) error {
	for r.Next() {
		switch tag := r.Tag(); tag {
		case 'l':
			l.Level = int(r.Int())
		case 's':
			l.Source = r.Bool()
		case 'n':
			l.Name = r.String()
		case 'c':
			l.Concurrency = int(r.Int())
		case 'A', 'B', 'C', 'D':
			l.N[tag-'A'] = r.Int()
		case 'E', 'F', 'G', 'H':
			l.Per[tag-'E'] = time.Duration(r.Int())
		case 'I', 'J', 'K', 'L':
			l.Today[tag-'I'] = r.Int()
		}
	}
	return r.Err()
}

func (t *BacklogTenant) append(b []byte) []byte {
	b = pack.Int(pack.Bool(pack.String(b, 'n', t.Name), 'u', t.Untold), 'w', t.Weight)
	b = pack.Bool(pack.Int(pack.Int(b, 'a', t.Lifetime), 'b', t.BounceLifetime), 'p', t.Places)
	return pack.Nested(b, 'l', t.Limit.append)
}

func (t *BacklogTenant) decode(r pack.Reader) error {
	for r.Next() {
		switch r.Tag() {
		case 'n':
			t.Name = r.String()
		case 'u':
			t.Untold = r.Bool()
		case 'w':
			t.Weight = int(r.Int())
		case 'a':
			t.Lifetime = time.Duration(r.Int())
		case 'b':
			t.BounceLifetime = time.Duration(r.Int())
		case 'p':
			t.Places = r.Bool()
		case 'l':
			if err := t.Limit.decode(r.Nested()); err != nil {
				return err
			}
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
	b = pack.Bool(pack.Bool(pack.String(b, 'S', d.Source), 'U', d.Untold), 'L', d.Learnt)
	for i := range d.Limits {
		b = pack.Nested(b, 'x', d.Limits[i].append)
	}
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
		case 'S':
			d.Source = r.String()
		case 'U':
			d.Untold = r.Bool()
		case 'L':
			d.Learnt = r.Bool()
		case 'l':
			d.Shared = r.Bool()
		case 'x':
			var l BacklogLimit
			if err := l.decode(r.Nested()); err != nil {
				return err
			}
			d.Limits = append(d.Limits, l)
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
