package queue

import (
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// An Entry is what the engine knows of one message without reading it.
type Entry struct {
	ID          mail.QueueID
	Ref         Ref // newest record of its envelope and state
	Queue       Name
	NextAttempt time.Time // zero: never set
	Attempts    int
	Size        int64 // of mail.Envelope
	NRcpt       int
	NPending    int  // recipients with something still to do
	Null        bool // the sender is null
	Trace       mail.Trace
	Warned      bool
	Expire      bool
	Tenant      string // of mail.Envelope; empty: it has none, or the engine knows too many others

	// Done is a bitmap of the recipients with nothing more to do, bit i%8 of
	// byte i/8 for recipient i; nil when there is none. The record at Ref may
	// know fewer of them: whoever reads it is given this, too.
	Done []byte
}

// Append appends e as one field.
func (e *Entry) Append(b []byte, tag byte) []byte {
	return pack.Nested(b, tag, func(b []byte) []byte {
		b = pack.String(b, 'q', e.ID)
		b = e.Ref.Append(b, 'r')
		b = pack.Uint(b, 'Q', e.Queue)
		b = mail.AppendTime(b, 'n', e.NextAttempt)
		b = pack.Int(b, 'a', e.Attempts)
		b = pack.Int(b, 's', e.Size)
		b = pack.Int(b, 'N', e.NRcpt)
		b = pack.Int(b, 'p', e.NPending)
		b = pack.Bool(b, '0', e.Null)
		b = pack.Uint(b, 't', e.Trace)
		b = pack.Bool(b, 'w', e.Warned)
		b = pack.Bool(b, 'e', e.Expire)
		b = pack.String(b, 'T', e.Tenant)
		return pack.String(b, 'd', e.Done)
	})
}

// Decode reads what Append wrote, given the field's bytes.
func (e *Entry) Decode(field []byte) error {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case 'q':
			e.ID = mail.QueueID(r.String())
		case 'r':
			if err := e.Ref.Decode(r.Bytes()); err != nil {
				return err
			}
		case 'Q':
			e.Queue = Name(r.Uint())
		case 'n':
			e.NextAttempt = mail.ReadTime(&r)
		case 'a':
			e.Attempts = int(r.Int())
		case 's':
			e.Size = r.Int()
		case 'N':
			e.NRcpt = int(r.Int())
		case 'p':
			e.NPending = int(r.Int())
		case '0':
			e.Null = r.Bool()
		case 't':
			e.Trace = mail.Trace(r.Uint())
		case 'w':
			e.Warned = r.Bool()
		case 'e':
			e.Expire = r.Bool()
		case 'T':
			e.Tenant = r.String()
		case 'd':
			e.Done = append([]byte(nil), r.Bytes()...)
		}
	}
	return r.Err()
}

// A Placed is an entry with the cursor of the page that begins behind it.
type Placed struct {
	Entry
	Next uint64 // the cursor; of an entry that was asked for by its number it is 0
}

// A Mark is a place in the order in which deferred messages are due: by their
// next attempt, and by number among those of the same microsecond. The zero Mark is before all.
type Mark struct {
	Next   time.Time
	Number uint64
}

// A DueQuery asks for deferred messages behind a mark, those that are due first.
type DueQuery struct {
	After Mark
	Limit int // how many, at least 1
	// A next attempt behind Sane counts as one at Amnesty, unless that is before After:
	// it was recorded when a clock was wrong, or nobody waits for it any more. A zero
	// Sane means that there is none.
	Sane, Amnesty time.Time
}
