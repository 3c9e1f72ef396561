package spool

import (
	"encoding/binary"
	"slices"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/reuse"
	"posthaste/internal/vfs"
)

func traceOf(l *live) mail.Trace { return mail.Trace(l.trace) }

// batchWriter is the log batch being made: the bytes, with room for a segment
// header in front, and what the index will say once they are durable. Long contents
// of new mail are not among the bytes, but written from where their callers have them: they
// wait until that is done, and to copy each would be a tenth of what the writer does.
type batchWriter struct {
	buf      []byte
	recs     []int    // where in buf record headers are
	lent     []lent   // contents that belong between the octets of buf, in order
	lentSum  int      // octets of those
	pieces   [][]byte // scratch, for vfs.WriteAll
	list     []staged
	staged   map[uint64]int // by message number, into list
	meta     []byte         // scratch
	read     []byte         // scratch
	empty    []*segment     // scratch
	copied   uint64         // of the batch, for Stats
	unlisted []listed       // what later batches have to list; see putList
	moved    uint64
	found    live  // scratch, for index.find
	unread   error // why something could not be read, since this was nil
	force    bool  // write it though there is nothing but a CKPT in it
	upkeep   bool  // it is maintenance
	leave    int   // how many free segments it must leave if it takes one
	most     int64 // bytes that maintenance puts into it
	full     int64 // bytes from which on what callers want goes into the next one
}

// lent is content that a caller has in memory until the batch is written.
type lent struct {
	at int // what is in buf from here on comes after it
	p  []byte
}

// minLent is from how many octets on content is lent, but see limits.lend: to write less from another place takes as
// long as to copy it.
const minLent = 2 << 10

// staged is how a message will stand after the batch.
type staged struct {
	number  uint64
	at      int // place in batchWriter.list
	live    live
	more    []uint64
	handed  []handing // what agents have in hand; not changed in place
	added   bool      // not in the index yet
	gone    bool
	refHere bool // live.refOff is an offset in the batch
	conHere bool
	refAt   int // where the header at refOff is in batchWriter.buf, if refHere
	conAt   int // the same of conOff
	bigLen  int64
}

func (w *batchWriter) size() int64 {
	if len(w.recs) == 0 {
		return 0
	}
	return int64(w.end() - headRoom)
}

// end is how much the batch has, with the room in front.
func (w *batchWriter) end() int { return len(w.buf) + w.lentSum }

func (e *engine) begin() {
	w := &e.w
	if w.buf == nil {
		w.buf = make([]byte, headRoom, headRoom+64<<10)
		w.staged = map[uint64]int{}
	}
	w.buf = w.buf[:headRoom]
	w.recs = reuse.Truncated(w.recs)
	w.release()
	clear(w.list)
	w.list = reuse.Truncated(w.list)
	clear(w.staged)
	w.copied, w.moved, w.force = 0, 0, false
	w.upkeep, w.leave, w.most = false, 0, 0
}

// record appends a record. What it gives is as with header.
func (w *batchWriter) record(typ, flags uint8, number uint64, meta, body []byte) (off uint32, at int) {
	off, at = w.header(typ, flags, number, meta, len(body), checksum(meta), checksum(body))
	w.buf = append(w.buf, body...)
	w.align()
	return off, at
}

// header appends a record without its content, and returns where its header is: in the batch, and
// in buf, which is the same when nothing is lent before it.
func (w *batchWriter) header(typ, flags uint8, number uint64, meta []byte, bodyLen int, metaCRC, bodyCRC uint32) (off uint32, at int) {
	off, at = uint32(w.end()), len(w.buf)
	w.recs = append(w.recs, at)
	w.buf = startRecord(w.buf, typ, flags, number, len(meta), bodyLen, metaCRC, bodyCRC)
	w.buf = append(w.buf, meta...)
	return off, at
}

// align fills the batch up to where a record may begin.
func (w *batchWriter) align() { w.fill(recAlign) }

func (w *batchWriter) fill(to int64) {
	n := int(alignUp(int64(w.end()), to)) - w.end()
	w.buf = append(w.buf, zeros[:n]...)
}

// lend has content stand behind what is there. It is read until the batch is written, or given up.
func (w *batchWriter) lend(p []byte) {
	w.lent = append(w.lent, lent{len(w.buf), p})
	w.lentSum += len(p)
}

// release forgets what was lent.
func (w *batchWriter) release() {
	clear(w.lent)
	w.lent, w.lentSum = reuse.Truncated(w.lent), 0
	clear(w.pieces)
	w.pieces = reuse.Truncated(w.pieces)
}

// gather gives the octets of the batch from that place in buf on, in order. There is nothing lent before it.
func (w *batchWriter) gather(from int) [][]byte {
	w.pieces = reuse.Truncated(w.pieces)
	for _, l := range w.lent {
		w.pieces = append(w.pieces, w.buf[from:l.at], l.p)
		from = l.at
	}
	w.pieces = append(w.pieces, w.buf[from:])
	return w.pieces
}

func (w *batchWriter) stage(s staged) *staged {
	s.at = len(w.list)
	w.staged[s.number] = s.at
	w.list = append(w.list, s)
	return &w.list[len(w.list)-1]
}

// stage gives the staged form of a live message, or nil when there is none.
func (e *engine) stage(number uint64, created int64) *staged {
	s, l := e.current(number)
	if l == nil || l.created != created {
		return nil
	}
	if s != nil {
		return s
	}
	return e.w.stage(staged{number: number, live: *l, more: append([]uint64(nil), e.idx.more[number]...), handed: e.idx.handedOf(number)})
}

// flush writes the batch being made, makes it durable, and lets the index
// know. An empty one costs nothing. Cold batches go to the segment of what
// the cleaner copies. ErrFull is that there is no segment to write it to, and
// that nothing has happened.
func (e *engine) flush(cold bool) error {
	w := &e.w
	defer w.release() // those whose content it is have it again as soon as they are told
	if len(w.recs) == 0 && !w.force {
		return nil
	}
	if err := e.isBroken(); err != nil {
		return err
	}
	moved := e.moved
	if moved != (point{}) {
		w.record(recCKPT, 0, 0, e.appendMode(appendPoint(nil, moved)), nil)
	}
	listed := e.putList()
	w.pad()
	if e.planted(plantFreeEarly) {
		e.plantFreeEarly()
	}
	if e.planted(plantSpendEarly) {
		e.noteGone()
		e.housekeep()
	}
	length := int64(w.end() - headRoom)
	s, at, err := e.place(cold, length)
	if err != nil {
		return err
	}
	e.sealRecords(s)
	from, written := headRoom, length
	if at == 0 { // with the segment's header
		from, written = 0, headRoom+length
	}
	pieces := w.gather(from)
	if !e.planted(plantAckEarly) && (!cold || !e.planted(plantCopyNoSync)) {
		if err := e.writeSync(s, pieces, at); err != nil {
			return err
		}
	} else if err := vfs.WriteAll(s.f, pieces, at); err != nil {
		return e.fail(segName("", s.file), err)
	}
	base := uint32(s.off - headRoom) // from offset in buf to offset in the segment
	e.mu.Lock()                      // for those who look at the engine from outside
	s.off += length
	e.promised = e.batch // invariant 2
	e.mu.Unlock()
	e.noteListed(listed)
	e.batch++
	e.apply(s, base, uint64(written))
	if moved != (point{}) {
		e.advance(moved)
	}
	return nil
}

// pad fills the batch up to a whole number of blocks: the next batch shares
// none with it (invariant 3).
func (w *batchWriter) pad() { w.fill(blockSize) }

// place finds where a batch of length bytes goes, and writes a segment
// header into the batch's front room when that is a new segment.
func (e *engine) place(cold bool, length int64) (s *segment, at int64, err error) {
	s = e.head
	if cold {
		s = e.cold
	}
	if s != nil && s.off+length <= s.size && (cold || !e.turn) {
		return s, s.off, nil
	}
	if s, err = e.takeSegment(e.w.leave, !e.w.upkeep || e.mayCreate(), headRoom+length); err != nil {
		return nil, 0, err
	}
	h := e.rotate(s, cold)
	h.put(e.w.buf[:headRoom])
	return s, 0, nil
}

func (e *engine) sealRecords(s *segment) {
	w := &e.w
	for i, off := range w.recs {
		var flags uint8
		if i == 0 {
			flags |= recFirst
		}
		if i == len(w.recs)-1 {
			flags |= recLast
		}
		if e.planted(plantNoFirst) {
			flags &^= recFirst
		}
		seal(w.buf[off:off+headerLen], flags, s.segno, e.seq, e.batch, e.promised, s.salt, e.key)
		e.seq++
	}
}

// noteGone notes the content files that the batch makes superfluous, for
// housekeep. The caller holds mu.
func (e *engine) noteGone() {
	for i := range e.w.list {
		st := &e.w.list[i]
		if !st.gone || st.live.flags&msgBig == 0 {
			continue
		}
		size := st.bigLen
		if !st.added {
			size = e.idx.big[st.number]
		}
		e.gone = append(e.gone, goneFile{string(st.live.id()), size})
	}
}

// writeSync is one write and one sync (invariants 1 and 8).
func (e *engine) writeSync(s *segment, pieces [][]byte, at int64) error {
	if err := vfs.WriteAll(s.f, pieces, at); err != nil {
		return e.fail("write of "+segName(e.dir, s.file), err)
	}
	err := s.f.Datasync()
	if err != nil && e.planted(plantRetrySync) {
		err = s.f.Datasync()
	}
	if err != nil {
		return e.fail("sync of "+segName(e.dir, s.file), err)
	}
	e.disk.answered()
	return nil
}

// apply makes the index say what is now durable.
func (e *engine) apply(seg *segment, base uint32, written uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	seg.lastBatch = e.promised
	e.stats.Batches++
	e.stats.Written += written
	e.stats.Copied += e.w.copied
	e.stats.Checkpoints += e.w.moved
	if !e.planted(plantSpendEarly) {
		e.noteGone()
	}
	for i := range e.w.list {
		st := &e.w.list[i]
		var l *live
		if st.added {
			if st.gone { // came and went in one batch
				e.bigSum -= st.bigLen
				continue
			}
			l = e.idx.insert(st.number)
			e.stats.AddedBytes += uint64(st.live.conLen)
			if st.live.flags&msgBig != 0 {
				e.idx.big[st.number] = st.bigLen
				e.bigSum -= st.bigLen // counted while it arrived; account counts it again
			}
		} else {
			l = e.idx.edit(st.number)
			old := *l
			e.account(l, -1)
			if st.gone {
				e.idx.remove(st.number)
			}
			for _, f := range [2]uint32{old.refSeg, old.conSeg} {
				if s := e.segs[f]; s != nil && s.live == 0 {
					e.w.empty = append(e.w.empty, s)
				}
			}
			if st.gone {
				continue
			}
		}
		if st.refHere {
			st.live.refSeg, st.live.refOff = seg.file, st.live.refOff+base
		}
		if st.conHere {
			st.live.conSeg, st.live.conOff = seg.file, st.live.conOff+base
		}
		*l = st.live
		e.idx.setBeside(st)
		e.account(l, 1)
	}
	e.idx.tidy()
	for _, s := range e.w.empty { // not before all new places are counted
		e.reap(s)
	}
	clear(e.w.empty)
	e.w.empty = reuse.Truncated(e.w.empty)
}

// putState stages a STATE record of s with outcomes, encoded, in place of its
// recipients' former ones. What cannot be read of its last state stays out.
func (e *engine) putState(s *staged, outcomes []byte) {
	e.w.unread = nil
	m, ok := e.readMeta(s)
	if !ok && e.w.unread != nil {
		m, ok = e.withoutState(s)
	}
	e.putStateOf(s, &m, ok, outcomes)
}

// putUpdated is putState for a caller. What it wants is recorded all the same if the
// last state cannot be read, but then the outcomes in that are gone: so a disk that
// fails for a moment is waited for. When that was in vain once, nobody is made to wait
// again for a while.
func (e *engine) putUpdated(s *staged, outcomes []byte) {
	e.w.unread = nil
	m, ok := e.readMeta(s)
	for _, pause := range pauses {
		if ok || e.w.unread == nil || e.now().Before(e.hasty) || e.planted(plantHasty) {
			break
		}
		e.sleep(pause)
		e.w.unread = nil
		m, ok = e.readMeta(s)
	}
	if !ok && e.w.unread != nil {
		e.hasty = e.now().Add(hastyTime)
		e.warn("spool: message %s: its last state cannot be read: what former attempts said is left out of the new one", s.live.id())
		m, ok = e.withoutState(s)
	}
	e.putStateOf(s, &m, ok, outcomes)
}

// hastyTime is how long reads that fail are not tried again after one that did not
// succeed in the end.
const hastyTime = time.Minute

// withoutState is what is known of s when its last state cannot be read now: the
// envelope stays where the message is. It is false when it was in that state only.
func (e *engine) withoutState(s *staged) (meta, bool) {
	return meta{bigLen: e.idx.big[s.number]}, s.live.conLen > 0
}

// putStateOf is putState with what readMeta gave.
func (e *engine) putStateOf(s *staged, m *meta, ok bool, outcomes []byte) {
	if !ok {
		s.live.queue, s.live.flags = uint8(Corrupt), s.live.flags|msgDamaged
	}
	e.fillMeta(s, m, outcomes)
	if len(m.envelope)+len(m.recipients) > e.lim.copyEnv {
		m.hasEnv = false // stays with the MSG record
	}
	w := &e.w
	switch seg := e.segs[s.live.conSeg]; {
	case s.conHere:
		// The MSG record is in this very batch, whose segment is not known yet.
		m.back, m.backLen = uint32(w.end())-s.live.conOff, s.live.conLen
	case seg != nil && s.live.conLen > 0:
		m.where = Ref{File: seg.file, Segno: seg.segno, Offset: s.live.conOff, Length: s.live.conLen}
	}
	w.meta = m.append(reuse.Truncated(w.meta))
	s.live.refOff, s.refAt = w.record(recSTATE, 0, s.number, w.meta, nil)
	s.live.refLen = uint32(headerLen + len(w.meta))
	s.live.refMeta = uint32(len(w.meta))
	s.refHere = true
}

// fillMeta brings m up to date with s.
func (e *engine) fillMeta(s *staged, m *meta, outcomes []byte) {
	l := &s.live
	m.created, m.nrcpt, m.size = l.created, l.nrcpt, l.size
	m.queue, m.next, m.attempts, m.flags, m.trace = l.queue, l.next, l.attempts, l.flags&^msgLost, l.trace
	m.tenant = []byte(e.tenants.name(l.tenant))
	m.done = doneBitmap(l, s.more)
	if e.planted(plantForgetDone) {
		m.done = nil
	}
	m.where, m.back, m.backLen = Ref{}, 0, 0
	m.handed = appendHandings(nil, s.handed)
	if e.planted(plantForgetHanded) {
		m.handed = nil
	}
	m.outcomes = mergeOutcomes(m.outcomes, outcomes, func(i uint64) bool { return isDone(l, s.more, i) },
		int(e.lim.state)-len(m.envelope)-len(m.recipients)-len(m.handed))
}

// mergeOutcomes joins two lists of outcomes, newer ones taking the place of
// older ones and those of finished recipients left out. What would make it
// longer than room is left out from the end, the older ones first.
func mergeOutcomes(old, now []byte, done func(uint64) bool, room int) []byte {
	if len(old) == 0 && len(now) == 0 {
		return nil
	}
	out := make([]byte, 0, min(len(old)+len(now), max(room, 0)))
	have := map[int64]bool{}
	add := func(list []byte, newer bool) {
		r := pack.NewReader(list)
		for r.Next() {
			i := outcomeRcpt(r.Bytes())
			if i < 0 || done(uint64(i)) || !newer && have[i] {
				continue
			}
			if newer {
				have[i] = true
			}
			if len(out)+len(r.Bytes())+4 <= room {
				out = pack.Bytes(out, tagOutcome, r.Bytes())
			}
		}
	}
	add(now, true)
	add(old, false)
	return out
}

// outcomeRcpt is the recipient of an encoded mail.Outcome, -1 when it is
// malformed.
func outcomeRcpt(field []byte) int64 {
	var i int64
	r := pack.NewReader(field)
	for r.Next() {
		if r.Tag() == '#' {
			i = r.Int()
		}
	}
	if r.Err() != nil {
		return -1
	}
	return i
}

// readMeta reads the newest metadata of s, from the batch being made or from
// the log, with the envelope from the MSG record when it is only there. It
// is false when the envelope cannot be had. The result points into a buffer
// of the batchWriter.
func (e *engine) readMeta(s *staged) (m meta, ok bool) {
	w := &e.w
	if s.refHere {
		m, ok = parseMeta(w.buf[s.refAt:], s.number)
	} else {
		w.read, m, ok = e.fetchMeta(reuse.Truncated(w.read), s.live.refSeg, s.live.refOff, s.live.refMeta, s.number)
	}
	if ok && m.hasEnv {
		return m, true
	}
	var from meta
	var found bool
	if s.conHere {
		from, found = parseMeta(w.buf[s.conAt:], s.number)
	} else if s.live.conLen > 0 {
		n := min(s.live.conLen-headerLen, maxMetaGuess)
		w.read, from, found = e.fetchMeta(w.read, s.live.conSeg, s.live.conOff, n, s.number)
	}
	if !found || !ok && w.unread != nil { // what could not be read is not damaged
		return m, false
	}
	if ok {
		m.envelope, m.recipients, m.hasEnv = from.envelope, from.recipients, true
		if m.bigCRC == 0 {
			m.bigLen, m.bigCRC = from.bigLen, from.bigCRC
		}
		return m, true
	}
	e.warn("spool: message %s: its last state is damaged: going by the index and the first record", s.live.id())
	return from, true
}

// maxMetaGuess is how much is read of a record whose metadata's length is
// not known; fetchMeta reads on when it was too little.
const maxMetaGuess = 8 << 10

// fetchMeta reads and verifies the metadata of a record, of about n bytes,
// behind what buf holds.
func (e *engine) fetchMeta(buf []byte, file, off, n uint32, number uint64) ([]byte, meta, bool) {
	s := e.segs[file]
	if s == nil {
		return buf, meta{}, false
	}
	start := len(buf)
	for {
		buf = slices.Grow(buf[:start], headerLen+int(n))[:start+headerLen+int(n)]
		b := buf[start:]
		if _, err := s.f.ReadAt(b, int64(off)); err != nil {
			e.warn("spool: message number %d: %v", number, err)
			e.w.unread = err
			return buf, meta{}, false
		}
		h, ok := parseHeader(b, e.key)
		if !ok || h.segno != s.segno || h.number != number {
			return buf, meta{}, false
		}
		if h.metaLen > n {
			if h.metaLen > uint32(s.size) {
				return buf, meta{}, false
			}
			n = h.metaLen
			continue
		}
		m, ok := decodeMeta(b[headerLen:headerLen+h.metaLen], &h)
		return buf, m, ok
	}
}

// parseMeta is fetchMeta for a record of the batch being made, which is not
// sealed yet.
func parseMeta(b []byte, number uint64) (m meta, ok bool) {
	le := binary.LittleEndian
	if le.Uint64(b[32:]) != number {
		return m, false
	}
	h := header{metaLen: le.Uint32(b[8:]), metaCRC: le.Uint32(b[56:])}
	return decodeMeta(b[headerLen:headerLen+h.metaLen], &h)
}

func decodeMeta(b []byte, h *header) (m meta, ok bool) {
	if checksum(b) != h.metaCRC {
		return m, false
	}
	return m, m.decode(b) == nil
}
