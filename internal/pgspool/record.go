package pgspool

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/queue"
)

// Kinds of rows. They are in the database: a number never changes its meaning and is never used again.
const (
	rowMSG    = 1 + iota // a message: state, envelope, and content that is not long
	rowSTATE             // its state again, which replaces the former
	rowDONE              // recipients with nothing more to be done
	rowGONE              // the message has left the queue
	rowHANDED            // recipients that an agent has in hand
	rowPART              // a part of content
)

// Tags of a row's head, and of its rest. The same holds for them.
const (
	tagCreated  = 'q' // µs: the time in the queue ID
	tagNRcpt    = 'n'
	tagSize     = 'z'
	tagQueue    = 'Q'
	tagNext     = 'N' // µs
	tagAttempts = 'A'
	tagFlags    = 'F'
	tagTrace    = 't'
	tagTenant   = 'T' // of the envelope
	tagDone     = 'D' // bitmap
	tagHanded   = 'h' // a handing, repeated
	tagFirst    = 'f' // live.first
	tagRestSum  = 'k' // checksum of the rest
	tagMsgSeg   = 's' // STATE: where the MSG record is; both absent in a MSG
	tagMsgPos   = 'p'
	tagMsgLen   = 'l'
	tagBody     = 'B' // checksum of the content in the MSG row; absent when it has rows of its own
	tagBodyLen  = 'b' // octets of content
	tagBigSeg   = 'S' // where those rows are
	tagBigPos   = 'P'
	tagBigParts = 'M'
	tagRcpts    = 'r' // DONE: indexes, varints

	tagEnvelope   = 'E' // rest: absent in a STATE when the MSG record has it
	tagRecipients = 'R'
	tagOutcome    = 'O' // mail.Outcome, repeated
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum is the checksum of p in a row of this kind of message number. For parts of content, part tells them
// apart: a row that the database gives for another, or for another message, fails.
func sum(p []byte, kind uint8, number uint64, part int) uint32 {
	var b [17]byte
	b[0] = kind
	binary.LittleEndian.PutUint64(b[1:], number)
	binary.LittleEndian.PutUint64(b[9:], uint64(part))
	return crc32.Update(crc32.Checksum(b[:], castagnoli), castagnoli, p)
}

// sealHead returns head as it is stored: its checksum and it.
func sealHead(dst, head []byte, kind uint8, number uint64) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, sum(head, kind, number, 0))
	return append(dst, head...)
}

// openHead verifies what sealHead made.
func openHead(b []byte, kind uint8, number uint64) ([]byte, error) {
	if len(b) < 4 || binary.LittleEndian.Uint32(b) != sum(b[4:], kind, number, 0) {
		return nil, fmt.Errorf("%w: checksum", queue.ErrCorrupt)
	}
	return b[4:], nil
}

// A state is the head of a MSG or STATE row, decoded.
type state struct {
	live
	done    []byte
	handed  []handing
	restSum uint32
	bodySum uint32
	bodyLen int64
	big     place // parts 0: the content is in the MSG row
}

// appendState encodes the head of a row that says how s stands. here says that the row is a MSG.
func appendState(b []byte, s *state, here bool) []byte {
	b = pack.Int(b, tagCreated, s.created)
	b = pack.Uint(b, tagNRcpt, s.nrcpt)
	b = pack.Int(b, tagSize, s.size)
	b = pack.Uint(b, tagQueue, s.queue)
	b = pack.Int(b, tagNext, s.next)
	b = pack.Uint(b, tagAttempts, s.attempts)
	b = pack.Uint(b, tagFlags, s.flags)
	b = pack.Uint(b, tagTrace, s.trace)
	b = pack.String(b, tagTenant, s.tenantName())
	b = pack.Bytes(b, tagDone, s.done)
	for i := range s.handed {
		b = s.handed[i].Append(b, tagHanded)
	}
	b = pack.Uint(b, tagFirst, s.first)
	b = pack.Uint(b, tagRestSum, s.restSum)
	if !here {
		b = pack.Uint(b, tagMsgSeg, s.msgSeg)
		b = pack.Uint(b, tagMsgPos, s.msgPos)
		b = pack.Uint(b, tagMsgLen, s.msgLen)
	}
	b = pack.Uint(b, tagBody, s.bodySum)
	b = pack.Int(b, tagBodyLen, s.bodyLen)
	if s.big.parts > 0 {
		b = pack.Uint(b, tagBigSeg, s.big.seg)
		b = pack.Uint(b, tagBigPos, s.big.pos)
		b = pack.Uint(b, tagBigParts, s.big.parts)
	}
	return b
}

// decodeState reads what appendState wrote, from row pos of segment seg, with the number of the message.
// Nothing is kept of b.
func decodeState(b []byte, number uint64, seg, pos uint32) (s state, err error) {
	s.number, s.refSeg, s.refPos, s.msgSeg, s.msgPos, s.last = number, seg, pos, seg, pos, seg
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case tagCreated:
			s.created = r.Int()
		case tagNRcpt:
			s.nrcpt = uint32(r.Uint())
		case tagSize:
			s.size = r.Int()
		case tagQueue:
			s.queue = uint8(r.Uint())
		case tagNext:
			s.next = r.Int()
		case tagAttempts:
			s.attempts = uint32(r.Uint())
		case tagFlags:
			s.flags = uint8(r.Uint())
		case tagTrace:
			s.trace = uint8(r.Uint())
		case tagTenant:
			s.setTenant(r.Bytes())
		case tagDone:
			s.done = slices.Clone(r.Bytes())
		case tagHanded:
			h, err := queue.DecodeHanding(r.Bytes())
			if err != nil {
				return s, fmt.Errorf("%w: %w", queue.ErrCorrupt, err)
			}
			s.handed = append(s.handed, h)
		case tagFirst:
			s.first = uint32(r.Uint())
		case tagRestSum:
			s.restSum = uint32(r.Uint())
		default:
			s.readPlace(&r)
		}
	}
	if err := r.Err(); err != nil {
		return s, fmt.Errorf("%w: %w", queue.ErrCorrupt, err)
	}
	if s.nrcpt == 0 || s.nrcpt > queue.MaxRecipients || s.queue >= uint8(queue.Names) {
		return s, fmt.Errorf("%w: %d recipients, queue %d", queue.ErrCorrupt, s.nrcpt, s.queue)
	}
	s.big.size = s.bodyLen
	return s, nil
}

// readPlace reads the fields that say where the rest of the message is.
func (s *state) readPlace(r *pack.Reader) {
	switch r.Tag() {
	case tagMsgSeg:
		s.msgSeg = uint32(r.Uint())
	case tagMsgPos:
		s.msgPos = uint32(r.Uint())
	case tagMsgLen:
		s.msgLen = uint32(r.Uint())
	case tagBody:
		s.bodySum = uint32(r.Uint())
	case tagBodyLen:
		s.bodyLen = r.Int()
	case tagBigSeg:
		s.big.seg = uint32(r.Uint())
	case tagBigPos:
		s.big.pos = uint32(r.Uint())
	case tagBigParts:
		s.big.parts = uint32(r.Uint())
	}
}

// A rest is the part of a MSG or STATE row that the index does not need. Its fields point into the row.
type rest struct {
	envelope, recipients []byte
	hasEnv               bool
	outcomes             []byte // the tagOutcome fields, one after the other
}

func (s *rest) append(b []byte) []byte {
	if s.hasEnv {
		b = pack.Bytes(b, tagEnvelope, s.envelope)
		b = pack.Bytes(b, tagRecipients, s.recipients)
	}
	return append(b, s.outcomes...)
}

func decodeRest(b []byte) (s rest, err error) {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case tagEnvelope:
			s.envelope, s.hasEnv = r.Bytes(), true
		case tagRecipients:
			s.recipients, s.hasEnv = r.Bytes(), true
		case tagOutcome:
			s.outcomes = pack.Bytes(s.outcomes, tagOutcome, r.Bytes())
		}
	}
	if err := r.Err(); err != nil {
		return s, fmt.Errorf("%w: %w", queue.ErrCorrupt, err)
	}
	return s, nil
}

// eachRcpt calls f for each index in the head of a DONE.
func eachRcpt(b []byte, f func(i uint64)) error {
	if err := queue.EachRcpt(b, tagRcpts, f); err != nil {
		return fmt.Errorf("%w: recipients: %w", queue.ErrCorrupt, err)
	}
	return nil
}

// firstOf reads what the head of a GONE says of the oldest record that it ends.
func firstOf(b []byte) (first uint32) {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() == tagFirst {
			first = uint32(r.Uint())
		}
	}
	return first
}

// scanEnvelope takes from a stored envelope what the index wants to know.
func scanEnvelope(env []byte, l *live) error {
	g, err := mail.Glance(env)
	l.size, l.trace = g.Size, uint8(g.Trace)
	l.set(msgNull, g.Null)
	l.setTenant(g.Tenant)
	return err
}

// mergeOutcomes adds newer outcomes, encoded, to older ones. Newer ones take the place of older
// ones, and those of recipients that are done are left out. What would make the list longer than room is left out
// from its end, which has the older ones.
func mergeOutcomes(old []byte, now []mail.Outcome, done func(uint64) bool, room int) (out []byte) {
	have := make(map[int]bool, len(now))
	for i := range now {
		have[now[i].Rcpt] = true
		if now[i].Rcpt < 0 || done(uint64(now[i].Rcpt)) {
			continue
		}
		if next := now[i].Append(out, tagOutcome); len(next) <= room {
			out = next
		}
	}
	r := pack.NewReader(old)
	for r.Next() {
		i := outcomeRcpt(r.Bytes())
		if i < 0 || have[i] || done(uint64(i)) || len(out)+len(r.Bytes())+8 > room {
			continue
		}
		out = pack.Bytes(out, tagOutcome, r.Bytes())
	}
	return out
}

// outcomeRcpt is the recipient of an encoded outcome; -1 when it cannot be decoded.
func outcomeRcpt(field []byte) int {
	var o mail.Outcome
	if o.Decode(field) != nil {
		return -1
	}
	return o.Rcpt
}
