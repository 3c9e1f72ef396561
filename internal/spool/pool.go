package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"time"

	"posthaste/internal/vfs"
)

// reap frees s if invariant 4 allows it.
func (e *engine) reap(s *segment) {
	if s.state != segClosed || s.lastBatch >= e.from.batch && e.plant != plantRecyclePromised {
		return
	}
	if s.live != 0 && e.plant != plantRecycleLive {
		return
	}
	s.state, s.freed = segFree, e.promised
	e.free = append(e.free, s)
}

// takeSegment gives a segment to write to and leaves so many free ones behind.
// If there are no more, one is made, if that may be; the error is ErrFull when
// there is none.
func (e *engine) takeSegment(leave int, create bool) (*segment, error) {
	for {
		e.mu.Lock()
		e.adopt()
		if len(e.free) > leave {
			s := e.pickFree()
			s.state = segOpen
			e.mu.Unlock()
			return s, nil
		}
		e.mu.Unlock()
		if !create {
			return nil, fmt.Errorf("%w: no segment to write to", ErrFull)
		}
		if err := e.provide(leave + 1); errors.Is(err, ErrBroken) {
			return nil, err
		} else if err != nil {
			return nil, fmt.Errorf("%w: no segment to write to: %w", ErrFull, err)
		}
	}
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
	e.fresh = e.fresh[:0]
}

// create makes one more segment file, filled with zeros and durable, name
// included, so that writing to it later changes no metadata. It may be called
// by any goroutine. It does nothing when there are want free segments already.
func (e *engine) create(want int) error {
	e.createMu.Lock()
	defer e.createMu.Unlock()
	e.mu.Lock()
	enough := len(e.free)+len(e.fresh) >= want
	e.mu.Unlock()
	if enough {
		return nil
	}
	if free, err := e.freeBytes(path.Join(e.dir, segDir), e.lim.segSize); err == nil && free < e.lim.segSize {
		return errNearlyFull // without filling it up to see that
	}
	e.mu.Lock()
	file := e.nextFile
	e.nextFile++ // never used again, even when this fails: readers know files by number
	e.mu.Unlock()
	f, err := fillFile(e.fs, segName(e.dir, file), e.lim.segSize)
	if err != nil {
		return fmt.Errorf("new segment: %w", err)
	}
	if e.plant != plantNoDirSyncCreate {
		if err := e.fs.SyncDir(path.Join(e.dir, segDir)); err != nil {
			f.Close()
			return e.fail("sync of segment directory", err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fresh = append(e.fresh, &segment{file: file, f: f, size: e.lim.segSize})
	return nil
}

var errNearlyFull = errors.New("the file system is nearly full")

// zeros are never written to. They take no memory: all their pages are the one
// page of zeros that the system has.
var zeros [1 << 20]byte

// fillFile makes a file of zeros. On failure it is removed.
func fillFile(fs vfs.FS, name string, size int64) (vfs.File, error) {
	f, err := fs.Create(name)
	if err != nil {
		return nil, err
	}
	for off := int64(0); off < size && err == nil; off += int64(len(zeros)) {
		_, err = f.WriteAt(zeros[:min(int64(len(zeros)), size-off)], off)
	}
	if err == nil {
		err = f.Datasync()
	}
	if err != nil {
		f.Close()
		if rm := fs.Remove(name); rm != nil {
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
	if e.plant == plantNoSalt {
		h.salt = 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.segno, s.salt, s.firstBatch, s.lastBatch = h.segno, uint32(h.salt), e.batch, 0
	s.off, s.cold, s.left, s.state = blockSize, cold, time.Time{}, segOpen
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
