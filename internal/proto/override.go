package proto

import (
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// Kinds of messages about overrides (package override).
const (
	KindOverride      = 64
	KindOverrideReply = 65
)

// OverrideOp is what is to be done with overrides.
type OverrideOp uint8

const (
	OverrideList   OverrideOp = iota + 1 // say which there are
	OverridePut                          // Entry begins to hold, in place of one of the same kind and target
	OverrideRemove                       // that of Entry's kind and target holds no longer
)

// Override asks the queue manager about what is allowed for now. What was
// changed is on stable storage when it answers.
type Override struct {
	Op    OverrideOp
	Entry OverrideEntry
}

// An OverrideEntry is one of package override's entries.
type OverrideEntry struct {
	Of     string // kind: suspension
	Target string
	By     string
	Reason string
	Since  time.Time
	Until  time.Time
}

func (*Override) Kind() uint16 { return KindOverride }
func (m *Override) Append(b []byte) []byte {
	b = pack.Uint(b, 'o', m.Op)
	return pack.Nested(b, 'e', m.Entry.append)
}
func (m *Override) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'o':
			m.Op = OverrideOp(r.Uint())
		case 'e':
			if err := m.Entry.decode(r.Bytes()); err != nil {
				return err
			}
		}
	}
	return r.Err()
}

// OverrideReply is the answer.
type OverrideReply struct {
	Entries []OverrideEntry // OverrideList: those whose time is not over
	Found   bool            // OverrideRemove: there was one
	Waiting []int           // OverrideList: deferred messages that wait on account of each, as far as they have been looked at
	Refused string          // why it was not done
}

func (*OverrideReply) Kind() uint16 { return KindOverrideReply }
func (m *OverrideReply) Append(b []byte) []byte {
	for i := range m.Entries {
		b = pack.Nested(b, 'e', m.Entries[i].append)
	}
	b = pack.Bool(b, 'f', m.Found)
	for _, n := range m.Waiting {
		b = pack.Int(b, 'w', n+1)
	}
	return pack.String(b, 'r', m.Refused)
}
func (m *OverrideReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'e':
			var e OverrideEntry
			if err := e.decode(r.Bytes()); err != nil {
				return err
			}
			m.Entries = append(m.Entries, e)
		case 'f':
			m.Found = r.Bool()
		case 'w':
			m.Waiting = append(m.Waiting, int(r.Int())-1)
		case 'r':
			m.Refused = r.String()
		}
	}
	return r.Err()
}

func (e *OverrideEntry) append(b []byte) []byte {
	b = pack.String(b, 'k', e.Of)
	b = pack.String(b, 't', e.Target)
	b = pack.String(b, 'b', e.By)
	b = pack.String(b, 'r', e.Reason)
	b = mail.AppendTime(b, 's', e.Since)
	return mail.AppendTime(b, 'u', e.Until)
}

func (e *OverrideEntry) decode(field []byte) error {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case 'k':
			e.Of = r.String()
		case 't':
			e.Target = r.String()
		case 'b':
			e.By = r.String()
		case 'r':
			e.Reason = r.String()
		case 's':
			e.Since = mail.ReadTime(&r)
		case 'u':
			e.Until = mail.ReadTime(&r)
		}
	}
	return r.Err()
}
