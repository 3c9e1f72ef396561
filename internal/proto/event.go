package proto

import (
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// Kinds of what is said to the events service.
const (
	KindEvents           = 100
	KindEventsReply      = 101
	KindEventStatus      = 102
	KindEventStatusReply = 103
	KindEventOrder       = 104
	KindEventOrderReply  = 105
)

// MaxEvent bounds the JSON of one event, in octets: one with a hundred recipients of the greatest length fits.
const MaxEvent = 128 << 10

// An EventRecord is one event for the journal.
type EventRecord struct {
	Kind string // as package event has it
	Key  string // what is kept in order: the queue ID; empty: nothing
	JSON []byte
}

// Append appends the fields of the record.
func (e *EventRecord) Append(b []byte) []byte {
	b = pack.String(b, 'k', e.Kind)
	b = pack.String(b, 'q', e.Key)
	return pack.Bytes(b, 'j', e.JSON)
}

// Decode reads what Append wrote. JSON then points into b.
func (e *EventRecord) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'k':
			e.Kind = r.String()
		case 'q':
			e.Key = r.String()
		case 'j':
			e.JSON = r.Bytes()
		}
	}
	return r.Err()
}

// Events hands events over to the journal, in order. The reply comes when they are on stable storage, or
// when it is known that they cannot be.
type Events struct{ List []EventRecord }

// Kind implements ipc.Message.
func (*Events) Kind() uint16 { return KindEvents }

// Append implements ipc.Message.
func (m *Events) Append(b []byte) []byte {
	for i := range m.List {
		b = pack.Nested(b, 'e', m.List[i].Append)
	}
	return b
}

// Decode implements ipc.Message.
func (m *Events) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() != 'e' {
			continue
		}
		var e EventRecord
		if err := e.Decode(r.Bytes()); err != nil {
			return err
		}
		m.List = append(m.List, e)
	}
	return r.Err()
}

// EventsReply ends an Events. With a Reason none of the events is kept: there is no room.
type EventsReply struct{ Reason string }

// Kind implements ipc.Message.
func (*EventsReply) Kind() uint16 { return KindEventsReply }

// Append implements ipc.Message.
func (m *EventsReply) Append(b []byte) []byte { return pack.String(b, 'r', m.Reason) }

// Decode implements ipc.Message.
func (m *EventsReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() == 'r' {
			m.Reason = r.String()
		}
	}
	return r.Err()
}

// EventStatus asks the events service how far its sinks are.
type EventStatus struct{ empty }

// Kind implements ipc.Message.
func (*EventStatus) Kind() uint16 { return KindEventStatus }

// EventStatusReply says it.
type EventStatusReply struct {
	Oldest, Next uint64 // the oldest event that is kept, and the number that the next one gets
	Octets       int64  // of the journal
	Refused      uint64 // events that there was no room for since the service began
	Sinks        []EventSink
}

// An EventSink is the state of one sink.
type EventSink struct {
	Name     string
	Target   string    // where it sends, without secrets
	Position uint64    // the event that it sends next
	Sent     uint64    // since the service began
	Dead     uint64    // events in its file of dead letters
	Lost     uint64    // events that the journal dropped before they were sent, since the service began
	Error    string    // why the last attempt failed; empty: it has not
	Failing  time.Time // since when attempts fail; zero: they do not
	Next     time.Time // when the next attempt is made; zero: none is due
}

// Kind implements ipc.Message.
func (*EventStatusReply) Kind() uint16 { return KindEventStatusReply }

// Append implements ipc.Message.
func (m *EventStatusReply) Append(b []byte) []byte {
	b = pack.Uint(b, 'o', m.Oldest)
	b = pack.Uint(b, 'n', m.Next)
	b = pack.Int(b, 's', m.Octets)
	b = pack.Uint(b, 'r', m.Refused)
	for i := range m.Sinks {
		b = pack.Nested(b, 'S', m.Sinks[i].append)
	}
	return b
}

// Decode implements ipc.Message.
func (m *EventStatusReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'o':
			m.Oldest = r.Uint()
		case 'n':
			m.Next = r.Uint()
		case 's':
			m.Octets = r.Int()
		case 'r':
			m.Refused = r.Uint()
		case 'S':
			var s EventSink
			if err := s.decode(r.Bytes()); err != nil {
				return err
			}
			m.Sinks = append(m.Sinks, s)
		}
	}
	return r.Err()
}

func (s *EventSink) append(b []byte) []byte {
	b = pack.String(b, 'n', s.Name)
	b = pack.String(b, 't', s.Target)
	b = pack.Uint(b, 'p', s.Position)
	b = pack.Uint(b, 's', s.Sent)
	b = pack.Uint(b, 'd', s.Dead)
	b = pack.Uint(b, 'l', s.Lost)
	b = pack.String(b, 'e', s.Error)
	b = mail.AppendTime(b, 'f', s.Failing)
	return mail.AppendTime(b, 'N', s.Next)
}

func (s *EventSink) decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'n':
			s.Name = r.String()
		case 't':
			s.Target = r.String()
		case 'p':
			s.Position = r.Uint()
		case 's':
			s.Sent = r.Uint()
		case 'd':
			s.Dead = r.Uint()
		case 'l':
			s.Lost = r.Uint()
		case 'e':
			s.Error = r.String()
		case 'f':
			s.Failing = mail.ReadTime(&r)
		case 'N':
			s.Next = mail.ReadTime(&r)
		}
	}
	return r.Err()
}

// EventVerb is what an EventOrder wants.
type EventVerb uint8

// What can be ordered.
const (
	EventReplay EventVerb = iota + 1 // send all from From on once more
	EventResend                      // send the dead letters once more
	EventRetry                       // make the next attempt now
)

// EventOrder orders something of a sink. The reply comes when it is done, or, for EventReplay and
// EventRetry, begun.
type EventOrder struct {
	Verb EventVerb
	Sink string
	From uint64 // EventReplay: a number; events that are not kept any more are left out
}

// Kind implements ipc.Message.
func (*EventOrder) Kind() uint16 { return KindEventOrder }

// Append implements ipc.Message.
func (m *EventOrder) Append(b []byte) []byte {
	b = pack.Uint(b, 'v', m.Verb)
	b = pack.String(b, 's', m.Sink)
	return pack.Uint(b, 'f', m.From)
}

// Decode implements ipc.Message.
func (m *EventOrder) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'v':
			m.Verb = EventVerb(r.Uint())
		case 's':
			m.Sink = r.String()
		case 'f':
			m.From = r.Uint()
		}
	}
	return r.Err()
}

// EventOrderReply says how many events are, or were, sent by that.
type EventOrderReply struct{ N uint64 }

// Kind implements ipc.Message.
func (*EventOrderReply) Kind() uint16 { return KindEventOrderReply }

// Append implements ipc.Message.
func (m *EventOrderReply) Append(b []byte) []byte { return pack.Uint(b, 'n', m.N) }

// Decode implements ipc.Message.
func (m *EventOrderReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() == 'n' {
			m.N = r.Uint()
		}
	}
	return r.Err()
}
