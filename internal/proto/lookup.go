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
