package proto

import (
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// ExplainReply is the answer in lines of text. None: no such message. Of a destination the rest says the same in
// numbers, as far as there are some.
type ExplainReply struct {
	Lines  []string
	Dests  []DestInfo // that its mail goes to, as far as they are known: those of that name, and relay hosts
	Oldest time.Time  // when the oldest message came that the first line counts; zero: it counts none
}

// A DestInfo is a destination in the queue manager's memory, or one of which it is remembered what its hosts answer.
type DestInfo struct {
	Transport string
	Nexthop   string
	State     string // ready, dead, suspended (for a rate delay); empty: not in memory
	Until     time.Time
	Why       string // dead: the reply for which it is
	Window    int
	Limit     int           // of the window; 0: none
	Set       bool          // an operator has set the limit
	Busy      int           // deliveries under way
	Todo      int           // deliveries that wait
	Span      time.Duration // of what follows: so long before now
	Sessions  int           // that ended in it
	Others    int           // sessions that are in none of the groups
	Replies   []ReplyGroup
	// How it has fared, the earliest minute first, and how its connections were secured, seen last first. Only if that
	// was asked for.
	Course     []CourseMinute
	Securities []Security
}

// A CourseMinute is one minute of a destination, as package course has it.
type CourseMinute struct {
	At                        time.Time
	Window, Limit, Busy, Todo int
	Positive, Negative        int // feedback, in hundredths of a step
	Sessions, Away, Opened    int
	Took                      time.Duration // of all sessions together
}

// A Security is how some connections were secured.
type Security struct {
	Text        string // protocol, cipher, certificate and policy, in words
	Connections int
	Last        time.Time
}

// A ReplyGroup is sessions of a destination that were told the same: see package replyshare.
type ReplyGroup struct {
	Sessions int
	Accepted bool
	Code     int    // of SMTP; 0: no host has answered, or accepted
	Status   string // RFC 3463; may be empty
	Text     string // the words, with * for what is of one session alone
	Example  string // one of the replies
	Last     time.Time
}

func (*ExplainReply) Kind() uint16 { return KindExplainReply }
func (m *ExplainReply) Append(b []byte) []byte {
	for _, l := range m.Lines {
		b = pack.Bytes(b, 'l', l)
	}
	for i := range m.Dests {
		b = pack.Nested(b, 'd', m.Dests[i].append)
	}
	return mail.AppendTime(b, 'o', m.Oldest)
}
func (m *ExplainReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'l':
			m.Lines = append(m.Lines, r.String())
		case 'd':
			var d DestInfo
			if err := d.decode(r.Bytes()); err != nil {
				return err
			}
			m.Dests = append(m.Dests, d)
		case 'o':
			m.Oldest = mail.ReadTime(&r)
		}
	}
	return r.Err()
}

func (d *DestInfo) append(b []byte) []byte {
	b = pack.String(b, 't', d.Transport)
	b = pack.String(b, 'n', d.Nexthop)
	b = pack.String(b, 's', d.State)
	b = mail.AppendTime(b, 'u', d.Until)
	b = pack.String(b, 'y', d.Why)
	b = pack.Int(b, 'w', d.Window)
	b = pack.Int(b, 'l', d.Limit)
	b = pack.Bool(b, 'S', d.Set)
	b = pack.Int(b, 'b', d.Busy)
	b = pack.Int(b, 'q', d.Todo)
	b = pack.Int(b, 'p', d.Span)
	b = pack.Int(b, 'e', d.Sessions)
	b = pack.Int(b, 'o', d.Others)
	for i := range d.Replies {
		b = pack.Nested(b, 'r', d.Replies[i].append)
	}
	for i := range d.Course {
		b = pack.Nested(b, 'c', d.Course[i].append)
	}
	for i := range d.Securities {
		b = pack.Nested(b, 'x', d.Securities[i].append)
	}
	return b
}

func (d *DestInfo) decode(field []byte) error {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case 't':
			d.Transport = r.String()
		case 'n':
			d.Nexthop = r.String()
		case 's':
			d.State = r.String()
		case 'u':
			d.Until = mail.ReadTime(&r)
		case 'y':
			d.Why = r.String()
		case 'w':
			d.Window = int(r.Int())
		case 'l':
			d.Limit = int(r.Int())
		case 'S':
			d.Set = r.Bool()
		case 'b':
			d.Busy = int(r.Int())
		case 'q':
			d.Todo = int(r.Int())
		case 'p':
			d.Span = time.Duration(r.Int())
		case 'e':
			d.Sessions = int(r.Int())
		case 'o':
			d.Others = int(r.Int())
		case 'r':
			var g ReplyGroup
			if err := g.decode(r.Bytes()); err != nil {
				return err
			}
			d.Replies = append(d.Replies, g)
		case 'c':
			var m CourseMinute
			if err := m.decode(r.Bytes()); err != nil {
				return err
			}
			d.Course = append(d.Course, m)
		case 'x':
			var s Security
			if err := s.decode(r.Bytes()); err != nil {
				return err
			}
			d.Securities = append(d.Securities, s)
		}
	}
	return r.Err()
}

func (m *CourseMinute) append(b []byte) []byte {
	b = mail.AppendTime(b, 'a', m.At)
	b = pack.Int(b, 'w', m.Window)
	b = pack.Int(b, 'l', m.Limit)
	b = pack.Int(b, 'b', m.Busy)
	b = pack.Int(b, 'q', m.Todo)
	b = pack.Int(b, 'p', m.Positive)
	b = pack.Int(b, 'n', m.Negative)
	b = pack.Int(b, 's', m.Sessions)
	b = pack.Int(b, 'y', m.Away)
	b = pack.Int(b, 'o', m.Opened)
	return pack.Int(b, 't', m.Took)
}

func (m *CourseMinute) decode(field []byte) error {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case 'a':
			m.At = mail.ReadTime(&r)
		case 'w':
			m.Window = int(r.Int())
		case 'l':
			m.Limit = int(r.Int())
		case 'b':
			m.Busy = int(r.Int())
		case 'q':
			m.Todo = int(r.Int())
		case 'p':
			m.Positive = int(r.Int())
		case 'n':
			m.Negative = int(r.Int())
		case 's':
			m.Sessions = int(r.Int())
		case 'y':
			m.Away = int(r.Int())
		case 'o':
			m.Opened = int(r.Int())
		case 't':
			m.Took = time.Duration(r.Int())
		}
	}
	return r.Err()
}

func (s *Security) append(b []byte) []byte {
	return mail.AppendTime(pack.Int(pack.String(b, 't', s.Text), 'n', s.Connections), 'l', s.Last)
}

func (s *Security) decode(field []byte) error {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case 't':
			s.Text = r.String()
		case 'n':
			s.Connections = int(r.Int())
		case 'l':
			s.Last = mail.ReadTime(&r)
		}
	}
	return r.Err()
}

func (g *ReplyGroup) append(b []byte) []byte {
	b = pack.Int(b, 'n', g.Sessions)
	b = pack.Bool(b, 'a', g.Accepted)
	b = pack.Int(b, 'c', g.Code)
	b = pack.String(b, 's', g.Status)
	b = pack.String(b, 't', g.Text)
	b = pack.String(b, 'e', g.Example)
	return mail.AppendTime(b, 'l', g.Last)
}

func (g *ReplyGroup) decode(field []byte) error {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case 'n':
			g.Sessions = int(r.Int())
		case 'a':
			g.Accepted = r.Bool()
		case 'c':
			g.Code = int(r.Int())
		case 's':
			g.Status = r.String()
		case 't':
			g.Text = r.String()
		case 'e':
			g.Example = r.String()
		case 'l':
			g.Last = mail.ReadTime(&r)
		}
	}
	return r.Err()
}

// Totals are what the queue manager has seen since Since, its start.
type Totals struct {
	Since    time.Time
	In       int64 // messages that have come into the queue
	Sent     int64 // recipients that have got their message
	Deferred int64 // attempts for a recipient that are to be repeated
	Bounced  int64 // recipients whose delivery has failed for good
}

func (t *Totals) append(b []byte) []byte {
	b = mail.AppendTime(b, 's', t.Since)
	b = pack.Int(b, 'i', t.In)
	b = pack.Int(b, 'o', t.Sent)
	b = pack.Int(b, 'd', t.Deferred)
	return pack.Int(b, 'b', t.Bounced)
}

func (t *Totals) decode(field []byte) error {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case 's':
			t.Since = mail.ReadTime(&r)
		case 'i':
			t.In = r.Int()
		case 'o':
			t.Sent = r.Int()
		case 'd':
			t.Deferred = r.Int()
		case 'b':
			t.Bounced = r.Int()
		}
	}
	return r.Err()
}
