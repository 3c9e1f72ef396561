package spool

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"posthaste/internal/vfs"
)

// copies shows a Reader the copies of damaged segments in the directory for these, as segments
// with numbers of their own.
type copies struct {
	vfs.FS
	of map[string]string // their names as segments, to their paths
}

// Open implements vfs.FS.
func (c copies) Open(name string) (vfs.File, error) {
	if p, ok := c.of[name]; ok {
		name = p
	}
	return c.FS.Open(name)
}

// firstCopy is the number of the first of them: no log has as many segments.
const firstCopy = 1 << 31

// salvageCopies looks through the copies of damaged segments for messages of which the log knows nothing any
// more, and gives each, once, to yield. It may have been delivered since, for all that is known.
func (r *recovery) salvageCopies(lost func(string), yield func(rd *Reader, en Entry, sure bool) error) error {
	e := r.e
	names, err := e.fs.List(path.Join(e.dir, damagedDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".seg") })
	if err != nil || len(names) == 0 {
		return err
	}
	traces, err := r.survey()
	if err != nil {
		return err
	}
	over := copies{FS: e.fs, of: map[string]string{}}
	for i, name := range names {
		over.of[segName(e.dir, firstCopy+uint32(i))] = path.Join(e.dir, damagedDir, name)
	}
	rd := NewReader(over, e.dir)
	defer rd.Close()
	rd.key, rd.keyed = e.key, true
	found := map[uint64]Entry{}
	for i := range names {
		if err := r.scanCopy(over, firstCopy+uint32(i), traces, found); err != nil {
			lost(err.Error())
		}
	}
	for n, en := range found {
		if t := traces[n]; t != nil && t.gone {
			continue
		}
		if err := yield(rd, en, false); err != nil {
			lost("message " + string(en.ID) + ": " + err.Error())
		}
	}
	return nil
}

// scanCopy notes the messages in a copy that are not in the queue, and who has left it.
func (r *recovery) scanCopy(over copies, file uint32, traces map[uint64]*trace, found map[uint64]Entry) error {
	e := r.e
	f, err := over.Open(segName(e.dir, file))
	if err != nil {
		return err
	}
	defer f.Close() // only read from
	s := &segment{file: file, f: f}
	if s.size, err = f.Size(); err != nil {
		return err
	}
	var h segHeader
	b := make([]byte, headRoom)
	readAround(f, b, 0)
	if ok, _ := h.read(b); ok {
		s.segno, s.salt, s.start = h.segno, uint32(h.salt), h.start
	} else if !r.adopt(s) {
		return nil
	}
	sc := scanner{w: window{f: f, size: s.size}, s: s, key: e.key}
	sc.scan(func(b *logBatch) bool {
		for i := range b.recs {
			rc := &b.recs[i]
			n := rc.h.number
			if e.idx.has(n) {
				continue
			}
			switch {
			case rc.h.typ == recMSG:
				l := rc.m
				l.refSeg = file
				more := loadDone(&l, rc.done)
				found[n] = Entry{ID: l.id(), Ref: rc.ref(s), Queue: Hold, Size: l.size, NRcpt: int(l.nrcpt), NPending: int(l.npending),
					Attempts: int(l.attempts), Done: doneBitmap(&l, more), Trace: traceOf(&l), Null: l.flags&msgNull != 0, Tenant: string(rc.tenant)}
			case rc.h.typ == recDONE && rc.h.flags&recAll != 0:
				if traces[n] == nil {
					traces[n] = new(trace)
				}
				traces[n].gone = true
			}
		}
		return true
	})
	return nil
}
