package proto

import (
	"posthaste/internal/dsn"
	"posthaste/internal/mailfilter"
	"posthaste/internal/pack"
	"posthaste/internal/smtpwire"
)

// MilterEvent is a moment of an SMTP session that filters are told of.
type MilterEvent uint8

const (
	MilterConnect MilterEvent = iota + 1 // Args: client name, address, port
	MilterHelo                           // Args: name
	MilterMail                           // Args: sender in angle brackets, parameters
	MilterRcpt                           // Args: recipient in angle brackets, parameters
	MilterData                           //
	MilterUnknown                        // Args: command line
	MilterAbort                          // the message is given up
	MilterClose                          // the session is over
	MilterRefused                        // as MilterRcpt, of a recipient that has been refused already
)

// Milter tells cleanup, where sessions with filters live, of an event. Each is
// answered by a MilterReply before the next is sent, but for MilterClose,
// which wants no answer. The content comes with a Submit that names the session.
type Milter struct {
	// Session is a number that the sender draws at random at MilterConnect.
	Session uint64
	Event   MilterEvent
	Specs   []mailfilter.Spec // at MilterConnect
	Args    []string
	Macros  []string // names and values that have changed, an empty value takes a macro back
	// Told is what came before in the session, for a cleanup that has not
	// heard of it: it began in one that has gone since.
	Told MilterTold
}

// MilterTold is what filters have been told of a session, and of the
// transaction that is open in it: events in order, packed, each with all the
// macros that belong to it.
type MilterTold []byte

// Add adds an event.
func (t MilterTold) Add(m *Milter) MilterTold { return pack.Nested(t, 'e', m.Append) }

// Events reads them.
func (t MilterTold) Events() (list []Milter, err error) {
	r := pack.NewReader(t)
	for r.Next() {
		if r.Tag() != 'e' {
			continue
		}
		var m Milter
		if err := m.Decode(r.Bytes()); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, r.Err()
}

func (*Milter) Kind() uint16 { return KindMilter }

func (m *Milter) Append(b []byte) []byte {
	b = pack.Uint(b, 's', m.Session)
	b = pack.Uint(b, 'e', m.Event)
	for i := range m.Specs {
		b = pack.Nested(b, 'f', m.Specs[i].Append)
	}
	for _, a := range m.Args {
		b = pack.Bytes(b, 'a', a)
	}
	for _, v := range m.Macros {
		b = pack.Bytes(b, 'm', v)
	}
	return pack.String(b, 't', m.Told)
}

func (m *Milter) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 's':
			m.Session = r.Uint()
		case 'e':
			m.Event = MilterEvent(r.Uint())
		case 'f':
			var s mailfilter.Spec
			if err := s.Decode(r.Bytes()); err != nil {
				return err
			}
			m.Specs = append(m.Specs, s)
		case 'a':
			m.Args = append(m.Args, r.String())
		case 'm':
			m.Macros = append(m.Macros, r.String())
		case 't':
			m.Told = MilterTold(r.Bytes())
		}
	}
	return r.Err()
}

// MilterReply is what the filters say.
type MilterReply struct{ mailfilter.Verdict }

func (*MilterReply) Kind() uint16 { return KindMilterReply }

func (m *MilterReply) Append(b []byte) []byte {
	b = pack.Uint(b, 'a', m.Action)
	b = pack.Bool(b, 'h', m.Hold)
	if m.Reply != nil {
		b = pack.Int(b, 'c', m.Reply.Code)
		b = pack.String(b, 's', m.Reply.Status.String())
		b = pack.String(b, 't', m.Reply.Text)
	}
	return b
}

func (m *MilterReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'a':
			m.Action = mailfilter.Action(r.Uint())
		case 'h':
			m.Hold = r.Bool()
		case 'c':
			m.Reply = smtpwire.R(int(r.Int()), dsn.Status{}, "")
		case 's', 't':
			if m.Reply == nil {
				continue
			}
			if r.Tag() == 't' {
				m.Reply.Text = r.String()
				continue
			}
			st, err := dsn.ParseStatus(r.String())
			if err != nil {
				return err
			}
			m.Reply.Status = st
		}
	}
	return r.Err()
}
