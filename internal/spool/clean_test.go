package spool

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/vfs"
)

// A disk that cannot be read for a moment makes no mail corrupt: what the
// cleaner cannot read stays where it is.
func TestCleanUnreadable(t *testing.T) {
	t.Parallel()
	var failing bool
	var failed, warned int
	mem := vfs.NewMem(4096)
	opt := Options{Dir: "q", SegmentSize: 64 << 10, InlineLimit: 16 << 10,
		FS: &vfs.Faulty{FS: mem, Hook: func(op vfs.Op) error {
			if failing && op.Kind == vfs.OpRead && strings.HasSuffix(op.Name, ".seg") {
				failed++
				return syscall.EIO
			}
			return nil
		}},
		Warn: func(format string, args ...any) {
			warned++
			t.Logf(format, args...)
		}}
	e, _, err := openEngine(&opt, 0, randomBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer e.closeFiles()
	next, _ := e.numbers()
	ids := load(t, e, next, 400)
	kept := map[string]bool{}
	failing = true
	for i, id := range ids {
		if i%8 == 0 {
			kept[string(id)] = true
			continue
		}
		var b Batch
		b.Remove(id)
		drive(t, e, &b)
	}
	if failed == 0 || warned == 0 {
		t.Fatalf("%d reads failed, %d warnings: the test shows nothing", failed, warned)
	}
	failing = false
	verify := func(what string) {
		t.Helper()
		rd := NewReader(mem, "q")
		defer rd.Close()
		n := 0
		e.entries(func(en Entry) bool {
			n++
			if !kept[string(en.ID)] || en.Queue == Corrupt {
				t.Errorf("%s: %s is in the queue %v", what, en.ID, en.Queue)
			}
			if _, body := readAll(t, rd, en); len(body) == 0 || strings.Trim(string(body), "\x00") != "" {
				t.Errorf("%s: %s: content differs", what, en.ID)
			}
			return true
		})
		if n != len(kept) {
			t.Errorf("%s: %d messages, want %d", what, n, len(kept))
		}
	}
	verify("while nothing could be read")
	cleaned := e.stats.Cleaned
	e.now = func() time.Time { return time.Now().Add(leaveTime) }
	for _, id := range load(t, e, next+400, 200) {
		var b Batch
		b.Remove(id)
		drive(t, e, &b)
	}
	if e.stats.Cleaned <= cleaned {
		t.Error("nothing is cleaned when the disk can be read again")
	}
	verify("when the disk can be read again")
}
