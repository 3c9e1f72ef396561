package spool

import (
	"errors"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// Refusals. They are told apart with errors.Is; the errors themselves say
// more. Nothing of a batch that was refused has happened, save with
// ErrBroken, when nobody knows until the next recovery.
var (
	// ErrFull: no room for more mail now. 452 4.3.1; deliveries go on.
	ErrFull = errors.New("spool: full")
	// ErrBroken: a write or sync failed. Nothing will be written by this
	// process any more: 451 4.3.0, stop delivering, exit, be restarted.
	ErrBroken = errors.New("spool: broken")
	// ErrTooLarge: the batch cannot be written as one atomic unit.
	ErrTooLarge = errors.New("spool: batch too large")
	// ErrInvalid: the batch contradicts the spool or itself.
	ErrInvalid = errors.New("spool: invalid batch")
	// ErrClosed: the spool was closed.
	ErrClosed = errors.New("spool: closed")
	// ErrStale: the record is no longer where the Ref says. Ask Locate again.
	ErrStale = errors.New("spool: stale reference")
	// ErrCorrupt: what is there fails its checksum.
	ErrCorrupt = errors.New("spool: damaged record")
)

// Options say where a spool is and how large it may be.
type Options struct {
	FS  vfs.FS // nil: the operating system's
	Dir string // made if it is missing

	SegmentSize int64 // bytes; 0: 64 MiB. A multiple of 4096, 16 KiB at least, 1 GiB at most. May change between starts.
	InlineLimit int64 // content up to this goes into the log; 0: 128 KiB. An eighth of a segment at most
	Budget      int64 // disk bytes for segments and big files; 0: no bound but MinFree
	MinFree     int64 // bytes to leave free on the file system (queue_minfree)

	// Warn gets what an operator should know: damage found, space short.
	// It may be called from several goroutines. Nil: dropped.
	Warn func(format string, args ...any)
	// OnDurable is told of every message added, in commit order, once it is
	// durable and before its Commit returns. It runs on the writer's
	// goroutine and must not block nor call the Spool. The slice is reused.
	OnDurable func([]Entry)
}

// A Spool is an open spool: the only writer of its log. All methods may be
// called concurrently.
type Spool struct{}

// Open locks the spool in o.Dir, recovers what is there, or starts a new
// one, and returns when it is ready for use and everything recovered is
// durable.
func Open(o Options) (*Spool, error) { panic("not yet") }

// Recovery is what Open found.
func (s *Spool) Recovery() RecoveryReport { panic("not yet") }

// Lease gives n message numbers, first and those after it. Numbers are
// never 0 and never given twice in all lives of a spool. It costs no disk write.
func (s *Spool) Lease(n int) (first uint64, err error) { panic("not yet") }

// Commit makes b durable and returns nil when it is, which takes one sync
// shared with all who wait at the time. An empty batch waits until
// everything posted before is durable. The errors to tell apart are ErrFull,
// ErrBroken, ErrTooLarge, ErrInvalid and ErrClosed.
func (s *Spool) Commit(b *Batch) error { panic("not yet") }

// Post makes b durable with the next commit, or in 50 ms when there is none,
// and then calls done, if not nil, on the writer's goroutine, which must not
// block nor call the Spool. A batch that adds nothing is never refused for
// want of space. The caller gives b up until done is called.
func (s *Spool) Post(b *Batch, done func(error)) { panic("not yet") }

// Entries calls yield for each message until it returns false. A message
// that is there throughout is given exactly once, one that comes or goes
// meanwhile perhaps. Who must miss none listens to OnDurable from before
// the call and drops those it already has.
func (s *Spool) Entries(yield func(Entry) bool) { panic("not yet") }

// Locate says how a message stands, which is what is durable.
func (s *Spool) Locate(id mail.QueueID) (Entry, bool) { panic("not yet") }

// NewFile starts a file for a large message that is arriving.
func (s *Spool) NewFile() (*File, error) { panic("not yet") }

// Stats is a snapshot.
func (s *Spool) Stats() Stats { panic("not yet") }

// Err is nil while the spool works, and the reason once it is broken.
func (s *Spool) Err() error { panic("not yet") }

// Broken is closed when the spool breaks.
func (s *Spool) Broken() <-chan struct{} { panic("not yet") }

// InlineLimit is the length of content up to which Message.Content is to be
// used, and from which on NewFile.
func (s *Spool) InlineLimit() int { panic("not yet") }

// Close records what was posted, writes the mark of a clean end, and gives
// up the lock. Commits under way finish; later ones get ErrClosed.
func (s *Spool) Close() error { panic("not yet") }

// A File takes the content of a large message while it arrives. It has no
// name before its message is committed and is gone when the process dies.
// It is used by one goroutine.
type File struct{}

// Write appends to the content. It fails with ErrFull when the disk or the
// budget is full; the File is then only good for Abort.
func (f *File) Write(p []byte) (int, error) { panic("not yet") }

// Size is the number of bytes written.
func (f *File) Size() int64 { panic("not yet") }

// Abort gives the file up. It does nothing once a batch has taken it over.
func (f *File) Abort() { panic("not yet") }

// A Reader reads messages, in any process, while another writes the spool.
// All methods may be called concurrently.
type Reader struct{}

// NewReader returns a reader of the spool in dir. fs nil means the operating
// system's.
func NewReader(fs vfs.FS, dir string) *Reader { panic("not yet") }

// Read reads the envelope and state of message id at ref and verifies
// them; content is not looked at. ErrStale means that the record has moved,
// ErrCorrupt that it is damaged.
func (r *Reader) Read(ref Ref, id mail.QueueID) (*Stored, error) { panic("not yet") }

// Close closes the files that r keeps open. Contents already given out stay
// good.
func (r *Reader) Close() error { panic("not yet") }

// Stored is one message as recorded. It belongs to one goroutine.
type Stored struct{}

// Envelope decodes the envelope, without recipients.
func (st *Stored) Envelope() (mail.Envelope, error) { panic("not yet") }

// Recipients decodes those with index from up to, not including, to; to < 0
// means all the rest.
func (st *Stored) Recipients(from, to int) ([]mail.Recipient, error) { panic("not yet") }

// NRcpt is how many recipients the message has had from the start.
func (st *Stored) NRcpt() int { panic("not yet") }

// Pending says whether there is something still to do for recipient i.
func (st *Stored) Pending(i int) bool { panic("not yet") }

// Overlay adds what an Entry knows of recipients that are done.
func (st *Stored) Overlay(done []byte) { panic("not yet") }

// Outcomes is the last outcome of each pending recipient that has one, by
// recipient.
func (st *Stored) Outcomes() ([]mail.Outcome, error) { panic("not yet") }

// State is the message's entry as recorded.
func (st *Stored) State() Entry { panic("not yet") }

// Content opens the content. That of a message in the log is read and verified
// in full before Content returns; that of a big file as it is read, 64 KiB
// at a time, and a reader must be ready for ErrCorrupt before the end.
func (st *Stored) Content() (*Content, error) { panic("not yet") }

// Content is a message's content: an io.ReadSeekCloser. It belongs to one
// goroutine.
type Content struct{}

// Bytes is the whole content when it was in the log, good until Close, and
// nil when it is in a file of its own.
func (c *Content) Bytes() []byte { panic("not yet") }

// Len is the content's length in bytes.
func (c *Content) Len() int64 { panic("not yet") }

// Read reads on.
func (c *Content) Read(p []byte) (int, error) { panic("not yet") }

// Seek sets the position, as io.Seeker.
func (c *Content) Seek(offset int64, whence int) (int64, error) { panic("not yet") }

// Close gives up the buffer or file.
func (c *Content) Close() error { panic("not yet") }

var _ = time.Now
