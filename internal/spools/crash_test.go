package spools_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/spools"
	"posthaste/internal/storage"
	"posthaste/internal/testseed"
	"posthaste/internal/vfs"
)

// small is a message of a test, with a number from en, whose content is in a file if it is long.
func small(t testing.TB, en storage.Engine, content string) (storage.Addition, error) {
	t.Helper()
	n, err := en.Lease(1)
	if err != nil {
		return storage.Addition{}, err
	}
	env := mail.Envelope{ID: mail.MakeQueueID(time.Unix(1800000000, 0), n), Sender: "s@from.test", Size: int64(len(content)), Arrival: time.Unix(1800000000, 0)}
	rcpts := []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test"}}
	m := storage.Addition{ID: env.ID, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, rcpts), NRcpt: len(rcpts)}
	if len(content) <= en.InlineLimit() {
		m.Content = []byte(content)
		return m, nil
	}
	f, err := en.NewFile()
	if err != nil {
		return m, err
	}
	if _, err := f.Write([]byte(content)); err != nil {
		f.Abort()
		return m, err
	}
	m.File = f
	return m, nil
}

// A fate is what is known of a message: it may be in the queue, it must be, and with which recipients done.
type fate struct {
	content  string
	must     bool // it was acknowledged
	may      bool // it may be there
	done     map[int]bool
	doubtful map[int]bool // done was not acknowledged
}

// A witness does things to a queue until the power fails, and knows what was acknowledged.
type witness struct {
	t    testing.TB
	r    *rand.Rand
	list map[mail.QueueID]*fate
}

// step makes one change. It is false when the disk is gone.
func (w *witness) step(en storage.Engine) bool {
	ids := slices.Sorted(maps.Keys(w.list))
	if len(ids) == 0 || w.r.IntN(2) == 0 {
		n := w.r.IntN(3000)
		if w.r.IntN(8) == 0 {
			n = 140 << 10
		}
		m, err := small(w.t, en, strings.Repeat(string(rune('a'+w.r.IntN(26))), n))
		if err != nil {
			return false
		}
		f := &fate{content: strings.Repeat("", 0), may: true, done: map[int]bool{}, doubtful: map[int]bool{}}
		if f.content = string(m.Content); m.File != nil {
			p := make([]byte, n)
			m.File.ReadAt(p, 0)
			f.content = string(p)
		}
		w.list[m.ID] = f
		b := en.NewBatch()
		b.Add(m)
		// A notice is there if, and only if, what it is about is recorded.
		about := mail.QueueID("")
		if len(ids) > 0 && w.r.IntN(4) == 0 {
			if id := ids[w.r.IntN(len(ids))]; w.list[id].must && len(w.list[id].done)+len(w.list[id].doubtful) == 0 {
				about = id
				b.Done(id, []int{0})
				w.list[id].doubtful[0] = true
			}
		}
		if err := en.Commit(b); err != nil {
			return false
		}
		f.must = true
		if about != "" {
			delete(w.list[about].doubtful, 0)
			w.list[about].done[0] = true
		}
		return true
	}
	id := ids[w.r.IntN(len(ids))]
	f := w.list[id]
	if !f.must {
		return true
	}
	b := en.NewBatch()
	b.Apart()
	i := w.r.IntN(2)
	if w.r.IntN(3) == 0 {
		f.must = false
		b.Remove(id)
		if err := en.Commit(b); err != nil || b.Refused(0) != nil {
			return false
		}
		f.may = false
		return true
	}
	if f.done[1-i] || f.doubtful[1-i] {
		f.must = false // it leaves with the last one
	}
	f.doubtful[i] = true
	b.Done(id, []int{i})
	if err := en.Commit(b); err != nil || b.Refused(0) != nil {
		return false
	}
	f.done[i] = true
	f.may = f.must
	return true
}

// check compares a queue that has been recovered with what is known.
func (w *witness) check(en storage.Engine, rd storage.Reader) {
	w.t.Helper()
	seen := map[mail.QueueID]bool{}
	for e := range en.Entries {
		f := w.list[e.ID]
		if f == nil || !f.may || seen[e.ID] {
			w.t.Fatalf("%s should not be there, or not twice", e.ID)
		}
		seen[e.ID] = true
		st, err := rd.Read(e.Ref, e.ID)
		if err != nil {
			w.t.Fatal(err)
		}
		st.Overlay(e.Done)
		for i := range 2 {
			if st.Pending(i) && f.done[i] || !st.Pending(i) && !f.done[i] && !f.doubtful[i] {
				w.t.Fatalf("%s: recipient %d pending: %v", e.ID, i, st.Pending(i))
			}
			if !st.Pending(i) { // it will not be forgotten again
				f.done[i] = true
			} else {
				delete(f.doubtful, i)
			}
		}
		c, err := rd.Content(e.Ref, e.ID)
		if err != nil {
			w.t.Fatal(err)
		}
		var b strings.Builder
		if _, err := c.WriteTo(&b); err != nil || b.String() != f.content {
			w.t.Fatalf("%s: %d octets of %d, %v", e.ID, b.Len(), len(f.content), err)
		}
		c.Close()
		f.must = true
	}
	for id, f := range w.list {
		if f.must && !seen[id] {
			w.t.Fatalf("%s was acknowledged, and is lost", id)
		}
		if !seen[id] {
			delete(w.list, id)
		}
	}
}

// The power is cut at any operation on either disk: everything that was acknowledged is there afterwards, once, with what
// became of it, and a notice with what it is about. The numbers are not given again.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	seed := testseed.First(t)
	for round := range 12 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		disk := vfs.NewMem(512)
		w := &witness{t: t, r: r, list: map[mail.QueueID]*fate{}}
		for range 3 {
			var left atomic.Int64
			left.Store(int64(20 + r.IntN(400)))
			var once sync.Once
			var after *vfs.Mem
			loss := vfs.RandomLoss(rand.New(rand.NewPCG(seed, r.Uint64()))) // housekeeping may be what the cut comes in
			faulty := &vfs.Faulty{FS: disk, Hook: func(op vfs.Op) error {
				if op.Kind != vfs.OpWrite && op.Kind != vfs.OpSync || left.Add(-1) > 0 {
					return nil
				}
				once.Do(func() { after = disk.Cut(loss) })
				return syscall.EIO
			}}
			en, err := spools.Open(spools.Options{Parts: logs(faulty, "q", 2, false)})
			if err == nil {
				w.check(en, readers(disk, "q", 2))
				for w.step(en) {
				}
				en.Close()
			}
			if after == nil {
				after = disk.Cut(loss)
			}
			disk = after
		}
		en, err := spools.Open(spools.Options{Parts: logs(disk, "q", 2, false)})
		if err != nil {
			t.Fatalf("seed %d round %d: %v", seed, round, err)
		}
		w.check(en, readers(disk, "q", 2))
		if err := en.Close(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			t.Fatalf("seed %d round %d", seed, round)
		}
	}
}

// A sick is a disk whose writes below one directory fail while it is set.
func sick(disk vfs.FS, dir string, ill *atomic.Bool) vfs.FS {
	return &vfs.Faulty{FS: disk, Hook: func(op vfs.Op) error {
		if ill.Load() && strings.Contains(op.Name, dir) && (op.Kind == vfs.OpWrite || op.Kind == vfs.OpSync || op.Kind == vfs.OpCreate) {
			return syscall.EIO
		}
		return nil
	}}
}

// When one disk fails the others take all mail. What it has stays known; what becomes of it is remembered, and recorded when
// the disk is back, before that is told.
func TestOneFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := vfs.NewMem(512)
		var ill atomic.Bool
		var said, back atomic.Int64
		var told sync.Map
		en, err := spools.Open(spools.Options{Parts: logs(sick(disk, "/d1/", &ill), "q", 3, false),
			Warn: func(f string, a ...any) {
				said.Add(1)
				told.Store(fmt.Sprintf(f, a...), true)
			},
			Adopted: func(storage.Engine, storage.Recovery) { back.Add(1) }})
		if err != nil {
			t.Fatal(err)
		}
		post := func() mail.QueueID {
			t.Helper()
			for {
				m, err := small(t, en, "hello")
				if err != nil {
					t.Fatal(err)
				}
				b := en.NewBatch()
				b.Add(m)
				switch err := en.Commit(b); {
				case err == nil:
					return m.ID
				case !errors.Is(err, queue.ErrBroken) || !ill.Load(): // one at most is under way when the disk fails
					t.Fatal(err)
				}
			}
		}
		on := map[uint8][]mail.QueueID{}
		for range 12 {
			id := post()
			e, _ := en.Locate(id)
			on[e.Ref.Spool] = append(on[e.Ref.Spool], id)
		}
		if len(on) != 3 || len(on[1]) != 4 {
			t.Fatalf("mail does not go round: %v", on)
		}
		ill.Store(true)
		for range 12 {
			id := post()
			if e, _ := en.Locate(id); e.Ref.Spool == 1 {
				t.Errorf("%s is on the disk that has failed", id)
			}
		}
		synctest.Wait()
		for _, id := range on[1] {
			found := false
			told.Range(func(k, _ any) bool { found = found || strings.Contains(k.(string), string(id)); return !found })
			if _, there := en.Locate(id); !there || !found {
				t.Errorf("%s: there %v, named %v", id, there, found)
			}
		}
		b := en.NewBatch()
		b.Apart()
		b.Done(on[1][0], []int{0})
		b.Remove(on[1][1])
		b.Update(on[1][2], queue.Change{Set: queue.SetQueue, Queue: queue.Hold})
		b.Handed(on[1][3], []int{0}, "mx")
		b.Remove(on[2][0])
		done := make(chan error, 1)
		en.Post(b, func(err error) { done <- err })
		en.Hurry()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			if !errors.Is(b.Refused(i), queue.ErrBroken) {
				t.Errorf("change %d: %v", i, b.Refused(i))
			}
		}
		if _, there := en.Locate(on[2][0]); there || b.Refused(4) != nil {
			t.Errorf("the change of another message: there %v, %v", there, b.Refused(4))
		}
		// A notice about a message there waits.
		n, err := small(t, en, "returned")
		if err != nil {
			t.Fatal(err)
		}
		b = en.NewBatch()
		b.Add(n)
		b.Done(on[1][3], []int{0})
		if err := en.Commit(b); !errors.Is(err, queue.ErrBroken) {
			t.Errorf("a notice: %v", err)
		}
		time.Sleep(3 * time.Minute) // it is tried again and again, and says so
		if back.Load() != 0 {
			t.Error("it was told to be back")
		}
		ill.Store(false)
		time.Sleep(time.Second)
		if back.Load() != 1 {
			t.Errorf("told %d times that it is back", back.Load())
		}
		check := func() {
			t.Helper()
			e, there := en.Locate(on[1][0])
			_, gone := en.Locate(on[1][1])
			if h, _ := en.Locate(on[1][2]); !there || e.NPending != 1 || gone || h.Queue != queue.Hold || h.NPending != 2 {
				t.Errorf("%v %+v, %v, %+v", there, e, gone, h)
			}
			if x, _ := en.Locate(on[1][3]); x.NPending != 2 || len(en.InHand(on[1][3], []int{0})) != 0 {
				t.Errorf("what was refused has been recorded: %+v", x)
			}
		}
		check()
		if err := en.Close(); err != nil {
			t.Fatal(err)
		}
		if en, err = spools.Open(spools.Options{Parts: logs(disk, "q", 3, false)}); err != nil {
			t.Fatal(err)
		}
		check()
		en.Close()
	})
}

// A set that is to be left unclean is left so in a part, too, that had failed by then, and is opened again before the end.
func TestUncleanPartComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := vfs.NewMem(512)
		var ill atomic.Bool
		back := make(chan bool, 1)
		open := func() *spools.Set {
			en, err := spools.Open(spools.Options{Parts: logs(sick(disk, "/d0/", &ill), "q", 1, false), Adopted: func(storage.Engine, storage.Recovery) { back <- true }})
			if err != nil {
				t.Fatal(err)
			}
			return en
		}
		en := open()
		post := func() error {
			m, err := small(t, en, "hello")
			if err != nil {
				return err
			}
			b := en.NewBatch()
			b.Add(m)
			return en.Commit(b)
		}
		if err := post(); err != nil {
			t.Error(err)
		}
		ill.Store(true)
		if err := post(); !errors.Is(err, queue.ErrBroken) {
			t.Errorf("the disk fails, and a message is queued: %v", err)
		}
		synctest.Wait()
		en.LeaveUnclean()
		ill.Store(false)
		<-back
		if err := en.Close(); err != nil {
			t.Fatal(err)
		}
		en = open()
		if !en.Recovery().Unclean {
			t.Error("the next start finds it clean")
		}
		en.Close()
	})
}

// A full disk takes no new mail, and the others do; what becomes of its mail is recorded.
func TestOneFull(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem(512)
	for i := range 2 {
		if err := disk.MkdirAll(fmt.Sprint("q/d", i)); err != nil {
			t.Fatal(err)
		}
		disk.Mount(fmt.Sprint("q/d", i))
	}
	en, err := spools.Open(spools.Options{Parts: logs(disk, "q", 2, false), Warn: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	defer en.Close()
	disk.SetMountLimit("q/d1", 12<<20)
	count := map[uint8]int{}
	var last [2]mail.QueueID
	for range 400 {
		m, err := small(t, en, strings.Repeat("x", 100<<10))
		if err != nil {
			t.Fatal(err)
		}
		b := en.NewBatch()
		b.Add(m)
		if err := en.Commit(b); err != nil {
			t.Fatal(err)
		}
		e, _ := en.Locate(m.ID)
		count[e.Ref.Spool]++
		last[e.Ref.Spool] = m.ID
	}
	if count[1] == 0 || count[0] < 2*count[1] {
		t.Errorf("on each: %v", count)
	}
	b := en.NewBatch()
	b.Remove(last[1])
	if err := en.Commit(b); err != nil {
		t.Error(err)
	}
}

// Content that does not fit on one disk goes on on another, with all that had been written.
func TestFullMidway(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem(512)
	for i := range 2 {
		if err := disk.MkdirAll(fmt.Sprint("q/d", i)); err != nil {
			t.Fatal(err)
		}
		disk.Mount(fmt.Sprint("q/d", i))
	}
	en, err := spools.Open(spools.Options{Parts: logs(disk, "q", 2, false), Warn: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	defer en.Close()
	disk.SetMountLimit("q/d1", 13<<20) // not a multiple of what is written, so that it is full in the middle of a message
	rd := readers(disk, "q", 2)
	defer rd.Close()
	on := map[uint8]int{}
	for i := range 16 {
		m, err := small(t, en, strings.Repeat(string(rune('a'+i)), 2<<20))
		if err != nil {
			t.Fatal(err)
		}
		b := en.NewBatch()
		b.Add(m)
		if err := en.Commit(b); err != nil {
			t.Fatal(err)
		}
		e, _ := en.Locate(m.ID)
		c, err := rd.Content(e.Ref, m.ID)
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		if _, err := c.WriteTo(&got); err != nil || got.String() != strings.Repeat(string(rune('a'+i)), 2<<20) {
			t.Errorf("message %d: %d octets, %v", i, got.Len(), err)
		}
		c.Close()
		on[e.Ref.Spool]++
	}
	if on[1] < 2 || on[0] < 10 {
		t.Errorf("on each: %v", on)
	}
}
