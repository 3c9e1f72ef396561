package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// These tests each hold one check in place by itself. The random histories find
// what comes of a missing one, too, but only by luck of the seed.

// letters is content in which each place is told from every other.
func letters(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + (i/7+i/bigChunk)%26)
	}
	return b
}

// contentFile is an engine with one message in a file of its own, of three chunks
// and a half, and a changed copy of that file for each case.
func contentFile(t *testing.T) (mem *vfs.Mem, en Entry, body []byte) {
	t.Helper()
	mem = vfs.NewMem(512)
	opt := Options{FS: mem, Dir: "q", SegmentSize: 64 << 10, InlineLimit: 8 << 10, Warn: t.Logf}
	e, _, err := openEngine(&opt, 0, randomBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.closeFiles() })
	first, _ := e.numbers()
	body = letters(3*bigChunk + bigChunk/2)
	f, err := e.newFile()
	if err == nil {
		_, err = f.Write(body)
	}
	if err != nil {
		t.Fatal(err)
	}
	id := mail.MakeQueueID(time.Unix(1800000000, 0), first)
	var b Batch
	b.Add(Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: testRecipients(1), NRcpt: 1, File: f})
	if err := e.prepare(&b); err != nil {
		t.Fatal(err)
	}
	drive(t, e, &b)
	b.settle(nil)
	en, _ = e.locate(id)
	return mem, en, body
}

// TestChunkChecksums: no octet of a content file is given out that is not as it was
// written, whatever is done to the file.
func TestChunkChecksums(t *testing.T) {
	t.Parallel()
	mem, en, body := contentFile(t)
	name := bigFile("q", string(en.ID))
	whole := make([]byte, len(body)+4*4)
	f, err := mem.OpenWrite(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(whole, 0); err != nil {
		t.Fatal(err)
	}
	flip := func(at int) func([]byte) { return func(b []byte) { b[at] ^= 1 } }
	cases := map[string]func([]byte){
		"no change": func([]byte) {},
		"chunks exchanged": func(b []byte) {
			first := slices.Clone(b[:bigChunk])
			copy(b, b[bigChunk:2*bigChunk])
			copy(b[bigChunk:], first)
		},
		"chunks and checksums exchanged": func(b []byte) {
			first := slices.Clone(b[:bigChunk])
			copy(b, b[bigChunk:2*bigChunk])
			copy(b[bigChunk:], first)
			s := b[len(body):]
			s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7] = s[4], s[5], s[6], s[7], s[0], s[1], s[2], s[3]
		},
		"a chunk of zeros":    func(b []byte) { clear(b[bigChunk : 2*bigChunk]) },
		"a page of zeros":     func(b []byte) { clear(b[2*bigChunk+4096 : 2*bigChunk+8192]) },
		"a checksum":          flip(len(body) + 5),
		"the whole file zero": func(b []byte) { clear(b) },
	}
	for _, at := range []int{0, bigChunk - 1, bigChunk, 2*bigChunk + 77, len(body) - 1} {
		cases[fmt.Sprintf("a bit at %d", at)] = flip(at)
	}
	for name, spoil := range cases {
		spoiled := slices.Clone(whole)
		spoil(spoiled)
		if _, err := f.WriteAt(spoiled, 0); err != nil {
			t.Fatal(err)
		}
		got, err := readAlone(NewReader(mem, "q"), en)
		if bad := name != "no change"; bad != errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if !bytes.HasPrefix(body, got) || err == nil && len(got) != len(body) {
			t.Errorf("%s: %d octets were given out, and not as they were written", name, len(got))
		}
	}
	for _, size := range []int64{0, bigChunk, int64(len(body)), int64(len(body)) + 15} {
		if _, err := f.WriteAt(whole, 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		if _, err := readAlone(NewReader(mem, "q"), en); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut to %d octets: %v", size, err)
		}
	}
}

// TestSeekChunks: a chunk is verified that is come to by a seek, back as well.
func TestSeekChunks(t *testing.T) {
	t.Parallel()
	mem, en, body := contentFile(t)
	c, err := NewReader(mem, "q").Content(en.Ref, en.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, at := range []int64{2*bigChunk + 5, 3, bigChunk - 1, int64(len(body)) - 10, 0} {
		if _, err := c.Seek(at, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 10)
		if _, err := io.ReadFull(c, b); err != nil || !bytes.Equal(b, body[at:at+10]) {
			t.Errorf("at %d: %q, %v", at, b, err)
		}
	}
	f, err := mem.OpenWrite(bigFile("q", string(en.ID)))
	if err == nil {
		_, err = f.WriteAt([]byte{'!'}, 100)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Seek(bigChunk, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 10)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("back in a chunk that has been damaged since: %v", err)
	}
}

// TestReaderBelieves: a reader takes a record for a message's only when the segment,
// the message's number, the time in its ID and the length are all as they should.
func TestReaderBelieves(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem(4096)
	opt := Options{FS: mem, Dir: "q", SegmentSize: 64 << 10, Warn: t.Logf}
	e, _, err := openEngine(&opt, 0, randomBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer e.closeFiles()
	first, _ := e.numbers()
	var entries []Entry
	for i := range 6 {
		id := mail.MakeQueueID(time.Unix(1800000000, 0), first+uint64(i))
		var b Batch
		b.Add(Message{ID: id, Envelope: testEnvelope(id, 50), Recipients: testRecipients(1), NRcpt: 1, Content: letters(50)})
		drive(t, e, &b)
		en, _ := e.locate(id)
		entries = append(entries, en)
	}
	rd := NewReader(mem, "q")
	defer rd.Close()
	refuses := func(what string, ref Ref, id mail.QueueID, want error) {
		t.Helper()
		if _, err := rd.Read(ref, id); !errors.Is(err, want) {
			t.Errorf("%s: read: %v, want %v", what, err, want)
		}
		if c, err := rd.Content(ref, id); !errors.Is(err, want) {
			t.Errorf("%s: content: %v, %v, want %v", what, c, err, want)
		}
	}
	for i, en := range entries {
		if _, err := tryRead(rd, en); err != nil {
			t.Fatal(err)
		}
		for j, other := range entries {
			if i != j {
				refuses("another message's record", en.Ref, other.ID, ErrCorrupt)
			}
		}
		ref := en.Ref
		ref.Segno++
		refuses("a later use of the segment", ref, en.ID, ErrStale)
		ref.Segno -= 2
		refuses("a former use of the segment", ref, en.ID, ErrStale)
		ref = en.Ref
		ref.Length -= recAlign
		refuses("a shorter record", ref, en.ID, ErrCorrupt)
		ref.Length = headerLen - 1
		refuses("less than a header", ref, en.ID, ErrInvalid)
		ref = en.Ref
		ref.Offset += recAlign
		refuses("another place", ref, en.ID, ErrCorrupt)
		ref = en.Ref
		ref.File += 100
		refuses("a file that is not there", ref, en.ID, ErrStale)
		refuses("another time", en.Ref, mail.MakeQueueID(time.Unix(1800000001, 0), en.ID.Number()), ErrInvalid)
	}
}

// TestReaderMetadata: one bit in a record's header or metadata, wherever it is, and
// no envelope is given out.
func TestReaderMetadata(t *testing.T) {
	t.Parallel()
	w := newWorld(1, 0)
	if err := w.guard(func() {
		if err := w.open(); err != nil {
			fail("open: %v", err)
		}
		msg, mm := w.newMessage(300, 2)
		c := &change{}
		c.add(msg, mm)
		w.commit(c)
		en, _ := w.e.locate(mm.id)
		l := w.e.idx.find(mm.id.Number(), new(live))
		for at := range int64(headerLen + l.refMeta) {
			y := w.mem.Clone()
			if err := y.Damage(segName("q", en.Ref.File), int64(en.Ref.Offset)+at, vfs.FlipBit, nil); err != nil {
				fail("%v", err)
			}
			rd := NewReader(y, "q")
			if _, err := rd.Read(en.Ref, en.ID); !errors.Is(err, ErrCorrupt) {
				fail("a bit of octet %d: %v", at, err)
			}
			rd.Close()
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestNothingAfterBroken: after the first failed write or sync, whichever it is,
// this process changes nothing on the disk: no write, sync, name or length.
func TestNothingAfterBroken(t *testing.T) {
	once(t)
	t.Parallel()
	broke := 0
	for k := 1; ; k++ {
		hit, broken, after, err := changesAfter(k, 0)
		if err != nil {
			t.Fatalf("operation %d: %v", k, err)
		}
		if !hit {
			break
		}
		if broken {
			broke++
		}
		if len(after) > 0 {
			t.Errorf("operation %d fails, and after that: %s", k, strings.Join(after, "; "))
		}
	}
	if broke < 10 {
		t.Errorf("the log broke %d times: the test shows little", broke)
	}
}

// changesAfter has the k-th operation that makes something durable fail, in a short
// life, and returns what is done after the engine knows that it is broken.
func changesAfter(k int, plant fault) (hit, broken bool, after []string, err error) {
	w := newWorld(4, plant)
	x := &enum{world: w}
	n := 0
	w.hook = func(op vfs.Op) error {
		switch op.Kind {
		case vfs.OpWrite, vfs.OpSync, vfs.OpSyncDir, vfs.OpCreate, vfs.OpLink, vfs.OpRename, vfs.OpRemove, vfs.OpTruncate:
		default:
			return nil
		}
		if w.e != nil && w.e.broken != nil {
			after = append(after, op.String())
		}
		if w.e == nil { // a start that fails ends the process
			return nil
		}
		if n++; n == k {
			hit = true
			return syscall.EIO
		}
		return nil
	}
	err = w.guard(func() {
		x.restart()
		var begun *File
		for i := range 8 {
			size := 600
			if i%3 == 1 {
				size = 2500
			}
			if msg, mm := w.newMessage(size, 1); mm != nil {
				c := &change{}
				c.add(msg, mm)
				w.commit(c)
			}
			if m := w.pick(); m != nil && i%2 == 1 {
				c := &change{}
				c.remove(m.id)
				w.commit(c)
			}
			if m := w.pick(); m != nil {
				c := &change{}
				c.update(m.id, w.randomUpdate(m))
				w.commit(c)
			}
			w.maintain(3)
			w.e.housekeep()
			if begun == nil {
				begun, _ = w.e.newFile()
			}
		}
		w.e.sweep(100)
		w.e.provide(100)
		if begun != nil {
			begun.Write(letters(100))
			c := &change{}
			id := mail.MakeQueueID(time.Unix(1700000000, 0), w.next)
			c.b.Add(Message{ID: id, Envelope: testEnvelope(id, 100), Recipients: testRecipients(1), NRcpt: 1, File: begun})
			w.commit(c)
			begun.Abort()
		}
		w.e.markClose()
		broken = w.e.broken != nil
		w.e.closeFiles()
	})
	return hit, broken, after, err
}

// TestCopyOfDamage: what was damaged when the cleaner copied it has a checksum of its
// own there, and only the mark says that it is not what was sent.
func TestCopyOfDamage(t *testing.T) {
	t.Parallel()
	w := newWorld(1, 0)
	if err := w.guard(func() {
		if err := w.open(); err != nil {
			fail("open: %v", err)
		}
		msg, mm := w.newMessage(900, 1)
		c := &change{}
		c.add(msg, mm)
		w.commit(c)
		l := w.e.idx.find(mm.id.Number(), new(live))
		if err := w.mem.Damage(segName("q", l.conSeg), int64(l.conOff+l.conLen)-9, vfs.FlipBit, nil); err != nil {
			fail("%v", err)
		}
		w.e.begin()
		w.e.copyMessage(w.e.stage(l.number, l.created))
		if err := w.e.flush(false); err != nil {
			fail("%v", err)
		}
		en, _ := w.e.locate(mm.id)
		rd := NewReader(w.mem, "q")
		defer rd.Close()
		if en.Queue != Corrupt || w.warned != 1 {
			fail("it is in %v, with %d warnings", en.Queue, w.warned)
		}
		if _, err := readAlone(rd, en); !errors.Is(err, ErrCorrupt) {
			fail("content: %v", err)
		}
		st, err := rd.Read(en.Ref, en.ID)
		if err != nil {
			fail("read: %v", err)
		}
		if _, err := st.Content(); !errors.Is(err, ErrCorrupt) {
			fail("content: %v", err)
		}
		if c, err := st.Salvage(); err != nil || len(c.Bytes()) != len(mm.body) {
			fail("salvage: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestWriterBelieves: the writer takes a record for a message's only in the present
// use of the segment, and with the message's number.
func TestWriterBelieves(t *testing.T) {
	t.Parallel()
	w := newWorld(1, 0)
	if err := w.guard(func() {
		if err := w.open(); err != nil {
			fail("open: %v", err)
		}
		msg, mm := w.newMessage(100, 1)
		c := &change{}
		c.add(msg, mm)
		w.commit(c)
		l := w.e.idx.find(mm.id.Number(), new(live))
		found := func(number uint64) bool {
			_, _, ok := w.e.fetchMeta(nil, l.refSeg, l.refOff, l.refMeta, number)
			return ok
		}
		if !found(l.number) || found(l.number+1) {
			fail("by number: %v, by another %v", found(l.number), found(l.number+1))
		}
		w.e.segs[l.refSeg].segno++
		if found(l.number) {
			fail("a record of a former use of the segment is taken")
		}
	}); err != nil {
		t.Fatal(err)
	}
}
