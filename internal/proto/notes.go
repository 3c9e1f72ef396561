package proto

import "posthaste/internal/pack"

// Notes has cleanup publish a note of this node to the others that share its queue, in the place of the last one of the
// same topic, and returns theirs. It is for what is good for seconds, and of which nothing hangs on a single word: a note that
// is not renewed is forgotten after nodeshare.NoteTime.
type Notes struct {
	Topic string
	Note  []byte // nodeshare.NoteLimit octets at most; empty: there is nothing to say
}

func (*Notes) Kind() uint16 { return KindNotes }

func (m *Notes) Append(b []byte) []byte {
	b = pack.String(b, 't', m.Topic)
	return pack.String(b, 'n', m.Note)
}

func (m *Notes) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 't':
			m.Topic = r.String()
		case 'n':
			m.Note = append([]byte(nil), r.Bytes()...)
		}
	}
	return r.Err()
}

// NotesReply is what other nodes say of the topic, one note of each; none where there is one node only.
type NotesReply struct{ Notes [][]byte }

func (*NotesReply) Kind() uint16 { return KindNotesReply }

func (m *NotesReply) Append(b []byte) []byte {
	for _, n := range m.Notes {
		b = pack.String(b, 'n', n)
	}
	return b
}

func (m *NotesReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() == 'n' {
			m.Notes = append(m.Notes, append([]byte(nil), r.Bytes()...))
		}
	}
	return r.Err()
}
