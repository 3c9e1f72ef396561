package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"posthaste/internal/queue"
)

// recovery is the state of an opening spool.
type recovery struct {
	e            *engine
	rep          RecoveryReport
	boots        []boot
	known        bool              // the identity is known: some segment header was found, or IDENTITY
	told, second bool              // a segment's header says what the identity is; one of a version that has an IDENTITY
	hadIdentity  bool              // there is such a file
	copies       int               // sound records in it
	newest       map[uint64]uint64 // batches of the last records of messages, replayed since something was found damaged
	clock        int64             // µs: when the last message came of those replayed
	anyhow       bool              // salvage: go on whatever is missing
	unsure       []uint64          // messages that are on hold as nobody can tell whether they had left the queue
	restored     []uint64          // messages that are in the index by records from before the recovery point
	patience     patience          // with the segments
	idPatience   patience          // with IDENTITY, whose word others have as well
	maxBatch     uint64            // highest number seen anywhere
	maxSeq       uint64
	held         []*logBatch // read, and not replayed yet
	replayed     uint64      // batch number up to which all is accounted for
	anyUse       map[*segment]uint64
	lost         []loss // damage among what was durable
	tail         []*logBatch
	torn         []*logBatch // dropped; some of their records may be sound
	following    bool        // the log is being written by another process
	carried      uint64      // what a follower has replayed before; see read
	strayed      bool        // it cannot go on for now: what is next has not been read
	begun        bool        // a follower has begun to replay
	lastBoot     uint64      // and knew this BOOT, and those before it, then
	points       []told      // what it has read of recovery points behind that
	by           uint64      // the batch that told the recovery point that a follower began with; 0: a header did
	// Messages of which a follower knew more before a segment was used again, and of which the
	// batches that say what has become of them have not been replayed, with the last batch that
	// was; nil: nothing was followed.
	owed  map[uint64]uint64
	exact bool // the last process recorded each HANDED before the delivery: see doubt
}

// loss is a batch, or several before it, that was durable and is damaged or
// gone. It is none when a later checkpoint says that the batch had ceased to
// matter: its segment may have been on its way to being used again.
type loss struct {
	num       uint64
	text      string
	seg       *segment // nil: not known where it was
	segno     uint64   // of its use then
	hurt      []hurt   // damaged records in it of which it is known whose they are
	anonymous bool     // there are others, or may be
}

// boot is a BOOT record: the batches over void and under num do not count.
type boot struct{ void, num uint64 }

func newRecovery(e *engine) *recovery {
	return &recovery{e: e, anyUse: map[*segment]uint64{}, newest: map[uint64]uint64{}, patience: patience{sleep: e.sleep}, idPatience: patience{sleep: e.sleep, goOn: true}}
}

// open recovers the log in e.dir, or starts one: section by section, what the
// package comment says under Recovery.
func (e *engine) open() (RecoveryReport, error) {
	r := newRecovery(e)
	if err := r.prepareDirs(); err != nil {
		return r.rep, err
	}
	if err := r.findSegments(); err != nil {
		return r.rep, err
	}
	if f := e.opt.Follower; f != nil {
		if err := r.resume(f); err != nil {
			return r.rep, err
		}
	} else if err := r.replay(); err != nil {
		return r.rep, err
	}
	if err := r.boot(); err != nil {
		return r.rep, err
	}
	if err := r.sweep(); err != nil {
		return r.rep, err
	}
	if err := r.leaveDamage(); err != nil {
		return r.rep, err
	}
	r.unwrap()
	if err := r.mendHeaders(); err != nil {
		return r.rep, err
	}
	return r.rep, e.regain()
}

// prepareDirs makes the directories, and makes durable the names in them: one
// may be there that the last process made and did not live to sync.
func (r *recovery) prepareDirs() error {
	e := r.e
	dirs := []string{path.Join(e.dir, segDir)}
	if !e.content.away { // that is settled when it is known what should be in it
		dirs = append(dirs, e.content.dir)
	}
	for _, dir := range dirs {
		if err := e.fs.MkdirAll(dir); err != nil {
			return fmt.Errorf("spool: %w; the spool's directory must belong to the mail system's user", err)
		}
		if e.planted(plantNoDirSyncStart) {
			continue
		}
		if err := e.fs.SyncDir(dir); err != nil {
			return fmt.Errorf("spool: %w", err)
		}
	}
	return nil
}

// findSegments opens the segment files and reads their headers.
func (r *recovery) findSegments() error {
	e := r.e
	if err := r.findIdentity(); err != nil {
		return err
	}
	names, err := e.fs.List(path.Join(e.dir, segDir))
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	for _, name := range names {
		file, ok := segNumber(name)
		if !ok {
			e.warn("spool: %s: not a segment: left alone", path.Join(e.dir, segDir, name))
			continue
		}
		e.nextFile = max(e.nextFile, file+1)
		if err := r.openSegment(file); err != nil {
			return fmt.Errorf("spool: %s: %w", segName(e.dir, file), err)
		}
	}
	if !r.known {
		e.random(e.uuid[:])
	}
	if err := r.unreadable(); err != nil {
		return err
	}
	if err := r.settleIdentity(); err != nil {
		return err
	}
	if e.key = keyOf(e.uuid); !r.known && r.anyhow {
		var ok bool
		if e.key, ok = r.deriveKey(); ok {
			r.alarm("neither %s nor any header can be read: the identity was worked out from the records", identityFile)
		} else {
			r.alarm("neither %s nor any header nor the first record of any segment can be read: no record can be verified", identityFile)
		}
	}
	if e.planted(plantNoSalt) {
		e.key = 0
	}
	if err := r.adoptSegments(); err != nil {
		return err
	}
	for _, s := range e.segs {
		e.mixed = e.mixed || s.size != e.lim.segSize
		e.largest = max(e.largest, s.size)
	}
	return nil
}

func (r *recovery) openSegment(file uint32) error {
	e := r.e
	f, err := e.fs.OpenWrite(segName(e.dir, file))
	if err != nil {
		return err
	}
	if !e.readOnly && !e.planted(plantNoPatience) {
		f = r.patience.file(f, segName(e.dir, file)) // until unwrap
	}
	s := &segment{file: file, f: f, state: segClosed}
	e.segs[file] = s // from here on closeFiles knows it
	if s.size, err = f.Size(); err != nil {
		return err
	}
	if e.planted(plantOneSize) {
		s.size = e.lim.segSize
	}
	var h segHeader
	b := make([]byte, headRoom)
	readAround(f, b, 0)
	found, err := h.read(b)
	if err != nil || !found {
		return err
	}
	return r.useHeader(s, &h)
}

// unreadable says what the disk did not give, and makes the start fail: what is
// there may be mail (invariant 4).
func (r *recovery) unreadable() error {
	if err := r.patience.err(); err != nil && !r.e.planted(plantUnreadFree) {
		return fmt.Errorf("spool: the start is refused: %w", err)
	}
	return nil
}

// unwrap gives the segments' files their own way of reading back.
func (r *recovery) unwrap() {
	for _, s := range r.e.segs {
		if f, ok := s.f.(*patientFile); ok {
			s.f = f.File
		}
	}
}

// findIdentity reads IDENTITY.
func (r *recovery) findIdentity() error {
	e := r.e
	id, found, copies, err := readIdentity(e.fs, e.dir, r.idPatience.file)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	r.hadIdentity, r.copies = found, copies
	if copies > 0 {
		r.known, e.uuid = true, id.uuid
	}
	return nil
}

// adoptSegments looks closer at files without a header.
func (r *recovery) adoptSegments() error {
	e := r.e
	sizes := e.sizesInUse()
	for _, s := range sorted(e.segs) {
		adopted := s.segno != 0 || r.adopt(s)
		if err := r.unreadable(); err != nil {
			return err
		}
		if (adopted || sizes[s.size]) && (s.size == e.lim.segSize || !e.planted(plantOtherSize)) {
			continue
		}
		// Its making was not finished.
		delete(e.segs, s.file)
		if err := errors.Join(s.f.Close(), e.fs.Remove(segName(e.dir, s.file))); err != nil {
			return fmt.Errorf("spool: %w", err)
		}
	}
	return nil
}

func (r *recovery) useHeader(s *segment, h *segHeader) error {
	e := r.e
	if r.known && h.uuid != e.uuid && r.anyhow {
		r.alarm("%s: it belongs to another spool (%x, not %x)", segName(e.dir, s.file), h.uuid, e.uuid)
		return nil
	}
	if r.known && h.uuid != e.uuid {
		return fmt.Errorf("it belongs to another spool (%x, not %x as %s or other segments say): move away what is not this spool's",
			h.uuid, e.uuid, identityFile)
	}
	r.known, r.told, e.uuid = true, true, h.uuid
	r.second = r.second || h.second
	s.segno, s.salt, s.firstBatch = h.segno, uint32(h.salt), h.firstBatch
	s.start = h.start
	if missing := int64(h.size) - s.size; missing > 0 {
		r.alarm("%s: %d octets shorter than it was", segName(e.dir, s.file), missing)
	}
	e.nextSegno = max(e.nextSegno, h.segno)
	e.promised = max(e.promised, h.promised)
	if h.from.batch > e.from.batch {
		e.from = h.from
	}
	r.maxBatch = max(r.maxBatch, h.firstBatch)
	return nil
}

// adopt learns from its records what a segment is whose header cannot be read.
// It is the latest use of which there are any: of former ones something may be
// left over. Without a single sound record the segment is free: there is nothing in it
// that anybody could use.
func (r *recovery) adopt(s *segment) bool {
	if head := make([]byte, 2*blockSize); readAround(s.f, head, 0) == 0 && isUnused(head) {
		return false // most are of this kind: the rest, of which there is much, need not be read
	}
	sc := scanner{w: window{f: s.f, size: s.size}, s: s, any: true, key: r.e.key}
	for off, ok := sc.find(blockSize); ok; off, ok = sc.find(off + recAlign) {
		if h, _ := sc.header(off); h.segno > s.segno {
			s.segno, s.salt, s.firstBatch = h.segno, h.salt, h.batch
			s.start = off / blockSize * blockSize
		}
	}
	if s.segno == 0 || r.e.planted(plantFreeHeadless) {
		s.segno = 0
		return false
	}
	s.headless = true
	r.e.nextSegno = max(r.e.nextSegno, s.segno)
	r.e.warn("spool: %s: its header is damaged, both copies: taken for segment %d by its records", segName(r.e.dir, s.file), s.segno)
	return true
}

// mendHeaders writes headers again that could not be read. The blocks have no
// batch in them (invariant 3).
func (r *recovery) mendHeaders() error {
	e := r.e
	b := make([]byte, blockSize)
	for _, s := range sorted(e.segs) {
		if !s.headless || s.state != segClosed {
			continue
		}
		h := segHeader{segno: s.segno, promised: e.promised, from: e.from, firstBatch: s.firstBatch,
			size: uint32(s.size), salt: uint64(s.salt), uuid: e.uuid, created: e.now().UnixMicro()}
		h.putBlock(b)
		if err := e.writeSync(s, [][]byte{b}, 0); err != nil {
			return err
		}
		s.headless = false
	}
	return nil
}

func (r *recovery) alarm(format string, args ...any) {
	r.rep.Alarms++
	r.e.warn("spool: damage: "+format, args...)
}

// findTail sorts out what is left: batches that nobody promised. A complete
// one may have been acknowledged and counts; a torn one was not and does not.
func (r *recovery) findTail() error {
	e := r.e
	r.expect(e.promised + 1)
	for _, b := range r.held {
		if b.bad && !e.planted(plantNotAtomic) || !r.verify(b) && !e.planted(plantNotAtomic) {
			r.rep.Torn++
			r.torn = append(r.torn, b)
			continue
		}
		r.tail = append(r.tail, b)
		r.anyUse[b.seg] = max(r.anyUse[b.seg], b.num)
	}
	r.held = nil
	if err := r.unreadable(); err != nil {
		return err
	}
	var top uint64 // the last complete boot: what it voids is in it again
	for _, b := range r.tail {
		if b.recs[0].h.typ == recBOOT {
			top = b.num
		}
	}
	r.tail = slices.DeleteFunc(r.tail, func(b *logBatch) bool { return r.voided(b.num, top) })
	return nil
}

// verify looks at the content in a batch, too.
func (r *recovery) verify(b *logBatch) bool {
	for i := range b.recs {
		h := &b.recs[i].h
		if h.bodyLen == 0 {
			continue
		}
		body := make([]byte, h.bodyLen)
		if readAround(b.seg.f, body, int64(b.recs[i].off)+headerLen+int64(h.metaLen)) > 0 || checksum(body) != h.bodyCRC && !r.e.planted(plantNoChecksum) {
			return false
		}
	}
	return len(b.recs) > 0
}

// apply makes the index say what b says.
func (r *recovery) apply(b *logBatch) {
	r.rep.Records += len(b.recs)
	r.rep.Clean = false
	for i := range b.recs {
		rc := &b.recs[i]
		switch rc.h.typ {
		case recMSG, recSTATE:
			r.applyState(b.seg, rc)
			if len(r.lost) > 0 {
				r.newest[rc.h.number] = b.num
			}
			if rc.h.typ == recMSG {
				r.clock = max(r.clock, rc.m.created)
			}
		case recDONE:
			r.applyDone(rc)
		case recHANDED:
			r.applyHanded(rc)
		case recBOOT, recCKPT:
			r.exact = rc.exact
			if rc.point.batch > r.e.from.batch && b.num <= r.e.promised {
				r.pass(rc.point)
			}
		case recCLOSE:
			r.rep.Clean = true
		}
	}
	r.e.idx.tidy()
}

// pass moves the recovery point on. A message whose newest record is from
// before it is dead (invariant 5): what says so may be in a segment that was
// being overwritten when the power went. When something after the point is
// missing that record may have been among it, and the message is kept.
func (r *recovery) pass(p point) {
	e := r.e
	e.from = p
	r.lost = slices.DeleteFunc(r.lost, func(l loss) bool { return l.num < p.batch })
	if len(r.lost) > 0 {
		return
	}
	e.removeStates(func(s *segment) bool { return s.firstBatch < p.batch })
	r.paid(p)
}

// passTail does the same for a recovery point in the tail. It holds for what
// is replayed, since segments may have been used again on its word: by an
// earlier recovery, which knew that the batch was durable. But only BOOT
// makes it sure, so no segment is used on its word before that is synced.
func (r *recovery) passTail() {
	e := r.e
	durable := e.from
	for _, b := range r.tail {
		for i := range b.recs {
			rc := &b.recs[i]
			if t := rc.h.typ; (t == recBOOT || t == recCKPT) && rc.point.batch > e.from.batch {
				r.pass(rc.point)
			}
		}
	}
	if e.from != durable {
		e.moved, e.from = e.from, durable
	}
}

func (r *recovery) applyState(s *segment, rc *rec) {
	e := r.e
	number := rc.h.number
	l := e.idx.edit(number)
	if l != nil {
		e.account(l, -1)
		delete(e.idx.more, number)
	} else {
		l = e.idx.insert(number)
	}
	*l = rc.m
	l.refSeg, l.tenant = s.file, e.tenants.number(rc.tenant)
	if more := loadDone(l, rc.done); more != nil {
		e.idx.more[number] = more
	}
	if l.flags&msgBig != 0 {
		e.idx.big[number] = rc.big
	}
	r.loadHanded(rc, l)
	where := rc.msg
	if rc.h.typ == recMSG {
		where = rc.ref(s)
	}
	if c := e.segs[where.File]; c != nil && c.segno == where.Segno && where.Segno != 0 &&
		where.Length >= headerLen && int64(where.Offset)+int64(where.Length) <= c.size {
		l.conSeg, l.conOff, l.conLen = where.File, where.Offset, where.Length
	} else {
		l.flags |= msgLost
	}
	r.settled(number, l.flags&msgLost != 0)
	e.account(l, 1)
}

func (r *recovery) applyDone(rc *rec) {
	e := r.e
	gone := rc.h.flags&recAll != 0
	if gone {
		r.settled(rc.h.number, false)
	}
	l := e.idx.edit(rc.h.number)
	if l == nil {
		return
	}
	e.account(l, -1)
	if !gone {
		more := e.idx.more[l.number]
		if err := queue.EachRcpt(rc.done, tagRcpts, func(i uint64) {
			if i < uint64(l.nrcpt) {
				more = setDone(l, more, i)
			}
		}); err != nil {
			r.alarm("DONE of message %s: %v", l.id(), err)
		}
		if more != nil {
			e.idx.more[l.number] = more
		}
		e.idx.settleHanded(l)
		gone = l.npending == 0
	}
	if gone {
		r.settled(l.number, false)
		e.idx.remove(l.number)
		return
	}
	e.account(l, 1)
}

// sweep removes content files that no message has, unless something is missing
// of the log, which may have said whose they are.
func (r *recovery) sweep() error {
	e := r.e
	names, err := e.content.fs.List(e.content.dir)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	have := map[string]bool{}
	for number := range e.idx.big {
		have[string(e.idx.find(number, &e.w.found).id())] = true
	}
	keep, err := r.unresolved()
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	for _, name := range names {
		if have[name] {
			delete(have, name)
			continue
		}
		if !isContent(name) {
			if foreign([]string{name}) != "" {
				e.warn("spool: %s: not a content file: left alone", e.content.name(name))
			}
			continue
		}
		if keep && !strings.HasSuffix(name, spentSuffix) {
			r.find(name, true, fmt.Sprintf("its content is in %s, and no message is known to have it: either it had left the queue, or its record is lost. It is kept while there is something in %s",
				e.content.dir, path.Join(e.dir, damagedDir)))
			continue
		}
		r.rep.Orphans++
		if err := e.content.fs.Remove(e.content.name(name)); err != nil {
			return fmt.Errorf("spool: %w", err)
		}
	}
	for number := range e.idx.big {
		if have[string(e.idx.find(number, &e.w.found).id())] {
			r.contentGone(e.idx.edit(number))
		}
		e.idx.tidy()
	}
	return nil
}

// unresolved says whether damage was found, now or at an earlier start, that nobody
// has dealt with.
func (r *recovery) unresolved() (bool, error) {
	names, err := r.e.fs.List(path.Join(r.e.dir, damagedDir))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return r.rep.Alarms > 0 || len(names) > 0, err
}

// closeFiles closes what the engine has open and gives up the lock.
func (e *engine) closeFiles() error {
	var errs []error
	e.mu.Lock()
	defer e.mu.Unlock()
	e.adopt()
	for _, s := range sorted(e.segs) {
		errs = append(errs, s.f.Close())
	}
	for _, s := range e.drop {
		errs = append(errs, s.f.Close())
	}
	if e.lock != nil {
		errs = append(errs, e.lock.Close())
	}
	return errors.Join(errs...)
}
