package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"sync"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/queue"
	"posthaste/internal/reuse"
	"posthaste/internal/vfs"
)

// A Reader reads messages, in any process, while another writes the spool.
// All methods may be called concurrently.
type Reader struct {
	fs  vfs.FS
	dir string
	planter

	keyMu sync.Mutex
	key   uint32 // of the spool; see spoolKey
	keyed bool

	placeMu sync.Mutex
	content readerPlace

	mu    sync.Mutex
	files map[uint32]*readFile
	sweep *time.Timer // set while there are files
	bufs  reuse.Pool[[]byte]
}

// readFile is an open segment file. The writer may have given it back, and
// even made another one of its number since: it is then stale for ever.
type readFile struct {
	f    vfs.File
	key  uint32
	refs int  // users, and one for the table
	used bool // since the last sweep
}

const (
	// maxReadFiles bounds the files that a Reader keeps open.
	maxReadFiles = 256
	// maxReadIdle is how long a file is kept that nobody reads, at least, and
	// at most twice that. One that the writer has removed takes space on the
	// disk as long as it is open.
	maxReadIdle = time.Minute
)

// NewReader returns a reader of the spool in dir. fs nil means the operating
// system's, with the rights of dir's owner: vfs.OfOwner. Where the content of large messages
// is, the spool says, or UseContent.
func NewReader(fs vfs.FS, dir string) *Reader {
	if fs == nil {
		fs = vfs.OfOwner(dir)
	}
	return &Reader{fs: fs, dir: dir, files: map[uint32]*readFile{}}
}

func (r *Reader) open(file uint32) (*readFile, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rf := r.files[file]; rf != nil {
		rf.refs++
		rf.used = true
		return rf, nil
	}
	f, err := r.fs.Open(segName(r.dir, file))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", ErrStale, err)
		}
		return nil, err
	}
	key, err := r.spoolKey(f)
	if r.planted(plantNoSalt) {
		key = 0
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", segName(r.dir, file), err)
	}
	if len(r.files) >= maxReadFiles {
		for n, old := range r.files { // any: they cost little to open again
			delete(r.files, n)
			r.unref(old)
			break
		}
	}
	rf := &readFile{f: f, key: key, refs: 2, used: true}
	r.files[file] = rf
	if r.sweep == nil {
		r.sweep = time.AfterFunc(maxReadIdle, r.closeIdle)
	}
	return rf, nil
}

// closeIdle closes the files that nobody has read since its last call.
func (r *Reader) closeIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, rf := range r.files {
		if !rf.used {
			delete(r.files, n)
			r.unref(rf)
		}
		rf.used = false
	}
	if len(r.files) > 0 {
		r.sweep.Reset(maxReadIdle)
	} else {
		r.sweep = nil
	}
}

// drop has the next reader of the file open it again.
func (r *Reader) drop(file uint32, rf *readFile) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.files[file] == rf {
		delete(r.files, file)
		r.unref(rf)
	}
}

// spoolKey gets the spool's key: from IDENTITY, once, or else from the header of a
// segment, f, if it is not nil, or any other. A segment without a header may hold sound mail all the
// same.
func (r *Reader) spoolKey(f vfs.File) (uint32, error) {
	r.keyMu.Lock()
	defer r.keyMu.Unlock()
	if r.keyed {
		return r.key, nil
	}
	id, _, copies, err := readIdentity(r.fs, r.dir, asItIs)
	if copies > 0 && !r.planted(plantReaderHeader) {
		r.key, r.keyed = keyOf(id.uuid), true
		return r.key, nil
	}
	var newer *errNewer
	if errors.As(err, &newer) {
		return 0, err
	}
	if f != nil {
		key, ok, err := headerKey(f)
		if ok || err != nil {
			return key, err
		}
	}
	if r.planted(plantReaderHeader) {
		return 0, ErrCorrupt
	}
	names, lerr := r.fs.List(path.Join(r.dir, segDir))
	for _, name := range names {
		file, isSeg := segNumber(name)
		if !isSeg {
			continue
		}
		if g, err := r.fs.Open(segName(r.dir, file)); err == nil {
			key, ok, _ := headerKey(g)
			g.Close()
			if ok {
				return key, nil
			}
		}
	}
	return 0, errors.Join(fmt.Errorf("%w: the spool's identity cannot be read", ErrCorrupt), lerr)
}

// headerKey gets the spool's key from a segment's header, if that can be read.
func headerKey(f vfs.File) (key uint32, ok bool, err error) {
	var h segHeader
	b := make([]byte, headRoom)
	readAround(f, b, 0)
	ok, err = h.read(b)
	return keyOf(h.uuid), ok, err
}

// unref is called with mu held.
func (r *Reader) unref(rf *readFile) {
	if rf.refs--; rf.refs == 0 {
		rf.f.Close() // only read from: nothing can be lost
	}
}

// buffer is one from the pool, of any size.
func (r *Reader) buffer() *[]byte {
	return r.bufs.Get()
}

func (r *Reader) release(rf *readFile) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unref(rf)
}

// Close closes the files that r keeps open, and none of the file systems that it was given: a
// writer of the spool may go by the same. Contents already given out stay good.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, rf := range r.files {
		delete(r.files, n)
		r.unref(rf)
	}
	if r.sweep != nil {
		r.sweep.Stop()
		r.sweep = nil
	}
	return nil
}

// fetch reads the first n bytes of the record at ref, or what there is of
// them, into buf, which it may replace, and verifies the header.
func (r *Reader) fetch(buf []byte, ref Ref, number uint64, n uint32) ([]byte, header, error) {
	n = min(n, ref.Length)
	if n < headerLen {
		return buf, header{}, fmt.Errorf("%w: a reference to %d bytes", ErrInvalid, ref.Length)
	}
	if cap(buf) < int(n) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	for again := false; ; again = true {
		rf, err := r.open(ref.File)
		if err != nil {
			return buf, header{}, err
		}
		h, err := r.fetchFrom(rf, buf, ref, number)
		r.release(rf)
		if !errors.Is(err, ErrStale) && !errors.Is(err, ErrCorrupt) {
			return buf, h, err
		}
		// The file may have been given back, and this be another one now; and damage
		// has to be seen twice to be believed.
		r.drop(ref.File, rf)
		if again {
			return buf, h, err
		}
	}
}

func (r *Reader) fetchFrom(rf *readFile, buf []byte, ref Ref, number uint64) (header, error) {
	_, err := rf.f.ReadAt(buf, int64(ref.Offset))
	if err == nil {
		h, ok := parseHeader(buf, rf.key)
		if ok && inStash(ref.File) && h.typ == recDONE && h.number == number {
			return header{}, fmt.Errorf("%w: it has left the volatile area", ErrStale)
		}
		if ok && h.number == number && h.recLen() == int64(ref.Length) && (h.segno == ref.Segno || r.planted(plantNoSegno)) ||
			ok && r.planted(plantAnyRecord) {
			return h, nil
		}
	}
	return header{}, r.whyBad(rf, ref, err)
}

// whyBad says why a record is not what it should be: the segment was recycled,
// or damaged. The writer changes a segment's header before anything else in it.
func (r *Reader) whyBad(rf *readFile, ref Ref, cause error) error {
	var h segHeader
	b := make([]byte, headRoom)
	bad := readAround(rf.f, b, 0)
	ok, _ := h.read(b)
	switch {
	case ok && h.segno != ref.Segno:
		return ErrStale
	case !ok && bad == 0 && cause == nil && isZero(b) && r.isNew(rf, ref):
		return fmt.Errorf("%w: the segment is new", ErrStale)
	}
	if cause != nil {
		if r.planted(plantUnreadDamage) {
			cause = io.EOF
		}
		return fmt.Errorf("%w: segment %d (%s) at %d: %w", readFailure(cause), ref.Segno, segName("", ref.File), ref.Offset, cause)
	}
	return fmt.Errorf("%w: segment %d (%s) at %d", ErrCorrupt, ref.Segno, segName("", ref.File), ref.Offset)
}

// readFailure is what an error of reading means. Where the file ends, what should
// be there is gone.
func readFailure(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrCorrupt
	}
	return ErrUnread
}

// isNew says whether there is nothing but zeros in place of the record at ref: the
// file was made, and not used yet.
func (r *Reader) isNew(rf *readFile, ref Ref) bool {
	b := make([]byte, headerLen)
	return readAround(rf.f, b, int64(ref.Offset)) == 0 && isZero(b)
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

func (r *Reader) judgeAgain(ref Ref) error {
	rf, err := r.open(ref.File)
	if err != nil {
		return err
	}
	defer r.release(rf)
	return r.whyBad(rf, ref, nil)
}

// metaGuess is how much of a record Read reads at first.
const metaGuess = 1024

// readMeta reads and verifies the metadata of the record at ref, twice if they seem
// damaged.
func (r *Reader) readMeta(ref Ref, number uint64) (meta, header, error) {
	m, h, err := r.readMetaOnce(ref, number)
	if errors.Is(err, ErrCorrupt) {
		m, h, err = r.readMetaOnce(ref, number)
	}
	return m, h, err
}

func (r *Reader) readMetaOnce(ref Ref, number uint64) (m meta, h header, err error) {
	buf := r.buffer()
	defer r.bufs.Put(buf)
	b, h, err := r.fetch(*buf, ref, number, metaGuess)
	*buf = b[:0]
	if err != nil {
		return m, h, err
	}
	if need := headerLen + h.metaLen; need > uint32(len(b)) {
		b, h, err = r.fetch(*buf, ref, number, need)
		*buf = b[:0]
		if err != nil {
			return m, h, err
		}
	}
	m, err = r.metaIn(slices.Clone(b[headerLen:headerLen+h.metaLen]), &h, ref)
	return m, h, err
}

// metaIn verifies b, the metadata of the record at ref. The result points into b.
func (r *Reader) metaIn(b []byte, h *header, ref Ref) (meta, error) {
	if h.typ != recMSG && h.typ != recSTATE {
		return meta{}, fmt.Errorf("%w: a %s record", ErrInvalid, typeNames[h.typ%numTypes])
	}
	m, ok := decodeMeta(b, h)
	if !ok {
		return m, r.judgeAgain(ref)
	}
	return m, nil
}

// Read reads the envelope and state of message id at ref and verifies
// them; content is not looked at. ErrStale means that the record has moved,
// ErrCorrupt that it is damaged.
func (r *Reader) Read(ref Ref, id mail.QueueID) (*Stored, error) {
	t, number, err := id.Parse()
	if err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrInvalid, string(id), err)
	}
	m, h, err := r.readMeta(ref, number)
	if err != nil {
		return nil, fmt.Errorf("message %s: %w", id, err)
	}
	st := &Stored{r: r, id: id, number: number, m: m, msg: msgOf(ref, &h, &m)}
	if err := st.checkTime(t); err != nil {
		return nil, err
	}
	st.live = live{number: number, nrcpt: min(m.nrcpt, queue.MaxRecipients)}
	st.more = loadDone(&st.live, m.done)
	st.entry = Entry{ID: id, Ref: ref, Queue: Queue(m.queue), NextAttempt: queue.FromMicros(m.next), Attempts: int(m.attempts),
		Size: m.size, NRcpt: int(m.nrcpt), Trace: mail.Trace(m.trace), Null: m.flags&msgNull != 0,
		Warned: m.flags&msgWarned != 0, Expire: m.flags&msgExpire != 0, Tenant: string(m.tenant)}
	return st, nil
}

// msgOf is where the MSG record is that belongs to the record at ref.
func msgOf(ref Ref, h *header, m *meta) Ref {
	if h.typ == recMSG {
		return ref
	}
	return m.msgAt(ref)
}

// checkTime says whether the message is the one that its ID says, made at t.
func (st *Stored) checkTime(t time.Time) error {
	if st.m.created != t.UnixMicro() {
		return fmt.Errorf("message %s: %w: another message has its number", st.id, ErrInvalid)
	}
	return nil
}

// Stored is one message as recorded. It belongs to one goroutine.
type Stored struct {
	r      *Reader
	id     mail.QueueID
	number uint64
	m      meta
	msg    Ref // MSG record
	live   live
	more   []uint64
	entry  Entry
}

// needEnvelope reads the envelope from the MSG record when a STATE record left
// it there, as it does with long ones.
func (st *Stored) needEnvelope() error {
	if st.m.hasEnv {
		return nil
	}
	if st.msg.IsZero() {
		return fmt.Errorf("message %s: %w: its envelope is gone", st.id, ErrCorrupt)
	}
	m, _, err := st.r.readMeta(st.msg, st.number)
	if err != nil {
		return fmt.Errorf("message %s: %w", st.id, err)
	}
	if !m.hasEnv {
		return fmt.Errorf("message %s: %w: its envelope is gone", st.id, ErrCorrupt)
	}
	st.m.envelope, st.m.recipients, st.m.hasEnv = m.envelope, m.recipients, true
	if st.m.bigCRC == 0 { // left there, too
		st.m.bigLen, st.m.bigCRC = m.bigLen, m.bigCRC
	}
	return nil
}

// Envelope decodes the envelope, without recipients.
func (st *Stored) Envelope() (mail.Envelope, error) {
	var e mail.Envelope
	if err := st.needEnvelope(); err != nil {
		return e, err
	}
	if err := e.Decode(st.m.envelope); err != nil {
		return e, fmt.Errorf("message %s: %w: envelope: %w", st.id, ErrCorrupt, err)
	}
	return e, nil
}

// Recipients decodes those with index from up to, not including, to; to < 0
// means all the rest.
func (st *Stored) Recipients(from, to int) ([]mail.Recipient, error) {
	if err := st.needEnvelope(); err != nil {
		return nil, err
	}
	list, err := mail.DecodeRecipients(nil, st.m.recipients, from, to)
	if err != nil {
		return list, fmt.Errorf("message %s: %w: recipients: %w", st.id, ErrCorrupt, err)
	}
	return list, nil
}

// NRcpt is how many recipients the message has had from the start.
func (st *Stored) NRcpt() int { return int(st.live.nrcpt) }

// Pending says whether there is something still to do for recipient i.
func (st *Stored) Pending(i int) bool {
	return i >= 0 && i < int(st.live.nrcpt) && !isDone(&st.live, st.more, uint64(i))
}

// Overlay adds what an Entry knows of recipients that are done.
func (st *Stored) Overlay(done []byte) {
	for i, v := range done {
		for b := range 8 {
			if r := i*8 + b; v>>b&1 != 0 && r < int(st.live.nrcpt) {
				st.more = setDone(&st.live, st.more, uint64(r))
			}
		}
	}
}

// Outcomes is the last outcome of each pending recipient that has one, in no
// order.
func (st *Stored) Outcomes() ([]mail.Outcome, error) {
	var list []mail.Outcome
	p := pack.NewReader(st.m.outcomes)
	for p.Next() {
		var o mail.Outcome
		if err := o.Decode(p.Bytes()); err != nil {
			return list, fmt.Errorf("message %s: %w: outcome: %w", st.id, ErrCorrupt, err)
		}
		if st.Pending(o.Rcpt) {
			list = append(list, o)
		}
	}
	if err := p.Err(); err != nil {
		return list, fmt.Errorf("message %s: %w: outcomes: %w", st.id, ErrCorrupt, err)
	}
	return list, nil
}

// State is the message's entry as recorded, with what Overlay added.
func (st *Stored) State() Entry {
	e := st.entry
	e.NPending = int(st.live.npending)
	e.Done = doneBitmap(&st.live, st.more)
	return e
}
