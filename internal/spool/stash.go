package spool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/vfs"
)

// The volatile area: see the chapter of the package comment. Files of it have the numbers from
// stashBase on, so that a Ref says by itself where its record is.
const (
	stashDir   = "volatile"
	stashBase  = 1 << 31
	stashFiles = 4
	// stashSize bounds a file, in bytes; the area has stashFiles times as much.
	stashSize = 8 << 20
	// stashRetry is how long the area is not used after a failed write.
	stashRetry = 10 * time.Second
	// maxWithdrawn bounds the messages that a start names.
	maxWithdrawn = 1000
)

// inStash says whether a record in this file is in the volatile area.
func inStash(file uint32) bool { return file >= stashBase }

// A stash is the volatile area of an open spool. Its methods may be called concurrently.
type stash struct {
	e     *engine
	mu    sync.Mutex
	size  int64 // of a file
	files [stashFiles]stashFile
	at    int       // the file that is written
	segno uint64    // of the last use of a file
	err   error     // the area cannot be used, for good or until a time
	until time.Time // from when on it is tried again; zero: it is not
	b     Batch     // scratch
	buf   []byte    // scratch
}

// A stashFile is one file of the area, and its present use.
type stashFile struct {
	f     vfs.File // nil: it was not used since the start
	segno uint64
	salt  uint32
	off   int64 // end of what is written
	live  int   // messages in it that nobody has dropped
}

// newStash makes the area of e. Nothing is written before it is used.
func newStash(e *engine) *stash { return &stash{e: e, size: stashSize, at: -1} }

// Stash writes a message with its content in memory into the volatile area, where a [Reader] finds it by the Ref
// of the entry, and nothing else does. It is not durable. Its place is kept until Drop. ErrFull says that there is
// no room: the oldest messages there are in the way. After a write that failed (ErrUnstored) the area is not used for
// stashRetry.
func (s *Spool) Stash(m Message) (Entry, error) { return s.stash.add(m) }

// Drop gives up the place of a message in the volatile area, which is kept by now, or done with: a start does not name
// it as withdrawn. Whoever reads it later is told ErrStale. Each message may be dropped once. settled says that its
// client is only now to be told: a start names it if the process was killed within a second.
func (s *Spool) Drop(ref Ref, settled bool) { s.stash.drop(ref, settled) }

func (s *stash) add(m Message) (Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Unlike the log the area may go on after a failed write: see the package comment.
	if s.err != nil && (s.until.IsZero() || s.e.now().Before(s.until)) {
		return Entry{}, s.err
	}
	b := &s.b
	b.Reset()
	i := b.Add(m)
	if b.err != nil || m.File != nil {
		return Entry{}, errors.Join(ErrInvalid, b.err)
	}
	o := &b.ops[i]
	length := headerLen + int64(o.hi-o.lo) + int64(len(o.body))
	f, err := s.room(alignUp(length, recAlign))
	if err != nil {
		return Entry{}, err
	}
	w := startRecord(s.buf[:0], recMSG, 0, o.number, o.hi-o.lo, len(o.body), o.metaCRC, o.bodyCRC)
	seal(w, recFirst|recLast, f.segno, 0, 0, 0, f.salt, s.e.key)
	w = append(append(w, b.buf[o.lo:o.hi]...), o.body...)
	w = append(w, make([]byte, alignUp(length, recAlign)-length)...)
	if s.buf = w; int64(cap(w)) > s.e.lim.inline*2 {
		s.buf = nil
	}
	if _, err := f.f.WriteAt(w, f.off); err != nil {
		return Entry{}, s.fail(err)
	}
	ref := Ref{File: stashBase + uint32(s.at), Segno: f.segno, Offset: uint32(f.off), Length: uint32(length)}
	f.off += int64(len(w))
	f.live++
	if s.err != nil {
		s.err, s.until = nil, time.Time{}
		s.e.warn("spool: the volatile area is used again")
	}
	l := &o.msg
	return Entry{ID: m.ID, Ref: ref, Queue: Queue(l.queue), NextAttempt: queue.FromMicros(l.next), Size: l.size, NRcpt: int(l.nrcpt),
		NPending: int(l.npending), Trace: traceOf(l), Null: l.flags&msgNull != 0, Tenant: o.tenant}, nil
}

// room is the file with room for n bytes more. A file is used again from its beginning when nothing in it is live, under
// another number, so that no record of before is taken for one of now.
func (s *stash) room(n int64) (*stashFile, error) {
	if headRoom+n > s.size {
		return nil, fmt.Errorf("%w: %d bytes in the volatile area", ErrTooLarge, n)
	}
	if s.at >= 0 && s.files[s.at].off+n <= s.size {
		return &s.files[s.at], nil
	}
	next := (s.at + 1) % stashFiles
	f := &s.files[next]
	if f.live > 0 {
		return nil, fmt.Errorf("%w: the volatile area", ErrFull)
	}
	if err := s.use(f, stashBase+uint32(next)); err != nil {
		return nil, s.fail(err)
	}
	s.at = next
	return f, nil
}

// use begins another use of a file.
func (s *stash) use(f *stashFile, number uint32) error {
	if f.f == nil {
		if err := s.e.fs.MkdirAll(path.Join(s.e.dir, stashDir)); err != nil {
			return err
		}
		var err error
		if f.f, err = s.e.fs.Create(segName(s.e.dir, number)); err != nil {
			return err
		}
	}
	var r [16]byte
	s.e.random(r[:])
	if s.segno == 0 {
		// Nobody who holds a reference of before must find something by it.
		s.segno = binary.LittleEndian.Uint64(r[8:])>>1 | 1
	}
	s.segno++
	f.segno, f.salt, f.off = s.segno, binary.LittleEndian.Uint32(r[:]), headRoom
	h := segHeader{segno: f.segno, size: uint32(s.size), salt: uint64(f.salt), uuid: s.e.uuid, created: s.e.now().UnixMicro()}
	b := make([]byte, headRoom)
	h.put(b)
	_, err := f.f.WriteAt(b, 0)
	return err
}

// fail has the area not used for a while. What is in it is still read. A disk that stays full is told of once.
func (s *stash) fail(err error) error {
	if s.err == nil {
		s.e.warn("spool: the volatile area is not used until a write succeeds, tried every %v: %v", stashRetry, err)
	}
	if s.err == nil || !s.until.IsZero() { // else it is over for good
		s.err, s.until = fmt.Errorf("%w: volatile area: %w", ErrUnstored, err), s.e.now().Add(stashRetry)
	}
	return s.err
}

// drop makes the record at ref one of a message that is over: a DONE of the same length, so that a start finds what is
// behind it.
func (s *stash) drop(ref Ref, settled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.files[(ref.File-stashBase)%stashFiles]
	if f.f == nil || f.segno != ref.Segno {
		return
	}
	f.live--
	var b [headerLen]byte
	if _, err := f.f.ReadAt(b[:], int64(ref.Offset)); err != nil {
		return // it is named once too often, should the process die
	}
	b[4] = recDONE
	var at uint64
	if settled {
		at = uint64(s.e.now().UnixMicro())
	}
	seal(b[:], recAll, f.segno, at, 0, 0, f.salt, s.e.key)
	if _, err := f.f.WriteAt(b[:], int64(ref.Offset)); err != nil {
		_ = s.fail(err)
	}
}

// close closes the files, and removes them if nothing is in them.
func (s *stash) close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.until = ErrClosed, time.Time{}
	for i := range s.files {
		f := &s.files[i]
		if f.f == nil {
			continue
		}
		err = errors.Join(err, f.f.Close())
		if f.f = nil; f.live == 0 {
			err = errors.Join(err, s.e.fs.Remove(segName(s.e.dir, stashBase+uint32(i))))
		}
	}
	return err
}

// empty names what the last process had in its volatile area and neither ended nor kept, and removes the files. What
// cannot be read there is passed over: nobody was told that it is queued.
func (s *stash) empty() (list []queue.Withdrawn, more int) {
	e := s.e
	dir := path.Join(e.dir, stashDir)
	names, err := e.fs.List(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			e.warn("spool: volatile area: %v", err)
		}
		return nil, 0
	}
	var all []leftover
	var last uint64
	for _, name := range names {
		left, err := e.leftIn(path.Join(dir, name))
		if err != nil {
			e.warn("spool: %s: %v", path.Join(dir, name), err)
		}
		for i := range left {
			last = max(last, left[i].settled)
		}
		all = append(all, left...)
		// Before anybody can write there: a name is not used twice.
		if err := e.fs.Remove(path.Join(dir, name)); err != nil {
			_ = s.fail(err)
			s.until = time.Time{}
		}
	}
	if len(names) > 0 {
		if err := e.fs.SyncDir(dir); err != nil {
			e.warn("spool: %s: %v; after a loss of power messages may be named as withdrawn once more", dir, err)
		}
	}
	for i := range all {
		_, kept := e.locate(all[i].ID)
		switch {
		// The process did not end before the last one was settled: whoever was told long before that has heard it.
		case kept, all[i].Settled && last-all[i].settled > uint64(replyTime.Microseconds()):
		case len(list) == maxWithdrawn:
			more++
		default:
			list = append(list, all[i].Withdrawn)
		}
	}
	return list, more
}

// replyTime is how long the answer to a submitter may be on its way.
const replyTime = time.Second

// A leftover is a message that a start finds in the area.
type leftover struct {
	queue.Withdrawn
	settled uint64 // when, in microseconds since 1970; 0: never
}

// leftIn finds the messages in a file of the area that were not dropped, and those that were settled.
func (e *engine) leftIn(name string) (list []leftover, err error) {
	f, err := e.fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, stashSize))
	readAround(f, b, 0)
	var h segHeader
	if len(b) < headRoom {
		return nil, nil
	}
	if ok, err := h.read(b[:headRoom]); !ok || err != nil || h.uuid != e.uuid {
		return nil, err
	}
	var magic [4]byte
	binary.LittleEndian.PutUint32(magic[:], recMagic)
	for off := int64(headRoom); off < int64(len(b)); {
		r, ok := parseHeader(b[off:], e.key)
		if !ok || r.segno != h.segno || r.salt != uint32(h.salt) || off+r.recLen() > int64(len(b)) {
			// Without power a piece may be missing.
			i := bytes.Index(b[off+1:], magic[:])
			if i < 0 {
				break
			}
			off = alignUp(off+1+int64(i), recAlign)
			continue
		}
		if r.typ == recMSG || r.typ == recDONE && r.seq != 0 {
			if m, ok := decodeMeta(b[off+headerLen:off+headerLen+int64(r.metaLen)], &r); ok {
				list = append(list, withdrawnOf(&r, &m))
			}
		}
		off += r.span()
	}
	return list, nil
}

// withdrawnOf says what message a record of the area is.
func withdrawnOf(h *header, m *meta) leftover {
	w := leftover{Withdrawn: queue.Withdrawn{ID: mail.MakeQueueID(time.UnixMicro(m.created), h.number), Settled: h.typ == recDONE}, settled: h.seq}
	var env mail.Envelope
	if env.Decode(m.envelope) == nil {
		w.Sender = env.Sender
	}
	if rcpts, err := mail.DecodeRecipients(nil, m.recipients, 0, -1); err == nil {
		for i := range rcpts {
			w.Recipients = append(w.Recipients, rcpts[i].Address)
		}
	}
	return w
}
