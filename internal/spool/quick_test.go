package spool

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// After a clean end a start reads what was written, and nothing of what was only
// prepared: however large the segments, nobody waits for the rest of them.
func TestStartAfterCloseReadsLittle(t *testing.T) {
	t.Parallel()
	const segSize = 16 << 20
	var read atomic.Int64
	fs := &vfs.Faulty{FS: vfs.OS{}, Hook: func(op vfs.Op) error {
		if op.Kind == vfs.OpRead && strings.Contains(op.Name, segDir+"/") {
			read.Add(int64(op.Len))
		}
		return nil
	}}
	opt := Options{FS: fs, SegmentSize: segSize}
	dir := t.TempDir()
	s := openTest(t, dir, opt)
	for range 3 {
		add(t, s, "body\r\n")
		for s.Stats().Segments < 3 { // the spare ones are made beside the rest
			time.Sleep(time.Millisecond)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		read.Store(0)
		s = openTest(t, dir, opt)
		if n := read.Load(); n > segSize/2 {
			t.Errorf("%d octets read of %d segments of %d", n, s.Stats().Segments, segSize)
		}
		if r := s.Recovery(); !r.Clean || r.Alarms != 0 {
			t.Errorf("%+v", r)
		}
	}
	if n := s.Stats().Messages; n != 3 {
		t.Errorf("%d messages, want 3", n)
	}
	s.Close()
}

// A segment that has the mark of a new one, because a disk has lost the header that
// was written over it, is known by what is in it.
func TestMarkOverUsedSegment(t *testing.T) {
	t.Parallel()
	opt := Options{SegmentSize: 1 << 20}
	dir := t.TempDir()
	s := openTest(t, dir, opt)
	id := add(t, s, "body\r\n")
	e, _ := s.Locate(id)
	name := filepath.Join(dir, segDir, filepath.Base(segName("", e.Ref.File)))
	s.Close()
	s = openTest(t, dir, opt) // there is a second one with a sound header now, and the first still has the content
	s.Close()
	block := make([]byte, blockSize)
	copy(block, unusedMark())
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(block, 0); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir, opt)
	defer s.Close()
	e, ok := s.Locate(id)
	if !ok || e.Queue != Incoming {
		t.Fatalf("the message is %+v, %v", e, ok)
	}
}

// add queues a message.
func add(t *testing.T, s *Spool, body string) mail.QueueID {
	t.Helper()
	n, err := s.Lease(1)
	if err != nil {
		t.Fatal(err)
	}
	id := mail.MakeQueueID(time.Unix(1700000000, 0), n)
	var b Batch
	b.Add(Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: testRecipients(1), NRcpt: 1, Content: []byte(body)})
	if err := s.Commit(&b); err != nil {
		t.Fatal(err)
	}
	return id
}
