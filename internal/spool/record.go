package spool

import (
	"encoding/binary"
	"hash/crc32"

	"posthaste/internal/pack"
)

// Sizes and marks of the format; the package comment has the whole of it.
const (
	blockSize  = 4096 // batches start at multiples of it, so that no acknowledged byte shares a block with a later write
	headerLen  = 72
	recMagic   = 0x31524850 // "PHR1"
	recVersion = 1
	recAlign   = 8
)

// Record types.
const (
	recMSG    = 1 + iota // a message: envelope, state, content
	recSTATE             // envelope and state again
	recDONE              // recipients with nothing more to do
	recBOOT              // first record of a process
	recCKPT              // the recovery point has moved
	recCLOSE             // last record of a process that ended well
	recLIST              // which messages earlier batches have
	recHANDED            // recipients that an agent has in hand
	numTypes
)

var typeNames = [numTypes]string{recMSG: "MSG", recSTATE: "STATE", recDONE: "DONE", recBOOT: "BOOT", recCKPT: "CKPT", recCLOSE: "CLOSE", recLIST: "LIST", recHANDED: "HANDED"}

// Record flags.
const (
	recFirst   = 1 << iota // of its batch
	recLast                // of its batch
	recAll                 // DONE: the message is gone
	recRemoved             // DONE: by an operator, not by delivery
	recDamaged             // MSG: the content failed its checksum when it was copied
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(p []byte) uint32 { return crc32.Update(0, castagnoli, p) }

// header is a record's header, decoded.
type header struct {
	typ, flags uint8
	version    uint16
	metaLen    uint32
	bodyLen    uint32
	segno      uint64
	seq        uint64
	number     uint64
	batch      uint64
	promised   uint64
	metaCRC    uint32
	bodyCRC    uint32
	salt       uint32
}

func (h *header) recLen() int64 { return headerLen + int64(h.metaLen) + int64(h.bodyLen) }

// span is the room that the record takes, padding included.
func (h *header) span() int64 { return alignUp(h.recLen(), recAlign) }

func alignUp(n, a int64) int64 { return (n + a - 1) &^ (a - 1) }

// startRecord appends a header of which seal fills in the rest.
func startRecord(b []byte, typ, flags uint8, number uint64, metaLen, bodyLen int, metaCRC, bodyCRC uint32) []byte {
	var h [headerLen]byte
	le := binary.LittleEndian
	le.PutUint32(h[0:], recMagic)
	h[4], h[5] = typ, flags
	le.PutUint16(h[6:], recVersion)
	le.PutUint32(h[8:], uint32(metaLen))
	le.PutUint32(h[12:], uint32(bodyLen))
	le.PutUint64(h[32:], number)
	le.PutUint32(h[56:], metaCRC)
	le.PutUint32(h[60:], bodyCRC)
	return append(b, h[:]...)
}

// seal completes a header once it is known where and when it goes. key is the
// spool's; see keyOf.
func seal(h []byte, flags uint8, segno, seq, batch, promised uint64, salt, key uint32) {
	le := binary.LittleEndian
	h[5] |= flags
	le.PutUint64(h[16:], segno)
	le.PutUint64(h[24:], seq)
	le.PutUint64(h[40:], batch)
	le.PutUint64(h[48:], promised)
	le.PutUint32(h[64:], salt)
	le.PutUint32(h[68:], crc32.Update(key^salt, castagnoli, h[:68]))
}

// keyOf is what the checksums of a spool's record headers start from, made of
// its identity, which nobody outside knows: without it a sender could put what
// looks like a record into the body of a message, and a crash could make it
// count.
func keyOf(uuid [16]byte) uint32 { return checksum(uuid[:]) }

// parseHeader decodes a record header. It is false for anything whose magic
// or checksum is wrong; what the fields say is for the caller to judge.
func parseHeader(b []byte, key uint32) (h header, ok bool) {
	if len(b) < headerLen {
		return h, false
	}
	le := binary.LittleEndian
	if le.Uint32(b) != recMagic {
		return h, false
	}
	h.salt = le.Uint32(b[64:])
	if crc32.Update(key^h.salt, castagnoli, b[:68]) != le.Uint32(b[68:]) {
		return h, false
	}
	h.typ, h.flags = b[4], b[5]
	h.version = le.Uint16(b[6:])
	h.metaLen = le.Uint32(b[8:])
	h.bodyLen = le.Uint32(b[12:])
	h.segno = le.Uint64(b[16:])
	h.seq = le.Uint64(b[24:])
	h.number = le.Uint64(b[32:])
	h.batch = le.Uint64(b[40:])
	h.promised = le.Uint64(b[48:])
	h.metaCRC = le.Uint32(b[56:])
	h.bodyCRC = le.Uint32(b[60:])
	return h, true
}

// Tags of the metadata of MSG and STATE. They are on disk: a tag's meaning
// never changes and a tag is never used again.
const (
	tagCreated    = 'q' // µs: the time in the queue ID
	tagEnvelope   = 'E'
	tagRecipients = 'R'
	tagNRcpt      = 'n'
	tagSize       = 'z'
	tagQueue      = 'Q'
	tagNext       = 'N' // µs
	tagAttempts   = 'A'
	tagFlags      = 'F'
	tagTrace      = 't'
	tagDone       = 'D' // bitmap
	tagOutcome    = 'O' // mail.Outcome, repeated
	tagWhere      = 'L' // Ref of the MSG record; absent in a MSG
	tagBigLen     = 'X' // content is in a file of its own, of this many bytes
	tagBigCRC     = 'Y' // of that file's trailer
	tagBack       = 'b' // STATE: the MSG record is in the same batch, this many bytes before this one
	tagBackLen    = 'l' // and this long
	tagHanded     = 'h' // what agents have in hand, repeated; also of HANDED
	tagTenant     = 'T' // of the envelope
)

// Tags of DONE, BOOT and CKPT.
const (
	tagRcpts     = 'r' // DONE: recipients indexes as varints
	tagVoid      = 'V' // BOOT: batches over this and under its own are void
	tagFromBatch = 'B' // BOOT, CKPT: recovery point
	tagFromSegno = 'S' // BOOT, CKPT: first segment to read
	tagExact     = 'x' // BOOT, CKPT: nothing is delivered without HANDED before
)

// Message flags, in tagFlags and in the index.
const (
	msgWarned = 1 << iota
	msgExpire
	msgNull    // null sender
	msgBig     // content in a file of its own
	msgDamaged // content known to be damaged
	msgLost    // index only: content is not where it should be
)

// meta is the metadata of a MSG or STATE record, its variable parts pointing
// into the record.
type meta struct {
	created    int64
	envelope   []byte
	recipients []byte
	hasEnv     bool
	nrcpt      uint32
	size       int64
	queue      uint8
	next       int64
	attempts   uint32
	flags      uint8
	trace      uint8
	tenant     []byte
	done       []byte
	outcomes   []byte // the 'O' fields, one after the other, as they stand
	handed     []byte // the 'h' fields, the same
	where      Ref
	back       uint32
	backLen    uint32
	bigLen     int64
	bigCRC     uint32
}

// append appends m's encoding.
func (m *meta) append(b []byte) []byte {
	b = pack.Int(b, tagCreated, m.created)
	if m.hasEnv {
		b = pack.Bytes(b, tagEnvelope, m.envelope)
		b = pack.Bytes(b, tagRecipients, m.recipients)
	}
	b = pack.Uint(b, tagNRcpt, m.nrcpt)
	b = pack.Int(b, tagSize, m.size)
	b = pack.Uint(b, tagQueue, m.queue)
	b = pack.Int(b, tagNext, m.next)
	b = pack.Uint(b, tagAttempts, m.attempts)
	b = pack.Uint(b, tagFlags, m.flags)
	b = pack.Uint(b, tagTrace, m.trace)
	if len(m.tenant) > 0 {
		b = pack.Bytes(b, tagTenant, m.tenant)
	}
	if len(m.done) > 0 {
		b = pack.Bytes(b, tagDone, m.done)
	}
	b = append(b, m.outcomes...)
	b = append(b, m.handed...)
	if !m.where.IsZero() {
		b = m.where.Append(b, tagWhere)
	}
	b = pack.Uint(b, tagBack, m.back)
	b = pack.Uint(b, tagBackLen, m.backLen)
	b = pack.Int(b, tagBigLen, m.bigLen)
	return pack.Uint(b, tagBigCRC, m.bigCRC)
}

// decode reads what append wrote. Nothing is copied but the outcomes, and
// those only when they do not stand together.
func (m *meta) decode(b []byte) error {
	r := pack.NewReader(b)
	pos := 0
	for {
		start := pos
		if !r.Next() {
			return r.Err()
		}
		pos = cap(b) - cap(r.Bytes()) + len(r.Bytes()) // Bytes is a slice of b
		switch r.Tag() {
		case tagCreated:
			m.created = r.Int()
		case tagEnvelope:
			m.envelope, m.hasEnv = r.Bytes(), true
		case tagRecipients:
			m.recipients = r.Bytes()
		case tagNRcpt:
			m.nrcpt = uint32(r.Uint())
		case tagSize:
			m.size = r.Int()
		case tagQueue:
			m.queue = uint8(r.Uint())
		case tagNext:
			m.next = r.Int()
		case tagAttempts:
			m.attempts = uint32(r.Uint())
		case tagFlags:
			m.flags = uint8(r.Uint())
		case tagTrace:
			m.trace = uint8(r.Uint())
		case tagTenant:
			m.tenant = r.Bytes()
		case tagDone:
			m.done = r.Bytes()
		case tagOutcome:
			m.outcomes = joined(m.outcomes, b[start:pos:pos])
		case tagHanded:
			m.handed = joined(m.handed, b[start:pos:pos])
		case tagWhere:
			if err := m.where.Decode(r.Bytes()); err != nil {
				return err
			}
		case tagBack:
			m.back = uint32(r.Uint())
		case tagBackLen:
			m.backLen = uint32(r.Uint())
		case tagBigLen:
			m.bigLen = r.Int()
		case tagBigCRC:
			m.bigCRC = uint32(r.Uint())
		}
	}
}

// joined is a and then b, which is not copied when a is empty.
func joined(a, b []byte) []byte {
	if a == nil {
		return b
	}
	return append(a, b...)
}

// msgAt is where the MSG record is that belongs to the STATE at ref.
func (m *meta) msgAt(ref Ref) Ref {
	if m.back == 0 || m.back > ref.Offset {
		return m.where
	}
	return Ref{File: ref.File, Segno: ref.Segno, Offset: ref.Offset - m.back, Length: m.backLen}
}

// point is a recovery point: everything that matters is in a batch from
// batch on, and those are in segments from segno on.
type point struct {
	batch, segno uint64
}

// appendMode appends what BOOT and CKPT say of how their process works.
func (e *engine) appendMode(b []byte) []byte { return pack.Bool(b, tagExact, e.exact) }

// isExact reads that.
func isExact(b []byte) (exact bool) {
	for r := pack.NewReader(b); r.Next(); {
		exact = exact || r.Tag() == tagExact && r.Bool()
	}
	return exact
}

func appendPoint(b []byte, p point) []byte {
	b = pack.Uint(b, tagFromBatch, p.batch)
	return pack.Uint(b, tagFromSegno, p.segno)
}

// decodePoint reads the metadata of BOOT and CKPT.
func decodePoint(b []byte) (p point, void uint64, err error) {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case tagFromBatch:
			p.batch = r.Uint()
		case tagFromSegno:
			p.segno = r.Uint()
		case tagVoid:
			void = r.Uint()
		}
	}
	return p, void, r.Err()
}
