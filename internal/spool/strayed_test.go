package spool

import (
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// States before the recovery point are what a disk that has lied may leave (invariant 5). Whatever they hold
// up comes to an end, and they are recorded again where the next start finds them.
func TestStrayedStates(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem(4096)
	disk.SetLimit(2 << 20)
	opt := Options{FS: disk, Dir: "q", SegmentSize: 64 << 10, Warn: t.Logf}
	e, _, err := openEngine(&opt, 0, randomBytes)
	if err != nil {
		t.Fatal(err)
	}
	next, _ := e.numbers()
	var ids []mail.QueueID
	for i := 0; i < 100 && err == nil; i++ {
		id := mail.MakeQueueID(time.Unix(1800000000, 0), next)
		next++
		var b Batch
		b.Add(Message{ID: id, Envelope: testEnvelope(id, 5000), Recipients: testRecipients(1), NRcpt: 1, Content: make([]byte, 5000)})
		r := &request{b: &b}
		if _, err = e.commit([]*request{r}); r.err == nil {
			ids = append(ids, id)
		}
	}
	if err != nil || len(ids) < 100 {
		t.Fatal(len(ids), err)
	}
	for _, id := range ids { // so that there are segments with states only
		var b Batch
		b.Update(id, Change{Set: SetAttempts, Attempts: 1})
		if _, err := e.commit([]*request{{b: &b}}); err != nil {
			t.Fatal(err)
		}
	}
	for full := false; !full; next++ {
		id := mail.MakeQueueID(time.Unix(1800000000, 0), next)
		var b Batch
		b.Add(Message{ID: id, Envelope: testEnvelope(id, 5000), Recipients: testRecipients(1), NRcpt: 1, Content: make([]byte, 5000)})
		r := &request{b: &b}
		if _, err := e.commit([]*request{r}); err != nil {
			t.Fatal(err)
		}
		if full = r.err != nil; !full {
			ids = append(ids, id)
		}
	}
	e.mu.Lock()
	e.from = point{batch: e.batch, segno: e.head.segno}
	e.mu.Unlock()
	if strayed(e) == 0 {
		t.Fatal("no state is before the recovery point: the test shows nothing")
	}
	for n, more := 0, true; more; n++ {
		if more, err = e.maintain(); err != nil {
			t.Fatal(err)
		}
		if n == 10000 {
			t.Fatal("maintenance has no end")
		}
	}
	for i, id := range ids {
		if i%5 > 0 {
			var b Batch
			b.Remove(id)
			if _, err := e.commit([]*request{{b: &b}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 3 {
		if err := e.sweep(1000); err != nil {
			t.Fatal(err)
		}
		e.swept = 0
	}
	if n := strayed(e); n > 0 {
		t.Errorf("%d states stay before the recovery point", n)
	}
	if err := e.closeFiles(); err != nil {
		t.Fatal(err)
	}
	rep, err := openToCount(&opt)
	if err != nil || rep != (len(ids)+4)/5 {
		t.Errorf("%d messages after a start, %v; want %d", rep, err, (len(ids)+4)/5)
	}
}

// strayed counts the states that are before the recovery point.
func strayed(e *engine) (n int) {
	for _, s := range e.segs {
		if s.state == segClosed && s.lastBatch < e.from.batch {
			n += int(s.nstates)
		}
	}
	return n
}

func openToCount(opt *Options) (int, error) {
	e, _, err := openEngine(opt, 0, randomBytes)
	if err != nil {
		return 0, err
	}
	return int(e.idx.len()), e.closeFiles()
}
