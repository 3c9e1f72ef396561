package pgspool

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/queue"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// partLen is the length of a part of content that has rows of its own: what a reader holds in memory.
const partLen = 256 << 10

// maxContent bounds content by what positions can count, which is far beyond message_size_limit.
const maxContent = partLen << 20

// A file implements storage.ContentFile: an unnamed file on the local disk, where content is until its
// message is committed. It is never synced, since it is of no use after a crash.
type file struct {
	f    vfs.File
	size int64
	err  error
}

// NewFile implements storage.Engine.
func (e *engine) NewFile() (storage.ContentFile, error) {
	if err := e.Err(); err != nil {
		return nil, err
	}
	f, err := vfs.OS{}.CreateTemp(e.opt.TempDir)
	if err != nil {
		return nil, fileError(err)
	}
	return &file{f: f}, nil
}

func fileError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", queue.ErrFull, err)
	}
	return fmt.Errorf("%w: %w", queue.ErrUnstored, err)
}

// Write implements storage.ContentFile.
func (f *file) Write(p []byte) (int, error) {
	if f.err == nil && f.size+int64(len(p)) > maxContent {
		f.err = queue.ErrTooLarge
	}
	if f.err != nil {
		return 0, f.err
	}
	if _, err := f.f.WriteAt(p, f.size); err != nil {
		f.err = fileError(err)
		return 0, f.err
	}
	f.size += int64(len(p))
	return len(p), nil
}

// ReadAt implements storage.ContentFile.
func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if off >= f.size {
		return 0, io.EOF
	}
	n, err := f.f.ReadAt(p[:min(int64(len(p)), f.size-off)], off)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// Size implements storage.ContentFile.
func (f *file) Size() int64 { return f.size }

// Abort implements storage.ContentFile.
func (f *file) Abort() {
	if f.f != nil {
		f.f.Close() // nobody wants what is in it
		f.f = nil
		f.err = fmt.Errorf("%w: the content was given up", queue.ErrInvalid)
	}
}

// upload writes the content files of b, in the goroutine of who commits it, in transactions of their own. Until a
// MSG record refers to the rows they mean nothing; when none ever does they go with their segment. After an error
// the caller settles b.
func (e *engine) upload(b *batch) error {
	for i := range b.ops {
		o := &b.ops[i]
		f, ok := o.add.File.(*file)
		if !ok || o.big != nil || b.err != nil {
			continue
		}
		if f.err != nil {
			return f.err
		}
		sh, p, err := e.uploadFile(f, o.number)
		if err != nil {
			return err
		}
		// New mail may go to another shard by then.
		o.home, o.big, o.unpin = sh, p, func() { e.unpin(sh, p.seg) }
	}
	return nil
}

// uploadFile writes one, to the shard that it returns. Its rows are not alive before install counts them: until then the segment is
// pinned.
func (e *engine) uploadFile(f *file, number uint64) (*shard, *place, error) {
	pool, err := e.store.readers()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), transactionTime)
	defer cancel()
	c, err := pool.Acquire(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", queue.ErrUnstored, clean(err))
	}
	defer c.Release()
	conn := c.Conn()
	sh := e.turn()
	seg, err := e.head(ctx, sh, conn)
	if err != nil {
		return nil, nil, unstored(err)
	}
	p := &place{seg: seg.segno, parts: uint32((f.size + partLen - 1) / partLen), size: f.size}
	e.mu.Lock()
	p.pos = seg.reserve(p.parts)
	seg.bytes += f.size
	e.mu.Unlock()
	err = e.transact(ctx, conn, []*shard{sh}, func() error {
		r := &partReader{f: f, number: number, pos: p.pos}
		defer r.end()
		_, err := conn.PgConn().CopyFrom(ctx, r, copySQL(sh.id, seg.segno))
		return err
	})
	if err != nil {
		e.unpin(sh, p.seg)
		return nil, nil, unstored(err)
	}
	return sh, p, nil
}

// turn is the shard that new mail goes to. When the segment is full that it went to, that is the next one of the node: so all are
// filled evenly, and when the node dies each of the others finds a part of its mail in what it takes over.
func (e *engine) turn() *shard {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h := e.home.head; !e.home.bad && (h == nil || h.bytes < e.store.segmentSize) {
		return e.home
	}
	var first, next *shard
	for id, sh := range e.shards {
		if sh.bad {
			continue
		}
		if first == nil || id < first.id {
			first = sh
		}
		if id > e.home.id && (next == nil || id < next.id) {
			next = sh
		}
	}
	e.home = cmp.Or(next, first, e.home)
	return e.home
}

// unstored is err for the message alone: no other's fate hangs on its content. It is so also when the
// end of the transaction is not known. That the shard is lost the committer finds out itself.
func unstored(err error) error {
	if errors.Is(err, queue.ErrFull) {
		return fmt.Errorf("%w: content: %w", queue.ErrFull, err)
	}
	return fmt.Errorf("%w: %v", queue.ErrUnstored, err)
}

// unpin ends that a segment is kept for who got it from head: what was written to it counts as alive now, or is
// of no use.
func (e *engine) unpin(sh *shard, segno uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := sh.segs[segno]; s != nil {
		s.pins--
	}
}

// settle ends the life of b's content files. Segments need not be pinned for those that a message has now:
// they count as alive.
func (b *batch) settle() {
	for i := range b.ops {
		o := &b.ops[i]
		if o.unpin != nil {
			o.unpin()
			o.unpin = nil
		}
		if f, ok := o.add.File.(*file); ok {
			f.Abort()
		}
	}
}

// A partReader reads a content file as rows in the binary form of COPY, one part at a time. CopyFrom reads in a
// goroutine, for which it does not wait when the connection breaks: the file is no longer read after end, whatever
// still asks.
type partReader struct {
	mu     sync.Mutex // of all that follows
	f      *file      // nil after end
	number uint64
	pos    uint32
	part   int
	rows   rows // of the present part
	off    int  // in rows.buf
	body   []byte
	ended  bool
}

// Read implements io.Reader.
func (r *partReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.f == nil {
		return 0, io.ErrClosedPipe
	}
	if r.off == len(r.rows.buf) {
		if err := r.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rows.buf[r.off:])
	r.off += n
	return n, nil
}

// end waits for a Read that is under way. After it the file may be given up.
func (r *partReader) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.f = nil
}

// next makes the rows of the next part, and after the last one the trailer.
func (r *partReader) next() error {
	begun := r.part > 0 || r.ended
	r.rows.buf, r.off = r.rows.buf[:0], 0
	at := int64(r.part) * partLen
	switch {
	case r.ended:
		return io.EOF
	case at >= r.f.size:
		r.ended = true
		if !begun {
			r.rows.buf = append(r.rows.buf, copyHeader...)
		}
		r.rows.buf = append(r.rows.buf, copyTrailer...)
		return nil
	}
	if r.body == nil {
		r.body = make([]byte, partLen)
	}
	body := r.body[:min(partLen, r.f.size-at)]
	if n, err := r.f.ReadAt(body, at); n < len(body) {
		return fmt.Errorf("%w: %w", queue.ErrUnstored, err)
	}
	r.rows.add(r.pos+uint32(r.part), rowPART, r.number, partHead(body, r.number, r.part), nil, body)
	if begun {
		r.off = len(copyHeader) // only the first has it
	}
	r.part++
	return nil
}

// partHead is the head of a part's row: the checksum of its content, and nothing else.
func partHead(body []byte, number uint64, part int) []byte {
	return binary.LittleEndian.AppendUint32(nil, sum(body, rowPART, number, part))
}

// head returns the segment that a shard's new rows go to, with room in it, and pins it: another may be the head before
// they are there, and an empty one that is not the head is dropped. The connection is not in a transaction. Errors
// are those of transact.
func (e *engine) head(ctx context.Context, sh *shard, conn *pgx.Conn) (*segment, error) {
	full := func() (*segment, bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		s := sh.head
		if s == nil || s.bytes >= e.store.segmentSize {
			return nil, true
		}
		s.pins++
		return s, false
	}
	if s, full := full(); !full {
		return s, nil
	}
	e.making.Lock() // one at a time
	defer e.making.Unlock()
	if s, full := full(); !full {
		return s, nil
	}
	e.mu.Lock()
	s := &segment{segno: sh.nextSeg, next: 1, pins: 1}
	sh.nextSeg++
	e.mu.Unlock()
	err := e.transact(ctx, conn, []*shard{sh}, func() error {
		_, err := run(ctx, conn, createSegment(sh.id, s.segno, sh.epoch))
		return err
	})
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	sh.segs[s.segno], sh.head = s, s
	return s, nil
}
