package spool

import (
	"io"

	"posthaste/internal/vfs"
)

// readAround reads as much of p as the disk gives, sector by sector where a
// larger read fails, with zeros for what it does not give. It returns how many
// bytes those are; what is past the end of the file is not among them.
func readAround(f vfs.File, p []byte, off int64) (bad int) {
	n, err := f.ReadAt(p, off)
	if err == nil || err == io.EOF {
		clear(p[n:])
		return 0
	}
	const sector = 512
	for len(p) > 0 {
		n := int(min(int64(len(p)), sector-off%sector))
		if _, err := f.ReadAt(p[:n], off); err != nil && err != io.EOF {
			clear(p[:n])
			bad += n
		}
		p, off = p[n:], off+int64(n)
	}
	return bad
}

const (
	// windowLen is how much of a file a window reads at a time.
	windowLen = 1 << 20
	// headroom is how much of the end of one window may be wanted together
	// with the beginning of the next.
	headroom = 64 << 10
)

// window is a buffered view of a file for reading more or less forward.
type window struct {
	f    vfs.File
	size int64
	buf  []byte // from off on
	off  int64
	bad  int // bytes that the disk did not give
	// next, if not nil, reads the following window while this one is looked at.
	next *prefetch
}

// at gives n bytes at off, or fewer at the end of the file. They are good
// until the next call.
func (w *window) at(off int64, n int) []byte {
	n = int(min(int64(n), w.size-off))
	if n <= 0 {
		return nil
	}
	if off < w.off || off+int64(n) > w.off+int64(len(w.buf)) {
		w.move(off, n)
	}
	return w.buf[off-w.off:][:n:n]
}

// rest is what the window has from off on, which is in it.
func (w *window) rest(off int64) []byte { return w.buf[off-w.off:] }

// move has the window begin at off or before, and reach over n bytes from there.
func (w *window) move(off int64, n int) {
	if w.next == nil || !w.next.turn(w, off, n) {
		want := int(min(max(int64(n), windowLen), w.size-off))
		if cap(w.buf) < want {
			w.buf = make([]byte, want)
		}
		w.buf = w.buf[:want]
		w.bad += readAround(w.f, w.buf, off)
		w.off = off
	}
	if w.next != nil {
		w.next.start(w)
	}
}

// prefetch reads the window after the present one in a goroutine. One read is
// under way at a time, so that the disk is asked the same in the same order
// every time. It serves one window after the other, each after reset.
type prefetch struct {
	rooms [2][]byte // each headroom and a window: one is read into, the other looked at
	into  int       // the one that is read into
	off   int64     // of what was read last
	n     int       // its length; 0 is none
	bad   int
	done  chan struct{} // nil when no read is under way
}

// start begins to read what follows w.
func (p *prefetch) start(w *window) {
	p.wait()
	p.off = w.off + int64(len(w.buf))
	p.n = int(min(windowLen, w.size-p.off))
	if p.n == 0 {
		return
	}
	if p.rooms[p.into] == nil {
		p.rooms[p.into] = make([]byte, headroom+windowLen)
	}
	done := make(chan struct{})
	p.done = done
	go func() { // wait waits for it
		p.bad = readAround(w.f, p.rooms[p.into][headroom:headroom+p.n], p.off)
		close(done)
	}()
}

// wait waits for the read under way, if there is one.
func (p *prefetch) wait() {
	if p.done != nil {
		<-p.done
		p.done = nil
	}
}

// reset forgets what was read.
func (p *prefetch) reset() {
	p.wait()
	p.n = 0
}

// turn has w be what was read, if that is what is wanted of it.
func (p *prefetch) turn(w *window, off int64, n int) bool {
	p.wait()
	tail := max(p.off-off, 0) // how much of it w has
	if p.n == 0 || off < w.off || tail > headroom || off+int64(n) > p.off+int64(p.n) {
		return false
	}
	room := p.rooms[p.into][headroom-tail : headroom+int64(p.n)]
	if tail > 0 {
		copy(room, w.rest(off))
	}
	w.buf, w.off = room, p.off-tail
	w.bad += p.bad
	p.n, p.into = 0, 1-p.into
	return true
}
