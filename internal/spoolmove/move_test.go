package spoolmove

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/pgspool"
	"posthaste/internal/pgspool/pgspooltest"
	"posthaste/internal/queue"
	"posthaste/internal/queuelog"
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/statedir"
	"posthaste/internal/storage"
	"posthaste/internal/testwait"
)

// A pair is the two engines, open.
type pair struct {
	t     *testing.T
	dir   string
	store *pgspool.Store
	log   queuelog.Engine
	pg    storage.Engine
}

// newPair makes two queues, which are empty. It has the database of store to itself.
func newPair(t *testing.T, store *pgspool.Store) *pair {
	p := &pair{t: t, dir: filepath.Join(t.TempDir(), "spool"), store: store}
	p.open()
	t.Cleanup(p.close)
	return p
}

func (p *pair) open() {
	p.t.Helper()
	var err error
	// A process that another test is about to execute has the lock, too, for a moment.
	testwait.Until(p.t, "the log can be opened", func() bool {
		p.log.Spool, err = spool.Open(spool.Options{Dir: p.dir, SegmentSize: 4 << 20, InlineLimit: 16 << 10, ExactDoubt: true, Warn: p.t.Logf})
		return err == nil
	})
	p.pg, err = p.store.Open(context.Background(), storage.Options{TempDir: p.t.TempDir(), InlineLimit: 32 << 10, Warn: p.t.Logf})
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) close() {
	p.log.Close()
	p.pg.Close()
}

// reader is that of the log or of the database.
func (p *pair) reader(log bool) storage.Reader {
	if log {
		return queueread.Log(spool.NewReader(nil, p.dir))
	}
	return p.store.Reader()
}

// mover moves from the log to the database, or back.
func (p *pair) mover(toLog bool) (*Mover, error) {
	d, err := statedir.Open(p.dir)
	if err != nil {
		return nil, err
	}
	p.t.Cleanup(func() { d.Close() })
	j, err := OpenJournal(d, fmt.Sprint(toLog))
	m := &Mover{From: p.log, To: p.pg, Journal: j, Warn: p.t.Logf, Reader: p.reader(!toLog), Doubts: p.log.Recovery().InDoubt,
		Elsewhere: func(ids []mail.QueueID) (map[mail.QueueID]string, error) {
			return p.store.Whereabouts(p.t.Context(), ids)
		}}
	if toLog {
		m.From, m.To, m.Doubts, m.Elsewhere = p.pg, p.log, p.pg.Recovery().InDoubt, nil
	}
	return m, err
}

// lister is what show needs of an engine.
type lister interface {
	Entries(yield func(queue.Entry) bool)
	InHand(id mail.QueueID, rcpts []int) []int
}

// show says all that a queue has of its messages, but for their numbers, by their senders.
func show(t *testing.T, en lister, rd storage.Reader) map[string]string {
	t.Helper()
	defer rd.Close()
	all := map[string]string{}
	for e := range en.Entries {
		st, err := rd.Read(e.Ref, e.ID)
		if err != nil {
			t.Fatal(err)
		}
		st.Overlay(e.Done)
		env, err := st.Envelope()
		if err != nil {
			t.Fatal(err)
		}
		rcpts, err := st.Recipients(0, -1)
		if err != nil {
			t.Fatal(err)
		}
		created := env.Created()
		env.ID, env.LogIdent = "", ""
		var b strings.Builder
		fmt.Fprintf(&b, "%v %x %v %v next %v attempts %d warned %v expire %v size %d", created.UnixMicro(), env.Append(nil), rcpts, e.Queue, e.NextAttempt.UnixMicro(),
			e.Attempts, e.Warned, e.Expire, e.Size)
		for i := range rcpts {
			fmt.Fprintf(&b, "; %d pending %v in hand %v", i, st.Pending(i), len(en.InHand(e.ID, []int{i})) > 0)
		}
		list, err := st.Outcomes()
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(list, func(a, b mail.Outcome) int { return a.Rcpt - b.Rcpt })
		for _, o := range list {
			if st.Pending(o.Rcpt) {
				fmt.Fprintf(&b, "; %x", o.Append(nil, 'o'))
			}
		}
		c, err := st.Content()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if all[env.Sender] != "" {
			t.Errorf("%s is there twice", env.Sender)
		}
		all[env.Sender] = b.String()
	}
	return all
}

// fill puts random messages into a queue.
func fill(t *testing.T, en Engine, r *rand.Rand, n int) {
	t.Helper()
	b := en.NewBatch()
	for k := range n {
		number, err := en.Lease(1)
		if err != nil {
			t.Fatal(err)
		}
		id := mail.MakeQueueID(time.UnixMicro(1_700_000_000_000_000+r.Int64N(1e12)), number)
		size := r.IntN(3000)
		if r.IntN(8) == 0 {
			size = r.IntN(300 << 10)
		}
		content := make([]byte, size)
		for i := range content {
			content[i] = byte(r.Uint32())
		}
		env := mail.Envelope{ID: id, Sender: fmt.Sprintf("m%d@from.test", k), Size: int64(size), Arrival: time.UnixMicro(r.Int64N(1e15)),
			EnvID: fmt.Sprint(r.IntN(9)), Pool: fmt.Sprint("p", r.IntN(3)), Forwarded: r.IntN(2) == 0, SASL: mail.SASL{Username: "u"}}
		rcpts := make([]mail.Recipient, 1+r.IntN(70))
		for i := range rcpts {
			rcpts[i] = mail.Recipient{Address: fmt.Sprintf("%d@to.test", i), ORCPT: fmt.Sprint("rfc822;", r.IntN(99)), Notify: dsn.Notify(r.IntN(3))}
		}
		a := storage.Addition{ID: id, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, rcpts), NRcpt: len(rcpts), Queue: queue.Name(r.IntN(2)), Content: content}
		if size > en.InlineLimit() {
			f, err := en.NewFile()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write(content); err != nil {
				t.Fatal(err)
			}
			a.File, a.Content = f, nil
		}
		b.Reset()
		b.Add(a)
		if err := en.Commit(b); err != nil {
			t.Fatal(err)
		}
		b = en.NewBatch()
		change(b, r, id, len(rcpts))
		if err := en.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
}

// change gives a message a random state, which leaves the last recipient pending.
func change(b storage.Batch, r *rand.Rand, id mail.QueueID, n int) {
	if r.IntN(4) == 0 {
		return
	}
	c := queue.Change{Set: queue.SetQueue | queue.SetNextAttempt | queue.SetAttempts | queue.SetWarned | queue.SetExpire, Queue: queue.Name(r.IntN(int(queue.Names))),
		NextAttempt: time.UnixMicro(1 + r.Int64N(1<<50)), Attempts: r.IntN(100), Warned: r.IntN(2) == 0, Expire: r.IntN(2) == 0}
	for i := range n {
		switch r.IntN(4) {
		case 0:
			c.Outcomes = append(c.Outcomes, mail.Outcome{Rcpt: i, Action: dsn.Deferred, Reason: fmt.Sprint("said ", r.IntN(1000)), When: time.UnixMicro(r.Int64N(1e15))})
		case 1:
			if i < n-1 {
				c.Done = append(c.Done, i)
			}
		}
	}
	b.Update(id, c)
	if r.IntN(3) == 0 {
		b.Handed(id, []int{n - 1}, "mx.to.test")
	}
}

// same fails the test when two queues differ.
func same(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for sender, text := range want {
		if got[sender] != text {
			g, w := got[sender], text
			t.Fatalf("%s: %s is\n%.600q\nand should be\n%.600q", what, sender, g, w)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d messages, want %d", what, len(got), len(want))
	}
}

// rounds is how many random queues TestRoundTrip moves.
const rounds = 5

// A queue goes from the log into the database and back, and is the same, in all that it has of each message, however
// often the move is killed and at whatever point.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	st := pgspooltest.New(t)
	for range rounds {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 1))
		p := newPair(t, st)
		fill(t, p.log, r, 20+r.IntN(20))
		want := show(t, p.log, p.reader(true))
		p.through(r, false)
		same(t, "to the database", show(t, p.pg, p.reader(false)), want)
		same(t, "what has been left in the log", show(t, p.log, p.reader(true)), nil)
		p.through(r, true)
		same(t, "to the log", show(t, p.log, p.reader(true)), want)
		same(t, "what has been left in the database", show(t, p.pg, p.reader(false)), nil)
		p.close()
	}
}

// through moves the queue, and is killed now and then.
func (p *pair) through(r *rand.Rand, toLog bool) {
	p.t.Helper()
	for kills := 2 + r.IntN(3); ; kills-- {
		m, err := p.mover(toLog)
		if err != nil {
			p.t.Fatal(err)
		}
		if kills > 0 {
			n := r.IntN(6)
			m.crash = func(string) bool { n--; return n < 0 }
		}
		report, err := m.Run()
		m.Reader.Close()
		if err == nil {
			if report.Left > 0 || len(report.Held) > 0 {
				p.t.Fatalf("%+v", report)
			}
			return
		}
		if !errors.Is(err, errCrash) {
			p.t.Fatal(err)
		}
		p.close()
		p.open()
	}
}

// A killed move's messages are with another node when it goes on: they are not moved once more, and the operator hears
// that they are on hold there.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	st := pgspooltest.New(t)
	p := newPair(t, st)
	fill(t, p.log, rand.New(rand.NewPCG(1, 1)), 3)
	m, err := p.mover(false)
	if err != nil {
		t.Fatal(err)
	}
	m.crash = func(point string) bool { return point == "told" }
	if _, err := m.Run(); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	if m, err = p.mover(false); err != nil {
		t.Fatal(err)
	}
	var asked []mail.QueueID
	m.To = empty{m.To}
	m.Elsewhere = func(ids []mail.QueueID) (map[mail.QueueID]string, error) {
		asked = ids
		at, err := st.Whereabouts(t.Context(), ids)
		if len(at) != 3 || at[ids[0]] != "a" {
			t.Errorf("%v", at)
		}
		return map[mail.QueueID]string{ids[0]: "b", ids[1]: "b", ids[2]: ""}, err
	}
	report, err := m.Run()
	if err != nil || len(asked) != 3 || len(report.Held) != 2 || report.Held[0] != (Held{asked[0], "b"}) || report.Moved != 0 {
		t.Errorf("%+v, %v", report, err)
	}
	same(t, "what has been left in the log", show(t, p.log, p.reader(true)), nil)
	if at, err := st.Whereabouts(t.Context(), []mail.QueueID{mail.MakeQueueID(time.Unix(1, 0), 7777)}); err != nil || len(at) != 0 {
		t.Errorf("of a message that has never been: %v, %v", at, err)
	}
}

// empty is an engine that knows of no message, as when another node has them.
type empty struct{ Engine }

func (empty) Locate(mail.QueueID) (queue.Entry, bool) { return queue.Entry{}, false }

// A message that cannot be read stays, is told of, and does not keep the others.
func TestDamaged(t *testing.T) {
	t.Parallel()
	p := newPair(t, pgspooltest.New(t))
	fill(t, p.log, rand.New(rand.NewPCG(2, 1)), 4)
	m, err := p.mover(false)
	if err != nil {
		t.Fatal(err)
	}
	m.Reader = &damagedReader{Reader: m.Reader}
	report, err := m.Run()
	if err != nil || report.Moved != 3 || report.Left != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	if n := len(show(t, p.log, p.reader(true))); n != 1 {
		t.Errorf("%d messages are left", n)
	}
}

// A damagedReader cannot read the first message that it is asked for.
type damagedReader struct {
	storage.Reader
	bad mail.QueueID
}

func (d *damagedReader) Read(ref queue.Ref, id mail.QueueID) (storage.Stored, error) {
	if d.bad == "" {
		d.bad = id
	}
	if d.bad == id {
		return nil, queue.ErrCorrupt
	}
	return d.Reader.Read(ref, id)
}

// While a move in one direction is not finished, none in the other begins.
func TestOtherDirection(t *testing.T) {
	t.Parallel()
	d, err := statedir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	j, err := OpenJournal(d, "log to postgresql")
	if err == nil {
		err = j.Save([]Pair{{From: "a", To: "b", Queue: queue.Hold}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenJournal(d, "postgresql to log"); err == nil || !strings.Contains(err.Error(), "a move from log to postgresql has been interrupted") {
		t.Error(err)
	}
	if list, err := j.Load(); err != nil || !slices.Equal(list, []Pair{{From: "a", To: "b", Queue: queue.Hold}}) {
		t.Error(list, err)
	}
	if err := j.Clear(); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenJournal(d, "postgresql to log"); err != nil {
		t.Error(err)
	}
}
