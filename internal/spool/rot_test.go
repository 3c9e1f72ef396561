package spool

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/vfs"
)

// rot is a history without crashes, closed, and then a disk that has damaged a
// sector of what was durable for long.
type rot struct {
	*world
	spoiled, alarms, setAside, refused int
}

func (w *rot) run() {
	if err := w.open(); err != nil {
		fail("open: %v", err)
	}
	w.settle()
	for range 10 + w.r.IntN(60) {
		if !w.step() {
			fail("broken: %v", w.e.broken)
		}
	}
	if err := w.e.markClose(); err != nil {
		fail("close: %v", err)
	}
	for range 8 {
		w.spoil()
	}
}

// place is where a record lies.
type place struct {
	file   uint32
	lo, hi int64
}

// places is where the records of each live message are.
func (w *rot) places() map[uint64][]place {
	m := map[uint64][]place{}
	w.e.idx.each(func(l *live) {
		m[l.number] = []place{{l.refSeg, int64(l.refOff), int64(l.refOff + l.refLen)}, {l.conSeg, int64(l.conOff), int64(l.conOff + l.conLen)}}
	})
	return m
}

// spoil damages one sector of a copy of the disk and looks what is left: every
// message that had nothing in that sector, untouched, and no silence about
// the others.
func (w *rot) spoil() {
	before := w.places()
	files := slices.Sorted(maps.Keys(w.e.segs))
	file := files[w.r.IntN(len(files))]
	var off int64
	switch w.r.IntN(4) {
	case 0:
		off = w.r.Int64N(blockSize) // header
	case 1: // among what matters
		keys := slices.Sorted(maps.Keys(before))
		if len(keys) > 0 {
			p := before[keys[w.r.IntN(len(keys))]][w.r.IntN(2)]
			file, off = p.file, p.lo+w.r.Int64N(max(1, p.hi-p.lo))
			break
		}
		fallthrough
	default:
		off = w.r.Int64N(w.e.segs[file].size)
	}
	kind := w.r.IntN(vfs.NumDamages)
	y := *w.world
	y.damage, y.trace, y.hook = true, nil, nil
	y.bases = maps.Clone(w.bases)
	y.mem = w.mem.Cut(vfs.Loss{})
	if err := y.mem.Damage(segName("q", file), off, kind, w.r); err != nil {
		fail("damage: %v", err)
	}
	w.spoiled++
	y.warned = 0
	err := y.open()
	var unreadable *UnreadableError
	if kind == vfs.BadSector && errors.As(err, &unreadable) {
		w.refused++ // unread_test.go has what then
		return
	}
	if err != nil {
		fail("damage of kind %d at %d of file %d: open: %v", kind, off, file, err)
	}
	w.judge(&y, before, file, off/512*512, fmt.Sprintf("damage of kind %d at %d of file %d: ", kind, off, file))
}

func (w *rot) judge(y *world, before map[uint64][]place, file uint32, sector int64, what string) {
	rd := NewReader(y.mem, "q")
	defer rd.Close()
	rd.planter = plantOf(w.plant)
	seen := map[uint64]bool{}
	y.e.entries(func(en Entry) bool {
		n := en.ID.Number()
		seen[n] = true
		want := w.now[n]
		if want == nil {
			if y.warned == 0 {
				fail("%smessage %s came back in silence", what, en.ID)
			}
			return true
		}
		got, err := tryRead(rd, en)
		if err == nil && got.body != nil && string(got.body) != string(want.body) {
			fail("%smessage %s: content differs, and nobody says so", what, en.ID)
		}
		if err != nil {
			w.setAside++
		}
		if !touches(before[n], file, sector) && y.warned == 0 && (err != nil || diffMail(want, got) != "") {
			fail("%smessage %s had nothing there and is not as it was (%v)", what, en.ID, err)
		}
		return true
	})
	for n, m := range w.now {
		if seen[n] {
			continue
		}
		if y.warned == 0 {
			fail("%smessage %s is lost in silence", what, m.id)
		}
		if !touches(before[n], file, sector) {
			fail("%smessage %s had nothing there and is lost", what, m.id)
		}
	}
	if y.rep.Alarms > 0 {
		w.alarms++
	}
}

func touches(list []place, file uint32, sector int64) bool {
	for _, p := range list {
		if p.file == file && p.lo < sector+512 && sector < p.hi {
			return true
		}
	}
	return false
}

// tryRead reads a message and gives the error that a delivery would see.
func tryRead(rd *Reader, en Entry) (*modelMsg, error) {
	alone, aloneErr := readAlone(rd, en)
	unread := func(err error) (*modelMsg, error) {
		if aloneErr == nil {
			fail("message %s: content alone can be read; else: %v", en.ID, err)
		}
		return nil, err
	}
	st, err := rd.Read(en.Ref, en.ID)
	if err != nil {
		return unread(err)
	}
	st.Overlay(en.Done)
	if _, err := st.Envelope(); err != nil {
		return nil, err
	}
	c, err := st.Content()
	if err != nil {
		return unread(err)
	}
	defer c.Close()
	body, err := io.ReadAll(c)
	if err != nil {
		return unread(err)
	}
	if aloneErr != nil || !slices.Equal(alone, body) {
		fail("message %s: content alone: %d octets, want %d, %v", en.ID, len(alone), len(body), aloneErr)
	}
	m := &modelMsg{id: en.ID, queue: en.Queue, next: queue.Micros(en.NextAttempt), attempts: en.Attempts, warned: en.Warned,
		nrcpt: en.NRcpt, body: slices.Clone(body), big: c.Bytes() == nil}
	done, outs := make([]byte, en.NRcpt), make([]byte, en.NRcpt)
	for i := range done {
		if !st.Pending(i) {
			done[i] = 1
		}
	}
	list, err := st.Outcomes()
	for _, o := range list {
		outs[o.Rcpt] = byte(o.Status.Detail)
	}
	m.done, m.outcomes = string(done), string(outs)
	return m, err
}

func runRot(seed uint64, plant fault) (*rot, error) {
	w := &rot{world: newWorld(seed, plant)}
	return w, w.guard(w.run)
}

func TestRot(t *testing.T) {
	once(t)
	t.Parallel()
	start := time.Now()
	seed := firstSeed(t)
	t.Logf("first seed %d", seed)
	spoiled, alarms, aside := 0, 0, 0
	for n := 0; goesOn(start, n, 300) || n < 200 && (alarms == 0 || aside == 0); n++ { // few, on a busy machine
		w, err := runRot(seed, 0)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(tailOf(w.trace, 40), "\n"))
		}
		spoiled, alarms, aside = spoiled+w.spoiled, alarms+w.alarms, aside+w.setAside
		seed++
	}
	if alarms == 0 || aside == 0 {
		t.Error("no damage was noticed")
	}
	t.Logf("%d damaged disks, %d with alarms, %d messages refused, %.0f per minute", spoiled, alarms, aside, float64(spoiled)/time.Since(start).Minutes())
}

// A message whose content file is gone is set aside; a content file of which
// nothing is known is kept when the log is damaged, as that may have said.
func TestContentFiles(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem(4096)
	opt := Options{FS: mem, Dir: "q", SegmentSize: 64 << 10, InlineLimit: 8 << 10, Warn: t.Logf}
	e, _, err := openEngine(&opt, 0, randomBytes)
	if err != nil {
		t.Fatal(err)
	}
	next, _ := e.numbers()
	add := func() mail.QueueID {
		id := mail.MakeQueueID(time.Unix(1800000000, 0), next)
		next++
		f, err := e.newFile()
		if err == nil {
			_, err = f.Write(make([]byte, 100<<10))
		}
		if err != nil {
			t.Fatal(err)
		}
		var b Batch
		b.Add(Message{ID: id, Envelope: testEnvelope(id, 100<<10), Recipients: testRecipients(1), NRcpt: 1, File: f})
		if err := e.prepare(&b); err != nil {
			t.Fatal(err)
		}
		drive(t, e, &b)
		b.settle(nil)
		return id
	}
	reopen := func() RecoveryReport {
		t.Helper()
		if err := e.closeFiles(); err != nil {
			t.Fatal(err)
		}
		var rep RecoveryReport
		if e, rep, err = openEngine(&opt, 0, randomBytes); err != nil {
			t.Fatal(err)
		}
		return rep
	}
	lost, kept, spoiled := add(), add(), add()
	if err := mem.Remove(bigFile("q", string(lost))); err != nil {
		t.Fatal(err)
	}
	if rep := reopen(); rep.Alarms != 1 || rep.Orphans != 0 {
		t.Errorf("%+v", rep)
	}
	for id, want := range map[mail.QueueID]Queue{lost: Corrupt, kept: Incoming, spoiled: Incoming} {
		if en, ok := e.locate(id); !ok || en.Queue != want {
			t.Errorf("%s: there %v, %+v; want it in %v", id, ok, en, want)
		}
	}
	if st := e.snapshot(); st.ByQueue[Corrupt] != 1 || st.ByQueue[Incoming] != 2 {
		t.Errorf("by queue: %v", st.ByQueue)
	}

	// A file that nobody knows.
	stray := string(mail.MakeQueueID(time.Unix(1800000000, 0), 7))
	plant := func() {
		f, err := mem.Create(bigFile("q", stray))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	there := func() bool {
		names, err := mem.List("q/" + bigDir)
		return err == nil && slices.Contains(names, stray)
	}
	plant()
	dealtWith, err := mem.List("q/" + damagedDir)
	if err != nil || len(dealtWith) != 1 {
		t.Errorf("%v, %v", dealtWith, err)
	}
	for _, name := range dealtWith {
		if err := mem.Remove("q/" + damagedDir + "/" + name); err != nil {
			t.Fatal(err)
		}
	}
	if rep := reopen(); rep.Orphans != 1 || there() {
		t.Errorf("%+v, the stray file is there: %v", rep, there())
	}
	plant()
	en, _ := e.locate(add())
	add() // promises the one before
	if err := mem.Damage(segName("q", en.Ref.File), int64(en.Ref.Offset), 0, rand.New(rand.NewPCG(1, 1))); err != nil {
		t.Fatal(err)
	}
	if rep := reopen(); rep.Alarms < 2 || rep.Orphans != 0 || !there() {
		t.Errorf("with damage: %+v, the stray file is there: %v", rep, there())
	}
	if err := e.closeFiles(); err != nil {
		t.Fatal(err)
	}
}
