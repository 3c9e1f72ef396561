package spool

import (
	"container/heap"
	"errors"
	"math"
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

// TestMonth lives through a month of mail of which 3 % cannot be delivered,
// with Postfix's back-off, and checks what the package comment promises:
// the disk used is at most twice the live bytes and a fixed number of
// segments, and each byte accepted is written less than 1.3 times, copies
// by the cleaner and by checkpoints included (a retry's own STATE is a write
// of its own, not an amplification).
func TestMonth(t *testing.T) {
	t.Parallel()
	days, perDay := 30, 2500
	if testing.Short() || raceEnabled { // it is one goroutine: the race detector has nothing to find
		days = 7
	}
	r := rand.New(rand.NewPCG(1, 2))
	mem := vfs.NewMem(4096)
	e, _, err := openEngine(&Options{FS: mem, Dir: "q", SegmentSize: 128 << 10}, 0, randomBytes)
	if err != nil {
		t.Fatal(err)
	}
	next, _ := e.numbers()
	var queue dueHeap
	var worst float64
	end := time.Duration(days) * 24 * time.Hour
	gap := 24 * time.Hour / time.Duration(perDay) * 4
	rcpts := testRecipients(1)
	body := make([]byte, 12<<10)
	for now := time.Duration(0); now < end; now += gap {
		adds, b := new(Batch), new(Batch)
		for range 4 {
			id := mail.MakeQueueID(time.Unix(1700000000, 0).Add(now), next)
			next++
			size := min(int(math.Exp(r.NormFloat64()*0.9+8)), len(body))
			adds.Add(Message{ID: id, Envelope: testEnvelope(id, size), Recipients: rcpts, NRcpt: 1, Content: body[:size]})
			heap.Push(&queue, due{at: now + time.Second, born: now, until: now + stay(r), wait: 300 * time.Second, id: id})
		}
		for len(queue) > 0 && queue[0].at <= now {
			d := heap.Pop(&queue).(due)
			if d.until <= now {
				b.Done(d.id, []int{0})
				continue
			}
			// Retry at max(minimal back-off, age), up to the maximal back-off.
			d.wait = min(max(300*time.Second, now-d.born), 4000*time.Second)
			d.at = now + d.wait
			b.Update(d.id, Change{Set: SetQueue | SetNextAttempt, Queue: Deferred, NextAttempt: time.Unix(1700000000, 0).Add(d.at),
				Outcomes: []mail.Outcome{{Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Relay: "none",
					Reason: "connect to mx.example.org[192.0.2.1]:25: Connection timed out"}}})
			heap.Push(&queue, d)
		}
		rq := []*request{{b: adds}, {b: b}}
		for len(rq) > 0 {
			n, err := e.commit(rq)
			for _, r := range rq[:n] {
				err = errors.Join(err, r.err)
			}
			if err != nil {
				t.Fatal(err)
			}
			rq = rq[n:]
		}
		for more := true; more; {
			if more, err = e.maintain(); err != nil {
				t.Fatal(err)
			}
		}
		e.housekeep()
		st := e.snapshot()
		over := float64(st.DiskBytes-2*st.LiveBytes) / float64(st.SegmentSize)
		worst = max(worst, over)
	}
	st := e.snapshot()
	wa := float64(st.AddedBytes+st.Copied+st.Checkpoints) / float64(st.AddedBytes)
	t.Logf("%d days, %d messages, %d in the queue: write amplification %.3f (copied %.1f %%, checkpoints %.1f %%); everything written %.2f times what was accepted; disk at most 2 x live + %.1f segments; %d segments now, %d live bytes; %d cleaned",
		days, st.Added, st.Messages, wa, 100*float64(st.Copied)/float64(st.AddedBytes), 100*float64(st.Checkpoints)/float64(st.AddedBytes),
		float64(st.Written)/float64(st.AddedBytes), worst, st.Segments, st.LiveBytes, st.Cleaned)
	if wa >= 1.3 {
		t.Errorf("write amplification %.3f, want less than 1.3", wa)
	}
	if worst > fixedSegments {
		t.Errorf("%.1f segments over twice the live bytes, want %d at most", worst, fixedSegments)
	}
}

// fixedSegments is the fixed number in the bound on disk space, where there are no
// content files.
const fixedSegments = 27
