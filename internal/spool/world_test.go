package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/vfs"
)

// This is the oracle of the crash tests: a model of what the spool must hold,
// and a machine whose power can be cut. A world has one engine at a time,
// driven by one goroutine, so that a seed tells the whole story.

// modelMsg is what must be true of one message. It is never changed.
type modelMsg struct {
	id       mail.QueueID
	queue    Queue
	next     int64
	attempts int
	warned   bool
	nrcpt    int
	done     string // a byte 0 or 1 per recipient
	outcomes string // a byte per recipient: number of its last outcome
	handed   string // the recipients that an agent has in hand, as fmt prints a sorted list; "": none
	body     []byte
	big      bool
}

type model map[uint64]*modelMsg

// failure is how the oracle reports.
type failure struct{ text string }

func fail(format string, args ...any) { panic(failure{fmt.Sprintf(format, args...)}) }

type world struct {
	r      *rand.Rand
	opt    Options
	plant  fault
	mem    *vfs.Mem
	hook   func(vfs.Op) error
	e      *engine
	rep    RecoveryReport
	now    model   // what was acknowledged
	cands  []model // what may be true: now, and now with what is under way
	bases  map[uint64]bool
	next   uint64 // message numbers of this process
	warned int
	damage bool               // warnings are expected
	hop    map[delivered]bool // what the next host has, and nothing has been recorded of
	trace  []string
}

func newWorld(seed uint64, plant fault) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	sector := 512
	if r.IntN(3) == 0 {
		sector = 4096
	}
	w := &world{r: r, plant: plant, mem: vfs.NewMem(sector), now: model{}, bases: map[uint64]bool{}, hop: map[delivered]bool{}}
	w.opt = Options{Dir: "q", SegmentSize: 20 << 10, Budget: 20 * 20 << 10, sleep: func(time.Duration) {}}
	w.opt.ExactDoubt = seed%2 == 0
	w.opt.leaf, w.opt.leaves = 2+int(seed%5), 1+int(seed%3) // entries are packed and unpacked all the time
	if seed%3 == 2 {
		w.opt.SegmentSize *= 2
		w.opt.Budget *= 2
	}
	w.cands = []model{w.now}
	return w
}

func (w *world) warn(format string, args ...any) {
	w.warned++
	w.logf("warn: "+format, args...)
}

func (w *world) logf(format string, args ...any) {
	if len(w.trace) > 400 {
		w.trace = slices.Delete(w.trace, 0, 200)
	}
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

// open starts a process on the file system and checks what it finds.
func (w *world) open() error {
	o := w.opt
	o.FS = &vfs.Faulty{FS: w.mem, Hook: func(op vfs.Op) error {
		if w.hook != nil {
			return w.hook(op)
		}
		return nil
	}}
	o.Warn = w.warn
	random := func(b []byte) {
		for i := range b {
			b[i] = byte(w.r.Uint32())
		}
	}
	e, rep, err := openEngine(&o, w.plant, random)
	if err != nil {
		return err
	}
	w.e, w.rep = e, rep
	w.logf("open: %+v; %d of %d segments free", rep, len(e.free), len(e.segs))
	lo, _ := e.numbers()
	if w.bases[lo] {
		fail("message numbers from %d are given a second time", lo)
	}
	w.bases[lo] = true
	w.next = lo
	return nil
}

// books compares what the engine has counted with what there is.
func (w *world) books() {
	x := &engine{lim: w.e.lim, idx: newIndex(), segs: map[uint32]*segment{}}
	x.idx.big, x.idx.handed = w.e.idx.big, w.e.idx.handed
	for file := range w.e.segs {
		x.segs[file] = &segment{}
	}
	w.e.idx.each(func(l *live) { x.account(l, 1) })
	if x.liveSum != w.e.liveSum || x.metaSum != w.e.metaSum || x.stateSum != w.e.stateSum || x.bigSum != w.e.bigSum || x.byQueue != w.e.byQueue {
		fail("there are %d bytes, %d and %d of states, %d large, %v; counted %d, %d and %d, %d, %v", x.liveSum, x.metaSum, x.stateSum, x.bigSum, x.byQueue,
			w.e.liveSum, w.e.metaSum, w.e.stateSum, w.e.bigSum, w.e.byQueue)
	}
	for file, s := range w.e.segs {
		if n := x.segs[file]; n.live != s.live || n.stateLive != s.stateLive || n.nstates != s.nstates || n.ncontents != s.ncontents {
			fail("segment file %d has %d bytes, %d of states, %d states, %d messages; counted %d, %d, %d, %d", file, n.live, n.stateLive, n.nstates, n.ncontents,
				s.live, s.stateLive, s.nstates, s.ncontents)
		}
	}
}

// settle compares what is there with what may be there, and goes on from it.
func (w *world) settle() {
	var why string
	got := w.read()
	w.books()
	for _, c := range w.cands {
		d := diff(c, got)
		if d == "" {
			w.now, w.cands = c, []model{c}
			if !w.damage && w.rep.Alarms > 0 {
				fail("%d alarms without damage", w.rep.Alarms)
			}
			w.checkDoubt()
			return
		}
		why += d + "; "
	}
	fail("recovered: %s", why)
}

// read is what the engine and a Reader show.
func (w *world) read() model {
	m := model{}
	rd := NewReader(w.mem, w.opt.Dir)
	rd.planter = plantOf(w.plant)
	w.e.entries(func(en Entry) bool {
		m[en.ID.Number()] = w.readMessage(rd, en)
		return true
	})
	rd.Close()
	return m
}

// readAlone reads a message's content and nothing else of it.
func readAlone(rd *Reader, en Entry) ([]byte, error) {
	c, err := rd.Content(en.Ref, en.ID)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return io.ReadAll(c)
}

func (w *world) readMessage(rd *Reader, en Entry) *modelMsg {
	st, err := rd.Read(en.Ref, en.ID)
	if err != nil {
		fail("read: %v", err)
	}
	st.Overlay(en.Done)
	s := st.State()
	if s.Queue != en.Queue || s.Attempts != en.Attempts || !s.NextAttempt.Equal(en.NextAttempt) || s.NPending != en.NPending || s.Warned != en.Warned {
		fail("message %s: index and record differ: %+v, %+v", en.ID, en, s)
	}
	env, err := st.Envelope()
	if err != nil || env.ID != en.ID {
		fail("message %s: envelope of %s, %v", en.ID, env.ID, err)
	}
	if want := tenantOf(en.ID); en.Tenant != want || env.Tenant != want {
		fail("message %s: tenant %q in the index and %q in the envelope, want %q", en.ID, en.Tenant, env.Tenant, want)
	}
	rcpts, err := st.Recipients(0, -1)
	if err != nil || len(rcpts) != en.NRcpt {
		fail("message %s: %d recipients, want %d, %v", en.ID, len(rcpts), en.NRcpt, err)
	}
	c, err := st.Content()
	if err != nil {
		fail("content: %v", err)
	}
	body, err := io.ReadAll(c)
	if err != nil {
		fail("content: %v", err)
	}
	m := &modelMsg{id: en.ID, queue: en.Queue, next: queue.Micros(en.NextAttempt), attempts: en.Attempts, warned: en.Warned,
		nrcpt: en.NRcpt, body: bytes.Clone(body), big: c.Bytes() == nil}
	c.Close()
	if got, err := readAlone(rd, en); err != nil || !bytes.Equal(got, m.body) {
		fail("message %s: content alone: %d octets, want %d, %v", en.ID, len(got), len(m.body), err)
	}
	done, outs := make([]byte, en.NRcpt), make([]byte, en.NRcpt)
	for i := range done {
		if !st.Pending(i) {
			done[i] = 1
		}
	}
	list, err := st.Outcomes()
	if err != nil {
		fail("message %s: outcomes: %v", en.ID, err)
	}
	for _, o := range list {
		outs[o.Rcpt] = byte(o.Status.Detail)
	}
	m.done, m.outcomes, m.handed = string(done), string(outs), w.inHand(en.ID)
	return m
}

// diff says how got differs from what is wanted.
func diff(want, got model) string {
	for _, n := range slices.Sorted(maps.Keys(want)) {
		if got[n] == nil {
			return fmt.Sprintf("message %s is gone", want[n].id)
		}
		if d := diffMsg(want[n], got[n]); d != "" {
			return d
		}
	}
	for _, n := range slices.Sorted(maps.Keys(got)) {
		if want[n] == nil {
			return fmt.Sprintf("message %s should not be there", got[n].id)
		}
	}
	return ""
}

func diffMsg(a, b *modelMsg) string {
	switch {
	case a.id != b.id || a.nrcpt != b.nrcpt || a.big != b.big:
		return fmt.Sprintf("message %s is %s", a.id, b.id)
	case !bytes.Equal(a.body, b.body):
		return fmt.Sprintf("message %s: content differs", a.id)
	case a.done != b.done:
		return fmt.Sprintf("message %s: done %x, want %x", a.id, b.done, a.done)
	case a.handed != b.handed:
		return fmt.Sprintf("message %s: in hand %s, want %s", a.id, b.handed, a.handed)
	case a.queue != b.queue || a.next != b.next || a.attempts != b.attempts || a.warned != b.warned:
		return fmt.Sprintf("message %s: state %v %d %d, want %v %d %d", a.id, b.queue, b.next, b.attempts, a.queue, a.next, a.attempts)
	}
	for i := range a.nrcpt {
		if a.done[i] == 0 && a.outcomes[i] != b.outcomes[i] {
			return fmt.Sprintf("message %s: outcomes %x, want %x", a.id, b.outcomes, a.outcomes)
		}
	}
	return ""
}

// body makes content, now and then with what looks like records of the log:
// everybody may send that.
func (w *world) body(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + w.r.IntN(26))
	}
	if w.r.IntN(2) == 0 || n < 200 || w.e.head == nil {
		return b
	}
	for at := w.r.IntN(8); at+headerLen <= n; at += headerLen + 1 + w.r.IntN(8) {
		rec := startRecord(nil, uint8(1+w.r.IntN(5)), 0, w.next-uint64(w.r.IntN(5)), 0, 0, 0, 0)
		flags := uint8(w.r.IntN(8))
		batch := w.e.batch + uint64(w.r.IntN(3))
		seal(rec, flags, w.e.head.segno+uint64(w.r.IntN(2)), w.e.seq, batch, batch+5-uint64(w.r.IntN(8)), 0, 0)
		copy(b[at:], rec)
	}
	return b
}

// tenantOf is whose message that of a number is.
func tenantOf(id mail.QueueID) string { return []string{"", "a", "b", "tenant.of-64"}[id.Number()%4] }

func (w *world) newMessage(size, nrcpt int) (Message, *modelMsg) {
	id := mail.MakeQueueID(time.Unix(1700000000, int64(w.next%1000)*1000), w.next)
	w.next++
	body := w.body(size)
	m := Message{ID: id, Recipients: testRecipients(nrcpt), NRcpt: nrcpt}
	env := mail.Envelope{ID: id, Sender: "sender@example.com", Size: int64(size), Arrival: time.Unix(1700000000, 0), Tenant: tenantOf(id)}
	m.Envelope = env.Append(nil)
	mm := &modelMsg{id: id, nrcpt: nrcpt, body: body, done: string(make([]byte, nrcpt)), outcomes: string(make([]byte, nrcpt))}
	if size > int(w.e.lim.inline) {
		f, err := w.e.newFile()
		if err != nil {
			return m, nil
		}
		if _, err := f.Write(body); err != nil {
			f.Abort()
			return m, nil
		}
		m.File, mm.big = f, true
	} else {
		m.Content = body
	}
	return m, mm
}

// change is one caller's batch and what it does to the model.
type change struct {
	b     Batch
	apply []func(model)
	gives []delivered // what agents deliver when it is durable
}

func (c *change) add(m Message, mm *modelMsg) {
	c.b.Add(m)
	c.apply = append(c.apply, func(md model) { md[mm.id.Number()] = mm })
}

func (c *change) done(id mail.QueueID, rcpts ...int) {
	c.b.Done(id, rcpts)
	c.apply = append(c.apply, func(md model) { md.markDone(id, rcpts) })
}

func (c *change) remove(id mail.QueueID) {
	c.b.Remove(id)
	c.apply = append(c.apply, func(md model) { delete(md, id.Number()) })
}

func (c *change) update(id mail.QueueID, ch Change) {
	c.b.Update(id, ch)
	c.apply = append(c.apply, func(md model) {
		old := md[id.Number()]
		if old == nil {
			return
		}
		m := *old
		if ch.Set&SetQueue != 0 {
			m.queue = ch.Queue
		}
		if ch.Set&SetNextAttempt != 0 {
			m.next = queue.Micros(ch.NextAttempt)
		}
		if ch.Set&SetAttempts != 0 {
			m.attempts = ch.Attempts
		}
		if ch.Set&SetWarned != 0 {
			m.warned = ch.Warned
		}
		outs := []byte(m.outcomes)
		for _, o := range ch.Outcomes {
			outs[o.Rcpt] = byte(o.Status.Detail)
			m.handed = handedWithout(m.handed, o.Rcpt)
		}
		m.outcomes = string(outs)
		md[id.Number()] = &m
		md.markDone(id, ch.Done)
	})
}

func (md model) markDone(id mail.QueueID, rcpts []int) {
	old := md[id.Number()]
	if old == nil {
		return
	}
	m := *old
	d := []byte(m.done)
	for _, i := range rcpts {
		d[i] = 1
		m.handed = handedWithout(m.handed, i)
	}
	m.done = string(d)
	md[id.Number()] = &m
	if bytes.IndexByte(d, 0) < 0 {
		delete(md, id.Number())
	}
}

// commit gives changes to the engine as requests that wait together. It is
// false when the process is over: broken, or without power.
func (w *world) commit(list ...*change) bool {
	var reqs []*request
	var cs []*change
	for _, c := range list {
		if err := w.e.prepare(&c.b); err != nil {
			c.b.settle(err)
			if !errors.Is(err, ErrFull) {
				return false
			}
			continue
		}
		reqs, cs = append(reqs, &request{b: &c.b}), append(cs, c)
	}
	for len(reqs) > 0 {
		// What may be true from here on: that any number of them counted.
		w.failed(cs)
		cand := w.now
		w.cands = []model{w.now}
		for _, c := range cs {
			cand = maps.Clone(cand)
			for _, f := range c.apply {
				f(cand)
			}
			w.cands = append(w.cands, cand)
		}
		n, err := w.e.commit(reqs)
		now := maps.Clone(w.now)
		for i, r := range reqs[:n] {
			if r.err != nil && !errors.Is(r.err, ErrFull) && !errors.Is(r.err, ErrTooLarge) {
				fail("commit: %v", r.err)
			}
			if errors.Is(r.err, syscall.EIO) {
				w.warned++ // told to the caller
			}
			if r.err == nil {
				for _, f := range cs[i].apply {
					f(now)
				}
			}
		}
		if err != nil {
			w.cands = []model{w.now, now} // one batch: all of them or none
			return false
		}
		w.now = now
		w.cands = []model{now}
		for i, r := range reqs[:n] {
			if r.err == nil {
				w.deliver(cs[i].gives)
			}
			r.b.settle(r.err)
		}
		if w.e.broken != nil {
			return false
		}
		reqs, cs = reqs[n:], cs[n:]
	}
	return true
}

// maintain runs up to n steps of maintenance.
func (w *world) maintain(n int) bool {
	for range n {
		more, err := w.e.maintain()
		if err != nil {
			return false
		}
		if !more {
			break
		}
	}
	return true
}

// pick chooses a live message.
func (w *world) pick() *modelMsg {
	if len(w.now) == 0 {
		return nil
	}
	keys := slices.Sorted(maps.Keys(w.now))
	return w.now[keys[w.r.IntN(len(keys))]]
}

// randomChange is one caller's batch.
func (w *world) randomChange(taken map[mail.QueueID]bool) *change {
	c := &change{}
	for range 1 + w.r.IntN(2) {
		m := w.pick()
		p := w.r.IntN(100)
		switch {
		case p < 45 || m == nil || taken[m.id]:
			size := w.r.IntN(1800)
			if w.r.IntN(12) == 0 {
				size = 2049 + w.r.IntN(3000)
			}
			nrcpt := 1 + w.r.IntN(3)
			if w.r.IntN(20) == 0 {
				nrcpt = 60 + w.r.IntN(10)
			}
			msg, mm := w.newMessage(size, nrcpt)
			if mm != nil {
				c.add(msg, mm)
			}
			continue
		case p < 70:
			var all []int
			for i := range m.nrcpt {
				all = append(all, i)
			}
			c.done(m.id, all...)
		case p < 80:
			c.done(m.id, w.r.IntN(m.nrcpt))
		case p < 84:
			c.remove(m.id)
		case p < 90:
			c.handed(m.id, w.someRcpts(m)...)
		default:
			c.update(m.id, w.randomUpdate(m))
		}
		taken[m.id] = true
	}
	return c
}

func (w *world) randomUpdate(m *modelMsg) Change {
	ch := Change{Set: SetQueue | SetNextAttempt | SetAttempts, Queue: Queue(w.r.IntN(3)),
		NextAttempt: time.Unix(1700000000+int64(w.r.IntN(1e6)), 0), Attempts: m.attempts + 1}
	if w.r.IntN(4) == 0 {
		ch.Set, ch.Warned = ch.Set|SetWarned, w.r.IntN(2) == 0
	}
	for i := range min(m.nrcpt, 4) {
		switch w.r.IntN(3) {
		case 0:
			ch.Outcomes = append(ch.Outcomes, mail.Outcome{Rcpt: i, Action: dsn.Deferred, Status: dsn.S(4, 0, uint16(1+w.r.IntN(200))), Reason: "try again"})
		case 1:
			if w.r.IntN(4) == 0 {
				ch.Done = append(ch.Done, i)
			}
		}
	}
	return ch
}

// fillDisk leaves so much room on the disk.
func (w *world) fillDisk(room int64) {
	const all = 1 << 40
	w.mem.SetLimit(all)
	free, err := w.mem.Free("")
	if err != nil {
		fail("%v", err)
	}
	w.mem.SetLimit(all - free + room)
}

// step is one turn of a random history. It is false when the process is over.
func (w *world) step() bool {
	taken := map[mail.QueueID]bool{}
	var list []*change
	for range 1 + w.r.IntN(3) {
		if c := w.randomChange(taken); c.b.Len() > 0 {
			list = append(list, c)
		}
	}
	if !w.commit(list...) {
		return false
	}
	if !w.maintain(w.r.IntN(4)) {
		return false
	}
	if w.r.IntN(4) == 0 {
		w.e.housekeep()
	}
	return w.e.broken == nil
}

// drain delivers everything, and then the spool must take mail again.
func (w *world) drain() {
	w.hook = nil
	for len(w.now) > 0 {
		c := &change{}
		m := w.pick()
		c.remove(m.id)
		if !w.commit(c) || !w.maintain(50) {
			fail("cannot record a disposition: %v", w.e.broken)
		}
	}
	w.e.housekeep()
	for range 50 {
		w.maintain(50)
		w.e.housekeep()
		msg, mm := w.newMessage(1000, 1)
		c := &change{}
		c.add(msg, mm)
		if !w.commit(c) {
			fail("after delivering everything: %v", w.e.broken)
		}
		if w.now[mm.id.Number()] != nil {
			return
		}
	}
	fail("after delivering everything no mail is taken: %v", w.e.full(false))
}

// guard runs f and returns what the oracle, or a panic, said.
func (w *world) guard(f func()) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = errors.New(p.text)
		default:
			if w.plant == 0 {
				panic(p)
			}
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	f()
	return nil
}
