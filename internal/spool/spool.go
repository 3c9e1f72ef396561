package spool

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/reuse"
	"posthaste/internal/vfs"
)

// postDelay bounds how long a posted batch waits for company, unless Options
// say otherwise.
const postDelay = 50 * time.Millisecond

// Options say where a spool is and how large it may be.
type Options struct {
	FS  vfs.FS // nil: vfs.OfOwner(Dir)
	Dir string // made if it is missing

	// ContentDir is where the content of large messages is kept, if not in big/ of Dir: on
	// another file system, as a rule. It is made by the first start that names it.
	// To name another one takes that the files are moved there first. See ErrContent.
	ContentDir string
	ContentFS  vfs.FS // that ContentDir is in; nil: FS

	SegmentSize int64 // bytes; 0: 64 MiB, less with a small Budget. A multiple of 4096, 16 KiB to 1 GiB. May change between starts.
	InlineLimit int64 // content up to this goes into the log; 0: 128 KiB. An eighth of a segment at most
	Budget      int64 // disk bytes for segments and big files, but those in ContentDir; ten segments at least; 0: no bound but MinFree
	MinFree     int64 // bytes to leave free on the file system (queue_minfree), and on that of ContentDir

	// PostDelay bounds how long what is posted waits for a Commit to go
	// with; 0: 50 ms. A crash forgets that much of what was posted.
	PostDelay time.Duration

	// ExactDoubt says that no delivery is made whose Handed is not durable: what
	// is in doubt after a crash is then known exactly. To keep to it is for the caller.
	ExactDoubt bool

	// Warn gets what an operator should know: damage found, space short.
	// It may be called from several goroutines. Nil: dropped.
	Warn func(format string, args ...any)
	// Random fills b with the salts and the identity of the spool; nil: crypto/rand does.
	Random func(b []byte)
	// Follower has read the log while another process had it open; nil: Open reads all of it.
	// It is used up.
	Follower *Follower

	sleep        func(time.Duration) // tests: between reads of a start that fail; nil: time.Sleep
	now          func() time.Time    // tests: nil: time.Now
	leaf, leaves int                 // tests: entries of a leaf of the index, and how many may be loose; 0: leafLen and looseLeaves
}

// A Spool is an open spool: the only writer of its log. All methods may be
// called concurrently.
type Spool struct {
	e         *engine
	postDelay time.Duration
	report    RecoveryReport
	stash     *stash
	unclean   atomic.Bool // see LeaveUnclean

	mu      sync.Mutex
	queue   []*request // waiting, in order of arrival
	urgent  int        // of those, Commits, and calls of Hurry
	oldest  time.Time  // when the first posted one came
	closing bool
	leaseLo uint64 // next number
	leaseHi uint64 // end of the range

	wake      chan struct{}       // capacity 1: something for the writer
	chores    chan struct{}       // capacity 1: something for the housekeeper
	broken    chan struct{}       // closed when the log breaks
	written   chan struct{}       // closed when the writer has ended
	done      chan struct{}       // closed when all goroutines have ended
	answers   chan answers        // writer's, to answerLoop; room for two batches
	untold    atomic.Int64        // of these, those that are not all told
	lists     chan []*request     // memory for queue, given back
	company   int                 // writer's: how many waited for the last batch
	retry     time.Time           // writer's: when to try again what there was no room for; zero: all is well
	idle      *time.Timer         // writer's: see rest; nil when none runs
	idleBatch uint64              // writer's: the next batch when that was started
	syncs     time.Duration       // writer's: how long a batch takes, smoothed
	pool      reuse.Pool[request] // for Commit
}

// Open locks the spool in o.Dir, recovers what is there, or starts a new
// one, and returns when it is ready for use and everything recovered is
// durable.
func Open(o Options) (*Spool, error) {
	s, err := recovered(o)
	if err != nil {
		return nil, err
	}
	s.start(s.write)
	return s, nil
}

// recovered is Open, but that nobody works on the spool yet: start is to follow.
func recovered(o Options) (*Spool, error) {
	random := o.Random
	if random == nil {
		random = randomBytes
	}
	e, rep, err := openEngine(&o, 0, random)
	if err != nil {
		return nil, err
	}
	s := &Spool{e: e, postDelay: cmp.Or(o.PostDelay, postDelay), report: rep,
		answers: make(chan answers, 2), lists: make(chan []*request, 4), wake: make(chan struct{}, 1), chores: make(chan struct{}, 1),
		broken: make(chan struct{}), written: make(chan struct{}), done: make(chan struct{})}
	e.wake = func() { signal(s.wake) }
	s.stash = newStash(e)
	s.report.Withdrawn, s.report.MoreWithdrawn = s.stash.empty()
	s.pool.New = func() *request { return &request{ch: make(chan error, 1)} }
	s.leaseLo, s.leaseHi = e.numbers()
	return s, nil
}

// start starts the goroutines, of which write is the writer's: s.write, with what a
// benchmark measures around it. They end when the spool is closed.
func (s *Spool) start(write func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(s.written)
		defer close(s.answers)
		write()
	})
	wg.Go(s.answerLoop)
	wg.Go(s.housekeep)
	wg.Go(s.watch)
	go func() { // ends with those; Close waits for it
		wg.Wait()
		close(s.done)
	}()
	signal(s.chores)
	signal(s.wake)
}

func randomBytes(b []byte) { rand.Read(b) } // never fails

// newEngine makes an engine that has nothing open.
func newEngine(o *Options, plant fault, random func([]byte)) (*engine, error) {
	lim, err := deriveLimits(o)
	if err != nil {
		return nil, err
	}
	e := &engine{fs: o.FS, dir: o.Dir, opt: *o, lim: lim, warn: o.Warn, random: random, now: o.now, sleep: o.sleep, exact: o.ExactDoubt, planter: plantOf(plant),
		idx: newIndex(), segs: map[uint32]*segment{}, disk: newDiskWatch()}
	if o.leaf > 0 {
		e.idx.leafLen, e.idx.most, e.idx.mem = o.leaf, o.leaves, newArena(4096)
	}
	if e.sleep == nil {
		e.sleep = time.Sleep
	}
	if e.now == nil {
		e.now = time.Now
	}
	if e.fs == nil {
		e.fs = vfs.OfOwner(e.dir)
	}
	e.content = awayPlace(e.fs, e.dir, o.ContentFS, o.ContentDir)
	if len(o.ContentDir) > maxContentPath {
		return nil, fmt.Errorf("spool: %w: its name has %d octets, %d are possible", ErrContent, len(o.ContentDir), maxContentPath)
	}
	if e.warn == nil {
		e.warn = func(string, ...any) {}
	}
	return e, nil
}

// openEngine locks and recovers.
func openEngine(o *Options, plant fault, random func([]byte)) (*engine, RecoveryReport, error) {
	e, err := newEngine(o, plant, random)
	if err != nil {
		return nil, RecoveryReport{}, err
	}
	if err := e.fs.MkdirAll(e.dir); err != nil {
		return nil, RecoveryReport{}, fmt.Errorf("spool: %w", err)
	}
	e.lock, err = e.fs.Lock(path.Join(e.dir, lockFile))
	if err != nil {
		var held *vfs.LockedError
		if errors.As(err, &held) {
			return nil, RecoveryReport{}, fmt.Errorf("spool: %w: is another mail system running on this queue?", err)
		}
		return nil, RecoveryReport{}, fmt.Errorf("spool: %w", err)
	}
	start := time.Now()
	rep, err := e.open()
	if errors.Is(err, errFollowed) {
		if e, err = e.withoutFollower(plant); err == nil {
			rep, err = e.open()
		}
	}
	rep.Elapsed = time.Since(start)
	if err != nil {
		return nil, rep, errors.Join(err, e.closeFiles())
	}
	e.spent.limit = e.lim.segSize
	if rep.Records-rep.Ahead > manyRecords {
		debug.FreeOSMemory()
	}
	return e, rep, nil
}

// manyRecords is from how many on a start gives back what it took to read them: that may be
// more than the index. Go itself takes minutes for it.
const manyRecords = 100_000

// withoutFollower gives an engine with the lock of e for a recovery that reads everything itself. Should
// there be an error, it is still e.
func (e *engine) withoutFollower(plant fault) (*engine, error) {
	o := e.opt
	o.Follower = nil
	n, err := newEngine(&o, plant, e.random)
	if err != nil {
		return e, err
	}
	lock := e.lock
	e.lock = nil
	n.lock = lock
	return n, e.closeFiles()
}

// numbers gives a range of message numbers that nobody had before: those
// that begin with the number of a segment that this process opened
// (invariant 9).
func (e *engine) numbers() (lo, hi uint64) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.planted(plantSameID) {
		return 1<<32 + 1, 2 << 32
	}
	n := e.head.segno
	return n<<32 + 1, (n + 1) << 32
}

// Recovery is what Open found.
func (s *Spool) Recovery() RecoveryReport { return s.report }

// Lease gives n message numbers, first and those after it. Numbers are
// never 0 and never given twice in all lives of a spool. It costs no disk write.
func (s *Spool) Lease(n int) (first uint64, err error) {
	if n < 1 || n > 1<<20 {
		return 0, fmt.Errorf("%w: %d message numbers at once", ErrInvalid, n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaseHi-s.leaseLo < uint64(n) {
		lo, hi := s.e.numbers()
		if lo < s.leaseHi { // four thousand million numbers without filling a segment
			return 0, fmt.Errorf("%w: message numbers used up until more is written", ErrFull)
		}
		s.leaseLo, s.leaseHi = lo, hi
	}
	first = s.leaseLo
	s.leaseLo += uint64(n)
	return first, nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Commit makes b durable and returns nil when it is, which takes one sync
// shared with all who wait at the time. An empty batch waits until
// everything posted before is durable. The errors to tell apart are ErrFull,
// ErrBroken, ErrTooLarge, ErrInvalid, ErrSilent and ErrClosed. With ErrSilent nothing
// of b was written; what the disk had been given when it fell silent waits for it.
func (s *Spool) Commit(b *Batch) error {
	var err error
	if b.adds == 0 {
		err = s.commitNow(b)
	} else if err = s.e.disk.arrive(); err == nil {
		err = s.commitNow(b)
		s.e.disk.leave()
	}
	b.settle(err)
	return err
}

func (s *Spool) commitNow(b *Batch) error {
	if err := s.e.prepare(b); err != nil {
		return err
	}
	r := s.pool.Get()
	r.b = b
	err := s.enqueue(r)
	if err == nil {
		err = <-r.ch
	}
	r.b, r.err, r.next = nil, nil, 0
	s.pool.Put(r)
	return err
}

// Post makes b durable with the next commit, or in Options.PostDelay when there is none,
// and then calls done, if not nil, on a goroutine of the spool's, which must not
// block nor call the Spool. A batch that adds nothing is never refused for
// want of space: it waits for it, should the disk be that full. The caller
// gives b up until done is called.
//
// When the spool is closed or broken already, or the content of a large
// message cannot be made durable, done is called before Post returns.
func (s *Spool) Post(b *Batch, done func(error)) {
	if done == nil {
		done = func(error) {}
	}
	err := s.e.prepare(b)
	if err == nil {
		err = s.enqueue(&request{b: b, done: done})
	}
	if err != nil {
		b.settle(err)
		done(err)
	}
}

// Hurry has what has been posted made durable without waiting for more: somebody
// waits for it.
func (s *Spool) Hurry() {
	s.mu.Lock()
	waiting := len(s.queue) > 0
	if waiting {
		s.urgent++
	}
	s.mu.Unlock()
	if waiting {
		signal(s.wake)
	}
}

func (s *Spool) enqueue(r *request) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return ErrClosed
	}
	select {
	case <-s.broken:
		s.mu.Unlock()
		return s.Err()
	default:
	}
	first := len(s.queue) == 0
	s.queue = append(s.queue, r)
	kick := first
	if r.done == nil {
		kick = kick || s.urgent == 0
		s.urgent++
	} else if s.oldest.IsZero() {
		s.oldest = time.Now()
	}
	s.mu.Unlock()
	if kick {
		signal(s.wake)
	}
	return nil
}

// Entries calls yield for each message, in the order of their numbers, until it returns
// false. It keeps no lock while it does, and no more than a few entries in memory. A message
// that is there throughout is given exactly once, one that comes or goes
// meanwhile perhaps.
func (s *Spool) Entries(yield func(Entry) bool) { s.e.entries(yield) }

func (e *engine) entries(yield func(Entry) bool) {
	buf := make([]Entry, 0, leafLen)
	for from, more := uint64(0), true; more; {
		buf, from, more = e.entriesFrom(from, reuse.Truncated(buf))
		for i := range buf {
			if !yield(buf[i]) {
				return
			}
		}
	}
}

// entriesFrom appends a few entries of messages from number on to list, and gives the
// number to go on from. It is false when there are no more.
func (e *engine) entriesFrom(number uint64, list []Entry) (_ []Entry, next uint64, more bool) {
	var room [leafLen]live
	e.mu.RLock()
	defer e.mu.RUnlock()
	lives, next, more := e.idx.page(number, filter{}, &room)
	for i := range lives {
		en := e.entry(&lives[i])
		en.ID = lives[i].id()
		list = append(list, en)
	}
	return list, next, more
}

// Locate says how a message stands, which is what is durable.
func (s *Spool) Locate(id mail.QueueID) (Entry, bool) { return s.e.locate(id) }

func (e *engine) locate(id mail.QueueID) (Entry, bool) {
	t, number, err := id.Parse()
	if err != nil {
		return Entry{}, false
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	var room live
	l := e.idx.find(number, &room)
	if l == nil || l.created != t.UnixMicro() {
		return Entry{}, false
	}
	en := e.entry(l)
	en.ID = id
	return en, true
}

// NewFile starts a file for a large message that is arriving.
func (s *Spool) NewFile() (*File, error) { return s.e.newFile() }

// Stats is a snapshot.
func (s *Spool) Stats() Stats { return s.e.snapshot() }

func (e *engine) snapshot() Stats {
	e.mu.RLock()
	defer e.mu.RUnlock()
	st := e.stats
	st.Messages = e.idx.len()
	st.ByQueue = e.byQueue
	st.LiveBytes = e.liveSum + e.bigSum
	st.StateBytes = e.metaSum
	st.BigFiles = len(e.idx.big)
	st.BigBytes = e.bigSum
	st.Segments = len(e.segs) + len(e.fresh)
	st.Free = len(e.free) + len(e.fresh)
	st.SegmentSize = e.lim.segSize
	for _, s := range e.segs {
		st.DiskBytes += s.size
		if e.inWindow(s) {
			st.Window++
		}
	}
	for _, s := range e.fresh {
		st.DiskBytes += s.size
	}
	st.DiskBytes += e.bigSum + e.spent.sum()
	return st
}

// Err is nil while the spool works, and the reason once it is broken.
func (s *Spool) Err() error {
	s.e.mu.RLock()
	defer s.e.mu.RUnlock()
	return s.e.broken
}

// Broken is closed when the spool breaks.
func (s *Spool) Broken() <-chan struct{} { return s.broken }

// InlineLimit is the length of content up to which Message.Content is to be
// used, and from which on NewFile.
func (s *Spool) InlineLimit() int { return int(s.e.lim.inline) }

// LeaveUnclean has Close write no mark of a clean end: RecoveryReport.Clean is false for whoever opens the spool next.
func (s *Spool) LeaveUnclean() { s.unclean.Store(true) }

// Close records what was posted, writes the mark of a clean end, and gives
// up the lock. Commits under way finish; later ones get ErrClosed.
func (s *Spool) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return ErrClosed
	}
	s.closing = true
	s.mu.Unlock()
	s.e.closing.Store(true)
	signal(s.wake)
	signal(s.chores)
	<-s.done
	var err error
	if err = s.Err(); err == nil && !s.unclean.Load() {
		err = s.e.markClose()
	}
	return errors.Join(err, s.stash.close(), s.e.closeFiles())
}

// markClose removes what only this process could use again, and writes CLOSE, which
// promises all that was written before it.
func (e *engine) markClose() error {
	if err := e.isBroken(); err != nil {
		return err
	}
	e.dropSpent()
	e.begin()
	e.w.record(recCLOSE, 0, 0, nil, nil)
	e.w.leave = 1
	if err := e.flush(false); !errors.Is(err, ErrFull) { // without the mark the next start reads a little more
		return err
	}
	return nil
}
