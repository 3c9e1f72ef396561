package storagetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// A model is the queue as it must be.
type model map[mail.QueueID]*modelled

// A modelled is a message of a model.
type modelled struct {
	content  string
	rcpts    int
	queue    queue.Name
	next     int64
	attempts int
	done     map[int]bool
	outcomes map[int]string
	handed   map[int]bool
}

// steps is how many changes testModel makes.
const steps = 400

// testModel makes random changes, from a seed that it logs, and compares the queue with a model of it now
// and then, and after each start.
func testModel(t *testing.T, q *Queue) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	en := q.Open()
	rd := q.Reader()
	defer rd.Close()
	m := model{}
	for i := range steps {
		b := en.NewBatch()
		only := m.some(r)
		for range 1 + r.IntN(5) {
			id := m.some(r)
			if q.Several {
				id = only
			}
			m.step(t, r, en, b, id)
		}
		if err := en.Commit(b); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		m.hand(t, r, en)
		if r.IntN(50) == 0 {
			m.compare(t, en, rd)
		}
		if r.IntN(80) == 0 {
			en = again(t, q, en)
			m.compare(t, en, rd)
			m.compareDoubt(t, en)
		}
	}
	en = again(t, q, en)
	m.compare(t, en, rd)
	m.compareDoubt(t, en)
	en.Close()
}

// some is a message of m; "": there is none.
func (m model) some(r *rand.Rand) mail.QueueID {
	if len(m) == 0 {
		return ""
	}
	ids := slices.Sorted(maps.Keys(m))
	return ids[r.IntN(len(ids))]
}

// step puts one change into b, of message id or of a new one, and makes it in m.
func (m model) step(t testing.TB, r *rand.Rand, en storage.Engine, b storage.Batch, id mail.QueueID) {
	if m[id] == nil || r.IntN(3) == 0 {
		m.arrive(t, r, en, b)
		return
	}
	x := m[id]
	switch rcpt := r.IntN(x.rcpts); r.IntN(4) {
	case 0:
		b.Remove(id)
		delete(m, id)
	case 1:
		if !x.done[rcpt] {
			b.Done(id, []int{rcpt})
			m.finish(id, rcpt)
		}
	default:
		c := queue.Change{Set: queue.SetQueue | queue.SetNextAttempt | queue.SetAttempts, Queue: queue.Name(r.IntN(int(queue.Names))),
			NextAttempt: time.UnixMicro(1 + r.Int64N(1<<50)), Attempts: r.IntN(100), Outcomes: []mail.Outcome{outcome(rcpt, fmt.Sprint("said ", r.IntN(1000)))}}
		if r.IntN(4) == 0 {
			c.Done = []int{r.IntN(x.rcpts)}
		}
		b.Update(id, c)
		x.queue, x.next, x.attempts = c.Queue, c.NextAttempt.UnixMicro(), c.Attempts
		if !x.done[rcpt] {
			x.outcomes[rcpt] = c.Outcomes[0].Reason
		}
		delete(x.handed, rcpt)
		for _, i := range c.Done {
			m.finish(id, i)
		}
	}
}

// hand asks for leave to deliver some message, as agents do.
func (m model) hand(t testing.TB, r *rand.Rand, en storage.Engine) {
	id := m.some(r)
	if id == "" {
		return
	}
	x := m[id]
	rcpt := r.IntN(x.rcpts)
	if x.done[rcpt] {
		return
	}
	b := en.NewBatch()
	b.Apart()
	b.Handed(id, []int{rcpt}, "mx")
	if err := en.Commit(b); err != nil || b.Refused(0) != nil {
		t.Fatal(err, b.Refused(0))
	}
	x.handed[rcpt] = true
}

// arrive adds a message.
func (m model) arrive(t testing.TB, r *rand.Rand, en storage.Engine, b storage.Batch) {
	n := r.IntN(200)
	if r.IntN(10) == 0 {
		n = en.InlineLimit() + 1 + r.IntN(400<<10)
	}
	rcpts := make([]string, 1+r.IntN(3))
	if r.IntN(10) == 0 {
		rcpts = make([]string, 100)
	}
	for i := range rcpts {
		rcpts[i] = strings.Repeat("x", 1+r.IntN(60)) + "@to.test"
	}
	a := addition(t, en, strings.Repeat(fmt.Sprintf("%016x", r.Uint64()), n/16+1), rcpts...)
	content := string(a.Content)
	if a.File != nil {
		p := make([]byte, a.File.Size())
		a.File.ReadAt(p, 0) // an error is the same as another content
		content = string(p)
	}
	b.Add(a)
	m[a.ID] = &modelled{content: content, rcpts: len(rcpts), done: map[int]bool{}, outcomes: map[int]string{}, handed: map[int]bool{}}
}

// finish ends the work for a recipient.
func (m model) finish(id mail.QueueID, rcpt int) {
	x := m[id]
	x.done[rcpt] = true
	delete(x.outcomes, rcpt)
	delete(x.handed, rcpt)
	if len(x.done) == x.rcpts {
		delete(m, id)
	}
}

// compare fails the test when the queue is not what m says.
func (m model) compare(t testing.TB, en storage.Engine, rd storage.Reader) {
	t.Helper()
	n := 0
	for e := range en.Entries {
		n++
		x := m[e.ID]
		if x == nil {
			t.Fatalf("%s is in the queue, and should have left it", e.ID)
		}
		if e.Queue != x.queue || x.next != 0 && e.NextAttempt.UnixMicro() != x.next || e.Attempts != x.attempts || e.NRcpt != x.rcpts || e.NPending != x.rcpts-len(x.done) {
			t.Fatalf("%s: %+v, want %+v", e.ID, e, x)
		}
		for i := range x.rcpts {
			if inHand := len(en.InHand(e.ID, []int{i})) > 0; inHand != x.handed[i] {
				t.Fatalf("%s: recipient %d in hand: %v", e.ID, i, inHand)
			}
		}
		x.read(t, rd, &e)
	}
	if n != len(m) {
		t.Fatalf("%d messages, want %d", n, len(m))
	}
}

// read compares what a Reader gives of a message.
func (x *modelled) read(t testing.TB, rd storage.Reader, e *queue.Entry) {
	t.Helper()
	st, err := rd.Read(e.Ref, e.ID)
	if err != nil {
		t.Fatal(err)
	}
	if want := tenantOf(e.ID); e.Tenant != want || st.State().Tenant != want {
		t.Fatalf("%s: tenant %q in the index, %q in the record, want %q", e.ID, e.Tenant, st.State().Tenant, want)
	}
	st.Overlay(e.Done)
	list, err := st.Outcomes()
	if err != nil {
		t.Fatal(err)
	}
	said := map[int]string{}
	for _, o := range list {
		if st.Pending(o.Rcpt) {
			said[o.Rcpt] = o.Reason
		}
	}
	if !maps.Equal(said, x.outcomes) {
		t.Fatalf("%s: outcomes %v, want %v", e.ID, said, x.outcomes)
	}
	for i := range x.rcpts {
		if st.Pending(i) == x.done[i] {
			t.Fatalf("%s: recipient %d", e.ID, i)
		}
	}
	if rcpts, err := st.Recipients(0, -1); err != nil || len(rcpts) != x.rcpts {
		t.Fatalf("%s: %d recipients, %v", e.ID, len(rcpts), err)
	}
	c, err := st.Content()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var b strings.Builder
	if _, err := c.WriteTo(&b); err != nil || b.String() != x.content {
		t.Fatalf("%s: %d octets of content, want %d: %v", e.ID, b.Len(), len(x.content), err)
	}
}

// compareDoubt fails the test when a start has not found what was in hand: it still is, or is in doubt.
func (m model) compareDoubt(t testing.TB, en storage.Engine) {
	t.Helper()
	got, want := map[string]bool{}, map[string]bool{}
	for _, d := range append(slices.Collect(en.Hands), en.Recovery().InDoubt...) {
		for _, i := range d.Rcpts {
			if d.Kind == queue.DoubtHanded {
				got[fmt.Sprint(d.ID, " ", i)] = true
			}
		}
	}
	for id, x := range m {
		for i := range x.handed {
			want[fmt.Sprint(id, " ", i)] = true
		}
	}
	if !maps.Equal(got, want) {
		t.Fatalf("in doubt: %v, want %v", got, want)
	}
}
