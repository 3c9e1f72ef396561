package spool

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/vfs"
)

// delivered names a recipient of a message at the next host.
type delivered struct {
	id   mail.QueueID
	rcpt int
}

// inHand is what agents have in hand of a message, as modelMsg has it.
func (w *world) inHand(id mail.QueueID) string {
	var all []int
	for _, h := range w.e.idx.handed[id.Number()] {
		for _, i := range h.Rcpts {
			all = append(all, int(i))
		}
	}
	return handedList(all)
}

func handedList(all []int) string {
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}

func handedInts(s string) (all []int) {
	for _, f := range strings.Fields(strings.Trim(s, "[]")) {
		var i int
		fmt.Sscan(f, &i)
		all = append(all, i)
	}
	return all
}

// diffMail is diffMsg but for what agents have in hand: a damaged record of that changes
// nothing of the mail.
func diffMail(want, got *modelMsg) string {
	w, g := *want, *got
	w.handed, g.handed = "", ""
	return diffMsg(&w, &g)
}

func handedWithout(s string, i int) string {
	if s == "" {
		return s
	}
	return handedList(slices.DeleteFunc(handedInts(s), func(j int) bool { return i == j }))
}

// handed has an agent take recipients in hand.
func (c *change) handed(id mail.QueueID, rcpts ...int) {
	c.b.Handed(id, rcpts, "mx.example")
	for _, i := range rcpts {
		c.gives = append(c.gives, delivered{id, i})
	}
	c.apply = append(c.apply, func(md model) {
		old := md[id.Number()]
		if old == nil {
			return
		}
		m := *old
		all := handedInts(m.handed)
		for _, i := range rcpts {
			if m.done[i] == 0 && !slices.Contains(all, i) {
				all = append(all, i)
			}
		}
		m.handed = handedList(all)
		md[id.Number()] = &m
	})
}

// someRcpts chooses some recipients.
func (w *world) someRcpts(m *modelMsg) (some []int) {
	for i := range m.nrcpt {
		if w.r.IntN(2) == 0 {
			some = append(some, i)
		}
	}
	return some
}

// deliver is what agents do when it is durable that they have recipients in hand: half
// of the time the next host has the message then.
func (w *world) deliver(list []delivered) {
	for _, d := range list {
		if w.r.IntN(2) == 0 {
			w.hop[d] = true
		}
	}
}

// failed is before it is recorded of deliveries that they failed, whatever the next host has:
// what comes again then is no doubt of ours.
func (w *world) failed(list []*change) {
	for _, c := range list {
		for i := range c.b.ops {
			o := &c.b.ops[i]
			for _, out := range o.change.Outcomes {
				delete(w.hop, delivered{o.id, out.Rcpt})
			}
		}
	}
}

// checkDoubt compares what a start says is in doubt with what is: no more and no less
// than what agents had in hand, and all that the next host has and will get
// again is among it.
func (w *world) checkDoubt() {
	if w.rep.MoreInDoubt > 0 {
		return
	}
	named := map[mail.QueueID][]int{}
	for _, d := range w.rep.InDoubt {
		if d.Kind == DoubtHanded {
			named[d.ID] = append(named[d.ID], d.Rcpts...)
		} else if w.rep.Exact {
			fail("in doubt although nobody had it in hand: %+v", d)
		}
	}
	for _, m := range w.now {
		if got := handedList(named[m.id]); got != m.handed {
			fail("message %s: in doubt are %s, want %s", m.id, got, m.handed)
		}
		delete(named, m.id)
	}
	for id, rcpts := range named {
		fail("message %s is in doubt, %v, and not in the queue", id, rcpts)
	}
	for d := range w.hop {
		m := w.now[d.id.Number()]
		if m == nil || m.done[d.rcpt] != 0 {
			delete(w.hop, d)
			continue
		}
		if !slices.Contains(handedInts(m.handed), d.rcpt) {
			fail("message %s: recipient %d will get it again, and is not named", d.id, d.rcpt)
		}
	}
}

// TestCrashHanded is a random history of nothing but deliveries with crashes: each is in hand, and durably so,
// before the next host can have it. After each crash the report has what was in hand and not
// settled, and nothing else.
func TestCrashHanded(t *testing.T) {
	once(t)
	t.Parallel()
	named, repeated := 0, 0
	manySeeds(t, 30, func() bool { return 0 < repeated && repeated < named }, func(seed uint64) ([]string, error) {
		w := &walk{world: newWorld(seed, 0)}
		w.opt.ExactDoubt = true
		return w.trace, w.guard(func() {
			if err := w.open(); err != nil {
				fail("open: %v", err)
			}
			w.settle()
			for range 8 {
				w.deliveries()
				w.hook = nil
				w.fall()
				if err := w.open(); err != nil {
					fail("open: %v", err)
				}
				if !w.rep.Exact {
					fail("not known to be exact")
				}
				w.settle()
				for _, d := range w.rep.InDoubt {
					named += len(d.Rcpts)
				}
				repeated += len(w.hop)
			}
			w.drain()
		})
	})
	t.Logf("%d recipients named, %d of which the next host had", named, repeated)
	if repeated == 0 || repeated == named {
		t.Error("no delivery was cut, or every one: the test shows little")
	}
}

// deliveries accepts and delivers until power or the process fails.
func (w *walk) deliveries() {
	at := w.trigger(40)
	w.hook = func(op vfs.Op) error {
		if at(op) {
			return vfs.ErrCut
		}
		return nil
	}
	for range 100 {
		c := &change{}
		m := w.pick()
		switch p := w.r.IntN(10); {
		case m == nil || p < 2:
			msg, mm := w.newMessage(w.r.IntN(600), 1+w.r.IntN(4))
			if mm == nil {
				return
			}
			c.add(msg, mm)
		case p < 6:
			c.handed(m.id, w.someRcpts(m)...)
		case p < 9:
			for _, i := range handedInts(m.handed) {
				if w.r.IntN(2) == 0 {
					c.done(m.id, i)
				}
			}
		default:
			c.update(m.id, w.randomUpdate(m))
		}
		if c.b.Len() > 0 && !w.commit(c) || !w.maintain(w.r.IntN(3)) {
			return
		}
	}
}

// inHandNow are the recipients that Hands has, in order.
func inHandNow(s *Spool) (rcpts []int) {
	for d := range s.Hands {
		rcpts = append(rcpts, d.Rcpts...)
	}
	slices.Sort(rcpts)
	return rcpts
}

// TestHanded: what settles a delivery that an agent has in hand, and what does not.
func TestHanded(t *testing.T) {
	t.Parallel()
	failed := func(i int) mail.Outcome {
		return mail.Outcome{Rcpt: i, Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Reason: "no"}
	}
	for _, tt := range []struct {
		name  string
		do    func(b *Batch, id mail.QueueID)
		after []int // in doubt
	}{
		{"nothing", func(b *Batch, id mail.QueueID) {}, []int{0, 2}},
		{"delivered to one", func(b *Batch, id mail.QueueID) { b.Done(id, []int{2}) }, []int{0}},
		{"delivered to another", func(b *Batch, id mail.QueueID) { b.Done(id, []int{1}) }, []int{0, 2}},
		{"failed", func(b *Batch, id mail.QueueID) { b.Update(id, Change{Outcomes: []mail.Outcome{failed(0)}}) }, []int{2}},
		{"put off", func(b *Batch, id mail.QueueID) { b.Update(id, Change{Set: SetQueue, Queue: Deferred}) }, []int{0, 2}},
		{"one done, one failed", func(b *Batch, id mail.QueueID) {
			b.Update(id, Change{Done: []int{2}, Outcomes: []mail.Outcome{failed(0)}})
		}, nil},
		{"again", func(b *Batch, id mail.QueueID) { b.Handed(id, []int{1, 2, 1}, "") }, []int{0, 1, 2}},
		{"again what is done", func(b *Batch, id mail.QueueID) { b.Done(id, []int{2}); b.Handed(id, []int{2}, "") }, []int{0}},
		{"removed", func(b *Batch, id mail.QueueID) { b.Remove(id) }, nil},
		{"finished", func(b *Batch, id mail.QueueID) { b.Finish(id) }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			mem := vfs.NewMem(512)
			opt := Options{FS: mem, Dir: "q", SegmentSize: 64 << 10, ExactDoubt: true}
			s, err := Open(opt)
			if err != nil {
				t.Fatal(err)
			}
			first, _ := s.Lease(1)
			id := mail.MakeQueueID(time.Unix(1800000000, 0), first)
			for _, f := range []func(b *Batch){
				func(b *Batch) {
					b.Add(Message{ID: id, Envelope: testEnvelope(id, 10), Recipients: testRecipients(4), NRcpt: 4, Content: []byte("0123456789")})
				},
				func(b *Batch) { b.Handed(id, []int{2, 0}, "mx.example") },
				func(b *Batch) { tt.do(b, id) },
			} {
				var b Batch
				f(&b)
				if err := s.Commit(&b); err != nil {
					t.Fatal(err)
				}
			}
			if got := inHandNow(s); !slices.Equal(got, tt.after) {
				t.Errorf("in hand %v, want %v", got, tt.after)
			}
			// A crash, a start with all that was read written again, and a clean end change nothing of it.
			mem = mem.Cut(vfs.Loss{})
			opt.FS = mem
			for start := range 3 {
				list, _, err := InDoubt(mem, "q")
				if err != nil {
					t.Fatal(err)
				}
				s, err := Open(opt)
				if err != nil {
					t.Fatal(err)
				}
				rep := s.Recovery()
				var got []int
				for _, d := range rep.InDoubt {
					got = append(got, d.Rcpts...)
					if d.ID != id || d.Kind != DoubtHanded || d.At.IsZero() {
						t.Errorf("start %d: %+v", start, d)
					}
				}
				slices.Sort(got)
				if !slices.Equal(got, tt.after) || !rep.Exact {
					t.Errorf("start %d: in doubt %v, want %v; exact %v", start, got, tt.after, rep.Exact)
				}
				// Recovery has named these, and Hands does not name them again.
				if got := inHandNow(s); len(got) > 0 {
					t.Errorf("start %d: in hand %v", start, got)
				}
				if fmt.Sprint(list) != fmt.Sprint(rep.InDoubt) {
					t.Errorf("start %d: before it %v, after it %v", start, list, rep.InDoubt)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestDoubtNew: without the exact record, new mail is in doubt after a crash, as it is
// given out at once; after a clean end, or when the process had recorded each delivery before
// it, it is not.
func TestDoubtNew(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		exact, clean bool
		want         int
	}{{false, false, 1}, {false, true, 0}, {true, false, 0}, {true, true, 0}} {
		mem := vfs.NewMem(512)
		s, err := Open(Options{FS: mem, Dir: "q", SegmentSize: 64 << 10, ExactDoubt: tt.exact})
		if err != nil {
			t.Fatal(err)
		}
		first, _ := s.Lease(3)
		var b Batch
		for i, q := range []Queue{Incoming, Deferred, Hold} {
			id := mail.MakeQueueID(time.Unix(1800000000, 0), first+uint64(i))
			b.Add(Message{ID: id, Envelope: testEnvelope(id, 10), Recipients: testRecipients(1), NRcpt: 1, Content: []byte("0123456789"), Queue: q})
		}
		if err := s.Commit(&b); err != nil {
			t.Fatal(err)
		}
		if tt.clean {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		s, err = Open(Options{FS: mem.Cut(vfs.Loss{}), Dir: "q", SegmentSize: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		list := s.Recovery().InDoubt
		if len(list) != tt.want || len(list) > 0 && (list[0].Kind != DoubtNew || list[0].ID.Number() != first) {
			t.Errorf("exact %v, clean %v: %+v", tt.exact, tt.clean, list)
		}
		s.Close()
	}
}

// TestHandedPointMoves: the recovery point moves past the record of a delivery in hand, and
// past BOOT, and both are known all the same.
func TestHandedPointMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(2, 0)
	w.opt.ExactDoubt = true
	err := w.guard(func() {
		if err := w.open(); err != nil {
			fail("open: %v", err)
		}
		w.settle()
		msg, mm := w.newMessage(500, 3)
		c := &change{}
		c.add(msg, mm)
		c.handed(mm.id, 0, 2)
		w.commit(c)
		from := w.e.from
		for range 400 {
			msg, mm := w.newMessage(900, 1)
			a, d := &change{}, &change{}
			a.add(msg, mm)
			d.done(mm.id, 0)
			if !w.commit(a) || !w.commit(d) || !w.maintain(50) {
				fail("broken: %v", w.e.broken)
			}
			w.e.housekeep()
		}
		if w.e.from.segno < from.segno+10 {
			fail("the recovery point has not moved: %v, %v", from, w.e.from)
		}
		w.mem = w.mem.Cut(vfs.Loss{})
		if err := w.open(); err != nil {
			fail("open: %v", err)
		}
		w.settle()
		if !w.rep.Exact || len(w.rep.InDoubt) != 1 || !slices.Equal(w.rep.InDoubt[0].Rcpts, []int{0, 2}) || w.rep.InDoubt[0].Nexthop != "mx.example" {
			fail("%+v", w.rep)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestHandingForm: what is written is read, and nothing that is read breaks anything.
func TestHandingForm(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		h := handing{At: r.Int64N(1 << 52), Nexthop: strings.Repeat("x", r.IntN(queue.MaxNexthop))}
		set := map[uint32]bool{}
		for range 1 + r.IntN(20) {
			set[r.Uint32N(queue.MaxRecipients)] = true
		}
		h.Rcpts = slices.Sorted(maps.Keys(set))
		b := h.Append(nil, tagHanded)
		if int64(len(b)) > handingLen(&h) {
			t.Fatalf("%d octets, bounded by %d", len(b), handingLen(&h))
		}
		var got []handing
		if err := decodeHandings(b, func(h handing) { got = append(got, h) }); err != nil || len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(h) {
			t.Fatalf("%v, %v, want %v", got, err, h)
		}
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		_ = decodeHandings(b, func(handing) {})
	}
}

// TestHandedTooMany: what goes into every state of a message is bounded.
func TestHandedTooMany(t *testing.T) {
	t.Parallel()
	s, err := Open(Options{FS: vfs.NewMem(512), Dir: "q", SegmentSize: 24 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	first, _ := s.Lease(1)
	id := mail.MakeQueueID(time.Unix(1800000000, 0), first)
	var b Batch
	b.Add(Message{ID: id, Envelope: testEnvelope(id, 10), Recipients: testRecipients(300), NRcpt: 300, Content: []byte("x")})
	if err := s.Commit(&b); err != nil {
		t.Fatal(err)
	}
	var all []int
	for i := range 300 {
		all = append(all, i)
	}
	var many, few, odd Batch
	many.Handed(id, all, "")
	few.Handed(id, all[:10], "")
	odd.Handed(id, []int{300}, "")
	if err := s.Commit(&many); err == nil || !strings.Contains(err.Error(), "in hand") {
		t.Errorf("too many: %v", err)
	}
	if err := s.Commit(&few); err != nil {
		t.Errorf("few: %v", err)
	}
	if err := s.Commit(&odd); err == nil {
		t.Error("a recipient that there is not")
	}
	var out bytes.Buffer
	if err := Dump(s.e.fs, "q", &out); err != nil || !strings.Contains(out.String(), "HANDED") || !strings.Contains(out.String(), "recipients 0 1 2") {
		t.Errorf("%v: %s", err, out.String())
	}
}
