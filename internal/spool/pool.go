package spool

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"posthaste/internal/reuse"
	"posthaste/internal/vfs"
)

// reap frees s if invariant 4 allows it.
func (e *engine) reap(s *segment) {
	if s.state != segClosed || s.lastBatch >= e.from.batch && !e.planted(plantRecyclePromised) {
		return
	}
	if s.live != 0 && !e.planted(plantRecycleLive) {
		return
	}
	s.freed = e.promised
	e.addFree(s)
}

// addFree puts s, in which nothing is that matters, among the free segments.
func (e *engine) addFree(s *segment) {
	s.state = segFree
	if s.size == e.lim.segSize {
		e.free = append(e.free, s)
	} else {
		e.odd = append(e.odd, s)
	}
}

// takeSegment gives a segment of need bytes or more to write to, and leaves so
// many free ones behind. If there are no more, one is made, if that may be; the
// error is ErrFull when there is none.
func (e *engine) takeSegment(leave int, create bool, need int64) (*segment, error) {
	var cause error
	for {
		e.mu.Lock()
		e.adopt()
		var s *segment
		if need <= e.lim.segSize && len(e.free) > leave {
			s = e.pickFree()
		} else if cause != nil || !create || need > e.lim.segSize {
			s = e.pickOdd(need)
		}
		if s != nil {
			s.state = segOpen
		}
		e.mu.Unlock()
		switch {
		case s != nil:
			return s, nil
		case cause != nil:
			return nil, fmt.Errorf("%w: no segment to write to: %w", ErrFull, cause)
		case !create:
			return nil, fmt.Errorf("%w: no segment to write to", ErrFull)
		case need > e.lim.segSize:
			cause = e.createOdd(need)
		default:
			cause = e.provide(leave + 1)
		}
		if errors.Is(cause, ErrBroken) {
			return nil, cause
		}
	}
}

// pickOdd takes, of the free segments that are not of the present size, the
// smallest that has need bytes. There are some after the size was changed, until
// others have taken their place (retireOdd), and when one batch needs more than
// the present size: what an earlier process accepted with larger segments must
// be written again as a whole. The caller holds mu.
func (e *engine) pickOdd(need int64) *segment {
	best := -1
	for i, s := range e.odd {
		if s.size >= need && (best < 0 || cmp.Or(cmp.Compare(s.size, e.odd[best].size), cmp.Compare(s.file, e.odd[best].file)) < 0) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	s := e.odd[best]
	e.odd = slices.Delete(e.odd, best, best+1)
	return s
}

// retireOdd has free segments of another size than the present one removed, once
// there are enough of that, or when it is they that keep others from being made.
// Smaller ones stay while the disk has no room: what becomes of mail can still be
// recorded in them. The caller holds mu.
func (e *engine) retireOdd(want int) {
	enough := len(e.free)+len(e.fresh) >= want
	var stay []*segment
	for _, s := range e.odd {
		if enough || !e.mayAdd() || e.diskLow && s.size > e.lim.segSize {
			delete(e.segs, s.file)
			e.drop = append(e.drop, s)
		} else {
			stay = append(stay, s)
		}
	}
	e.odd = stay
}

// batchLimit is how long a batch of several callers may become: the usual, or
// what the segments hold that are left, when these are of a former, smaller size and
// no other can be made.
func (e *engine) batchLimit() int64 {
	if !e.mixed {
		return e.lim.batch
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if len(e.free)+len(e.fresh) > 0 || len(e.odd) == 0 || !e.diskLow {
		return e.lim.batch
	}
	var room int64
	for _, s := range e.odd {
		room = max(room, s.size)
	}
	return min(e.lim.batch, room/2-blockSize)
}

// longest bounds one request. Of mail that was accepted with larger segments what
// becomes of it can be longer than is possible now with new mail.
func (e *engine) longest(adds bool) int64 {
	if adds {
		return e.lim.unit
	}
	return max(e.lim.unit, e.largest/2-blockSize)
}

// segFiles is how many segments of the present size the files take as much as. The
// caller holds mu.
func (e *engine) segFiles() int64 {
	n := int64(len(e.segs) + len(e.fresh))
	if !e.mixed {
		return n
	}
	var bytes int64
	for _, s := range e.segs {
		bytes += s.size
	}
	return (bytes+e.lim.segSize-1)/e.lim.segSize + int64(len(e.fresh))
}

// pickFree takes a free segment. The lowest file comes first, so that the log
// keeps to as few files as it can. The caller holds mu.
func (e *engine) pickFree() *segment {
	best := 0
	for i, s := range e.free {
		if s.file < e.free[best].file {
			best = i
		}
	}
	s := e.free[best]
	e.free[best] = e.free[len(e.free)-1]
	e.free = e.free[:len(e.free)-1]
	return s
}

// provenFree is how many segments a start would find to be free, whatever becomes
// of the last batch: one after the batch that made them free is durable.
func (e *engine) provenFree() (n int) {
	for _, s := range e.free {
		if s.freed < e.promised {
			n++
		}
	}
	return n
}

// adopt takes over what create made. The writer calls it, holding mu.
func (e *engine) adopt() {
	for _, s := range e.fresh {
		e.segs[s.file] = s
		e.free = append(e.free, s)
	}
	e.fresh = reuse.Truncated(e.fresh)
}

// create makes one more segment file, filled with zeros and durable, name
// included, so that writing to it later changes no metadata. It may be called
// by any goroutine. It does nothing when there are want free segments already, and
// gives up with errClosing when stop, if not nil, says so.
func (e *engine) create(want int, stop func() bool) error {
	e.createMu.Lock()
	defer e.createMu.Unlock()
	if err := e.isBroken(); err != nil {
		return err
	}
	e.mu.Lock()
	enough := len(e.free)+len(e.fresh) >= want
	e.mu.Unlock()
	if enough {
		return nil
	}
	s, err := e.makeSegment(e.lim.segSize, stop)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fresh = append(e.fresh, s)
	return nil
}

// createOdd is create for one that holds need bytes, more than the usual. The
// writer calls it.
func (e *engine) createOdd(need int64) error {
	e.createMu.Lock()
	defer e.createMu.Unlock()
	s, err := e.makeSegment(alignUp(need, blockSize), nil)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mixed, e.largest = true, max(e.largest, s.size)
	e.segs[s.file] = s
	e.odd = append(e.odd, s)
	return nil
}

// makeSegment makes the file of a segment, unless stop says that it is not wanted any
// more: errClosing. The caller holds createMu.
func (e *engine) makeSegment(size int64, stop func() bool) (*segment, error) {
	if free, err := e.freeBytes(path.Join(e.dir, segDir), size); err == nil && free < size {
		return nil, errNearlyFull // without filling it up to see that
	}
	e.mu.Lock()
	file := e.nextFile
	e.nextFile++ // never used again, even when this fails: readers know files by number
	e.mu.Unlock()
	f, err := fillFile(e.fs, segName(e.dir, file), size, unusedMark(), stop)
	if err == errClosing {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("new segment: %w", err)
	}
	if !e.planted(plantNoDirSyncCreate) {
		if err := e.fs.SyncDir(path.Join(e.dir, segDir)); err != nil {
			f.Close()
			return nil, e.fail("sync of segment directory", err)
		}
	}
	return &segment{file: file, f: f, size: size}, nil
}

var errNearlyFull = errors.New("the file system is nearly full")

// zeros are never written to. They take no memory: all their pages are the one
// page of zeros that the system has.
var zeros [1 << 20]byte

// errClosing is that a segment is not made, as nobody will need it in this process.
var errClosing = errors.New("the spool is being closed")

// fillFile makes a file of zeros with head in front. On failure, or when stop, if not
// nil, says so, it is removed.
func fillFile(fs vfs.FS, name string, size int64, head []byte, stop func() bool) (vfs.File, error) {
	f, err := fs.Create(name)
	if err != nil {
		return nil, err
	}
	for off := int64(0); off < size && err == nil; off += int64(len(zeros)) {
		if stop != nil && stop() {
			err = errClosing
			break
		}
		_, err = f.WriteAt(zeros[:min(int64(len(zeros)), size-off)], off)
	}
	if err == nil && len(head) > 0 {
		_, err = f.WriteAt(head, 0)
	}
	if err == nil {
		err = f.Datasync()
	}
	if err != nil {
		f.Close()
		if rm := fs.Remove(name); rm != nil && err != errClosing { // the next start removes what was not finished
			err = errors.Join(err, rm)
		}
		return nil, err
	}
	return f, nil
}

// rotate closes the head of a stream and makes s the new one.
func (e *engine) rotate(s *segment, cold bool) segHeader {
	e.nextSegno++
	var r [8]byte
	e.random(r[:])
	h := segHeader{segno: e.nextSegno, promised: e.promised, from: e.from, firstBatch: e.batch,
		size: uint32(s.size), salt: binary.LittleEndian.Uint64(r[:]), uuid: e.uuid, created: e.now().UnixMicro()}
	if e.planted(plantNoSalt) {
		h.salt = 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.segno, s.salt, s.firstBatch, s.lastBatch = h.segno, uint32(h.salt), e.batch, 0
	s.off, s.start, s.headless = headRoom, headRoom, false
	s.statesFrom, s.contentsFrom = 0, 0
	s.cold, s.left, s.state = cold, time.Time{}, segOpen
	p := &e.head
	if cold {
		p = &e.cold
	}
	if old := *p; old != nil {
		e.seal(old)
	}
	*p = s
	return h
}

// seal closes the head of a stream, which is another now or none. The caller
// holds mu.
func (e *engine) seal(s *segment) {
	s.state = segClosed
	e.reap(s)
}
