package spool

import (
	"bytes"
	"encoding/binary"

	"posthaste/internal/queue"
)

// rec is a record as read back, without content.
type rec struct {
	h      header
	off    uint32
	raw    []byte // metadata, as read
	m      live   // MSG, STATE: what the index will hold, places left out
	msg    Ref    // STATE: where its MSG record is
	tenant []byte // MSG, STATE
	done   []byte // MSG, STATE: bitmap; DONE: metadata
	handed []byte // MSG, STATE, HANDED: what agents have in hand
	exact  bool   // BOOT, CKPT
	big    int64
	point  point
	void   uint64
}

func (r *rec) ref(s *segment) Ref {
	return Ref{File: s.file, Segno: s.segno, Offset: r.off, Length: uint32(r.h.recLen())}
}

// logBatch is a batch as read back.
type logBatch struct {
	num  uint64
	seg  *segment
	recs []rec
	bad  bool   // something of it is missing or damaged
	hurt []hurt // damaged records of which it is known whose they are
	gap  bool   // there are others
	buf  []byte // what raw is in

	decoded chan struct{} // readAhead: takes one when decode is done
}

// keep copies what a record of b is to hold on to.
func (b *logBatch) keep(p []byte) []byte {
	if len(p) == 0 {
		return nil
	}
	n := len(b.buf)
	b.buf = append(b.buf, p...) // what was kept before may stay where it was
	return b.buf[n:len(b.buf):len(b.buf)]
}

// decode decodes the metadata of the records of b. Those that are damaged are records no more, and
// make the batch bad.
func (b *logBatch) decode() {
	n := 0
	for i := range b.recs {
		r := &b.recs[i]
		if !r.decode(b.seg) {
			b.bad = true
			b.hurt = append(b.hurt, hurtOf(&r.h, r.raw))
			continue
		}
		if n < i {
			b.recs[n] = *r
		}
		n++
	}
	clear(b.recs[n:])
	b.recs = b.recs[:n]
}

// scanner reads the batches of one segment.
type scanner struct {
	w window
	s *segment
	planter
	key      uint32
	from     int64  // where to begin, if not with the first batch
	growing  bool   // the log is being written: nothing is looked for behind a place where no batch begins
	any      bool   // take records of any segment: to find out which it is
	promised uint64 // highest promise seen
	maxBatch uint64
	maxSeq   uint64
	newer    bool // a sound record of a format that we do not know

	// spare, if not nil, gives batches that are done with for use again, and the batches of scan
	// are not decoded yet.
	spare func() *logBatch
}

// belongs says whether h is of the segment's present use. The segment number
// and the salt, which nobody outside knows, tell records from what was left
// over by a former use and from what somebody put into the content of a message.
func (sc *scanner) belongs(h *header) bool {
	if sc.planted(plantNoSegno) || sc.any {
		return true
	}
	return h.segno == sc.s.segno && h.salt == sc.s.salt
}

// header reads the record header at off.
func (sc *scanner) header(off int64) (h header, ok bool) {
	b := sc.w.at(off, headerLen)
	if len(b) < headerLen || binary.LittleEndian.Uint32(b) != recMagic {
		return h, false
	}
	if !sc.planted(plantNoSegno) && !sc.any && binary.LittleEndian.Uint64(b[16:]) != sc.s.segno {
		return h, false // most of what is left over, without the cost of a checksum
	}
	h, ok = parseHeader(b, sc.key)
	if !ok || !sc.belongs(&h) {
		return h, false
	}
	if h.version != recVersion || h.typ == 0 || h.typ >= numTypes {
		sc.newer = true
		return h, false
	}
	if off+h.recLen() > sc.s.size {
		return h, false
	}
	sc.promised = max(sc.promised, h.promised)
	sc.maxBatch = max(sc.maxBatch, h.batch)
	sc.maxSeq = max(sc.maxSeq, h.seq)
	return h, true
}

// find gives the first record header at or after off.
func (sc *scanner) find(off int64) (int64, bool) {
	var magic [4]byte
	binary.LittleEndian.PutUint32(magic[:], recMagic)
	for off < sc.s.size {
		if len(sc.w.at(off, headerLen)) < headerLen {
			return 0, false
		}
		b := sc.w.rest(off) // as much as has been read
		i := bytes.Index(b, magic[:])
		if i < 0 {
			off = alignUp(off+int64(len(b))-3, recAlign)
			continue
		}
		off = alignUp(off+int64(i), recAlign)
		if _, ok := sc.header(off); ok {
			return off, true
		}
		off += recAlign
	}
	return 0, false
}

// closes says whether nothing follows b in its segment: it is what a process has
// written last, and no other appends there (invariant 6).
func (b *logBatch) closes() bool {
	return !b.bad && b.recs[0].h.typ == recCLOSE
}

// scan calls f for each batch, in order, until it returns false or the log is
// closed: what is behind that has never been written in this use of the segment.
func (sc *scanner) scan(f func(*logBatch) bool) {
	pos := max(sc.s.start, blockSize, sc.from)
	for pos < sc.s.size {
		h, ok := sc.header(pos)
		if !ok && sc.looksMendable(pos) {
			if m, mended := sc.mend(pos); mended && m.flags&recFirst != 0 {
				h, ok = m, true
			}
		}
		if ok && (h.flags&recFirst != 0 || sc.planted(plantNoFirst)) {
			b, next := sc.batch(pos)
			if sc.spare == nil || sc.planted(plantStopAtBad) {
				b.decode()
			}
			bad, last := b.bad, b.closes() // f may have given it back
			if !f(b) || bad && sc.planted(plantStopAtBad) || last {
				return
			}
			pos = next
			continue
		}
		// Not the start of a batch: the end of the segment's use, or damage.
		if sc.growing || sc.planted(plantStopAtBad) {
			return
		}
		next, ok := sc.find(pos)
		if !ok {
			return
		}
		if h, _ := sc.header(next); next%blockSize == 0 && (h.flags&recFirst != 0 || sc.planted(plantNoFirst)) {
			pos = next
			continue
		}
		b, end := sc.batch(next)
		if sc.spare == nil {
			b.decode()
		}
		b.bad, b.gap = true, true
		if !f(b) {
			return
		}
		pos = end
	}
}

// batch reads the batch whose first record, or first sound record, is at
// pos, and says where the next may start. It is to be decoded.
func (sc *scanner) batch(pos int64) (*logBatch, int64) {
	first, ok := sc.header(pos)
	if !ok {
		first, _ = sc.mend(pos)
	}
	b := new(logBatch)
	if sc.spare != nil {
		b = sc.spare()
	}
	b.num, b.seg = first.batch, sc.s
	seq := first.seq
	for {
		h, ok := sc.header(pos)
		if !ok {
			b.bad = true
			if sc.looksMendable(pos) {
				if h, ok = sc.mend(pos); ok && h.batch == b.num && h.seq == seq {
					seq++
					b.hurt = append(b.hurt, hurtOf(&h, sc.w.at(pos+headerLen, int(h.metaLen))))
					pos += h.span()
					if h.flags&recLast != 0 {
						return b, alignUp(pos, blockSize)
					}
					continue
				}
			}
			b.gap = true
			next, found := sc.find(pos)
			if !found {
				return b, sc.s.size
			}
			h, _ = sc.header(next)
			if h.batch != b.num || h.flags&recFirst != 0 {
				return b, next
			}
			pos = next
		}
		if h.batch != b.num || h.flags&recFirst != 0 && len(b.recs)+len(b.hurt) > 0 {
			b.bad, b.gap = true, true
			return b, pos
		}
		if h.seq != seq {
			b.bad = true
		}
		seq = h.seq + 1
		sc.record(b, &h, pos)
		pos += h.span()
		if h.flags&recLast != 0 {
			return b, alignUp(pos, blockSize)
		}
	}
}

// segnoBytes is the segment's number as it stands in the headers of its records.
func (sc *scanner) segnoBytes() []byte {
	return binary.LittleEndian.AppendUint64(nil, sc.s.segno)
}

// record adds a record to b with its metadata as they are.
func (sc *scanner) record(b *logBatch, h *header, off int64) {
	b.recs = append(b.recs, rec{h: *h, off: uint32(off), raw: b.keep(sc.w.at(off+headerLen, int(h.metaLen)))})
}

// decode decodes the metadata of r, which is in s. It is false when they are damaged.
func (r *rec) decode(s *segment) bool {
	h, p := &r.h, r.raw
	if uint32(len(p)) < h.metaLen || checksum(p) != h.metaCRC {
		return false
	}
	switch h.typ {
	case recMSG, recSTATE:
		var m meta
		if m.decode(p) != nil || m.queue >= uint8(numQueues) || m.nrcpt > queue.MaxRecipients {
			return false
		}
		r.m = live{number: h.number, created: m.created, next: m.next, size: m.size, nrcpt: m.nrcpt,
			npending: m.nrcpt, attempts: m.attempts, queue: m.queue, flags: m.flags &^ msgLost, trace: m.trace,
			refOff: r.off, refLen: uint32(h.recLen()), refMeta: h.metaLen}
		r.tenant, r.done, r.handed, r.big = m.tenant, m.done, m.handed, m.bigLen
		r.msg = m.msgAt(r.ref(s))
	case recDONE, recLIST:
		r.done = p
	case recHANDED:
		r.handed = p
		return decodeHandings(p, func(handing) {}) == nil
	case recBOOT, recCKPT:
		point, void, err := decodePoint(p)
		if err != nil {
			return false
		}
		r.point, r.void, r.exact = point, void, isExact(p)
	}
	return true
}
