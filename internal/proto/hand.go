package proto

import (
	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// Hand asks cleanup to make it durable that an agent is about to deliver a message to
// these recipients: what is in doubt after a crash is then known exactly
// (spool_exact_doubt). The answer, a RecordReply, comes when it is durable; a
// Refusal in it is why it is not. A message that is gone is no error.
type Hand struct {
	ID    mail.QueueID
	Index []int  // in the message's full envelope
	Relay string // the next host, or nexthop, for people
}

func (*Hand) Kind() uint16 { return KindHand }

func (m *Hand) Append(b []byte) []byte {
	b = pack.String(b, 'q', m.ID)
	for _, i := range m.Index {
		b = pack.Uint(b, 'i', uint64(i)+1)
	}
	return pack.String(b, 'r', m.Relay)
}

func (m *Hand) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'q':
			m.ID = mail.QueueID(r.String())
		case 'i':
			m.Index = append(m.Index, int(r.Uint())-1)
		case 'r':
			m.Relay = r.String()
		}
	}
	return r.Err()
}
