package proto

import (
	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/queue"
)

// Due asks cleanup for deferred messages: the queue manager has only
// those in memory that are due next. Limit is DueLimit at most. They come in Entries with Known set, in order, and
// behind them the reply.
type Due struct{ queue.DueQuery }

// DueLimit is how many messages one Due may ask for.
const DueLimit = 1 << 20

func (*Due) Kind() uint16 { return KindDue }
func (m *Due) Append(b []byte) []byte {
	b = mail.AppendTime(b, 'a', m.After.Next)
	b = pack.Uint(b, 'n', m.After.Number)
	b = pack.Int(b, 'l', m.Limit)
	b = mail.AppendTime(b, 's', m.Sane)
	return mail.AppendTime(b, 'y', m.Amnesty)
}
func (m *Due) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'a':
			m.After.Next = mail.ReadTime(&r)
		case 'n':
			m.After.Number = r.Uint()
		case 'l':
			m.Limit = int(min(max(r.Int(), 1), DueLimit))
		case 's':
			m.Sane = mail.ReadTime(&r)
		case 'y':
			m.Amnesty = mail.ReadTime(&r)
		}
	}
	return r.Err()
}

// DueReply ends the answer to Due. Last is the mark of the last message that
// was looked for; Whole: none is due behind it.
type DueReply struct {
	Last  queue.Mark
	Whole bool
}

func (*DueReply) Kind() uint16 { return KindDueReply }
func (m *DueReply) Append(b []byte) []byte {
	b = mail.AppendTime(b, 'a', m.Last.Next)
	b = pack.Uint(b, 'n', m.Last.Number)
	return pack.Bool(b, 'w', m.Whole)
}
func (m *DueReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'a':
			m.Last.Next = mail.ReadTime(&r)
		case 'n':
			m.Last.Number = r.Uint()
		case 'w':
			m.Whole = r.Bool()
		}
	}
	return r.Err()
}

// Page asks cleanup for messages of the queue: those of Numbers, PageNumbers at most, or some of all
// from Cursor on, 0 being the beginning. They are as they are durable when the
// reply is made. A change that was asked for before need not be among that.
type Page struct {
	Cursor  uint64
	Numbers []uint64
}

// PageNumbers is how many messages Page.Numbers may name.
const PageNumbers = 1000

func (*Page) Kind() uint16 { return KindPage }
func (m *Page) Append(b []byte) []byte {
	b = pack.Uint(b, 'c', m.Cursor)
	for _, n := range m.Numbers {
		b = pack.Uint(b, 'n', n)
	}
	return b
}
func (m *Page) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'c':
			m.Cursor = r.Uint()
		case 'n':
			m.Numbers = append(m.Numbers, r.Uint())
		}
	}
	return r.Err()
}

// PageReply has the messages, those that there are, in no particular order, and the cursor to
// go on with, 0 at the end.
type PageReply struct {
	Entries []queue.Placed // Next is 0 with Numbers
	Next    uint64
}

func (*PageReply) Kind() uint16 { return KindPageReply }
func (m *PageReply) Append(b []byte) []byte {
	for i := range m.Entries {
		b = m.Entries[i].Entry.Append(b, 'e')
		b = pack.Uint(b, 'c', m.Entries[i].Next)
	}
	return pack.Uint(b, 'n', m.Next)
}
func (m *PageReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'e':
			var e queue.Placed
			if err := e.Entry.Decode(r.Bytes()); err != nil {
				return err
			}
			m.Entries = append(m.Entries, e)
		case 'c':
			if n := len(m.Entries); n > 0 {
				m.Entries[n-1].Next = r.Uint()
			}
		case 'n':
			m.Next = r.Uint()
		}
	}
	return r.Err()
}
