package proto

import "posthaste/internal/pack"

// Kinds of messages about how providers take mail.
const (
	KindStanding      = 167
	KindStandingReply = 168
)

// Standing asks the queue manager how providers have taken mail, and what came back of it; or the suppress service, which
// knows the latter.
type Standing struct{ empty }

func (*Standing) Kind() uint16 { return KindStanding }

// StandingReply is what was counted.
type StandingReply struct {
	Book    []byte // as standing.Book.Encode has it; empty: nothing was counted
	Problem string // why it does not have all; empty: it has
}

func (*StandingReply) Kind() uint16 { return KindStandingReply }
func (m *StandingReply) Append(b []byte) []byte {
	return pack.String(pack.Bytes(b, 'b', m.Book), 'p', m.Problem)
}
func (m *StandingReply) Decode(payload []byte) error {
	r := pack.NewReader(payload)
	for r.Next() {
		switch r.Tag() {
		case 'b':
			m.Book = append([]byte(nil), r.Bytes()...)
		case 'p':
			m.Problem = r.String()
		}
	}
	return r.Err()
}
