package proto

import (
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// Hand asks cleanup to make it durable that an agent is about to deliver a message to
// these recipients: what is in doubt after a crash is then known exactly
// (spool_exact_doubt). The answer, a RecordReply, comes when it is durable; a
// Refusal in it is why it is not. A message that is gone is no error.
type Hand struct {
	ID    mail.QueueID
	Index []int     // in the message's full envelope
	Relay string    // the next host, or nexthop, for people
	At    time.Time // when it was recorded; set in a HandsReply alone
}

func (*Hand) Kind() uint16 { return KindHand }

func (m *Hand) Append(b []byte) []byte {
	b = pack.String(b, 'q', m.ID)
	for _, i := range m.Index {
		b = pack.Uint(b, 'i', uint64(i)+1)
	}
	b = pack.String(b, 'r', m.Relay)
	return mail.AppendTime(b, 't', m.At)
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
		case 't':
			m.At = mail.ReadTime(&r)
		}
	}
	return r.Err()
}

// Hands asks cleanup what agents have in hand, as far as that was recorded while this cleanup had the
// queue: with Hand, or with Record. A queue manager asks whose predecessor died.
type Hands struct{ empty }

func (*Hands) Kind() uint16 { return KindHands }

// HandsReply is what is in hand now. More says that there is more than a reply has room for.
type HandsReply struct {
	List []Hand // HandsLimit at most
	More bool
}

// HandsLimit is how many deliveries a HandsReply names, and HandsRcpts how many recipients in all.
const (
	HandsLimit = 10000
	HandsRcpts = 100000
)

func (*HandsReply) Kind() uint16 { return KindHandsReply }

func (m *HandsReply) Append(b []byte) []byte {
	for i := range m.List {
		b = pack.Nested(b, 'h', m.List[i].Append)
	}
	return pack.Bool(b, 'm', m.More)
}

func (m *HandsReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'h':
			var h Hand
			if err := h.Decode(r.Bytes()); err != nil {
				return err
			}
			m.List = append(m.List, h)
		case 'm':
			m.More = r.Bool()
		}
	}
	return r.Err()
}
