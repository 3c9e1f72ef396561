package spool

import (
	"container/heap"
	"errors"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// due is a message's next event in the simulation below.
type due struct {
	at, born time.Duration
	until    time.Duration // delivered then
	wait     time.Duration // present back-off
	id       mail.QueueID
}

type dueHeap []due

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(due)) }
func (h *dueHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// stay draws how long a message stays: most go at once, some are greylisted
// or meet a full mailbox, and a few are never delivered and expire.
func stay(r *rand.Rand) time.Duration {
	switch p := r.Float64(); {
	case p < 0.92:
		return time.Duration(r.Float64() * float64(10*time.Second))
	case p < 0.95:
		return time.Duration(r.Float64() * float64(15*time.Minute))
	case p < 0.97:
		return time.Duration(r.Float64() * float64(12*time.Hour))
	}
	return 5 * 24 * time.Hour
}

// drawSize draws the size of a message in octets, of about a log-normal distribution
// with a median of 3 KB. It reckons in integers, so that it is the same on every
// processor: math.Exp is not.
func drawSize(r *rand.Rand) int {
	h := bits.OnesCount32(r.Uint32()) + 7 // in half octaves
	size := (2 + h%2) << (h/2 - 1)
	return size + r.IntN(1+size/3)
}

// month is the simulation: an engine and the mail that it lives with.
type month struct {
	e     *engine
	r     *rand.Rand
	queue dueHeap
	next  uint64 // message number
	rcpts []byte
	body  []byte
}

func newMonth(t *testing.T, seed uint64, random func([]byte)) *month {
	t.Helper()
	e, _, err := openEngine(&Options{FS: vfs.NewMem(4096), Dir: "q", SegmentSize: 128 << 10}, 0, random)
	if err != nil {
		t.Fatal(err)
	}
	m := &month{e: e, r: rand.New(rand.NewPCG(1, seed)), rcpts: testRecipients(1), body: make([]byte, 12<<10)}
	m.next, _ = e.numbers()
	return m
}

// monthGap is the time between two steps of a month: 2500 messages come in a day.
const monthGap = 24 * time.Hour / 2500 * monthAdds

// monthAdds is how many messages come in a step.
const monthAdds = 4

// step has mail come, and deliveries made or tried that are due.
func (m *month) step(t *testing.T, now time.Duration) {
	t.Helper()
	adds, b := new(Batch), new(Batch)
	for range monthAdds {
		id := mail.MakeQueueID(time.Unix(1700000000, 0).Add(now), m.next)
		m.next++
		size := min(drawSize(m.r), len(m.body))
		adds.Add(Message{ID: id, Envelope: testEnvelope(id, size), Recipients: m.rcpts, NRcpt: 1, Content: m.body[:size]})
		heap.Push(&m.queue, due{at: now + time.Second, born: now, until: now + stay(m.r), wait: 300 * time.Second, id: id})
	}
	for len(m.queue) > 0 && m.queue[0].at <= now {
		m.attempt(b, heap.Pop(&m.queue).(due), now)
	}
	rq := []*request{{b: adds}, {b: b}}
	for len(rq) > 0 {
		n, err := m.e.commit(rq)
		for _, r := range rq[:n] {
			err = errors.Join(err, r.err)
		}
		if err != nil {
			t.Fatal(err)
		}
		rq = rq[n:]
	}
	for more := true; more; {
		var err error
		if more, err = m.e.maintain(); err != nil {
			t.Fatal(err)
		}
	}
	m.e.housekeep()
}

// attempt delivers d, or puts it off: to max(minimal back-off, age), up to the maximal
// back-off.
func (m *month) attempt(b *Batch, d due, now time.Duration) {
	if d.until <= now {
		b.Done(d.id, []int{0})
		return
	}
	d.wait = min(max(300*time.Second, now-d.born), 4000*time.Second)
	d.at = now + d.wait
	b.Update(d.id, Change{Set: SetQueue | SetNextAttempt, Queue: Deferred, NextAttempt: time.Unix(1700000000, 0).Add(d.at),
		Outcomes: []mail.Outcome{{Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Relay: "none",
			Reason: "connect to mx.example.org[192.0.2.1]:25: Connection timed out"}}})
	heap.Push(&m.queue, d)
}

// TestMonth lives through a month of mail of which 3 % cannot be delivered,
// with Postfix's back-off, and checks what the package comment promises:
// the disk used is at most twice the live bytes and a fixed number of
// segments, and each byte accepted is written less than 1.3 times, copies
// by the cleaner and by checkpoints included (a retry's own STATE is a write
// of its own, not an amplification).
func TestMonth(t *testing.T) {
	once(t)
	t.Parallel()
	days := 30
	if testing.Short() {
		days = 7
	}
	m := newMonth(t, 2, randomBytes)
	var worst, states float64 // segments
	for now := time.Duration(0); now < time.Duration(days)*24*time.Hour; now += monthGap {
		m.step(t, now)
		st := m.e.snapshot()
		over := float64(st.DiskBytes-2*st.LiveBytes) / float64(st.SegmentSize)
		if bound := m.bound(); over > bound {
			t.Fatalf("after %v: %.1f segments over twice the live bytes, want %.0f at most", now, over, bound)
		}
		worst = max(worst, over)
		states = max(states, float64(st.StateBytes)/float64(st.SegmentSize))
	}
	st := m.e.snapshot()
	wa := float64(st.AddedBytes+st.Copied+st.Checkpoints) / float64(st.AddedBytes)
	t.Logf("%d days, %d messages, %d in the queue: write amplification %.3f (copied %.1f %%, checkpoints %.1f %%); everything written %.2f times what was accepted; disk at most 2 x live + %.1f segments; states would take %.2f; %d segments now, %d live bytes; %d cleaned",
		days, st.Added, st.Messages, wa, 100*float64(st.Copied)/float64(st.AddedBytes), 100*float64(st.Checkpoints)/float64(st.AddedBytes),
		float64(st.Written)/float64(st.AddedBytes), worst, states, st.Segments, st.LiveBytes, st.Cleaned)
	if wa >= 1.3 {
		t.Errorf("write amplification %.3f, want less than 1.3", wa)
	}
	if states < 0.5 || st.Cleaned == 0 {
		t.Error("there was too little mail for the bound to mean something")
	}
}

// bound is how many segments the disk used may be over twice the live bytes, where
// there are no content files: what the package comment says. The cleaner begins at
// windowLimit (12) and 4 over, a segment late; 2 are open; spares (5, 1 for states that are not
// written yet, 2 for starts) and aheadSegments (2) are free: 28. One more is made before what
// was closed meanwhile is cleaned. All that grows with the states is the window (4 for each
// segment of them) and the spares (3.5 at first, and 1.25 from four segments on).
func (m *month) bound() float64 {
	return 29 + 6*float64(m.e.metaSum/m.e.lim.segSize)
}

// TestMonthIsDetermined says that the engine decides nothing by chance: two months of the
// same mail do the same to the last octet, whatever the identity and the salts of their spools.
func TestMonthIsDetermined(t *testing.T) {
	t.Parallel()
	var stats [2]Stats
	for i := range stats {
		random := rand.NewChaCha8([32]byte{byte(i)})
		m := newMonth(t, 3, func(b []byte) { random.Read(b) })
		for now := time.Duration(0); now < 18*time.Hour; now += monthGap {
			m.step(t, now)
		}
		stats[i] = m.e.snapshot()
	}
	if stats[0] != stats[1] {
		t.Errorf("the same mail did\n%+v, and then\n%+v", stats[0], stats[1])
	}
}
