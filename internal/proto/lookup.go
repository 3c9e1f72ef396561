package proto

import "posthaste/internal/pack"

// Kinds of the proxymap service's messages.
const (
	KindLookup      = 80
	KindLookupReply = 81
)

// Lookup asks the proxymap service for a key of a table. A lookup that
// fails has an error for a reply.
type Lookup struct {
	Table  string // type:name, as main.cf has it
	Key    string
	NoFold bool // the key is looked up in the letter case that it is in
}

func (*Lookup) Kind() uint16 { return KindLookup }
func (m *Lookup) Append(b []byte) []byte {
	b = pack.String(pack.String(b, 't', m.Table), 'k', m.Key)
	return pack.Bool(b, 'c', m.NoFold)
}
func (m *Lookup) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 't':
			m.Table = r.String()
		case 'k':
			m.Key = r.String()
		case 'c':
			m.NoFold = r.Bool()
		}
	}
	return r.Err()
}

// LookupReply is what the table has for the key, if anything.
type LookupReply struct {
	Found bool
	Value string
}

func (*LookupReply) Kind() uint16 { return KindLookupReply }
func (m *LookupReply) Append(b []byte) []byte {
	return pack.String(pack.Bool(b, 'f', m.Found), 'v', m.Value)
}
func (m *LookupReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'f':
			m.Found = r.Bool()
		case 'v':
			m.Value = r.String()
		}
	}
	return r.Err()
}

// Answer is what the service said to a question, for another process that would ask the same.
type Answer struct {
	To    Lookup
	Reply LookupReply
}

func (a *Answer) append(b []byte) []byte {
	return pack.Nested(pack.Nested(b, 'q', a.To.Append), 'r', a.Reply.Append)
}

func (a *Answer) decode(field []byte) error {
	r := pack.NewReader(field)
	for r.Next() {
		var err error
		switch r.Tag() {
		case 'q':
			err = a.To.Decode(r.Bytes())
		case 'r':
			err = a.Reply.Decode(r.Bytes())
		}
		if err != nil {
			return err
		}
	}
	return r.Err()
}
