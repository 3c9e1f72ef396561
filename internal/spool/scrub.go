package spool

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"sync"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
)

// A Place is where on the disk something is, for people.
type Place struct {
	File   string // from the spool's directory; a content file that is elsewhere from the root
	Offset int64  // octets
}

func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Offset) }

func placeOf(ref Ref) Place { return Place{segName("", ref.File), int64(ref.Offset)} }

// forgetter is a file of which the kernel's copy in memory can be given up, so that the
// disk is read.
type forgetter interface{ Forget(off, n int64) }

// contentName is how a content file is named to people: from the spool's directory, or from
// the root when content is elsewhere.
func (r *Reader) contentName(id mail.QueueID) string {
	if p, err := r.place(); err == nil && p.away {
		return p.name(string(id))
	}
	return path.Join(bigDir, string(id))
}

// Verify reads all there is of a message from the disk: its last state, its envelope and recipients, and its
// content, and verifies every checksum. read is told of each part that was read, in
// octets, and may wait; its error ends it. The error is as those of Read and Content; where says
// what it is about.
func (r *Reader) Verify(en Entry, read func(n int64) error) (where Place, err error) {
	where = placeOf(en.Ref)
	r.forget(en.Ref)
	st, err := r.Read(en.Ref, en.ID)
	if err != nil {
		return where, err
	}
	if err := read(int64(en.Ref.Length)); err != nil {
		return where, err
	}
	if !st.msg.IsZero() && st.msg != en.Ref { // its metadata count when the state is lost
		where = placeOf(st.msg)
		r.forget(st.msg)
		if _, _, err := r.readMeta(st.msg, st.number); err != nil {
			return where, fmt.Errorf("message %s: %w", en.ID, err)
		}
	}
	if err := st.checkEnvelope(&en); err != nil {
		return where, err
	}
	c, err := st.Content()
	if c != nil && c.big != nil || st.m.flags&msgBig != 0 {
		where = Place{r.contentName(en.ID), 0}
	}
	if err != nil {
		if errors.Is(err, ErrCorrupt) && st.m.flags&msgBig != 0 {
			where.Offset = st.m.bigLen // the list of checksums
		}
		return where, err
	}
	defer c.Close() // only read from
	if c.big == nil {
		return where, read(c.Len())
	}
	for c.pos < c.len {
		if f, ok := c.big.f.(forgetter); ok {
			f.Forget(c.pos, bigChunk)
		}
		where.Offset = c.pos
		b, err := c.rest()
		if err != nil {
			return where, err
		}
		c.pos += int64(len(b))
		if err := read(int64(len(b))); err != nil {
			return where, err
		}
	}
	return where, nil
}

// forget has the record at ref read from the disk the next time.
func (r *Reader) forget(ref Ref) {
	if rf, err := r.open(ref.File); err == nil {
		if f, ok := rf.f.(forgetter); ok {
			f.Forget(int64(ref.Offset), int64(ref.Length))
		}
		r.release(rf)
	}
}

// checkEnvelope says whether a message's envelope is its own, and whole.
func (st *Stored) checkEnvelope(en *Entry) error {
	env, err := st.Envelope()
	if err != nil {
		return err
	}
	if env.ID != en.ID {
		return fmt.Errorf("message %s: %w: it has the envelope of %s", en.ID, ErrCorrupt, env.ID)
	}
	rcpts, err := st.Recipients(0, -1)
	if err != nil {
		return err
	}
	if len(rcpts) != en.NRcpt {
		return fmt.Errorf("message %s: %w: it has %d recipients, not %d", en.ID, ErrCorrupt, len(rcpts), en.NRcpt)
	}
	return nil
}

const (
	// scrubRate bounds how fast the scrubber reads, in octets a second. With more mail than
	// that a pass takes longer than its period.
	scrubRate = 8 << 20
	// scrubMany is from how many messages on there are fewer parts of a pass: for each part
	// the whole index is gone through.
	scrubMany  = 1 << 20
	manyParts  = 64
	usualParts = 512
	// maxScrubTold bounds the messages that are remembered as told.
	maxScrubTold = 10000
)

// scrubPauses are what is waited before something that is damaged, or cannot be read, is read again.
var scrubPauses = []time.Duration{time.Second, 10 * time.Second, time.Minute}

// scrubDue is when, after the beginning of a part of a pass that has slot of time and about
// total octets to read, that many octets may have been read.
func scrubDue(read, total int64, slot time.Duration) time.Duration {
	even := slot
	if read < total {
		even = time.Duration(float64(slot) * (float64(read) / float64(total)))
	}
	return max(even, time.Duration(float64(read)/scrubRate*float64(time.Second)))
}

// A ScrubFinding is damage that nobody has met yet.
type ScrubFinding struct {
	ID    mail.QueueID
	Where Place
	// Unread says that it could not be read, in several tries over more than a minute, which says nothing of
	// what is there. Nothing is done about it.
	Unread bool
	// Mended says that only the record of the last state was damaged, and that it has been recorded
	// again; otherwise the message is in the corrupt queue.
	Mended bool
	Err    error
}

// ScrubStats is a snapshot of a Scrubber's numbers.
type ScrubStats struct {
	Passes   uint64    // complete ones, since the process began
	Bytes    uint64    // read, since then
	Findings uint64    // since then
	Last     time.Time // end of the last complete pass, of any process; zero: there was none
}

// A Scrubber reads all that is alive in a spool once in each period, slowly and evenly, so that damage is found while there is
// time to do something about it: before a delivery finds it, and while the other
// disk of a mirror still has what is sound. Messages are taken by their numbers' hashes, in parts of
// a pass; which part it is is kept in the file "scrub" of the spool's directory, so that the
// next process goes on there. A part that a process did not finish is begun again.
type Scrubber struct {
	s      *Spool
	rd     *Reader
	period time.Duration
	find   func(ScrubFinding)

	mu    sync.Mutex
	stats ScrubStats

	// What follows belongs to Run.
	at    uint64                // messages with hashes from there on have not been read in this pass; up to 1<<32
	begun time.Time             // of the present part
	read  int64                 // octets, of it
	total int64                 // about what it has
	slot  time.Duration         // time for it
	told  map[mail.QueueID]bool // findings that stay as they are
}

// NewScrubber makes one that reads all of s in each period with rd, which nobody else uses. find is told of
// each finding, once. Its calls come from Run's goroutine.
func NewScrubber(s *Spool, rd *Reader, period time.Duration, find func(ScrubFinding)) *Scrubber {
	c := &Scrubber{s: s, rd: rd, period: period, find: find, told: map[mail.QueueID]bool{}}
	c.at, c.stats.Last = loadScrub(s.e)
	return c
}

// Stats is a snapshot. It may be called at any time.
func (c *Scrubber) Stats() ScrubStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

func (c *Scrubber) count(f func(*ScrubStats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.stats)
}

// Run scrubs until ctx ends or the spool breaks.
func (c *Scrubber) Run(ctx context.Context) {
	for ctx.Err() == nil && c.s.Err() == nil {
		parts := uint64(usualParts)
		if c.s.Stats().Messages > scrubMany {
			parts = manyParts
		}
		to := min((c.at/(1<<32/parts)+1)*(1<<32/parts), 1<<32)
		if !c.part(ctx, to) {
			return
		}
		if c.at = to; to == 1<<32 {
			c.at = 0
			c.count(func(st *ScrubStats) { st.Passes++; st.Last = time.Now() })
		}
		saveScrub(c.s.e, c.at, c.Stats().Last)
	}
}

// part reads the messages with hashes from c.at up to to, and takes its time. It is false when ctx
// has ended.
func (c *Scrubber) part(ctx context.Context, to uint64) bool {
	share := float64(to-c.at) / (1 << 32)
	c.begun, c.read = time.Now(), 0
	c.slot = time.Duration(share * float64(c.period))
	c.total = int64(share*float64(c.s.Stats().LiveBytes)) + 1
	for en := range c.s.Entries {
		h := scrubHash(en.ID.Number())
		if h < c.at || h >= to || en.Queue == Corrupt || c.told[en.ID] {
			continue
		}
		if c.message(ctx, en); ctx.Err() != nil {
			return false
		}
	}
	return sleep(ctx, time.Until(c.begun.Add(c.slot)))
}

// scrubHash spreads message numbers over 0 to 1<<32.
func scrubHash(number uint64) uint64 { return number * 0x9e3779b97f4a7c15 >> 32 }

// pace waits until as much as has been read may have been.
func (c *Scrubber) pace(ctx context.Context) func(n int64) error {
	return func(n int64) error {
		c.read += n
		c.count(func(st *ScrubStats) { st.Bytes += uint64(n) })
		if !sleep(ctx, time.Until(c.begun.Add(scrubDue(c.read, c.total, c.slot)))) {
			return ctx.Err()
		}
		return nil
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// message reads one. What is damaged, or cannot be read, is read again, later, before it
// counts: a disk may fail for a moment, and the message may have moved.
func (c *Scrubber) message(ctx context.Context, en Entry) {
	where, err := c.rd.Verify(en, c.pace(ctx))
	for _, pause := range scrubPauses {
		if err == nil || !sleep(ctx, pause) {
			return
		}
		var there bool
		if en, there = c.s.Locate(en.ID); !there || en.Queue == Corrupt {
			return
		}
		where, err = c.rd.Verify(en, c.pace(ctx))
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	f := ScrubFinding{ID: en.ID, Where: where, Err: err, Unread: !isDamage(err)}
	if !f.Unread {
		f.Mended, err = c.repair(ctx, en)
		if err != nil {
			return // the spool ends, or has no room: the next pass finds it again
		}
	}
	if len(c.told) < maxScrubTold {
		c.told[en.ID] = !f.Mended
	}
	c.count(func(st *ScrubStats) { st.Findings++ })
	c.find(f)
}

// errGone says that there is nothing to be found any more.
var errGone = errors.New("the message has left the queue")

// isDamage says whether an error says that what should be there is not. Where that is comes
// from who knows it.
func isDamage(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrStale) || errors.Is(err, ErrInvalid)
}

// repair records a message's state again, by what is known of it, which mends it if only the record of
// that was damaged. If not, the message goes to the corrupt queue, as it would from a delivery.
func (c *Scrubber) repair(ctx context.Context, en Entry) (mended bool, err error) {
	var b Batch
	b.Update(en.ID, Change{})
	if err := c.s.Commit(&b); err != nil {
		return false, err
	}
	now, there := c.s.Locate(en.ID)
	switch {
	case !there:
		return false, errGone
	case now.Queue == Corrupt: // its last state was all that there was of it
		return false, nil
	}
	if _, err := c.rd.Verify(now, c.pace(ctx)); err == nil {
		return true, nil
	}
	b.Reset()
	b.Update(en.ID, Change{Set: SetQueue, Queue: Corrupt})
	return false, c.s.Commit(&b)
}

// scrubFile keeps how far a pass has come: from which hash on is to be read, u64; when the last complete pass ended, in
// microseconds since 1970, i64; a checksum of both, u32.
const scrubFile = "scrub"

const scrubLen = 20

func loadScrub(e *engine) (at uint64, last time.Time) {
	f, err := e.fs.Open(path.Join(e.dir, scrubFile))
	if err != nil {
		return 0, time.Time{}
	}
	defer f.Close() // only read from
	b := make([]byte, scrubLen)
	if n, err := f.ReadAt(b, 0); n < scrubLen && err != nil || checksum(b[:16]) != binary.LittleEndian.Uint32(b[16:]) {
		return 0, time.Time{}
	}
	at = binary.LittleEndian.Uint64(b)
	if at >= 1<<32 {
		at = 0
	}
	return at, queue.FromMicros(int64(min(binary.LittleEndian.Uint64(b[8:]), math.MaxInt64)))
}

// saveScrub writes that down. It need not be durable: at worst more is read than need be.
func saveScrub(e *engine, at uint64, last time.Time) {
	name := path.Join(e.dir, scrubFile)
	f, err := e.fs.OpenWrite(name)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = e.fs.Create(name)
	}
	if err != nil {
		return // the next part tries again
	}
	b := binary.LittleEndian.AppendUint64(nil, at)
	b = binary.LittleEndian.AppendUint64(b, uint64(queue.Micros(last)))
	b = binary.LittleEndian.AppendUint32(b, checksum(b))
	_, _ = f.WriteAt(b, 0)
	_ = f.Close()
}

// verifyAll is Verify at once, for Check.
func verifyAll(rd *Reader, en Entry) error {
	where, err := rd.Verify(en, func(int64) error { return nil })
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}
