package spool

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"path"
	"runtime/debug"
)

// A Follower reads the log of a spool that another process has open, and keeps the index that a
// recovery would make of it. Open then has to read only what was written since: how long nobody
// takes mail while one process hands the spool over to the next does not grow with the log, nor
// with the queue. It takes no lock and writes nothing. It costs the memory of a second index.
//
// Why it may be believed:
//
//   - It begins with headers of all segments as they were at one moment (settle): every record that
//     is before the recovery point and still matters is in one of those.
//   - It replays what a recovery would replay: batches that a later record promises, whole and in
//     order, without a gap. Anything else is left for the next Read, as it may be half written. Over
//     a gap that does not matter any more it gets by beginning anew, from a recovery point that a
//     durable record behind it tells.
//   - It follows one life of one process. When a BOOT comes it begins anew.
//   - A segment that is used again, or is removed, takes along what is known by it. All that still
//     matters of that is, by invariants 4 and 5, in batches to come. What of it has not come yet is
//     owed. What says that a message is gone may have been taken along as well: a message of which
//     nothing has come when a recovery point passes all that was replayed before is gone (paid).
//   - Open goes by it only if the predecessor has closed the log, nothing is owed, and nothing at
//     all is amiss. Otherwise it recovers as without it.
//
// It belongs to one goroutine at a time.
type Follower struct {
	o    Options
	e    *engine // nil: nothing has been read
	r    *recovery
	over bool // there is something in the log that a recovery has to deal with

	uuid [16]byte // of the spool that told is about
	told told     // where to begin when no header tells a point that is further
}

// told is a recovery point, and the batch whose word it is.
type told struct {
	point point
	num   uint64
}

// NewFollower makes one that has read nothing yet. The options are those that Open will have.
func NewFollower(o Options) *Follower { return &Follower{o: o} }

// readSince is how far a segment has been replayed.
type readSince struct {
	off int64  // of the last batch that was; 0: none was
	end int64  // where the next would begin
	num uint64 // of that batch
}

// errFollowed says that what a follower knows is of no use.
var errFollowed = errors.New("spool: the log is not as it was followed")

// errAnew says that a follower has to begin with nothing.
var errAnew = errors.New("spool: the log has to be followed from its recovery point again")

// Read replays what has been written since it was called last. It returns early when ctx ends, and
// reports nothing: what it cannot read Open will.
func (f *Follower) Read(ctx context.Context) {
	if f.over {
		return
	}
	before := f.records()
	err := f.read(ctx)
	for i := 1; i < readTries && errors.Is(err, errAnew); i++ {
		f.forgetAll()
		err = f.read(ctx)
	}
	if err != nil {
		f.forgetAll()
		f.over = !errors.Is(err, errAnew)
	}
	if f.records()-before > manyRecords {
		debug.FreeOSMemory() // now, and not when somebody waits
	}
}

// readTries bounds how often a Read begins: it has fallen behind, finds a gap then, and once more as
// the log is being written meanwhile.
const readTries = 4

// records is how many have been replayed.
func (f *Follower) records() int {
	if f.r == nil {
		return 0
	}
	return f.r.rep.Records
}

func (f *Follower) forgetAll() { f.e, f.r = nil, nil }

// closeSegments closes what was opened for reading.
func (e *engine) closeSegments() {
	for _, s := range sorted(e.segs) {
		s.closeRead()
	}
}

// read is one Read.
func (f *Follower) read(ctx context.Context) error {
	if f.e == nil {
		if err := f.begin(); err != nil {
			return err
		}
	}
	r, e := f.r, f.e
	defer e.closeSegments() // a file may be removed, and another have its name
	from, err := f.settle()
	if err != nil {
		return err
	}
	by := uint64(0)
	if f.told.point.batch > from.batch {
		from, by = f.told.point, f.told.num
	}
	if !r.following {
		r.following, e.from, r.by = true, from, by
		r.replayed = max(from.batch, 1) - 1
	}
	if from.batch > r.replayed+1 { // it has fallen behind the recovery point
		return errAnew
	}
	r.strayed, r.boots, r.held, r.points = false, nil, nil, nil
	r.carried = r.replayed
	err = r.read(ctx)
	next := r.passed()
	r.held, r.points = nil, nil
	switch {
	case err != nil:
		return err
	case r.rep.Alarms > 0 || len(r.lost) > 0:
		return errFollowed
	case r.baseless():
		f.told = told{}
		return errAnew
	case next.point.batch > r.replayed+1:
		f.told = next
		return errAnew
	}
	return nil
}

// tell notes the recovery points in b, which is not going to be replayed for now.
func (r *recovery) tell(b *logBatch) {
	for i := range b.recs {
		if t := b.recs[i].h.typ; !b.bad && (t == recBOOT || t == recCKPT) {
			r.points = append(r.points, told{b.recs[i].point, b.num})
		}
	}
}

// passed is the furthest recovery point in what is durable and could not be replayed, as something
// before it is missing. What is missing has ceased to matter if it is before that point: segments are
// removed on its word before any header has it. Zero: there is none.
func (r *recovery) passed() (p told) {
	if !r.strayed {
		return p
	}
	for _, b := range r.held {
		r.tell(b)
	}
	for _, t := range r.points {
		if t.num <= r.e.promised && !r.voided(t.num, r.e.promised) && t.point.batch > p.point.batch {
			p = t
		}
	}
	return p
}

// baseless says whether the batch does not count whose word the recovery point was that r began with:
// the BOOT that voids it had not been seen.
func (r *recovery) baseless() bool { return r.by > 0 && r.voided(r.by, r.e.promised) }

// begin learns which spool it is.
func (f *Follower) begin() error {
	o := f.o
	e, err := newEngine(&o, 0, func([]byte) {})
	if err != nil {
		return err
	}
	e.fs, e.readOnly, e.warn = readOnly{e.fs}, true, func(string, ...any) {}
	r := newRecovery(e)
	if err := r.findIdentity(); err != nil {
		return err
	}
	if r.copies == 0 {
		return errFollowed
	}
	e.key = keyOf(e.uuid)
	r.owed = map[uint64]uint64{}
	if f.uuid != e.uuid {
		f.uuid, f.told = e.uuid, told{}
	}
	f.e, f.r = e, r
	return nil
}

// settleLooks bounds how often the headers are read until they stay the same.
const settleLooks = 5

// settle reads the segments' headers. At first that is repeated until it gives the same twice:
// between the two all of them were so at once. Were some older than others, a segment could be taken
// for free that is not, and nothing that is replayed later would say so. When others
// use segments too fast for that, the error is errAnew.
func (f *Follower) settle() (from point, err error) {
	from, changed, err := f.look()
	for i := 1; err == nil && changed && !f.r.following; i++ {
		if i == settleLooks {
			return from, errAnew
		}
		from, changed, err = f.look()
	}
	return from, err
}

// look reads the segments' headers, and forgets what it knows by uses of segments that are over. from
// is the recovery point in them; changed says that some are not as they were. A segment whose
// header is being written is not in use yet: what is missing then is read the next time.
func (f *Follower) look() (from point, changed bool, err error) {
	e := f.e
	e.closeSegments()
	names, err := e.fs.List(path.Join(e.dir, segDir))
	if err != nil {
		return from, false, err
	}
	there, b := map[uint32]bool{}, make([]byte, headRoom)
	for _, name := range names {
		file, ok := segNumber(name)
		if !ok {
			continue
		}
		h, use, err := f.header(file, b)
		if err != nil {
			return from, false, err
		}
		changed = changed || use
		if there[file] = h != nil; h != nil && h.from.batch > from.batch {
			from = h.from
		}
	}
	for _, s := range sorted(e.segs) {
		if !there[s.file] {
			f.r.forget(e, s)
			changed = true
		}
	}
	return from, changed, nil
}

// header opens a segment and reads its header, which is nil in one that is not in use. changed says
// that it is another use than before.
func (f *Follower) header(file uint32, b []byte) (h *segHeader, changed bool, err error) {
	e := f.e
	in, err := e.fs.Open(segName(e.dir, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil // it has just been removed
	}
	if err != nil {
		return nil, false, err
	}
	s := &segment{file: file, f: in, state: segClosed}
	if s.size, err = in.Size(); err != nil {
		return nil, false, errors.Join(err, in.Close())
	}
	bad := readAround(in, b, 0)
	h = new(segHeader)
	found, err := h.read(b)
	if err == nil && (bad > 0 || found && h.uuid != e.uuid) {
		err = errFollowed
	}
	if err != nil || !found {
		return nil, false, errors.Join(err, in.Close())
	}
	s.segno, s.salt, s.firstBatch, s.start = h.segno, uint32(h.salt), h.firstBatch, h.start
	e.promised = max(e.promised, h.promised)
	old := e.segs[file]
	if old != nil && old.sameUse(s) {
		old.f = in
		return h, false, nil
	}
	if old != nil {
		f.r.forget(e, old)
	}
	e.segs[file] = s
	return h, true, nil
}

// sameUse says whether s and t are the same use of a file.
func (s *segment) sameUse(t *segment) bool {
	return s.segno == t.segno && s.salt == t.salt && s.firstBatch == t.firstBatch && s.size == t.size && s.start == t.start
}

// forget takes out of the index of e what is known by a use of a segment that is over, and notes that
// it is owed.
func (r *recovery) forget(e *engine, s *segment) {
	var room [leafLen]live
	for from := uint64(0); s.nstates > 0; {
		list, next, more := e.idx.page(from, inStates(s.file), &room)
		if !more {
			break
		}
		for i := range list {
			e.account(&list[i], -1)
			e.idx.remove(list[i].number)
			r.owed[list[i].number] = r.replayed
		}
		e.idx.tidy()
		from = next
	}
	for from := uint64(0); s.ncontents > 0; {
		list, next, more := e.idx.page(from, inContents(s.file), &room)
		if !more {
			break
		}
		for i := range list {
			l := e.idx.edit(list[i].number)
			e.account(l, -1)
			l.conSeg, l.conOff, l.conLen = 0, 0, 0
			l.flags |= msgLost
			e.account(l, 1)
			r.owed[l.number] = r.replayed
		}
		e.idx.tidy()
		from = next
	}
	s.closeRead()
	delete(e.segs, s.file)
	delete(r.anyUse, s)
}

func (s *segment) closeRead() {
	if s.f != nil {
		s.f.Close() // it was only read from
		s.f = nil
	}
}

// settled notes what a batch says of a message: all that is known of it, when it is not lost.
func (r *recovery) settled(number uint64, lost bool) {
	switch {
	case r.owed == nil: // nothing is followed
	case lost:
		r.owed[number] = r.replayed
	default:
		delete(r.owed, number)
	}
}

// paid forgets what is owed of messages that are gone by invariant 5, now that the recovery point has
// moved to p: of each that is alive there is a record from p on, and it has been replayed.
func (r *recovery) paid(p point) {
	maps.DeleteFunc(r.owed, func(_, since uint64) bool { return since < p.batch })
}

// carry has a recovery that has found the segments go on from what f has replayed.
func (r *recovery) carry(f *Follower) error {
	e, a := r.e, f.e
	if a == nil || f.over || a.uuid != e.uuid || !f.r.following || e.from.batch > f.r.replayed+1 {
		return errFollowed
	}
	for _, old := range sorted(a.segs) {
		if s := e.segs[old.file]; s == nil || !s.sameUse(old) {
			f.r.forget(a, old)
		}
	}
	for _, s := range sorted(e.segs) {
		if s.headless {
			return errFollowed
		}
		if old := a.segs[s.file]; old != nil {
			s.lastBatch, s.since = old.lastBatch, old.since
			s.live, s.stateLive, s.nstates, s.ncontents = old.live, old.stateLive, old.nstates, old.ncontents
			r.anyUse[s] = f.r.anyUse[old]
		}
	}
	e.idx, e.byQueue = a.idx, a.byQueue
	e.tenants.take(&a.tenants) // the index has their numbers
	e.liveSum, e.metaSum, e.stateSum, e.bigSum = a.liveSum, a.metaSum, a.stateSum, a.bigSum
	e.from, e.promised = a.from, max(e.promised, a.promised)
	r.maxBatch, r.maxSeq = max(r.maxBatch, f.r.maxBatch), max(r.maxSeq, f.r.maxSeq)
	r.rep.Records, r.rep.Ahead, r.clock, r.exact = f.r.rep.Records, f.r.rep.Records, f.r.clock, f.r.exact
	r.replayed, r.carried, r.owed, r.begun, r.lastBoot = f.r.replayed, f.r.replayed, f.r.owed, f.r.begun, f.r.lastBoot
	r.by = f.r.by
	f.forgetAll()
	return nil
}

// resume is replay from what f knows. The error is errFollowed when that will not do, and nothing
// was written then.
func (r *recovery) resume(f *Follower) error {
	defer f.forgetAll()
	point := r.e.from
	if err := r.carry(f); err != nil {
		return err
	}
	warn := r.e.warn
	defer func() { r.e.warn = warn }()
	r.e.warn = func(string, ...any) {} // who reads everything says it
	if err := r.read(context.Background()); errors.Is(err, errAnew) {
		return errFollowed
	} else if err != nil {
		return err
	}
	if err := r.findTail(); err != nil {
		return err
	}
	closed := len(r.tail) == 1 && r.tail[0].closes() && len(r.torn) == 0
	if !closed || r.baseless() || r.rep.Alarms > 0 || len(r.lost) > 0 || len(r.owed) > 0 || r.e.from.batch < point.batch {
		return errFollowed
	}
	r.rep.Followed, r.owed = true, nil
	return nil
}
