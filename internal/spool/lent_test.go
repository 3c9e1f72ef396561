package spool

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// Contents that are lent to a batch, and others that are copied into it, are where their records say, and so is what
// comes after them: more records of the same messages, in the batch and in those that follow, and after a start.
func TestLent(t *testing.T) {
	t.Parallel()
	for name, fs := range map[string]vfs.FS{"memory": vfs.NewMem(512), "disk": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := "q"
			if fs == nil {
				dir = t.TempDir()
			}
			open := func() *Spool {
				t.Helper()
				s, err := Open(Options{FS: fs, Dir: dir, SegmentSize: 1 << 20, Warn: t.Errorf})
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			s := open()
			var b Batch
			bodies := map[mail.QueueID][]byte{}
			var ids []mail.QueueID
			for i, n := range []int{minLent, 10, 30_001, 0, minLent - 1, 9_999} {
				id := newID(t, s)
				ids = append(ids, id)
				bodies[id] = bytes.Repeat([]byte{byte('a' + i)}, n)
				b.Add(Message{ID: id, Envelope: testEnvelope(id, n), Recipients: testRecipients(2), NRcpt: 2, Content: bodies[id]})
				b.Update(id, Change{Set: SetAttempts, Attempts: i + 1})
				b.Update(id, Change{Set: SetQueue, Queue: Deferred, Done: []int{0}})
			}
			short := newID(t, s)
			gone := b.Add(Message{ID: short, Envelope: testEnvelope(short, 1), Recipients: testRecipients(1), NRcpt: 1, Content: make([]byte, minLent)})
			b.Remove(short)
			if err := s.Commit(&b); err != nil {
				t.Fatal(err)
			}
			if en, ok := b.Entry(gone); ok {
				t.Errorf("of what came and went there is an entry: %+v", en)
			}
			for i, id := range ids {
				if en, ok := b.Entry(3*i + 2); !ok || !same(s, id, en) {
					t.Errorf("%s: Entry is %+v, %v", id, en, ok)
				}
			}
			look := func() {
				t.Helper()
				r := NewReader(fs, dir)
				defer r.Close()
				for i, id := range ids {
					en, ok := s.Locate(id)
					if !ok || en.Attempts != i+1 || en.Queue != Deferred || en.NPending != 1 {
						t.Errorf("%s: %+v, %v", id, en, ok)
						continue
					}
					if _, body := readAll(t, r, en); !bytes.Equal(body, bodies[id]) {
						t.Errorf("%s has %d octets of content, and not its %d", id, len(body), len(bodies[id]))
					}
				}
			}
			look()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open()
			defer s.Close()
			look()
			if rep, err := Check(fs, dir); err != nil || len(rep.Problems) > 0 {
				t.Errorf("check: %+v, %v", rep, err)
			}
		})
	}
}

// same says whether the spool has the message as en has it.
func same(s *Spool, id mail.QueueID, en Entry) bool {
	now, ok := s.Locate(id)
	return ok && now.Ref == en.Ref && now.Attempts == en.Attempts && now.NPending == en.NPending
}

// A single request is not answered before earlier ones that another goroutine is still answering.
func TestAnswersInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := openTest(t, "q", Options{FS: vfs.NewMem(512), SegmentSize: 1 << 20, PostDelay: time.Hour})
		synctest.Wait()
		gate := make(chan struct{})
		var first, second Batch
		s.Post(&first, func(error) { <-gate })
		s.Post(&second, nil)
		s.Hurry()
		synctest.Wait()
		told := make(chan error, 1)
		go func() { told <- s.Commit(new(Batch)) }()
		synctest.Wait()
		select {
		case <-told:
			t.Error("who came last was told first")
		default:
		}
		close(gate)
		if err := <-told; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// What crash tests write, with small segments, is lent in part; and to copy what is short does not take longer than to lend it.
func TestLendFrom(t *testing.T) {
	t.Parallel()
	small, err := deriveLimits(&Options{SegmentSize: minSegment})
	if err != nil || int64(small.lend) > small.inline/4 || small.lend < 1 {
		t.Errorf("in small segments contents are lent from %d on, of up to %d: %v", small.lend, small.inline, err)
	}
	if usual, err := deriveLimits(&Options{}); err != nil || usual.lend != minLent {
		t.Errorf("contents are lent from %d on, want %d: %v", usual.lend, minLent, err)
	}
}
