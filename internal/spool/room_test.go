package spool

import (
	"errors"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// leaveFree has so much space left on the disk.
func leaveFree(t *testing.T, mem *vfs.Mem, room int64) {
	t.Helper()
	const all = 1 << 40
	mem.SetLimit(all)
	free, err := mem.Free("")
	if err != nil {
		t.Fatal(err)
	}
	mem.SetLimit(all - free + room)
}

// A queue that is full of mail that nobody can deliver gets shorter: what is
// returned to its sender may take the place of the original.
func TestNoticesWhenFull(t *testing.T) {
	once(t)
	t.Parallel()
	for name, opt := range map[string]Options{
		"spool_size_limit": {SegmentSize: 64 << 10, Budget: 40 * 64 << 10},
		"queue_minfree":    {SegmentSize: 64 << 10, MinFree: 1 << 20},
		"both":             {SegmentSize: 64 << 10, MinFree: 1 << 20, Budget: 400 * 64 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := vfs.NewMem(4096)
			opt.FS, opt.Dir, opt.Warn = disk, "q", t.Logf
			e, _, err := openEngine(&opt, 0, randomBytes)
			if err != nil {
				t.Fatal(err)
			}
			defer e.closeFiles()
			next, _ := e.numbers()
			body := make([]byte, 2000)
			add := func(settle mail.QueueID) (mail.QueueID, error) {
				id := mail.MakeQueueID(time.Unix(1800000000, 0), next)
				next++
				var b Batch
				b.Add(Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: testRecipients(1), NRcpt: 1, Content: body})
				if settle != "" {
					b.Done(settle, []int{0})
				}
				r := &request{b: &b}
				_, err := e.commit([]*request{r})
				for steps, more := 0, true; more && err == nil; steps++ {
					if more, err = e.maintain(); steps > 1000 {
						t.Fatalf("maintenance does not end: %d victims, %d free, low %v", len(e.victims), len(e.free), e.available() <= e.lim.reserve+1)
					}
				}
				e.housekeep()
				if err != nil {
					t.Fatal(err)
				}
				return id, r.err
			}
			var ids []mail.QueueID
			for refused := 0; refused < 50; {
				if len(ids) == 400 {
					if opt.MinFree > 0 {
						leaveFree(t, disk, opt.MinFree/2)
					}
				}
				id, err := add("")
				if errors.Is(err, ErrFull) { // perhaps only until something has been cleaned
					refused++
					continue
				}
				refused = 0
				if err != nil {
					t.Fatal(err)
				}
				if ids = append(ids, id); len(ids) > 3000 {
					t.Fatal("it is never full")
				}
			}
			t.Logf("full with %d messages", len(ids))
			for range 3 { // notices of notices, as it were
				for i, id := range ids {
					notice, err := add(id)
					if err != nil {
						t.Fatalf("notice %d of %d: %v", i, len(ids), err)
					}
					ids[i] = notice
				}
			}
			if n := e.snapshot().Messages; n != len(ids) {
				t.Errorf("%d messages, want %d", n, len(ids))
			}
		})
	}
}

// Mail is refused for the sake of queue_minfree only as long as nothing can be won back: what
// was delivered leaves its room to what comes.
func TestMinFreeWonBack(t *testing.T) {
	once(t)
	t.Parallel()
	for _, every := range []int{7, 20, 1000} { // one of so many messages stays, so that no segment is free by itself
		disk := vfs.NewMem(4096)
		disk.SetLimit(2 << 20)
		opt := Options{FS: disk, Dir: "q", SegmentSize: 64 << 10, MinFree: 1 << 20, Warn: t.Logf}
		e, _, err := openEngine(&opt, 0, randomBytes)
		if err != nil {
			t.Fatal(err)
		}
		next, _ := e.numbers()
		commit := func(b *Batch) error {
			r := &request{b: b}
			_, err := e.commit([]*request{r})
			for more := true; more && err == nil; {
				more, err = e.maintain()
			}
			e.housekeep()
			if err != nil {
				t.Fatal(err)
			}
			return r.err
		}
		fill := func() (ids []mail.QueueID) {
			for refused := 0; refused < 10; refused++ {
				id := mail.MakeQueueID(time.Unix(1800000000, 0), next)
				next++
				var b Batch
				b.Add(Message{ID: id, Envelope: testEnvelope(id, 5000), Recipients: testRecipients(1), NRcpt: 1, Content: make([]byte, 5000)})
				switch err := commit(&b); {
				case err == nil:
					ids, refused = append(ids, id), 0
				case !errors.Is(err, ErrFull):
					t.Fatal(err)
				}
			}
			return ids
		}
		first := fill()
		queue := first
		for round := range 3 {
			var stay []mail.QueueID
			for i, id := range queue {
				if i%every == 0 {
					stay = append(stay, id)
					continue
				}
				var b Batch
				b.Done(id, []int{0})
				if err := commit(&b); err != nil {
					t.Fatal(err)
				}
			}
			more := fill()
			if len(more) < len(first)/2 {
				t.Errorf("%d messages stay: %d were taken at first, %d in round %d", len(stay), len(first), len(more), round)
			}
			queue = append(stay, more...)
		}
		if err := e.closeFiles(); err != nil {
			t.Fatal(err)
		}
	}
}
