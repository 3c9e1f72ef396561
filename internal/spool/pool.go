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
	s.state = segFree
	e.free = append(e.free, s)
}

// takeSegment gives a segment to write to. The lowest file comes first, so
// that the log keeps to as few files as it can.
func (e *engine) takeSegment() (*segment, error) {
	for {
		e.mu.Lock()
		e.adopt()
		best := -1
		for i, s := range e.free {
			if best < 0 || s.file < e.free[best].file {
				best = i
			}
		}
		if best >= 0 {
			s := e.free[best]
			e.free[best] = e.free[len(e.free)-1]
			e.free = e.free[:len(e.free)-1]
			s.state = segOpen
			e.mu.Unlock()
			return s, nil
		}
		e.mu.Unlock()
		if err := e.create(1); err != nil {
			return nil, err
		}
	}
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
	if len(e.free)+len(e.fresh) >= want {
		e.mu.Unlock()
		return nil
	}
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
	e.sealHead(cold)
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
	if cold {
		e.cold = s
	} else {
		e.head = s
	}
	return h
}

// sealHead closes the head of a stream.
func (e *engine) sealHead(cold bool) {
	p := &e.head
	if cold {
		p = &e.cold
	}
	if s := *p; s != nil {
		e.mu.Lock()
		s.state = segClosed
		*p = nil
		e.reap(s)
		e.mu.Unlock()
	}
}
