// Package storagetest has the tests that every engine of the queue must pass: what package storage
// promises, in one process, over orderly ends and starts. What becomes of a queue when machines and
// processes die is tested with each engine.
package storagetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// A Queue is one that an engine keeps, for a test.
type Queue struct {
	// Open opens it, when it is not open. It has failed the test when it cannot.
	Open func() storage.Engine
	// Reader returns a Reader, which the test closes.
	Reader func() storage.Reader
	// Pending says whether Handed, and a batch that adds a notice, refuse recipients that are done, and messages that are
	// not there: an engine of several nodes must.
	Pending bool
	// Resumes says that after an orderly end deliveries go on that were in hand, and are not in doubt.
	Resumes bool
	// Several says that the queue is in several engines, of which each is written by itself: a batch that is not Apart
	// changes one message only, besides those that it adds.
	Several bool
}

// Run runs the suite. fresh returns a new, empty queue; it is called by each of the tests, which run at the same
// time.
func Run(t *testing.T, fresh func(t *testing.T) *Queue) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, q *Queue)
	}{
		{"Content", testContent},
		{"Change", testChange},
		{"Apart", testApart},
		{"Invalid", testInvalid},
		{"Handed", testHanded},
		{"HandedLate", testHandedLate},
		{"Settled", testSettled},
		{"Numbers", testNumbers},
		{"Due", testDue},
		{"Page", testPage},
		{"Order", testOrder},
		{"Closed", testClosed},
		{"Unclean", testUnclean},
		{"Model", testModel},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, fresh(t))
		})
	}
}

// arrival is when the messages of the tests came.
var arrival = time.Unix(1800000000, 123456000)

// tenantOf is the tenant of a message of a test: two of three have one.
func tenantOf(id mail.QueueID) string { return [...]string{"", "acme", "other"}[id.Number()%3] }

// a message of a test.
func addition(t testing.TB, en storage.Engine, content string, rcpts ...string) storage.Addition {
	t.Helper()
	n, err := en.Lease(1)
	if err != nil {
		t.Fatal(err)
	}
	id := mail.MakeQueueID(arrival, n)
	env := mail.Envelope{ID: id, Sender: "s@from.test", Size: int64(len(content)), Arrival: arrival, Tenant: tenantOf(id)}
	var list []mail.Recipient
	for _, r := range rcpts {
		list = append(list, mail.Recipient{Address: r})
	}
	m := storage.Addition{ID: id, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, list), NRcpt: len(rcpts)}
	if len(content) <= en.InlineLimit() {
		m.Content = []byte(content)
		return m
	}
	f, err := en.NewFile()
	if err != nil {
		t.Fatal(err)
	}
	for piece := range slices.Chunk([]byte(content), 40000) {
		if _, err := f.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 100)
	if n, err := f.ReadAt(got, f.Size()-100); n != 100 || err != nil && err != io.EOF || string(got) != content[len(content)-100:] {
		t.Fatalf("the file reads %q, %v", got, err)
	}
	m.File = f
	return m
}

// add adds messages in one batch, and returns their entries.
func add(t testing.TB, en storage.Engine, list ...storage.Addition) (entries []queue.Entry) {
	t.Helper()
	b := en.NewBatch()
	for _, m := range list {
		b.Add(m)
	}
	if err := en.Commit(b); err != nil {
		t.Fatal(err)
	}
	for i := range list {
		e, ok := b.Entry(i)
		if !ok || e.ID != list[i].ID {
			t.Fatalf("entry %d: %+v, %v", i, e, ok)
		}
		entries = append(entries, e)
	}
	return entries
}

// commit commits the changes that fill makes.
func commit(t testing.TB, en storage.Engine, fill func(storage.Batch)) {
	t.Helper()
	b := en.NewBatch()
	fill(b)
	if err := en.Commit(b); err != nil {
		t.Fatal(err)
	}
}

func again(t testing.TB, q *Queue, en storage.Engine) storage.Engine {
	t.Helper()
	if err := en.Close(); err != nil {
		t.Fatal(err)
	}
	return q.Open()
}

// contentOf reads the content of a message where the engine says that it is.
func contentOf(t testing.TB, en storage.Engine, rd storage.Reader, id mail.QueueID) string {
	t.Helper()
	e, ok := en.Locate(id)
	if !ok {
		t.Fatalf("%s is not there", id)
	}
	c, err := rd.Content(e.Ref, id)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err != nil || int64(len(b)) != c.Len() || c.Bytes() != nil && !bytes.Equal(c.Bytes(), b) {
		t.Fatalf("%d octets of %d, %v", len(b), c.Len(), err)
	}
	return string(b)
}

// Content of all lengths is what it was, beside the engine and after it has been opened again.
func testContent(t *testing.T, q *Queue) {
	en := q.Open()
	rd := q.Reader()
	defer rd.Close()
	want := map[mail.QueueID]string{}
	for _, n := range []int{0, 1, 3000, en.InlineLimit(), en.InlineLimit() + 1, 256 << 10, 256<<10 + 1, 3 << 20} {
		text := strings.Repeat("0123456789abcdef", n/16+1)[:n]
		m := addition(t, en, text, "r@to.test")
		e := add(t, en, m)[0]
		if e.Size != int64(n) || e.NRcpt != 1 || e.NPending != 1 || e.Null || e.Queue != queue.Incoming || e.Done != nil {
			t.Errorf("%+v", e)
		}
		want[m.ID] = text
	}
	for range 2 {
		for id, text := range want {
			if got := contentOf(t, en, rd, id); got != text {
				t.Errorf("%d octets in place of %d", len(got), len(text))
			}
			e, _ := en.Locate(id)
			st, err := rd.Read(e.Ref, id)
			if err != nil {
				t.Fatal(err)
			}
			env, err := st.Envelope()
			rcpts, rerr := st.Recipients(0, -1)
			if err != nil || rerr != nil || env.Sender != "s@from.test" || len(rcpts) != 1 || rcpts[0].Address != "r@to.test" || !st.Pending(0) {
				t.Errorf("%+v %v %+v %v", env, err, rcpts, rerr)
			}
			c, err := st.Content()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Seek(int64(len(text)/2), io.SeekStart); err != nil {
				t.Error(err)
			}
			var half bytes.Buffer
			if _, err := c.WriteTo(&half); err != nil || half.String() != text[len(text)/2:] {
				t.Errorf("the second half has %d octets, %v", half.Len(), err)
			}
			c.Close()
		}
		en = again(t, q, en)
	}
	en.Close()
}

// outcome is one of a recipient.
func outcome(rcpt int, reason string) mail.Outcome {
	return mail.Outcome{Rcpt: rcpt, Action: dsn.Deferred, Status: dsn.S(4, 0, 0), Reason: reason}
}

// What becomes of a message is there afterwards: its queue, its next attempt, what was said of its
// recipients, who is done. With the last of them it leaves the queue.
func testChange(t *testing.T, q *Queue) {
	en := q.Open()
	rd := q.Reader()
	defer rd.Close()
	many := make([]string, 200)
	for i := range many {
		many[i] = fmt.Sprintf("recipient-with-a-long-name-%d@to.test", i)
	}
	long := addition(t, en, "x\r\n", many...) // its envelope is not written again with each state
	short := addition(t, en, "y\r\n", "a@to.test", "b@to.test", "c@to.test")
	add(t, en, long, short)
	at := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	for _, id := range []mail.QueueID{long.ID, short.ID} {
		commit(t, en, func(b storage.Batch) {
			b.Update(id, queue.Change{Set: queue.SetQueue | queue.SetNextAttempt | queue.SetAttempts | queue.SetWarned, Queue: queue.Deferred, NextAttempt: at, Attempts: 3, Warned: true,
				Outcomes: []mail.Outcome{outcome(0, "first"), outcome(1, "old"), outcome(2, "kept")}})
		})
		commit(t, en, func(b storage.Batch) {
			b.Update(id, queue.Change{Outcomes: []mail.Outcome{outcome(1, "new")}, Done: []int{0}})
		})
	}
	commit(t, en, func(b storage.Batch) { b.Done(long.ID, []int{70, 199}) })
	for range 2 {
		e := changed(t, en, rd, short.ID, "y\r\n", at)
		if e.NPending != 2 {
			t.Errorf("%d pending, want 2", e.NPending)
		}
		if e = changed(t, en, rd, long.ID, "x\r\n", at); e.NPending != 197 {
			t.Errorf("%d pending, want 197", e.NPending)
		}
		st, err := rd.Read(e.Ref, long.ID)
		if err != nil {
			t.Fatal(err)
		}
		if st.Overlay(e.Done); st.Pending(70) || st.Pending(199) || !st.Pending(198) {
			t.Error("those that are done are not as they were recorded")
		}
		en = again(t, q, en)
	}
	commit(t, en, func(b storage.Batch) { b.Done(short.ID, []int{1}); b.Done(short.ID, []int{2, 1}) })
	commit(t, en, func(b storage.Batch) { b.Remove(long.ID) })
	en = again(t, q, en)
	for _, id := range []mail.QueueID{long.ID, short.ID} {
		if e, ok := en.Locate(id); ok {
			t.Errorf("%s is still there: %+v", id, e)
		}
	}
	en.Close()
}

// changed looks whether a message is as testChange has changed it, and returns its entry.
func changed(t *testing.T, en storage.Engine, rd storage.Reader, id mail.QueueID, content string, next time.Time) queue.Entry {
	t.Helper()
	e, ok := en.Locate(id)
	if !ok || e.Queue != queue.Deferred || !e.NextAttempt.Equal(next) || e.Attempts != 3 || !e.Warned || e.Expire {
		t.Fatalf("%v %+v", ok, e)
	}
	st, err := rd.Read(e.Ref, id)
	if err != nil {
		t.Fatal(err)
	}
	st.Overlay(e.Done)
	if st.Pending(0) || !st.Pending(1) {
		t.Error("who is done is not who was recorded")
	}
	list, err := st.Outcomes()
	var got []string
	for _, o := range list {
		got = append(got, fmt.Sprint(o.Rcpt, o.Reason))
	}
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []string{"1new", "2kept"}) {
		t.Errorf("outcomes %q, %v", got, err)
	}
	if rcpts, err := st.Recipients(1, 3); err != nil || len(rcpts) != 2 {
		t.Errorf("%+v %v", rcpts, err)
	}
	if contentOf(t, en, rd, id) != content {
		t.Error("another content")
	}
	return e
}

// Of changes that stand apart, one that is refused does not keep the others.
func testApart(t *testing.T, q *Queue) {
	en := q.Open()
	defer en.Close()
	a, b, c := addition(t, en, "x", "r@to.test"), addition(t, en, "x", "r@to.test"), addition(t, en, "x", "r@to.test")
	add(t, en, a, b)
	batch := en.NewBatch()
	batch.Apart()
	first := batch.Update(a.ID, queue.Change{Set: queue.SetAttempts, Attempts: 7})
	bad := batch.Done(b.ID, []int{5})
	gone := batch.Update(c.ID, queue.Change{Set: queue.SetAttempts, Attempts: 7})
	last := batch.Remove(b.ID)
	done := make(chan error, 1)
	en.Post(batch, func(err error) { done <- err })
	en.Hurry()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if batch.Refused(first) != nil || batch.Refused(gone) != nil || batch.Refused(last) != nil || !errors.Is(batch.Refused(bad), queue.ErrInvalid) {
		t.Errorf("refused: %v %v %v %v", batch.Refused(first), batch.Refused(bad), batch.Refused(gone), batch.Refused(last))
	}
	if e, ok := batch.Entry(first); !ok || e.Attempts != 7 {
		t.Errorf("%+v %v", e, ok)
	}
	if _, ok := batch.Entry(gone); ok {
		t.Error("a message that never was has an entry")
	}
	if _, ok := en.Locate(b.ID); ok {
		t.Error("a removed message is there")
	}
}

// What contradicts the queue, or itself, is refused, and has no effect.
func testInvalid(t *testing.T, q *Queue) {
	en := q.Open()
	defer en.Close()
	m := addition(t, en, "x", "r@to.test")
	add(t, en, m)
	other := addition(t, en, "x", "r@to.test")
	for name, fill := range map[string]func(storage.Batch){
		"there already": func(b storage.Batch) { b.Add(other); b.Add(m) },
		"twice":         func(b storage.Batch) { b.Add(other); b.Add(other) },
		"no recipients": func(b storage.Batch) { x := other; x.NRcpt = 0; b.Add(x) },
		"no queue ID":   func(b storage.Batch) { x := other; x.ID = "x/y"; b.Add(x) },
		"recipient":     func(b storage.Batch) { b.Add(other); b.Done(m.ID, []int{1}) },
		"negative":      func(b storage.Batch) { b.Update(m.ID, queue.Change{Done: []int{-1}}) },
		"queue":         func(b storage.Batch) { b.Update(m.ID, queue.Change{Set: queue.SetQueue, Queue: queue.Names}) },
	} {
		b := en.NewBatch()
		fill(b)
		if err := en.Commit(b); !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if _, ok := en.Locate(other.ID); ok {
			t.Fatalf("%s: it has been added all the same", name)
		}
		b.Reset()
		b.Update(m.ID, queue.Change{Set: queue.SetAttempts, Attempts: 1})
		if err := en.Commit(b); err != nil {
			t.Errorf("%s: the batch cannot be used again: %v", name, err)
		}
	}
}

// What agents have in hand is what a start finds in doubt, until it is known what came of it.
func testHanded(t *testing.T, q *Queue) {
	en := q.Open()
	m, n, o := addition(t, en, "x", "a@to.test", "b@to.test", "c@to.test"), addition(t, en, "x", "r@to.test"), addition(t, en, "x", "r@to.test")
	add(t, en, m, n, o)
	commit(t, en, func(b storage.Batch) {
		b.Apart()
		b.Handed(m.ID, []int{2, 0, 1}, "mx.to.test")
		b.Handed(n.ID, []int{0}, "mx.to.test")
		b.Handed(o.ID, []int{0}, "mx.to.test")
	})
	commit(t, en, func(b storage.Batch) { b.Apart(); b.Done(m.ID, []int{1}); b.Finish(n.ID) })
	commit(t, en, func(b storage.Batch) {
		b.Update(o.ID, queue.Change{Outcomes: []mail.Outcome{outcome(0, "no")}})
	})
	if got := inHand(en); !slices.Equal(got, []string{string(m.ID) + " [0 2] mx.to.test"}) {
		t.Errorf("in hand: %q", got)
	}
	for range 2 {
		if got := en.InHand(m.ID, []int{0, 1, 2}); !slices.Equal(got, []int{0, 2}) {
			t.Errorf("in hand: %v", got)
		}
		if got := en.InHand(o.ID, []int{0}); got != nil {
			t.Errorf("in hand: %v", got)
		}
		// A new state has it, too.
		commit(t, en, func(b storage.Batch) { b.Update(m.ID, queue.Change{Set: queue.SetAttempts, Attempts: 1}) })
		en = again(t, q, en)
		// The end was an orderly one: it is in hand still, or in doubt, and never both.
		list := slices.Collect(en.Hands)
		if len(list) > 0 != q.Resumes {
			t.Errorf("in hand: %+v", list)
		}
		list = append(list, en.Recovery().InDoubt...)
		if len(list) != 1 || list[0].ID != m.ID || !slices.Equal(list[0].Rcpts, []int{0, 2}) || list[0].Nexthop != "mx.to.test" || list[0].Kind != queue.DoubtHanded {
			t.Fatalf("in hand or in doubt: %+v", list)
		}
	}
	commit(t, en, func(b storage.Batch) {
		b.Update(m.ID, queue.Change{Outcomes: []mail.Outcome{outcome(0, "no"), outcome(2, "no")}})
	})
	en = again(t, q, en)
	if r := en.Recovery(); len(r.InDoubt) != 0 || len(inHand(en)) != 0 {
		t.Errorf("in doubt: %+v, in hand: %v", r.InDoubt, inHand(en))
	}
	en.Close()
}

// inHand is what Hands has.
func inHand(en storage.Engine) (list []string) {
	for d := range en.Hands {
		list = append(list, fmt.Sprintf("%s %v %s", d.ID, d.Rcpts, d.Nexthop))
	}
	return list
}

// An agent that comes late, for a message that another may have delivered meanwhile, gets no leave.
func testHandedLate(t *testing.T, q *Queue) {
	en := q.Open()
	defer en.Close()
	m, gone := addition(t, en, "x", "a@to.test", "b@to.test"), addition(t, en, "x", "a@to.test")
	add(t, en, m)
	commit(t, en, func(b storage.Batch) { b.Done(m.ID, []int{1}) })
	b := en.NewBatch()
	b.Apart()
	done, missing, right := b.Handed(m.ID, []int{0, 1}, "x"), b.Handed(gone.ID, []int{0}, "x"), b.Handed(m.ID, []int{0}, "x")
	if err := en.Commit(b); err != nil {
		t.Fatal(err)
	}
	if (b.Refused(done) != nil) != q.Pending || (b.Refused(missing) != nil) != q.Pending || b.Refused(right) != nil {
		t.Errorf("refused: %v; %v; %v", b.Refused(done), b.Refused(missing), b.Refused(right))
	}
	if got := en.InHand(m.ID, []int{0, 1}); !slices.Equal(got, []int{0}) {
		t.Errorf("in hand: %v", got)
	}
}

// A notice takes the place of the recipients that it is about, once: of those that are done already, or of a message
// that has left, an engine of several nodes refuses it, since another node may have sent it.
func testSettled(t *testing.T, q *Queue) {
	en := q.Open()
	defer en.Close()
	m := addition(t, en, "x", "a@to.test", "b@to.test")
	add(t, en, m)
	notice := func(rcpt int) (mail.QueueID, error) {
		n := addition(t, en, "returned", "s@from.test")
		b := en.NewBatch()
		b.Add(n)
		b.Done(m.ID, []int{rcpt})
		return n.ID, en.Commit(b)
	}
	for i, again := range []bool{false, true, false, true} { // the last time m has left
		id, err := notice(i / 2)
		refused := again && q.Pending
		if _, there := en.Locate(id); there == refused || (err != nil) != refused || refused && !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("notice %d: there %v, %v", i, there, err)
		}
	}
}

// No number is given twice, over any number of starts.
func testNumbers(t *testing.T, q *Queue) {
	seen := map[uint64]bool{0: true}
	en := q.Open()
	for range 3 {
		for _, n := range []int{1, 2, 100, 1} {
			first, err := en.Lease(n)
			if err != nil {
				t.Fatal(err)
			}
			for i := range uint64(n) {
				if seen[first+i] {
					t.Fatalf("%d is given again", first+i)
				}
				seen[first+i] = true
			}
		}
		if _, err := en.Lease(0); !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("no numbers: %v", err)
		}
		if _, err := en.Lease(1<<20 + 1); !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("too many numbers: %v", err)
		}
		en = again(t, q, en)
	}
	en.Close()
}

// Deferred mail is told of in the order in which it is due.
func testDue(t *testing.T, q *Queue) {
	en := q.Open()
	defer en.Close()
	base := time.Unix(1800000000, 0)
	var want []mail.QueueID
	for i := range 20 {
		m := addition(t, en, "x", "r@to.test")
		m.Queue, m.NextAttempt = queue.Deferred, base.Add(time.Duration(40-i/2)*time.Second)
		if i == 3 {
			m.Queue = queue.Hold
		}
		add(t, en, m)
		if i != 3 {
			want = append(want, m.ID)
		}
	}
	slices.SortStableFunc(want, func(a, b mail.QueueID) int {
		x, _ := en.Locate(a)
		y, _ := en.Locate(b)
		return x.NextAttempt.Compare(y.NextAttempt)
	})
	var got []mail.QueueID
	dq := queue.DueQuery{Limit: 7}
	for whole := false; !whole; {
		dq.After, whole = en.Due(&dq, func(e queue.Entry) bool {
			got = append(got, e.ID)
			return true
		})
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// All of the queue can be listed, in pages.
func testPage(t *testing.T, q *Queue) {
	en := q.Open()
	defer en.Close()
	want := map[mail.QueueID]bool{}
	for range 5 {
		var list []storage.Addition
		for range 300 {
			m := addition(t, en, "x", "r@to.test")
			list = append(list, m)
			want[m.ID] = true
		}
		add(t, en, list...)
	}
	got, last := map[mail.QueueID]bool{}, uint64(0)
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		var page []queue.Placed
		page, cursor = en.Page(cursor, nil)
		for _, p := range page {
			if n := numberOf(t, p.ID); n <= last {
				t.Errorf("%s is behind one with a higher number", p.ID)
			} else if last = n; p.Next <= n {
				t.Errorf("the cursor behind %s is %d", p.ID, p.Next)
			}
			if got[p.ID] {
				t.Errorf("%s twice", p.ID)
			}
			got[p.ID] = true
		}
	}
	// Any number is a cursor.
	if page, _ := en.Page(last, nil); len(page) != 1 || numberOf(t, page[0].ID) != last {
		t.Errorf("from the last number on there are %d messages", len(page))
	}
	if page, next := en.Page(last+1, nil); len(page) != 0 || next != 0 {
		t.Errorf("behind the last number there are %d messages", len(page))
	}
	listed := 0
	for e := range en.Entries {
		if !want[e.ID] {
			t.Errorf("%s is not there", e.ID)
		}
		if found, ok := en.Find(numberOf(t, e.ID)); !ok || found.ID != e.ID {
			t.Errorf("%s is not found by its number", e.ID)
		}
		listed++
	}
	if len(got) != len(want) || listed != len(want) {
		t.Errorf("%d in pages, %d listed, want %d", len(got), listed, len(want))
	}
}

func numberOf(t testing.TB, id mail.QueueID) uint64 {
	_, n, err := id.Parse()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// What is posted and committed becomes durable in that order.
func testOrder(t *testing.T, q *Queue) {
	en := q.Open()
	defer en.Close()
	m := addition(t, en, "x", "r@to.test")
	add(t, en, m)
	for i := range 50 {
		b := en.NewBatch()
		b.Update(m.ID, queue.Change{Set: queue.SetAttempts, Attempts: i})
		en.Post(b, func(error) {})
	}
	commit(t, en, func(b storage.Batch) { b.Update(m.ID, queue.Change{Set: queue.SetWarned, Warned: true}) })
	if e, _ := en.Locate(m.ID); e.Attempts != 49 || !e.Warned {
		t.Errorf("%+v", e)
	}
}

// A closed engine says so, and has kept what was posted.
func testClosed(t *testing.T, q *Queue) {
	en := q.Open()
	m := addition(t, en, "x", "r@to.test")
	add(t, en, m)
	b := en.NewBatch()
	b.Update(m.ID, queue.Change{Set: queue.SetAttempts, Attempts: 9})
	done := make(chan error, 2)
	en.Post(b, func(err error) { done <- err })
	if err := en.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("what was posted: %v", err)
	}
	if err := en.Commit(en.NewBatch()); !errors.Is(err, queue.ErrClosed) {
		t.Errorf("commit: %v", err)
	}
	en.Post(en.NewBatch(), func(err error) { done <- err })
	if err := <-done; !errors.Is(err, queue.ErrClosed) {
		t.Errorf("post: %v", err)
	}
	en = q.Open()
	if e, _ := en.Locate(m.ID); e.Attempts != 9 {
		t.Errorf("%+v", e)
	}
	en.Close()
}

// A queue that was closed is found unclean if the engine was to leave it so, once, and with all that was in it.
func testUnclean(t *testing.T, q *Queue) {
	en := q.Open()
	m := addition(t, en, "x", "r@to.test")
	add(t, en, m)
	en = again(t, q, en)
	if en.Recovery().Unclean {
		t.Error("unclean after an orderly end")
	}
	en.LeaveUnclean()
	en = again(t, q, en)
	if _, ok := en.Locate(m.ID); !ok || !en.Recovery().Unclean {
		t.Errorf("to be left unclean: unclean %v, has the message %v", en.Recovery().Unclean, ok)
	}
	en = again(t, q, en)
	if en.Recovery().Unclean {
		t.Error("unclean after the next orderly end, too")
	}
	en.Close()
}
