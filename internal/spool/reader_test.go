package spool

import (
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// load adds n messages of 10 KB to an engine that a test drives.
func load(t *testing.T, e *engine, first uint64, n int) []mail.QueueID {
	t.Helper()
	var ids []mail.QueueID
	body := make([]byte, 10<<10)
	for i := range n {
		id := mail.MakeQueueID(time.Unix(1800000000, 0), first+uint64(i))
		var b Batch
		b.Add(Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: testRecipients(1), NRcpt: 1, Content: body[:len(body)-i]})
		drive(t, e, &b)
		ids = append(ids, id)
	}
	return ids
}

// drive commits a batch and does what there is to do afterwards.
func drive(t *testing.T, e *engine, b *Batch) {
	t.Helper()
	r := &request{b: b}
	if _, err := e.commit([]*request{r}); err != nil || r.err != nil {
		t.Fatal(err, r.err)
	}
	for more := true; more; {
		var err error
		if more, err = e.maintain(); err != nil {
			t.Fatal(err)
		}
	}
	e.housekeep()
}

// A Reader that outlives segment files, and the process that writes them,
// reads what is in new files of the same numbers.
func TestReaderOutlives(t *testing.T) {
	t.Parallel()
	opt := Options{FS: vfs.NewMem(4096), Dir: "q", SegmentSize: 64 << 10, InlineLimit: 16 << 10, Warn: t.Logf}
	rd := NewReader(opt.FS, opt.Dir)
	defer rd.Close()
	gone, again := map[uint32]bool{}, 0 // files that were read and removed; what was read in others of their numbers
	for round := range 2 {
		e, _, err := openEngine(&opt, 0, randomBytes)
		if err != nil {
			t.Fatal(err)
		}
		next, _ := e.numbers()
		add := func(n int) []mail.QueueID {
			ids := load(t, e, next, n)
			next += uint64(n)
			for _, id := range ids {
				en, ok := e.locate(id)
				if !ok {
					t.Fatalf("%s is gone", id)
				}
				readAll(t, rd, en)
				switch {
				case round == 0:
					gone[en.Ref.File] = true
				case gone[en.Ref.File]:
					again++
				}
			}
			return ids
		}
		remove := func(ids []mail.QueueID) {
			for _, id := range ids {
				var b Batch
				b.Remove(id)
				drive(t, e, &b)
			}
		}
		ids := add(300)
		remove(ids[:100])
		ids = append(ids[100:], add(20)...) // in files with low numbers: the highest is not in use any more
		remove(ids)
		for n := range gone {
			if round == 0 && e.segs[n] != nil {
				delete(gone, n)
			}
		}
		if err := e.closeFiles(); err != nil {
			t.Fatal(err)
		}
	}
	if again == 0 {
		t.Errorf("%d files were removed, and no number came back: the test shows nothing", len(gone))
	}
}

// Files that nobody reads are closed: removed ones would keep their space.
func TestReaderIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		opt := Options{FS: vfs.NewMem(4096), Dir: "q", SegmentSize: 64 << 10, InlineLimit: 16 << 10, Warn: t.Logf}
		e, _, err := openEngine(&opt, 0, randomBytes)
		if err != nil {
			t.Fatal(err)
		}
		defer e.closeFiles()
		rd := NewReader(opt.FS, opt.Dir)
		defer rd.Close()
		open := func() int {
			rd.mu.Lock()
			defer rd.mu.Unlock()
			return len(rd.files)
		}
		first, _ := e.numbers()
		var entries []Entry
		for _, id := range load(t, e, first, 20) {
			en, _ := e.locate(id)
			entries = append(entries, en)
			readAll(t, rd, en)
		}
		all := open()
		if all < 3 {
			t.Fatalf("%d files: the test shows nothing", all)
		}
		for range 4 { // one is read from now and then
			time.Sleep(maxReadIdle - time.Second)
			readAll(t, rd, entries[0])
		}
		if n := open(); n != 1 {
			t.Errorf("%d files are open, one is read", n)
		}
		time.Sleep(2*maxReadIdle + time.Second)
		if n := open(); n != 0 {
			t.Errorf("%d files are open, nothing is read", n)
		}
		readAll(t, rd, entries[0])
		time.Sleep(2*maxReadIdle + time.Second)
		if n := open(); n != 0 {
			t.Errorf("%d files are open, nothing is read again", n)
		}
	})
}
