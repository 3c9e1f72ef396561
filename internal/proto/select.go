package proto

import (
	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

// Select asks the queue manager for messages by their properties, and has
// something done to them: to a page of the queue from Cursor on (0 starts), or
// to the messages IDs. A message is judged and then changed only if it is
// still as it was when it was judged.
type Select struct {
	Cursor int
	Where  []string       // package selection's Encode; none: all messages
	IDs    []mail.QueueID // only these; at most SelectIDs
	Verb   Verb           // 0: nothing is done
	Now    bool           // VerbExpire: return at once what is not on hold. What becomes an order is released for that
	Items  bool           // list what was selected, as List does
	Most   int            // with Items and without Verb: so many messages are enough for one answer; 0: as many as it has room for
}

// SelectIDs is how many messages Select.IDs may name.
const SelectIDs = 1000

func (*Select) Kind() uint16 { return KindSelect }
func (m *Select) Append(b []byte) []byte {
	b = pack.Int(b, 'c', m.Cursor)
	for _, w := range m.Where {
		b = pack.Bytes(b, 'w', w)
	}
	for _, id := range m.IDs {
		b = pack.Bytes(b, 'q', id)
	}
	b = pack.Uint(b, 'v', m.Verb)
	b = pack.Bool(b, 'n', m.Now)
	b = pack.Bool(b, 'i', m.Items)
	return pack.Int(b, 'm', m.Most)
}
func (m *Select) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'c':
			m.Cursor = int(r.Int())
		case 'w':
			m.Where = append(m.Where, r.String())
		case 'q':
			m.IDs = append(m.IDs, mail.QueueID(r.String()))
		case 'v':
			m.Verb = Verb(r.Uint())
		case 'n':
			m.Now = r.Bool()
		case 'i':
			m.Items = r.Bool()
		case 'm':
			m.Most = int(r.Int())
		}
	}
	return r.Err()
}

// SelectReply is what came of a page. What was done is on stable storage,
// flushes aside.
type SelectReply struct {
	IDs     []mail.QueueID // selected, and if there was something to do, done
	Items   []Item         // with Items: as IDs
	Octets  int64          // of all of them
	Failed  []string       // changes that were not recorded, and why
	Missed  int            // messages that changed each time they were judged: they are left alone
	Next    int            // the cursor to go on with; 0 at the end
	Refused string         // why nothing was done
	Unread                 // what of the queue was not read yet, in the answer to the first request
}

func (*SelectReply) Kind() uint16 { return KindSelectReply }
func (m *SelectReply) Append(b []byte) []byte {
	for _, id := range m.IDs {
		b = pack.Bytes(b, 'q', id)
	}
	for i := range m.Items {
		b = pack.Nested(b, 'i', m.Items[i].append)
	}
	b = pack.Int(b, 'o', m.Octets)
	for _, f := range m.Failed {
		b = pack.Bytes(b, 'f', f)
	}
	b = pack.Int(b, 'm', m.Missed)
	b = pack.Int(b, 'n', m.Next)
	return m.Unread.append(pack.String(b, 'r', m.Refused))
}
func (m *SelectReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'q':
			m.IDs = append(m.IDs, mail.QueueID(r.String()))
		case 'i':
			var it Item
			if err := it.decode(r.Bytes()); err != nil {
				return err
			}
			m.Items = append(m.Items, it)
		case 'o':
			m.Octets = r.Int()
		case 'f':
			m.Failed = append(m.Failed, r.String())
		case 'm':
			m.Missed = int(r.Int())
		case 'n':
			m.Next = int(r.Int())
		case 'r':
			m.Refused = r.String()
		default:
			m.Unread.decode(&r)
		}
	}
	return r.Err()
}
