package eventjournal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/proto"
	"posthaste/internal/vfs"
)

// small are options with segments of a few events.
func small(fs vfs.FS) Options {
	return Options{FS: fs, Dir: "events", Limit: 1 << 30, SegmentSize: 5 * 4096, Keep: time.Hour, Now: time.Now, Warn: func(string, ...any) {}}
}

func open(t testing.TB, o Options) *Journal {
	t.Helper()
	j, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// record is an event of a size that differs.
func record(i int) proto.EventRecord {
	return proto.EventRecord{Kind: "delivered", Key: fmt.Sprint("q", i%7), JSON: fmt.Appendf(nil, `{"n":%d,"pad":"%0*d"}`, i, i%300, 0)}
}

// put appends events and waits.
func put(j *Journal, list ...proto.EventRecord) (first uint64, err error) {
	done := make(chan struct{})
	j.Append(list, func(n uint64, e error) {
		first, err = n, e
		close(done)
	})
	<-done
	return first, err
}

// read reads n events from a position on.
func read(t interface{ Fatal(...any) }, j *Journal, from uint64, n int) (list []Entry, lost uint64) {
	r := j.Reader(from)
	defer r.Close()
	for len(list)+int(lost) < n {
		part, missed, err := r.Next(context.Background(), n-len(list), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		list, lost = append(list, part...), lost+missed
	}
	return list, lost
}

// What was appended is read in order, over segments and after the journal was opened anew.
func TestAppendAndRead(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem(512)
	j := open(t, small(disk))
	const n = 200
	for i := range n {
		first, err := put(j, record(i))
		if err != nil || first != uint64(i)+1 {
			t.Fatalf("event %d: got number %d, %v", i, first, err)
		}
	}
	check := func(j *Journal) {
		t.Helper()
		list, lost := read(t, j, 1, n)
		if lost != 0 {
			t.Errorf("%d lost", lost)
		}
		for i, e := range list {
			if want := record(i); e.Seq != uint64(i)+1 || e.Kind != want.Kind || e.Key != want.Key || string(e.JSON) != string(want.JSON) {
				t.Fatalf("event %d is %d %q", i, e.Seq, e.JSON)
			}
		}
	}
	check(j)
	if len(j.segments) < 5 {
		t.Errorf("only %d segments", len(j.segments))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = open(t, small(disk))
	check(j)
	if first, err := put(j, record(n)); err != nil || first != n+1 {
		t.Errorf("the next event: got number %d, %v", first, err)
	}
	j.Close()
}

// After a write of many events those that come within a moment share the next one; after one alone, and when nothing has
// been written for a while, an event is written at once.
func TestGather(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := small(vfs.NewMem(512))
		o.Rest, o.MaxRest = time.Millisecond, 3*time.Millisecond
		j := open(t, o)
		defer j.Close()
		// Each step is some events at once, when they are appended, and when they are durable, in tenths of ms from its beginning.
		type batch struct{ n, at, durable int }
		for _, step := range [][]batch{
			{{1, 0, 0}, {1, 2, 10}, {1, 12, 20}},
			{{9, 0, 0}, {1, 5, 30}, {1, 20, 30}, {1, 35, 50}},
			{{2, 0, 0}, {1, 5, 20}, {1, 70, 70}},
		} {
			start := time.Now()
			const tenth = time.Millisecond / 10
			since := func() int { return int(time.Since(start) / tenth) }
			for _, b := range step {
				time.Sleep(time.Duration(b.at-since()) * tenth)
				j.Append(make([]proto.EventRecord, b.n), func(_ uint64, err error) {
					if got := since(); err != nil || got != b.durable {
						t.Errorf("%v: %+v: durable at %d, %v", step, b, got, err)
					}
				})
				synctest.Wait()
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		// A clock that is set back keeps nobody waiting for longer.
		put(j, make([]proto.EventRecord, 9)...)
		j.begun = j.begun.Add(time.Hour)
		start := time.Now()
		if put(j, record(1)); time.Since(start) != 3*time.Millisecond {
			t.Errorf("it took %v", time.Since(start))
		}
	})
}

// A second process does not get the journal.
func TestLocked(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem(512)
	j := open(t, small(disk))
	var locked *vfs.LockedError
	if _, err := Open(small(disk)); !errors.As(err, &locked) {
		t.Errorf("got %v", err)
	}
	j.Close()
}

// Many appends share syncs.
func TestSyncsAreShared(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	syncs := 0
	gate := make(chan struct{})
	disk := &vfs.Faulty{FS: vfs.NewMem(512), Hook: func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			mu.Lock()
			syncs++
			first := syncs == 2 // behind that of the first segment
			mu.Unlock()
			if first {
				<-gate
			}
		}
		return nil
	}}
	o := small(disk)
	o.SegmentSize = 1 << 20
	j := open(t, o)
	defer j.Close()
	var wg sync.WaitGroup
	wg.Add(100)
	for i := range 100 {
		j.Append([]proto.EventRecord{record(i)}, func(_ uint64, err error) {
			if err != nil {
				t.Error(err)
			}
			wg.Done()
		})
	}
	close(gate)
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	if syncs > 4 {
		t.Errorf("%d syncs for 100 appends", syncs)
	}
}

// After a power cut at any write, everything that was confirmed is there, in order, with the numbers that
// were told, and positions that were set are there or further on.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		disk := vfs.NewMem([]int{512, 4096}[rapid.IntRange(0, 1).Draw(t, "sector")])
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		var confirmed []string
		position := uint64(1)
		n := 0
		for range rapid.IntRange(1, 5).Draw(t, "lives") {
			cutAt := rapid.IntRange(1, 120).Draw(t, "operation")
			var cut *vfs.Mem
			ops := 0
			faulty := &vfs.Faulty{FS: disk, Hook: func(op vfs.Op) error {
				if ops++; ops == cutAt {
					cut = disk.Cut(vfs.RandomLoss(rng))
				}
				if cut != nil {
					return syscall.EIO
				}
				return nil
			}}
			j, err := Open(small(faulty))
			for err == nil {
				list := make([]proto.EventRecord, rng.IntN(4)+1)
				for i := range list {
					list[i] = record(n)
					n++
				}
				var first uint64
				if first, err = put(j, list...); err != nil {
					break
				}
				// Numbers of events that were not confirmed are not used again if they are there.
				for uint64(len(confirmed))+1 < first {
					confirmed = append(confirmed, "")
				}
				for i := range list {
					confirmed = append(confirmed, string(list[i].JSON))
				}
				if rng.IntN(3) == 0 {
					if err = j.SetPosition("crm", first); err == nil {
						position = first
					}
				}
			}
			if j != nil {
				j.Close()
			}
			if cut == nil {
				t.Fatal(err)
			}
			disk = cut
			j, err = Open(small(disk))
			if err != nil {
				t.Fatalf("after the cut: %v", err)
			}
			if at, ok, err := j.Position("crm"); err != nil || ok && at < position || !ok && position > 1 {
				t.Fatalf("position %d (%v, %v), it was %d", at, ok, err, position)
			}
			list, _ := read(t, j, 1, int(j.next-1))
			for _, s := range j.segments {
				t.Logf("segment %d size %d", s.first, s.size)
			}
			t.Logf("next %d, confirmed %d", j.next, len(confirmed))
			if len(list) < len(confirmed) {
				t.Fatalf("%d events, %d were confirmed", len(list), len(confirmed))
			}
			for i, want := range confirmed {
				if want != "" && string(list[i].JSON) != want {
					t.Fatalf("event %d is %s, and was %s", i+1, list[i].JSON, want)
				}
			}
			j.Close()
		}
	})
}

// A power cut in the middle of any write of a position leaves the one before it, or the new one, also when the disk
// leaves garbage where it was writing.
func TestPositionPowerCut(t *testing.T) {
	t.Parallel()
	for cutAt := 1; cutAt < 30; cutAt++ {
		disk := vfs.NewMem(512)
		ops, set := 0, uint64(0)
		var cut *vfs.Mem
		rng := rand.New(rand.NewPCG(uint64(cutAt), 1))
		p := positions{dir: "events", open: make(map[string]*position), fs: &vfs.Faulty{FS: disk, Hook: func(op vfs.Op) error {
			if ops++; ops == cutAt {
				cut = disk.Cut(vfs.Loss{Sector: func(int, int, int) int { return -1 }, Names: func(_, n, ops int) int { return ops },
					Size: func(int, int) bool { return true }, Count: func() bool { return true },
					Garbage: func(b []byte) {
						for i := range b {
							b[i] = byte(rng.Uint32())
						}
					}})
			}
			if cut != nil {
				return syscall.EIO
			}
			return nil
		}}}
		if err := disk.MkdirAll("events"); err != nil {
			t.Fatal(err)
		}
		for p.set("crm", set+1) == nil {
			set++
		}
		after := positions{dir: "events", open: make(map[string]*position), fs: cut}
		if at, ok, err := after.get("crm"); err != nil || ok && at < set || !ok && set > 0 {
			t.Errorf("cut at operation %d: position %d (%v, %v), it was %d", cutAt, at, ok, err, set)
		}
	}
}

// A full disk refuses events, and breaks nothing: what is read goes, and then there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem(512)
	disk.SetLimit(12 * 4096)
	j := open(t, small(disk))
	defer j.Close()
	j.Hold("crm", 1)
	n := 0
	var err error
	for ; err == nil; n++ {
		_, err = put(j, record(n))
	}
	if !errors.Is(err, ErrFull) || n < 4 {
		t.Fatalf("after %d events: %v", n, err)
	}
	list, _ := read(t, j, 1, n-1)
	if last := list[len(list)-1]; string(last.JSON) != string(record(n-2).JSON) {
		t.Errorf("the last one is %s", last.JSON)
	}
	j.Hold("crm", uint64(n))
	if first, err := put(j, record(n)); err != nil || first != uint64(n) {
		t.Errorf("when all is read: number %d, %v", first, err)
	}
}

// A reader that is slower than the limit allows loses the oldest events, and hears how many. Nobody else does.
func TestLimit(t *testing.T) {
	t.Parallel()
	o := small(vfs.NewMem(512))
	o.Limit = 5 * o.SegmentSize
	j := open(t, o)
	defer j.Close()
	j.Hold("slow", 1)
	const n = 300
	for i := range n {
		if _, err := put(j, record(i)); err != nil {
			t.Fatal(err)
		}
	}
	oldest, next, octets := j.Bounds()
	if next != n+1 || oldest == 1 || octets > o.Limit {
		t.Fatalf("events %d to %d, %d octets", oldest, next, octets)
	}
	r := j.Reader(1)
	defer r.Close()
	list, lost, err := r.Next(t.Context(), 10, 1<<20)
	if err != nil || lost != oldest-1 {
		t.Fatalf("lost %d of %d, %v", lost, oldest-1, err)
	}
	for len(list) == 0 {
		if list, _, err = r.Next(t.Context(), 10, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	if list[0].Seq != oldest || string(list[0].JSON) != string(record(int(oldest)-1).JSON) {
		t.Errorf("the first is %d %s", list[0].Seq, list[0].JSON)
	}
}

// What everybody has read is kept for a while, and then removed.
func TestKeep(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	o := small(vfs.NewMem(512))
	o.Keep, o.Now = time.Hour, func() time.Time { return now }
	j := open(t, o)
	defer j.Close()
	for i := range 100 {
		if _, err := put(j, record(i)); err != nil {
			t.Fatal(err)
		}
	}
	j.Hold("crm", 101)
	j.Hold("slow", 40)
	oldestAfter := func() uint64 {
		j.writers.Wait() // what was appended is told before the writer has ended
		j.Trim()
		oldest, _, _ := j.Bounds()
		return oldest
	}
	if at := oldestAfter(); at != 1 {
		t.Errorf("at once: %d", at)
	}
	now = now.Add(2 * time.Hour)
	at := oldestAfter()
	if at == 1 || at > 40 {
		t.Errorf("after its time: %d", at)
	}
	j.Hold("slow", 101)
	if again := oldestAfter(); again <= at || again > 101 {
		t.Errorf("when all is read: %d", again)
	}
}

// A sync that fails breaks the journal: nothing more is confirmed.
func TestFailedSync(t *testing.T) {
	t.Parallel()
	fail := false
	disk := &vfs.Faulty{FS: vfs.NewMem(512), Hook: func(op vfs.Op) error {
		if fail && op.Kind == vfs.OpSync {
			fail = false
			return syscall.EIO
		}
		return nil
	}}
	j := open(t, small(disk))
	defer j.Close()
	if _, err := put(j, record(1)); err != nil {
		t.Fatal(err)
	}
	fail = true
	for range 2 {
		if _, err := put(j, record(2)); !errors.Is(err, ErrBroken) {
			t.Errorf("got %v", err)
		}
	}
	if !errors.Is(j.Broken(), ErrBroken) {
		t.Error("it does not say so")
	}
}

// A reader waits for what comes, and ends with its context and with the journal.
func TestWait(t *testing.T) {
	t.Parallel()
	j := open(t, small(vfs.NewMem(512)))
	got := make(chan []Entry, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		r := j.Reader(1)
		defer r.Close()
		list, _, err := r.Next(t.Context(), 1, 1)
		if err != nil {
			t.Error(err)
		}
		got <- list
		if _, _, err = r.Next(t.Context(), 1, 1); !errors.Is(err, ErrClosed) {
			t.Errorf("a closed journal: %v", err)
		}
	})
	if _, err := put(j, record(1)); err != nil {
		t.Fatal(err)
	}
	if list := <-got; len(list) != 1 || list[0].Seq != 1 {
		t.Errorf("got %v", list)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := j.Reader(2)
	defer r.Close()
	if _, _, err := r.Next(ctx, 1, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	j.Close()
	wg.Wait()
}

// A damaged record costs the events from there to the end of its segment, and no others.
func TestDamage(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem(512)
	j := open(t, small(disk))
	const n = 100
	for i := range n {
		if _, err := put(j, record(i)); err != nil {
			t.Fatal(err)
		}
	}
	second := j.segments[1]
	after := j.segments[2].first
	name := second.name("events")
	j.Close()
	if err := disk.Damage(name, 2*4096, 0, rand.New(rand.NewPCG(1, 1))); err != nil {
		t.Fatal(err)
	}
	j = open(t, small(disk))
	defer j.Close()
	r := j.Reader(1)
	defer r.Close()
	var seen []uint64
	var lost uint64
	for len(seen)+int(lost) < n {
		list, missed, err := r.Next(t.Context(), 10, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		lost += missed
		for _, e := range list {
			seen = append(seen, e.Seq)
		}
	}
	if lost == 0 || !slices.Contains(seen, after) || !slices.Contains(seen, second.first-1) || !slices.IsSorted(seen) {
		t.Errorf("lost %d, seen %v", lost, seen)
	}
}

// A reader that stays behind in a segment while others are begun reads on in the next one, and misses nothing.
func TestReaderBehind(t *testing.T) {
	t.Parallel()
	for _, segments := range []int{2, 3, 5} {
		j := open(t, small(vfs.NewMem(512)))
		n := 0
		more := func() {
			if _, err := put(j, record(n)); err != nil {
				t.Fatal(err)
			}
			n++
		}
		more()
		more()
		r := j.Reader(1)
		if list, lost, err := r.Next(t.Context(), 1, 1<<20); len(list) != 1 || lost != 0 || err != nil {
			t.Fatalf("%d events, %d lost, %v", len(list), lost, err)
		}
		for len(j.segments) < segments {
			more()
		}
		more() // the last one has two
		for next := uint64(2); next <= uint64(n); {
			list, lost, err := r.Next(t.Context(), 3, 1<<20)
			if err != nil || lost > 0 {
				t.Fatalf("%d segments: %d lost at %d of %d, %v", segments, lost, next, n, err)
			}
			for _, e := range list {
				if e.Seq != next {
					t.Fatalf("%d segments: event %d is there, expected %d", segments, e.Seq, next)
				}
				next++
			}
		}
		r.Close()
		j.Close()
	}
}

// A reader that cannot read on gives what it has read, and after the error what follows.
func TestReadError(t *testing.T) {
	t.Parallel()
	bad := ""
	disk := &vfs.Faulty{FS: vfs.NewMem(512), Hook: func(op vfs.Op) error {
		if op.Kind == vfs.OpOpen && op.Name == bad {
			return syscall.EIO
		}
		return nil
	}}
	j := open(t, small(disk))
	defer j.Close()
	for n := 0; len(j.segments) < 3; n++ {
		if _, err := put(j, record(n)); err != nil {
			t.Fatal(err)
		}
	}
	bad = j.segments[1].name("events")
	r := j.Reader(1)
	defer r.Close()
	list, lost, err := r.Next(t.Context(), 1000, 1<<20)
	if uint64(len(list)) != j.segments[1].first-1 || lost != 0 || err != nil {
		t.Fatalf("%d events, %d lost, %v", len(list), lost, err)
	}
	if list, lost, err := r.Next(t.Context(), 1000, 1<<20); len(list) != 0 || lost != 0 || !errors.Is(err, syscall.EIO) {
		t.Fatalf("%d events, %d lost, %v", len(list), lost, err)
	}
	bad = ""
	if list, lost, err := r.Next(t.Context(), 1, 1<<20); len(list) != 1 || list[0].Seq != j.segments[1].first || lost != 0 || err != nil {
		t.Fatalf("%v, %d lost, %v", list, lost, err)
	}
}

// No octets make the scanner panic, or read what is no record.
func FuzzScan(f *testing.F) {
	one, two := record(1), record(2)
	f.Add(appendRecord(appendRecord(nil, 1, &one), 2, &two))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		disk := vfs.NewMem(512)
		file, err := disk.Create("x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt(b, 0); err != nil {
			t.Fatal(err)
		}
		s := scanner{f: file, size: int64(len(b)), seq: 1}
		for at := int64(-1); s.at > at; {
			at = s.at
			if _, _, err := s.next(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	o := small(vfs.OS{})
	o.Dir, o.SegmentSize = b.TempDir(), DefaultSegment
	j := open(b, o)
	defer j.Close()
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("together=%d", n), func(b *testing.B) {
			var wg sync.WaitGroup
			gate := make(chan struct{}, n)
			for i := range b.N {
				gate <- struct{}{}
				wg.Add(1)
				j.Append([]proto.EventRecord{record(i)}, func(uint64, error) {
					<-gate
					wg.Done()
				})
			}
			wg.Wait()
		})
	}
}

// TestTornRead: what was read ahead of what is durable, beside a write of several pages, may have the second page of it and not
// the first. The record that begins on the first is found when it is read again.
func TestTornRead(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem(512)
	j := open(t, small(disk))
	event := func(n int) proto.EventRecord {
		return proto.EventRecord{Kind: "received", Key: "k", JSON: bytes.Repeat([]byte("x"), n)}
	}
	_, err := put(j, event(100))
	_, err2 := put(j, event(100), event(2*align), event(10))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	r := j.Reader(1)
	defer r.Close()
	if list, _, err := r.Next(t.Context(), 2, 1<<20); len(list) != 2 || err != nil {
		t.Fatal(list, err)
	}
	clear(r.scan.buf[r.scan.at-r.scan.start : aligned(r.scan.at)-r.scan.start])
	list, lost, err := r.Next(t.Context(), 2, 1<<20)
	if len(list) != 2 || lost != 0 || err != nil || list[0].Seq != 3 || len(list[0].JSON) != 2*align {
		t.Errorf("%d events, %d lost, %v", len(list), lost, err)
	}
}
