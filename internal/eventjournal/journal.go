// Package eventjournal keeps events on disk until all who are to receive them have them. One process writes
// it, the events service; it may be read in several places at the same time, each with a position of its own.
//
// # Files
//
// Segments, of SegmentSize octets each, have names that are the number of their first event in 16 hexadecimal
// digits. A segment is filled with zeros when it is made, so that an append is one write and one sync that
// changes no record of the file system. It begins with a header (magic, first number, time when it was made,
// checksum), and then has records: the length of the payload, a checksum of the event's number and the
// payload, the payload (pack: kind, key, JSON). What is written at once begins at a multiple of 4096 octets, so
// that a write which power fails in does not touch a sector with something that was confirmed before. A length of
// zero says that the next record is at the next multiple; there, it is the end.
//
// A position is a file "position.NAME" with two slots, which are written in turn, each with a counter and a
// checksum.
//
// # What is promised
//
// When Append has called back without an error the events are on stable storage, in the order in which they
// were appended, and with consecutive numbers; all that waits is written with one sync. Events that were not
// confirmed may be there after a crash, or not; there is never one after a missing one. After a failed sync
// nothing more is written (ErrBroken): the process ends, and the next one reads what is there.
//
// Space is bounded by Limit. When a new segment is needed and there are as many as Limit allows, the oldest is
// removed; who has not read it loses those events, and Reader.Next says how many. Segments that everybody has
// read are removed when Keep has passed, and at once where the disk is full.
package eventjournal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"posthaste/internal/proto"
	"posthaste/internal/reuse"
	"posthaste/internal/vfs"
)

const (
	// DefaultSegment is how large a segment is, in octets.
	DefaultSegment = 8 << 20
	// MinSegments is how many segments there may be at least.
	MinSegments = 4

	// align is the size of the largest sectors. Each write begins at a multiple of it.
	align      = 4096
	headerSize = align
	headerUsed = 28
	recordHead = 8
	magic      = "PHEVENT\x01"
	// maxBatch bounds one write, and so what a torn one may leave behind the end.
	maxBatch = 1 << 20
)

var (
	// ErrFull says that the disk has no room. Nothing of what was appended is there.
	ErrFull = errors.New("there is no room for the journal of events")
	// ErrBroken says that a write or sync has failed. The journal has to be opened anew.
	ErrBroken = errors.New("the journal of events is broken")
	// ErrClosed says that the journal was closed.
	ErrClosed = errors.New("the journal of events is closed")
)

// keepBuf is how large a buffer is kept for the next write, at most.
const keepBuf = 256 << 10

// padding is what fills a write up.
var padding [align]byte

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Options are what a journal is made of.
type Options struct {
	FS    vfs.FS
	Dir   string
	Limit int64         // octets of all segments; at least MinSegments of them are kept
	Keep  time.Duration // how long what everybody has read is kept, for replays
	// Rest is how long after the beginning of a write the next one begins at the earliest, for each event of the one before,
	// and MaxRest the most of it: when many events come, more of them share a sync, and one that comes alone waits for
	// none. 0: a write begins at once.
	Rest, MaxRest time.Duration
	// SegmentSize is that of new segments; 0: DefaultSegment. A batch must fit.
	SegmentSize int64
	Now         func() time.Time
	Warn        func(format string, args ...any)
}

// A segment is one file.
type segment struct {
	first uint64 // number of its first event
	made  time.Time
	size  int64
}

// name is that of its file.
func (s *segment) name(dir string) string {
	return path.Join(dir, fmt.Sprintf("%016x.events", s.first))
}

// A Journal is opened by Open. Its methods may be called concurrently.
type Journal struct {
	o    Options
	lock io.Closer

	mu       sync.Mutex
	segments []*segment // oldest first; the last is written to
	next     uint64     // number of the next event
	durable  uint64     // events before this one are on stable storage
	grown    chan struct{}
	floors   map[string]uint64 // positions of those that read: segments before the lowest are over
	queue    []*appending
	writing  bool
	closed   bool
	broken   error
	writers  sync.WaitGroup

	// The writer's own.
	file  vfs.File      // of the last segment
	end   int64         // where the next record goes
	buf   []byte        // what is written, kept for the next time
	begun time.Time     // when the last write began
	rest  time.Duration // how long after that the next one begins

	positions positions
}

// An appending is events on their way.
type appending struct {
	list []proto.EventRecord
	done func(first uint64, err error)
}

// Open opens the journal in Dir, which is made if it is not there, and finds its end. It fails with a
// *vfs.LockedError while another process has it.
func Open(o Options) (*Journal, error) {
	if o.SegmentSize == 0 {
		o.SegmentSize = DefaultSegment
	}
	if err := o.FS.MkdirAll(o.Dir); err != nil {
		return nil, err
	}
	lock, err := o.FS.Lock(path.Join(o.Dir, "lock"))
	if err != nil {
		return nil, err
	}
	j := &Journal{o: o, lock: lock, grown: make(chan struct{}), floors: make(map[string]uint64), next: 1,
		positions: positions{fs: o.FS, dir: o.Dir, open: make(map[string]*position)}}
	if err := j.recover(); err != nil {
		lock.Close()
		return nil, err
	}
	return j, nil
}

// Close ends the journal when what was appended before is written.
func (j *Journal) Close() error {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return nil
	}
	j.closed = true
	close(j.grown)
	j.grown = make(chan struct{})
	j.mu.Unlock()
	j.writers.Wait()
	err := j.positions.close()
	if j.file != nil {
		err = errors.Join(err, j.file.Close())
	}
	return errors.Join(err, j.lock.Close())
}

// recover finds the segments, and the end of the last one.
func (j *Journal) recover() error {
	names, err := j.o.FS.List(j.o.Dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		hex, ok := strings.CutSuffix(name, ".events")
		first, err := strconv.ParseUint(hex, 16, 64)
		if !ok || err != nil || len(hex) != 16 {
			continue
		}
		j.segments = append(j.segments, &segment{first: first})
	}
	slices.SortFunc(j.segments, func(a, b *segment) int {
		if a.first < b.first {
			return -1
		}
		return 1
	})
	for i := 0; i < len(j.segments); i++ {
		s := j.segments[i]
		err := j.readHeader(s)
		if err == nil {
			continue
		}
		if !errors.Is(err, errHeader) {
			return err
		}
		// Of the last one power has failed while it was made. Any other is damaged.
		if i < len(j.segments)-1 {
			j.o.Warn("%s is damaged: its events are lost", s.name(j.o.Dir))
		}
		if err := j.o.FS.Remove(s.name(j.o.Dir)); err != nil {
			return err
		}
		j.segments = slices.Delete(j.segments, i, i+1)
		i--
	}
	// A process that was killed may have left names that are not durable, and removals.
	if err := j.o.FS.SyncDir(j.o.Dir); err != nil {
		return err
	}
	if len(j.segments) == 0 {
		return j.resume()
	}
	return j.openLast()
}

// resume begins behind the positions that there are, in a journal without segments: numbers are never used
// twice.
func (j *Journal) resume() error {
	names, err := j.o.FS.List(j.o.Dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if sink, ok := strings.CutPrefix(name, positionPrefix); ok {
			if n, ok, err := j.positions.get(sink); err != nil {
				return err
			} else if ok {
				j.next = max(j.next, n)
			}
		}
	}
	j.durable = j.next
	return nil
}

// errHeader says that a file is no whole segment.
var errHeader = errors.New("the header is damaged")

// aligned is the next multiple of align, from n on.
func aligned(n int64) int64 { return (n + align - 1) / align * align }

// readHeader takes in what a segment says of itself.
func (j *Journal) readHeader(s *segment) error {
	f, err := j.o.FS.Open(s.name(j.o.Dir))
	if err != nil {
		return err
	}
	defer f.Close()
	if s.size, err = f.Size(); err != nil {
		return err
	}
	var b [headerUsed]byte
	if n, err := f.ReadAt(b[:], 0); n < len(b) {
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return errHeader
	}
	if string(b[:8]) != magic || binary.LittleEndian.Uint64(b[8:]) != s.first ||
		crc32.Checksum(b[:24], castagnoli) != binary.LittleEndian.Uint32(b[24:]) {
		return errHeader
	}
	s.made = time.Unix(0, int64(binary.LittleEndian.Uint64(b[16:])))
	return nil
}

// openLast finds the end of the last segment, and clears what a torn write has left behind it.
func (j *Journal) openLast() error {
	s := j.segments[len(j.segments)-1]
	f, err := j.o.FS.OpenWrite(s.name(j.o.Dir))
	if err != nil {
		return err
	}
	j.next = s.first
	at := int64(headerSize)
	scan := scanner{f: f, size: s.size, at: at, seq: s.first}
	for {
		_, ok, err := scan.next()
		if err != nil {
			f.Close()
			return err
		}
		if !ok {
			break
		}
		j.next, at = scan.seq, scan.at
	}
	at = aligned(at)
	if rest := min(s.size-at, maxBatch+maxRecord); rest > 0 {
		if _, err := f.WriteAt(make([]byte, rest), at); err != nil {
			f.Close()
			return err
		}
	}
	// What was found may not be durable yet: it is from now on.
	if err := f.Datasync(); err != nil {
		f.Close()
		return err
	}
	j.file, j.end, j.durable = f, at, j.next
	return nil
}

// Append appends events, and has done called, on the writer's goroutine, when they are on stable storage, or
// with the error that keeps them from it: then none of them is there, unless that is ErrBroken. first is the
// number of the first one. The list is the journal's until then.
func (j *Journal) Append(list []proto.EventRecord, done func(first uint64, err error)) {
	j.mu.Lock()
	err := j.broken
	if j.closed {
		err = ErrClosed
	}
	if err != nil {
		j.mu.Unlock()
		done(0, err)
		return
	}
	j.queue = append(j.queue, &appending{list, done})
	if !j.writing {
		j.writing = true
		j.writers.Go(j.write)
	}
	j.mu.Unlock()
}

// write writes what is queued, one sync for all that waits, until nothing is.
func (j *Journal) write() {
	for {
		j.mu.Lock()
		if len(j.queue) == 0 {
			j.writing = false
			j.mu.Unlock()
			return
		}
		j.mu.Unlock()
		j.gather()
		j.mu.Lock()
		work := j.queue
		j.queue = nil
		j.mu.Unlock()
		for len(work) > 0 {
			n := j.group(work)
			first, err := j.commit(work[:n])
			for _, a := range work[:n] {
				a.done(first, err)
				first += uint64(len(a.list))
			}
			work = work[n:]
		}
	}
}

// gather lets more events come, when the last write was a moment ago and had many. With many at once syncs would be most
// of what an event costs.
func (j *Journal) gather() {
	if j.rest == 0 {
		return
	}
	// A clock that was set back makes it no longer.
	if left := min(j.rest-j.o.Now().Sub(j.begun), j.rest); left > 0 {
		time.Sleep(left)
	}
}

// group is how many of the appends make one write.
func (j *Journal) group(work []*appending) int {
	size := 0
	for i, a := range work {
		for k := range a.list {
			size += recordSize(&a.list[k])
		}
		if size > maxBatch && i > 0 {
			return i
		}
	}
	return len(work)
}

// commit writes appends, and syncs.
func (j *Journal) commit(work []*appending) (first uint64, err error) {
	j.mu.Lock()
	first, err = j.next, j.broken
	j.mu.Unlock()
	if err != nil {
		return first, err
	}
	seq := first
	b := reuse.Truncated(j.buf)
	for _, a := range work {
		for k := range a.list {
			b = appendRecord(b, seq, &a.list[k])
			seq++
		}
	}
	b = append(b, padding[:aligned(int64(len(b)))-int64(len(b))]...)
	if cap(b) <= keepBuf { // one event may be large, and few are
		j.buf = b
	}
	if err := j.room(int64(len(b))); err != nil {
		return first, err
	}
	j.begun, j.rest = j.o.Now(), min(time.Duration(seq-first)*j.o.Rest, j.o.MaxRest)
	if _, err := j.file.WriteAt(b, j.end); err != nil {
		if errors.Is(err, syscall.ENOSPC) { // a file system that writes nothing in place
			return first, ErrFull
		}
		return first, j.fail(err)
	}
	if err := j.file.Datasync(); err != nil {
		return first, j.fail(err)
	}
	j.end += int64(len(b))
	j.mu.Lock()
	j.next, j.durable = seq, seq
	close(j.grown)
	j.grown = make(chan struct{})
	j.mu.Unlock()
	return first, nil
}

// fail breaks the journal.
func (j *Journal) fail(err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broken = fmt.Errorf("%w: %w", ErrBroken, err)
	return j.broken
}

// room sees to it that n octets fit into the last segment.
func (j *Journal) room(n int64) error {
	if j.file != nil {
		j.mu.Lock()
		size := j.segments[len(j.segments)-1].size
		j.mu.Unlock()
		if j.end+n <= size {
			return nil
		}
	}
	j.trim()
	err := j.begin(max(j.o.SegmentSize, headerSize+n))
	for errors.Is(err, ErrFull) && j.dropRead() {
		err = j.begin(max(j.o.SegmentSize, headerSize+n))
	}
	return err
}

// begin makes a segment, and goes on in it.
func (j *Journal) begin(size int64) error {
	s := &segment{first: j.next, made: j.o.Now(), size: size}
	name := s.name(j.o.Dir)
	f, err := j.o.FS.Create(name)
	if errors.Is(err, fs.ErrExist) { // an earlier attempt that could not be taken back, or an empty segment
		if err = j.o.FS.Remove(name); err == nil {
			f, err = j.o.FS.Create(name)
		}
	}
	if err == nil {
		if err = fill(f, s); err == nil {
			err = j.o.FS.SyncDir(j.o.Dir)
		}
		if err != nil {
			f.Close()
			err = errors.Join(err, j.o.FS.Remove(name))
		}
	}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return ErrFull
	case err != nil:
		return j.fail(err)
	}
	if j.file != nil {
		j.file.Close()
	}
	j.file, j.end = f, headerSize
	j.mu.Lock()
	defer j.mu.Unlock()
	if n := len(j.segments); n > 0 && j.segments[n-1].first == s.first { // nothing was in it
		j.segments = j.segments[:n-1]
	}
	j.segments = append(j.segments, s)
	return nil
}

// fill writes a new segment's header and zeros.
func fill(f vfs.File, s *segment) error {
	zeros := make([]byte, min(s.size, 1<<20))
	for at := int64(0); at < s.size; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), s.size-at)], at); err != nil {
			return err
		}
	}
	b := make([]byte, headerUsed)
	copy(b, magic)
	binary.LittleEndian.PutUint64(b[8:], s.first)
	binary.LittleEndian.PutUint64(b[16:], uint64(s.made.UnixNano()))
	binary.LittleEndian.PutUint32(b[24:], crc32.Checksum(b[:24], castagnoli))
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	return f.Datasync()
}

// trim removes the oldest segments: what is over Limit, and what everybody has read for longer than Keep. One
// more is about to be made.
func (j *Journal) trim() {
	now := j.o.Now()
	for {
		j.mu.Lock()
		n := len(j.segments)
		if n < 2 {
			j.mu.Unlock()
			return
		}
		total := j.o.SegmentSize
		for _, s := range j.segments {
			total += s.size
		}
		over := total > j.o.Limit && n >= MinSegments
		// The second was made when the first was full.
		past := j.segments[1].first <= j.floor() && now.Sub(j.segments[1].made) >= j.o.Keep
		j.mu.Unlock()
		if !over && !past || !j.dropOldest() {
			return
		}
	}
}

// Trim removes what is over, as it happens when a segment is full: call it once in a while.
func (j *Journal) Trim() {
	j.mu.Lock()
	busy := j.writing || j.closed || j.broken != nil
	if !busy {
		j.writing = true // nobody writes meanwhile
	}
	j.mu.Unlock()
	if busy {
		return
	}
	j.trim()
	j.writers.Go(j.write)
}

// dropRead removes the oldest segment if everybody has read it.
func (j *Journal) dropRead() bool {
	j.mu.Lock()
	read := len(j.segments) > 1 && j.segments[1].first <= j.floor()
	j.mu.Unlock()
	return read && j.dropOldest()
}

// dropOldest removes the oldest segment; it is not the last one.
func (j *Journal) dropOldest() bool {
	j.mu.Lock()
	s := j.segments[0]
	j.mu.Unlock()
	if err := j.o.FS.Remove(s.name(j.o.Dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		j.o.Warn("%v", err)
		return false
	}
	j.mu.Lock()
	j.segments = j.segments[1:]
	j.mu.Unlock()
	return true
}

// floor is the lowest position. The caller has mu.
func (j *Journal) floor() uint64 {
	low := j.durable
	for _, n := range j.floors {
		low = min(low, n)
	}
	return low
}

// Bounds are the numbers of the oldest event that is kept and of the next one that comes, and the octets of
// all segments.
func (j *Journal) Bounds() (oldest, next uint64, octets int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	oldest = j.durable
	if len(j.segments) > 0 {
		oldest = j.segments[0].first
	}
	for _, s := range j.segments {
		octets += s.size
	}
	return oldest, j.durable, octets
}

// Broken is why nothing can be appended any more; nil: it can.
func (j *Journal) Broken() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.broken
}
