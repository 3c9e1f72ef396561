package spool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// scrubbed is a spool with a scrubber, in virtual time.
type scrubbed struct {
	mem   *vfs.Mem
	s     *Spool
	c     *Scrubber
	ids   []mail.QueueID
	mu    sync.Mutex
	found []ScrubFinding
	fail  func(op vfs.Op) error
	wg    sync.WaitGroup
}

// newScrubbed has n messages: every third is large, and of every fourth there is a state.
func newScrubbed(t *testing.T, n int) *scrubbed {
	x := &scrubbed{mem: vfs.NewMem(512)}
	s, err := Open(Options{FS: x.mem, Dir: "q", SegmentSize: 64 << 10, InlineLimit: 2000})
	if err != nil {
		t.Fatal(err)
	}
	x.s = s
	first, err := s.Lease(n)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		id := mail.MakeQueueID(time.Unix(1800000000, 0), first+uint64(i))
		m := Message{ID: id, Envelope: testEnvelope(id, 1000), Recipients: testRecipients(2), NRcpt: 2}
		if i%3 == 0 {
			if m.File, err = s.NewFile(); err == nil {
				_, err = m.File.Write([]byte(strings.Repeat("large\r\n", 20000)))
			}
			if err != nil {
				t.Fatal(err)
			}
		} else {
			m.Content = []byte(strings.Repeat("x", 1000))
		}
		var b, d Batch
		b.Add(m)
		if err := s.Commit(&b); err != nil {
			t.Fatal(err)
		}
		if i%4 == 0 {
			d.Update(id, Change{Set: SetQueue, Queue: Deferred})
			if err := s.Commit(&d); err != nil {
				t.Fatal(err)
			}
		}
		x.ids = append(x.ids, id)
	}
	return x
}

// run scrubs for a while.
func (x *scrubbed) run(t *testing.T, period, d time.Duration) {
	faulty := &vfs.Faulty{FS: x.mem, Hook: func(op vfs.Op) error {
		if op.Kind == vfs.OpRead && x.fail != nil {
			return x.fail(op)
		}
		return nil
	}}
	rd := NewReader(faulty, "q")
	defer rd.Close()
	x.c = NewScrubber(x.s, rd, period, func(f ScrubFinding) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.found = append(x.found, f)
	})
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	x.c.Run(ctx)
}

func (x *scrubbed) findings() []ScrubFinding {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.found
}

// damage flips a bit of n octets at off of a file, for every reader.
func (x *scrubbed) damage(t *testing.T, name string, off int64) {
	t.Helper()
	if err := x.mem.Damage(name, off, 0, rand.New(rand.NewPCG(1, 1))); err != nil {
		t.Fatal(err)
	}
}

// TestScrub: sound mail is read once in each period, evenly, and nothing is found.
func TestScrub(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := newScrubbed(t, 60)
		defer x.s.Close()
		var reads atomic.Int64
		half := make(chan int64, 1)
		time.AfterFunc(12*time.Hour, func() { half <- int64(x.c.Stats().Bytes) })
		x.fail = func(vfs.Op) error { reads.Add(1); return nil }
		x.run(t, 24*time.Hour, 24*time.Hour+time.Minute)
		st, live := x.c.Stats(), x.s.Stats().LiveBytes
		if st.Passes != 1 || st.Findings != 0 || len(x.findings()) > 0 || time.Since(st.Last) > time.Hour {
			t.Errorf("%+v, %v", st, x.findings())
		}
		if b := int64(st.Bytes); b < live*9/10 || b > live*3/2 {
			t.Errorf("%d octets read, %d are alive", b, live)
		}
		if h := <-half; h < live/4 || h > live*3/4 {
			t.Errorf("%d of %d octets read in half the time", h, live)
		}
		// The next process goes on where this one was.
		x.run(t, 24*time.Hour, 6*time.Hour)
		at := x.c.at
		x.run(t, 24*time.Hour, time.Second)
		if again := x.c.at; at < 1<<29 || again != at || !x.c.Stats().Last.Equal(st.Last.Truncate(time.Microsecond)) {
			t.Errorf("from %d on after %d; %v after %v", again, at, x.c.Stats().Last, st.Last)
		}
	})
}

// TestScrubFinds: each kind of damage is found, where it is, once, and what can be done is done.
func TestScrubFinds(t *testing.T) {
	t.Parallel()
	const state, inline, large = 4, 1, 3 // messages: with a state, in the log, with a file
	for _, tt := range []struct {
		name   string
		msg    int
		at     func(x *scrubbed, en Entry) (file string, off int64)
		mended bool
	}{
		{"content in the log", inline, func(_ *scrubbed, en Entry) (string, int64) {
			return segName("q", en.Ref.File), int64(en.Ref.Offset + en.Ref.Length - 500)
		}, false},
		{"header", inline, func(_ *scrubbed, en Entry) (string, int64) {
			return segName("q", en.Ref.File), int64(en.Ref.Offset) + 30
		}, false},
		{"envelope", inline, func(_ *scrubbed, en Entry) (string, int64) {
			return segName("q", en.Ref.File), int64(en.Ref.Offset) + headerLen + 20
		}, false},
		{"state", state, func(_ *scrubbed, en Entry) (string, int64) {
			return segName("q", en.Ref.File), int64(en.Ref.Offset) + headerLen + 10
		}, true},
		{"content file", large, func(_ *scrubbed, en Entry) (string, int64) { return bigFile("q", string(en.ID)), 70000 }, false},
		{"list of checksums", large, func(_ *scrubbed, en Entry) (string, int64) { return bigFile("q", string(en.ID)), 140001 }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				x := newScrubbed(t, 8)
				defer x.s.Close()
				id := x.ids[tt.msg]
				en, _ := x.s.Locate(id)
				file, off := tt.at(x, en)
				x.damage(t, file, off)
				x.run(t, time.Hour, 3*time.Hour)
				list := x.findings()
				if len(list) != 1 || list[0].ID != id || list[0].Mended != tt.mended || list[0].Unread || !isDamage(list[0].Err) {
					t.Fatalf("%+v", list)
				}
				if w := list[0].Where; "q/"+w.File != file || w.Offset > off || w.Offset < off-bigChunk {
					t.Errorf("found at %v, it is at %s:%d", w, file, off)
				}
				now, there := x.s.Locate(id)
				if !there || (now.Queue == Corrupt) == tt.mended {
					t.Errorf("%+v", now)
				}
				if st := x.c.Stats(); st.Findings != 1 || st.Passes < 2 {
					t.Errorf("%+v", st)
				}
				rep, err := Check(x.mem, "q")
				if err != nil || len(rep.Problems) == 0 && !tt.mended {
					t.Errorf("check: %v, %v", rep.Problems, err)
				}
				if all := strings.Join(rep.Problems, "\n"); !tt.mended && !strings.Contains(all, fmt.Sprintf("%s:", strings.TrimPrefix(file, "q/"))) {
					t.Errorf("check does not say where: %s", all)
				}
			})
		})
	}
}

// TestScrubPassing: a disk that fails for a moment is no finding; one that does not stop failing is one, said
// once, and the mail stays where it is.
func TestScrubPassing(t *testing.T) {
	t.Parallel()
	for _, stays := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			x := newScrubbed(t, 8)
			defer x.s.Close()
			begun := time.Now()
			var failed atomic.Int64
			name := bigFile("q", string(x.ids[3]))
			x.fail = func(op vfs.Op) error {
				if op.Name == name && (stays || failed.Load() < 2) {
					failed.Add(1)
					return syscall.EIO
				}
				return nil
			}
			x.run(t, time.Hour, 3*time.Hour+5*time.Minute)
			if failed.Load() < 2 || x.c.Stats().Passes != 3 {
				t.Fatalf("%d reads failed in %v; %+v", failed.Load(), time.Since(begun), x.c.Stats())
			}
			list := x.findings()
			if stays && (len(list) != 1 || !list[0].Unread || list[0].ID != x.ids[3] || !errors.Is(list[0].Err, syscall.EIO)) || !stays && len(list) > 0 {
				t.Errorf("stays %v: %+v", stays, list)
			}
			if en, there := x.s.Locate(x.ids[3]); !there || en.Queue == Corrupt {
				t.Errorf("%+v", en)
			}
		})
	}
}

// TestScrubMoving: mail that comes, goes and moves while it is read is no finding.
func TestScrubMoving(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := newScrubbed(t, 30)
		defer x.s.Close()
		stop := make(chan struct{})
		x.wg.Go(func() {
			r := rand.New(rand.NewPCG(1, 1))
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Second):
				}
				var b Batch
				id := x.ids[r.IntN(len(x.ids))]
				switch r.IntN(8) {
				case 0:
					b.Done(id, []int{0, 1})
				case 1:
					first, err := x.s.Lease(1)
					if err != nil {
						return
					}
					id = mail.MakeQueueID(time.Unix(1800000000, 0), first)
					b.Add(Message{ID: id, Envelope: testEnvelope(id, 1000), Recipients: testRecipients(2), NRcpt: 2, Content: make([]byte, 1500)})
					x.ids = append(x.ids, id)
				default:
					b.Update(id, Change{Set: SetAttempts, Attempts: i})
				}
				if err := x.s.Commit(&b); err != nil {
					t.Errorf("%v", err)
				}
			}
		})
		x.run(t, time.Hour, 10*time.Hour)
		close(stop)
		x.wg.Wait()
		if st := x.c.Stats(); st.Findings > 0 || st.Passes < 8 {
			t.Errorf("%+v, %v", st, x.findings())
		}
	})
}

// TestScrubDue: how fast is read is a matter of time and octets and nothing else: never before
// its time, never over the rate, all of it when the time is up.
func TestScrubDue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(1, 1<<50).Draw(t, "total")
		slot := time.Duration(rapid.Int64Range(0, int64(30*24*time.Hour)).Draw(t, "slot"))
		a := rapid.Int64Range(0, total).Draw(t, "a")
		b := rapid.Int64Range(a, 2*total).Draw(t, "b")
		da, db := scrubDue(a, total, slot), scrubDue(b, total, slot)
		rate := func(n int64) time.Duration { return time.Duration(float64(n) / scrubRate * float64(time.Second)) }
		switch {
		case da > db:
			t.Fatalf("%v after %d, %v after %d", da, a, db, b)
		case da < rate(a):
			t.Fatalf("too fast: %d in %v", a, da)
		case da > max(slot, rate(a)):
			t.Fatalf("too slow: %d in %v of %v", a, da, slot)
		case scrubDue(0, total, slot) != 0:
			t.Fatal("it waits before anything was read")
		case b >= total && db < slot:
			t.Fatalf("all of it after %v of %v", db, slot)
		}
	})
}
