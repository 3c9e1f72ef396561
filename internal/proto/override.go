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
	Dry   bool // OverridePut: nothing is changed; the reply says what the entry would be for
}

// An OverrideEntry is one of package override's entries.
type OverrideEntry struct {
	Of     string // kind: suspension, limit, diversion
	Target string
	By     string
	Reason string
	Since  time.Time
	Until  time.Time
	Most   int  // of a limit: deliveries at once
	Raises bool // of a limit: also where main.cf allows less
	// Of a diversion: where mail goes instead.
	Nexthop string
	// Of a setting: a key of shaping_files, and its value. Of a waiver Name is a kind.
	Name, Value string
}

// An OverrideUse is what a limit is for at the moment: the destinations in the queue
// manager's memory that keep to it, all together.
type OverrideUse struct {
	Destinations int
	Busy         int // deliveries under way
	Todo         int // deliveries that wait
}

func (*Override) Kind() uint16 { return KindOverride }
func (m *Override) Append(b []byte) []byte {
	b = pack.Uint(b, 'o', m.Op)
	b = pack.Bool(b, 'd', m.Dry)
	return pack.Nested(b, 'e', m.Entry.append)
}
func (m *Override) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'o':
			m.Op = OverrideOp(r.Uint())
		case 'd':
			m.Dry = r.Bool()
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
	Uses    []OverrideUse   // OverrideList: of each entry; OverridePut of a limit: of that one alone
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
	for i := range m.Uses {
		b = pack.Nested(b, 'u', m.Uses[i].append)
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
		case 'u':
			var u OverrideUse
			if err := u.decode(r.Bytes()); err != nil {
				return err
			}
			m.Uses = append(m.Uses, u)
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
	b = mail.AppendTime(b, 'u', e.Until)
	b = pack.Int(b, 'm', e.Most)
	b = pack.Bool(b, 'a', e.Raises)
	return pack.String(pack.String(pack.String(b, 'n', e.Nexthop), 'c', e.Name), 'v', e.Value)
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
		case 'm':
			e.Most = int(r.Int())
		case 'a':
			e.Raises = r.Bool()
		case 'n':
			e.Nexthop = r.String()
		case 'c':
			e.Name = r.String()
		case 'v':
			e.Value = r.String()
		}
	}
	return r.Err()
}

func (u *OverrideUse) append(b []byte) []byte {
	b = pack.Int(b, 'd', u.Destinations+1) // never empty: each entry of a list has one
	b = pack.Int(b, 'b', u.Busy)
	return pack.Int(b, 't', u.Todo)
}

func (u *OverrideUse) decode(field []byte) error {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case 'd':
			u.Destinations = int(r.Int()) - 1
		case 'b':
			u.Busy = int(r.Int())
		case 't':
			u.Todo = int(r.Int())
		}
	}
	return r.Err()
}
