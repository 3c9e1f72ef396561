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
	"posthaste/internal/testseed"
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

// whereabouts asks the database.
func (p *pair) whereabouts(ids []mail.QueueID) (map[mail.QueueID]pgspool.Whereabout, error) {
	return p.store.Whereabouts(p.t.Context(), ids)
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
		ToElsewhere: p.whereabouts}
	if toLog {
		m.From, m.To, m.Doubts, m.FromElsewhere, m.ToElsewhere = p.pg, p.log, p.pg.Recovery().InDoubt, p.whereabouts, nil
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
	seed := testseed.First(t)
	for i := range rounds {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
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
// that they are on hold there, but for those that belong there.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	for _, toLog := range []bool{false, true} {
		for _, point := range []string{"held", "added", "told", "removed"} {
			t.Run(fmt.Sprintf("%v/%s", toLog, point), func(t *testing.T) { takenOver(t, toLog, point) })
		}
	}
}

func takenOver(t *testing.T, toLog bool, point string) {
	st := pgspooltest.New(t)
	p := newPair(t, st)
	from, to := Engine(p.log), Engine(p.pg)
	if toLog {
		from, to = to, from
	}
	fill(t, from, rand.New(rand.NewPCG(1, 1)), 4)
	var held mail.QueueID
	for e := range from.(lister).Entries {
		if held == "" {
			held = e.ID
		}
		b := from.NewBatch()
		b.Update(e.ID, queue.Change{Set: queue.SetQueue, Queue: map[bool]queue.Name{true: queue.Hold, false: queue.Deferred}[e.ID == held]})
		if err := from.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	m, err := p.mover(toLog)
	if err != nil {
		t.Fatal(err)
	}
	m.crash = func(at string) bool { return at == point }
	if _, err := m.Run(); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	if m, err = p.mover(toLog); err != nil {
		t.Fatal(err)
	}
	// The database's part has gone to another node: this one's engine has none of it.
	pairs, err := m.Journal.Load()
	if err != nil {
		t.Fatal(err)
	}
	at := map[mail.QueueID]pgspool.Whereabout{}
	other := func(ids []mail.QueueID) (map[mail.QueueID]pgspool.Whereabout, error) {
		real, err := p.whereabouts(ids)
		for id, w := range real {
			if w.Node != "a" {
				t.Errorf("%v", real)
			}
			at[id] = pgspool.Whereabout{Node: "b", Left: w.Left}
		}
		return at, err
	}
	if toLog {
		m.From, m.FromElsewhere = empty{m.From}, other
	} else {
		m.To, m.ToElsewhere = empty{m.To}, other
	}
	report, err := m.Run()
	if err != nil {
		t.Fatal(err)
	}
	// Whoever has it now has it alone.
	inLog, inPG := show(t, p.log, p.reader(true)), show(t, p.pg, p.reader(false))
	for sender := range inLog {
		if inPG[sender] != "" && !(!toLog && point == "held") {
			t.Errorf("%s is in both", sender)
		}
	}
	wantHeld := 3
	if toLog && point == "removed" || !toLog && point == "held" {
		wantHeld = 0
	}
	if len(report.Held) != wantHeld {
		t.Errorf("%+v of %v", report, pairs)
	}
	for _, h := range report.Held {
		for _, pr := range pairs {
			if h.Node != "b" || (h.ID == pr.From || h.ID == pr.To) && pr.Queue == queue.Hold {
				t.Errorf("%+v of %v", report, pairs)
			}
		}
	}
	if n := len(inLog) + len(inPG); n != 4 {
		t.Errorf("%d messages, not 4", n)
	}
}

// What nobody has any record of has never been.
func TestNeverSeen(t *testing.T) {
	t.Parallel()
	st := pgspooltest.New(t)
	newPair(t, st)
	if at, err := st.Whereabouts(t.Context(), []mail.QueueID{mail.MakeQueueID(time.Unix(1, 0), 7777)}); err != nil || len(at) != 0 {
		t.Errorf("of a message that has never been: %v, %v", at, err)
	}
}

// While a move is interrupted nobody delivers what is in both queues, and what is in the new one has its state,
// wherever it was interrupted.
func TestInBothOnHold(t *testing.T) {
	t.Parallel()
	st := pgspooltest.New(t)
	for _, toLog := range []bool{false, true} {
		for _, point := range []string{"noted", "held", "added", "told", "removed"} {
			p := newPair(t, st)
			from, to, fromReader := lister(p.log), lister(p.pg), true
			if toLog {
				from, to, fromReader = to, from, false
			}
			fill(t, from.(Engine), rand.New(rand.NewPCG(3, 1)), 12)
			want := show(t, from, p.reader(fromReader))
			m, err := p.mover(toLog)
			if err != nil {
				t.Fatal(err)
			}
			m.crash = func(at string) bool { return at == point }
			if _, err := m.Run(); !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
			queues := func(en lister) (n int, hold bool) {
				hold = true
				for e := range en.Entries {
					n, hold = n+1, hold && e.Queue == queue.Hold
				}
				return n, hold
			}
			if n, hold := queues(from); n > 0 && !hold && point != "noted" {
				t.Errorf("%v, %s: the old queue's messages are not on hold", toLog, point)
			}
			if n, hold := queues(to); n > 0 && !hold {
				t.Errorf("%v, %s: the new queue's messages are not on hold", toLog, point)
			}
			for sender, text := range show(t, to, p.reader(!fromReader)) {
				for name := range queue.Names {
					text = strings.Replace(text, "] "+queue.Hold.String()+" next", "] "+name.String()+" next", 1)
					if text == want[sender] {
						break
					}
				}
				_, state, _ := strings.Cut(want[sender], " next ")
				if point == "added" { // what agents had in hand comes next
					text, state = strings.ReplaceAll(text, "in hand true", "in hand false"), strings.ReplaceAll(state, "in hand true", "in hand false")
				}
				if !strings.HasSuffix(text, state) {
					t.Errorf("%v, %s: %s has another state", toLog, point, sender)
				}
			}
			p.close()
			p.open()
			if m, err = p.mover(toLog); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Run(); err != nil {
				t.Fatal(err)
			}
			to, from = lister(p.pg), lister(p.log)
			if toLog {
				to, from = from, to
			}
			same(t, "in the end", show(t, to, p.reader(!fromReader)), want)
			same(t, "left", show(t, from, p.reader(fromReader)), nil)
			b := to.(Engine).NewBatch()
			for e := range to.Entries {
				b.Remove(e.ID)
			}
			if err := to.(Engine).Commit(b); err != nil {
				t.Fatal(err)
			}
			p.close()
		}
	}
}

// empty is an engine that knows of no message, as when another node has them.
type empty struct{ Engine }

func (empty) Locate(mail.QueueID) (queue.Entry, bool) { return queue.Entry{}, false }

func (empty) Page(uint64, []queue.Placed) ([]queue.Placed, uint64) { return nil, 0 }

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
