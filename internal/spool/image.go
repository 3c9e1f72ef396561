package spool

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"

	"posthaste/internal/vfs"
)

// An image is a copy of the index in a file, as of one batch: a start that finds one reads
// that and the log since, in place of the log since the recovery point. Nothing depends on
// it. It frees no segment, and a start that finds anything wrong, with the image or with what it
// reads of the log, begins anew without one.
//
// It is written while the log goes on. What changes meanwhile may be in it as it was or as
// it is: the batches since its own say all of that again, each record for itself.
type image struct {
	batch  uint64 // all up to this one are in it
	last   uint64 // some up to this one may be
	seq    uint64 // of the next record after batch
	clean  bool   // batch was a CLOSE
	exact  bool   // Options.ExactDoubt, of the process that wrote it
	top    uint64 // highest number of a message in it: those after it came since
	file   uint32 // segment that batch is in
	off    uint32 // and where it begins there
	uses   []segmentUse
	chunks uint32
	count  uint64 // messages
}

// segmentUse is how a segment was when the image was begun.
type segmentUse struct {
	file, salt       uint32
	segno, lastBatch uint64
	end              int64 // while it was open: of its last batch; 0: it was not
}

const (
	imageDir     = "index"
	imageMagic   = "PHINDEX1"
	imageVersion = 1
	imageHeader  = blockSize
	imageChunk   = 256 << 10 // bytes, about
	useBytes     = 4 + 4 + 8 + 8 + 8
	// maxImageChunk bounds what is believed of the length of one.
	maxImageChunk = 64 << 20
)

// errImage is that a start has to do without an image.
var errImage = errors.New("spool: the image of the index is of no use")

func imageName(dir string, batch uint64) string {
	return path.Join(dir, imageDir, fmt.Sprintf("%020d", batch))
}

// put writes the header into b, of imageHeader bytes.
func (m *image) put(b []byte, uuid [16]byte, entries int) {
	le := binary.LittleEndian
	clear(b)
	copy(b, imageMagic)
	le.PutUint16(b[8:], imageVersion)
	le.PutUint16(b[10:], uint16(entries))
	if m.clean {
		b[12] |= 1
	}
	if m.exact {
		b[12] |= 2
	}
	copy(b[16:32], uuid[:])
	le.PutUint64(b[32:], m.batch)
	le.PutUint64(b[40:], m.last)
	le.PutUint64(b[48:], m.seq)
	le.PutUint64(b[56:], m.count)
	le.PutUint32(b[64:], m.file)
	le.PutUint32(b[68:], m.off)
	le.PutUint32(b[72:], m.chunks)
	le.PutUint32(b[76:], uint32(len(m.uses)))
	le.PutUint32(b[508:], checksum(b[:508]))
}

// parse reads what put wrote. It is false for what is none, or not this spool's, or was
// written by another version.
func (m *image) parse(b []byte, uuid [16]byte, entries int) (uses int, ok bool) {
	le := binary.LittleEndian
	if string(b[:8]) != imageMagic || checksum(b[:508]) != le.Uint32(b[508:]) || le.Uint16(b[8:]) != imageVersion ||
		int(le.Uint16(b[10:])) != entries || string(b[16:32]) != string(uuid[:]) {
		return 0, false
	}
	m.clean, m.exact = b[12]&1 != 0, b[12]&2 != 0
	m.batch, m.last, m.seq, m.count = le.Uint64(b[32:]), le.Uint64(b[40:]), le.Uint64(b[48:]), le.Uint64(b[56:])
	m.file, m.off, m.chunks = le.Uint32(b[64:]), le.Uint32(b[68:]), le.Uint32(b[72:])
	return int(le.Uint32(b[76:])), true
}

// images are the image files that there are, and when the next is due. Only the
// housekeeper, the start and the end use it.
type images struct {
	every int64 // bytes of log after which one is written; negative: never
	names []string
}

// imageEvery is how much log is written until there is another image, at least. With many
// messages it is imageShare times as much as the image.
const (
	imageEvery = 256 << 20
	imageShare = 8
	// closingShare is what part of that is enough when the spool is closed: whoever starts
	// it again waits for it.
	closingShare = 32
)

// imageDue says whether so much has been written that there should be an image. The caller
// holds mu.
func (e *engine) imageDue(closing bool) bool {
	if e.images.every < 0 || e.broken != nil || e.diskLow {
		return false
	}
	due := max(e.images.every, imageShare*e.idx.imageBytes())
	if closing {
		due /= closingShare
	}
	return e.unread+int64(e.stats.Written-e.imagedAt) >= due
}

// saveImage writes an image if one is due. Whatever goes wrong, the start will do without.
func (e *engine) saveImage(closing bool) {
	e.mu.RLock()
	due, need := e.imageDue(closing), e.idx.imageBytes()
	e.mu.RUnlock()
	if !due {
		return
	}
	free, err := e.fs.Free(e.dir)
	if err == nil && free < e.lim.minFree+plenty*e.lim.segSize+2*need {
		err = errNearlyFull
	}
	if err == nil {
		err = e.writeImage(func() bool { return !closing && e.closing.Load() })
	}
	if err == nil || errors.Is(err, errClosing) {
		return
	}
	e.mu.Lock()
	e.unread, e.imagedAt = 0, e.stats.Written // it is tried again when as much has been written again
	e.mu.Unlock()
	if !errors.Is(err, errNearlyFull) {
		e.warn("spool: image of the index: %v; the next start may take longer", err)
	}
}

// writeImage writes an image and removes those before. It gives up with errClosing when stop
// says so, which it asks before each leaf.
func (e *engine) writeImage(stop func() bool) error {
	if err := e.fs.MkdirAll(path.Join(e.dir, imageDir)); err != nil {
		return err
	}
	m, written := e.beginImage()
	name := imageName(e.dir, m.batch)
	if slices.Contains(e.images.names, name) { // it was not finished, or is of no use
		e.dropImages()
	}
	f, err := e.fs.Create(name)
	if err != nil {
		return err
	}
	w := imageWriter{f: f, off: imageHeader, seed: e.key ^ uint32(m.batch)}
	if err = e.writeLeaves(&m, &w, stop); err == nil {
		err = w.end(&m, e.uuid, e.idx.leafLen)
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = e.fs.SyncDir(path.Join(e.dir, imageDir))
	}
	if err != nil {
		if e.isBroken() == nil {
			err = errors.Join(err, e.fs.Remove(name))
		}
		return err
	}
	e.mu.Lock()
	e.unread, e.imagedAt = 0, written
	e.mu.Unlock()
	e.dropImages()
	e.images.names = append(e.images.names, name)
	return nil
}

// beginImage notes how things stand, and how much has been written until then.
func (e *engine) beginImage() (m image, written uint64) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	m = image{batch: e.applied.batch, seq: e.applied.seq, file: e.applied.file, off: e.applied.off, clean: e.applied.closed, exact: e.exact, top: e.idx.top()}
	for _, s := range e.segs {
		if s.segno == 0 {
			continue
		}
		u := segmentUse{file: s.file, salt: s.salt, segno: s.segno, lastBatch: s.lastBatch}
		if s.state == segOpen && !e.planted(plantImageHead) {
			u.end = s.off
		}
		m.uses = append(m.uses, u)
	}
	slices.SortFunc(m.uses, func(a, b segmentUse) int { return int(int64(a.file) - int64(b.file)) })
	return m, e.stats.Written
}

// writeLeaves writes the whole index, a leaf at a time. The lock is not held from one to
// the next.
func (e *engine) writeLeaves(m *image, w *imageWriter, stop func() bool) error {
	w.uses(m.uses)
	var p packer
	for from, more := uint64(0), true; more; {
		if stop() || e.isBroken() != nil {
			return errClosing
		}
		var n int
		e.mu.RLock()
		w.buf, n, from, more = e.idx.appendLeaf(w.buf, from, &p)
		m.last = e.applied.batch
		e.mu.RUnlock()
		m.count += uint64(n)
		more = more && from <= m.top
		if len(w.buf) >= imageChunk {
			w.chunk()
		}
		if w.err != nil {
			return w.err
		}
	}
	return nil
}

// imageWriter writes chunks: a length, a checksum, and so much.
type imageWriter struct {
	f      vfs.File
	off    int64
	buf    []byte
	seed   uint32
	chunks uint32
	err    error
}

func (w *imageWriter) uses(list []segmentUse) {
	le := binary.LittleEndian
	for _, u := range list {
		w.buf = le.AppendUint32(w.buf, u.file)
		w.buf = le.AppendUint32(w.buf, u.salt)
		w.buf = le.AppendUint64(w.buf, u.segno)
		w.buf = le.AppendUint64(w.buf, u.lastBatch)
		w.buf = le.AppendUint64(w.buf, uint64(u.end))
	}
	w.chunk()
}

// chunk writes what is in buf.
func (w *imageWriter) chunk() {
	if w.err != nil {
		return
	}
	var head [8]byte
	binary.LittleEndian.PutUint32(head[:], uint32(len(w.buf)))
	binary.LittleEndian.PutUint32(head[4:], checksum(w.buf)^w.seed^w.chunks)
	w.buf = append(w.buf, head[:]...) // in one write
	copy(w.buf[8:], w.buf)
	copy(w.buf, head[:])
	_, w.err = w.f.WriteAt(w.buf, w.off)
	w.off += int64(len(w.buf))
	w.buf = w.buf[:0]
	w.chunks++
}

// end writes the rest, makes all of it durable, and then the header: where there is one, the rest
// is there as well.
func (w *imageWriter) end(m *image, uuid [16]byte, entries int) error {
	w.chunk()
	if w.err != nil {
		return w.err
	}
	if err := w.f.Datasync(); err != nil {
		return err
	}
	b := make([]byte, imageHeader)
	m.chunks = w.chunks
	m.put(b, uuid, entries)
	if _, err := w.f.WriteAt(b, 0); err != nil {
		return err
	}
	return w.f.Datasync()
}

// imageBytes is about how long an image is.
func (x *index) imageBytes() int64 {
	return x.mem.taken + int64(len(x.loose)*x.leafLen)*24
}

// appendLeaf appends the leaf that number from is in, without what is before that, and
// gives how many messages those are, and where the next leaf begins. It is false when there
// is none.
func (x *index) appendLeaf(b []byte, from uint64, p *packer) (_ []byte, n int, next uint64, more bool) {
	if x.n == 0 {
		return b, 0, from, false
	}
	at, lf := x.seek(from)
	next, more = x.after(at)
	var room [leafLen]live
	whole := lf.ents == nil && x.boughs[at.b].firsts[at.i] >= from
	if whole && len(x.more)+len(x.big)+len(x.handed) == 0 {
		b = binary.AppendUvarint(b, uint64(lf.length))
		b = append(b, x.mem.piece(lf.at, int(lf.length))...)
		return append(b, 0), int(lf.n), next, more
	}
	list := room[:x.read(lf, &room)]
	i, _ := locate(list, from)
	if list = list[i:]; len(list) == 0 {
		return b, 0, next, more
	}
	packed := p.pack(list)
	b = binary.AppendUvarint(b, uint64(len(packed)))
	b = append(b, packed...)
	return x.appendExtras(b, list), len(list), next, more
}

// top is the highest number of a message, or 0.
func (x *index) top() uint64 {
	if x.n == 0 {
		return 0
	}
	var room [leafLen]live
	_, lf := x.seek(^uint64(0))
	return room[x.read(lf, &room)-1].number
}

// after is where the leaf after the one at p begins.
func (x *index) after(p leafPlace) (uint64, bool) {
	if p.i++; p.i < len(x.boughs[p.b].firsts) {
		return x.boughs[p.b].firsts[p.i], true
	}
	if p.b++; p.b < len(x.firsts) {
		return x.boughs[p.b].firsts[0], true
	}
	return 0, false
}

// appendExtras appends what is beside the entries: how many of them have some, and for
// each which, the length of its content file, the words of its bits from recipient 64 on, and what
// agents have in hand.
func (x *index) appendExtras(b []byte, list []live) []byte {
	n := 0
	var extras []byte
	for i := range list {
		l := &list[i]
		more, handed := x.more[l.number], x.handedOf(l.number)
		if l.flags&msgBig == 0 && more == nil && handed == nil {
			continue
		}
		n++
		extras = binary.AppendUvarint(extras, uint64(i))
		extras = binary.AppendUvarint(extras, uint64(x.big[l.number]))
		extras = binary.AppendUvarint(extras, uint64(len(more)))
		for _, w := range more {
			extras = binary.LittleEndian.AppendUint64(extras, w)
		}
		text := appendHandings(nil, handed)
		extras = append(binary.AppendUvarint(extras, uint64(len(text))), text...)
	}
	return append(binary.AppendUvarint(b, uint64(n)), extras...)
}

// dropImages removes the images that there are.
func (e *engine) dropImages() {
	for _, name := range e.images.names {
		if err := e.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			e.warn("spool: image of the index: %v", err)
		}
	}
	e.images.names = nil
}

// loadImage fills the index from the latest image that fits the log, if there is one. The error is
// errImage when there is something in the index that must not be.
func (r *recovery) loadImage() error {
	e := r.e
	names, err := e.fs.List(path.Join(e.dir, imageDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	for _, name := range names {
		e.images.names = append(e.images.names, path.Join(e.dir, imageDir, name))
	}
	if e.noImage || slices.ContainsFunc(sorted(e.segs), func(s *segment) bool { return s.headless }) {
		return nil
	}
	for _, name := range slices.Backward(names) {
		if _, err := strconv.ParseUint(name, 10, 64); err != nil {
			continue
		}
		used, err := r.tryImage(path.Join(e.dir, imageDir, name))
		if used || err != nil {
			return err
		}
	}
	return nil
}

// tryImage fills the index from the image of that name if that fits the log.
func (r *recovery) tryImage(name string) (used bool, err error) {
	e := r.e
	f, err := e.fs.Open(name)
	if err != nil {
		return false, nil
	}
	defer f.Close()
	var m image
	b := make([]byte, imageHeader)
	if n, _ := f.ReadAt(b, 0); n < imageHeader {
		return false, nil
	}
	uses, ok := m.parse(b, e.uuid, e.idx.leafLen)
	if !ok || !r.fits(&m) {
		return false, nil
	}
	size, err := f.Size()
	if err != nil {
		return false, nil
	}
	in := imageReader{r: bufio.NewReaderSize(io.NewSectionReader(f, imageHeader, size-imageHeader), 1<<20), seed: e.key ^ uint32(m.batch)}
	if !in.next() || len(in.buf) != uses*useBytes {
		return false, nil
	}
	m.uses = parseUses(in.buf)
	load := newImageLoader(r, &m)
	for range m.chunks - 1 {
		if !in.next() || !load.leaves(in.buf) {
			return false, errImage
		}
	}
	if load.count != m.count {
		return false, errImage
	}
	load.adopt()
	return true, nil
}

// fits says whether the log is the one that the image is of, and is all there from the
// image's batch on.
func (r *recovery) fits(m *image) bool {
	e := r.e
	s := e.segs[m.file]
	if e.planted(plantImageForeign) {
		return true
	}
	if s == nil || s.segno == 0 || e.from.batch > m.batch+1 {
		return false
	}
	sc := scanner{w: window{f: s.f, size: s.size}, s: s, planter: e.planter, key: e.key}
	h, ok := sc.header(int64(m.off))
	return ok && h.batch == m.batch && h.flags&recFirst != 0
}

// imageReader reads chunks.
type imageReader struct {
	r     *bufio.Reader
	buf   []byte
	seed  uint32
	chunk uint32
}

// next reads the next chunk into buf, if that is sound.
func (in *imageReader) next() bool {
	var head [8]byte
	if _, err := io.ReadFull(in.r, head[:]); err != nil {
		return false
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxImageChunk {
		return false
	}
	in.buf = slices.Grow(in.buf[:0], int(n))[:n]
	if _, err := io.ReadFull(in.r, in.buf); err != nil {
		return false
	}
	sum := binary.LittleEndian.Uint32(head[4:]) ^ in.seed ^ in.chunk
	in.chunk++
	return checksum(in.buf) == sum
}

func parseUses(b []byte) (list []segmentUse) {
	le := binary.LittleEndian
	for ; len(b) >= useBytes; b = b[useBytes:] {
		list = append(list, segmentUse{file: le.Uint32(b), salt: le.Uint32(b[4:]), segno: le.Uint64(b[8:]),
			lastBatch: le.Uint64(b[16:]), end: int64(le.Uint64(b[24:]))})
	}
	return list
}
