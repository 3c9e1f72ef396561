package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"posthaste/internal/reuse"
	"posthaste/internal/vfs"
)

// bigChunk is the part of a content file that has a checksum of its own.
const bigChunk = 64 << 10

// writebackSize is how much of a content file gathers before the disk begins with
// it, so that the sync at the end, which somebody waits for, has little left to do.
const writebackSize = 8 * bigChunk

// A File takes the content of a large message while it arrives. Before its
// message is committed it has no name, or that of a spent file, and is gone when
// the process dies, or has been started again. It is used by one goroutine, and
// ends with Abort or in a Batch.
type File struct {
	e    *engine
	f    vfs.File
	buf  []byte // of the present chunk
	off  int64  // of buf in the file
	size int64
	sums []byte // checksums of the chunks before buf
	name string // once linked, and that of the spent file that it is before
	// outages is how many the place for content files had had when this was begun.
	outages int
	kept    bool // a batch has it
	err     error

	pooled *[]byte // what buf lies in
}

func (e *engine) newFile() (*File, error) {
	e.mu.RLock()
	err := e.broken
	e.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	outages, err := e.contentUp()
	if err != nil {
		return nil, err
	}
	f, name := e.reuse()
	if f == nil {
		if f, err = e.content.fs.CreateTemp(e.content.dir); err != nil {
			return nil, e.fileError(err)
		}
	}
	buf := e.bigBufs.Get()
	if *buf == nil {
		*buf = make([]byte, 0, bigChunk)
	}
	return &File{e: e, f: f, name: name, outages: outages, pooled: buf, buf: (*buf)[:0]}, nil
}

// close closes the file, and gives its memory back.
func (f *File) close() error {
	f.e.bigBufs.Put(f.pooled)
	f.pooled, f.buf = nil, nil
	return f.f.Close()
}

// fileError sorts the errors of writing a content file. They are the one message's:
// no other's content is in that file, and the log is made durable by itself.
func (e *engine) fileError(err error) error {
	if isFull(err) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	err = fmt.Errorf("%w: %w", ErrUnstored, err)
	e.warn("%v; the message is refused", err)
	return err
}

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// Write appends to the content. It fails with ErrFull when the disk or the
// budget is full; the File is then only good for ReadAt, which has all that was taken, and Abort.
func (f *File) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 && f.err == nil {
		k := min(len(p), bigChunk-len(f.buf))
		f.buf = append(f.buf, p[:k]...)
		f.size += int64(k)
		p = p[k:]
		if len(f.buf) == bigChunk {
			f.err = f.flush()
		}
	}
	return n - len(p), f.err
}

func (f *File) flush() error {
	if err := f.e.roomForBig(int64(len(f.buf)), f.off); err != nil {
		return err
	}
	if err := f.writeAt(f.buf); err != nil {
		return err
	}
	f.sums = binary.LittleEndian.AppendUint32(f.sums, checksum(f.buf))
	f.off += int64(len(f.buf))
	f.buf = reuse.Truncated(f.buf)
	if f.off%writebackSize == 0 {
		f.f.Writeback(f.off-writebackSize, writebackSize)
	}
	return nil
}

// writeAt writes p at the end, for which spent files must make room if there is none.
func (f *File) writeAt(p []byte) error {
	defer f.e.disk.end(f.e.disk.begin())
	_, err := f.f.WriteAt(p, f.off)
	if err != nil && isFull(err) && f.e.dropSpent() {
		_, err = f.f.WriteAt(p, f.off)
	}
	if err != nil {
		return f.e.fileError(err)
	}
	return nil
}

// roomForBig counts n more bytes of content files, if there is room.
func (e *engine) roomForBig(n, off int64) error {
	if e.lim.minFree > 0 && off%(16*bigChunk) == 0 {
		full := e.fullDisk
		if e.content.away {
			full = e.fullContent // the log's is looked at for the record
		}
		if err := full(); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lim.segments > 0 && !e.content.away {
		room := (e.lim.segments - e.lim.reserve) * (e.lim.segSize - headRoom)
		if e.liveSum+e.bigSum+n > room/10*7 {
			return fmt.Errorf("%w: %d bytes of mail are queued, %d bytes of disk may be used", ErrFull, e.liveSum+e.bigSum, e.lim.budget)
		}
	}
	e.bigSum += n
	return nil
}

// Size is the number of bytes written.
func (f *File) Size() int64 { return f.size }

// finish makes the content durable under the name of its message, before the
// record that refers to it is written.
func (f *File) finish(id string) (crc uint32, err error) {
	if f.err != nil {
		return 0, f.err
	}
	if err := f.e.isBroken(); err != nil {
		return 0, err
	}
	if len(f.buf) > 0 {
		if f.err = f.flush(); f.err != nil {
			return 0, f.err
		}
	}
	e := f.e
	defer e.disk.end(e.disk.begin())
	if err := f.writeAt(f.sums); err != nil {
		return 0, err
	}
	if err := f.shorten(); err != nil {
		return 0, e.fileError(err)
	}
	if f.name == "" || !e.planted(plantReusedUnsynced) {
		if err := f.f.Datasync(); err != nil {
			return 0, e.fileError(err)
		}
	}
	if err := f.rename(e.content.name(id)); err != nil {
		return 0, e.fileError(err)
	}
	if e.planted(plantNoDirSyncBig) {
		return checksum(f.sums), nil
	}
	if err := e.syncNames(f); err != nil {
		return 0, err
	}
	return checksum(f.sums), nil
}

// shorten gives up what a spent file had more.
func (f *File) shorten() error {
	if f.name == "" {
		return nil
	}
	end := f.off + int64(len(f.sums))
	if size, err := f.f.Size(); err != nil || size <= end {
		return err
	}
	return f.f.Truncate(end)
}

// rename gives the file its name. One that had none is synced again: the file has
// counted its names until then as none, and without a journal (ext4) the check after
// a power cut removes such a file. A spent file had a name all along.
func (f *File) rename(name string) error {
	if f.name != "" {
		if err := f.e.content.fs.Rename(f.name, name); err != nil {
			return err
		}
		f.name = name
		return nil
	}
	if err := f.e.content.fs.Link(f.f, name); err != nil {
		return err
	}
	f.name = name
	if f.e.planted(plantNoLinkSync) {
		return nil
	}
	return f.f.Datasync()
}

// A sharedSync is a sync that serves all who wait for one when it begins.
type sharedSync struct {
	asked atomic.Uint64 // who wanted one, in order
	mu    sync.Mutex    // held while one is under way
	done  uint64        // for whom it has been done
	err   error         // why it never will again: after a failure another sync says nothing
}

// sync returns when do has been called, and has ended, after sync was.
func (s *sharedSync) sync(do func() error) error {
	mine := s.asked.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done >= mine || s.err != nil {
		return s.err
	}
	upTo := s.asked.Load()
	if s.err = do(); s.err == nil {
		s.done = upTo
	}
	return s.err
}

// reset has a later sync be tried although one has failed: who waits for one by then is
// not concerned by that.
func (s *sharedSync) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = nil
}

// Abort gives the file up. It does nothing once a batch has been committed
// with it.
func (f *File) Abort() {
	if f.kept || f.f == nil {
		return
	}
	e := f.e
	e.mu.Lock()
	e.bigSum -= f.off
	broken := e.broken
	e.mu.Unlock()
	if f.name != "" && broken == nil {
		if err := e.content.fs.Remove(f.name); err != nil {
			e.warn("spool: content of a refused message: %v", err)
		}
	}
	if err := f.close(); err != nil {
		e.warn("spool: content of a refused message: %v", err)
	}
	f.f = nil
	f.err = errAborted
}

var errAborted = fmt.Errorf("%w: the content was given up", ErrInvalid)

// prepare finishes the content files of b, in the goroutine of who commits.
func (e *engine) prepare(b *Batch) error {
	for i := range b.ops {
		o := &b.ops[i]
		if o.large == nil || b.err != nil {
			continue
		}
		f := o.large.File
		crc, err := f.finish(string(o.id))
		if err != nil {
			return err
		}
		b.sealFile(o, f.size, crc)
	}
	return nil
}

// settle ends the life of b's content files: a message has them now, or
// they go.
func (b *Batch) settle(err error) {
	for i := range b.ops {
		o := &b.ops[i]
		if o.large == nil {
			continue
		}
		f := o.large.File
		if err != nil {
			f.Abort()
			continue
		}
		f.kept = true
		if cerr := f.close(); cerr != nil {
			f.e.warn("spool: content file: %v", cerr) // it was synced: nothing is lost
		}
	}
}
