package pgspool

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
	"posthaste/internal/testseed"
	"posthaste/internal/testservers"
)

// tidy has the cleaner do all that there is to do.
func tidy(t *testing.T, e *engine) {
	t.Helper()
	for i := 0; ; i++ {
		did, err := e.clean(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !did {
			return
		}
		if i > 10000 {
			t.Fatal("the cleaner does not come to an end")
		}
	}
}

// space is the octets of all segments, and of what is alive in them.
func (e *engine) space() (bytes, alive int64, segments int) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, sh := range e.shards {
		for _, s := range sh.segs {
			bytes, alive, segments = bytes+s.bytes, alive+s.live, segments+1
		}
	}
	return bytes, alive, segments
}

// A month of mail, in small: most of it is gone at once, some is deferred many times and stays for long. What
// is in the tables stays in proportion to what is alive, no row is ever changed or deleted, nothing that is alive is
// lost, and nothing that has gone comes back.
func TestMonth(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	st := d.store("a")
	st.segmentSize = 48 << 10
	e := st.mustOpen(t)
	seed := testseed.First(t)
	r := rand.New(rand.NewPCG(seed, 0))
	alive := map[mail.QueueID]string{}
	attempts := map[mail.QueueID]int{}
	inHand := map[mail.QueueID]map[int]bool{}
	var order []mail.QueueID
	most := 0
	for day := range 60 {
		b := e.NewBatch()
		for range 40 {
			m := message(t, e, fmt.Sprintf("%016x%0*d", r.Uint64(), r.IntN(4000), 0))
			b.Add(m)
			alive[m.ID] = string(m.Content)
			order = append(order, m.ID)
		}
		if err := e.Commit(b); err != nil {
			t.Fatal(err)
		}
		b.Reset()
		var stay []mail.QueueID
		for _, id := range order {
			switch p := r.IntN(100); {
			case attempts[id] == 0 && p < 90 || p < 5:
				b.Remove(id)
				delete(alive, id)
			case p < 30:
				attempts[id]++
				delete(inHand[id], 0)
				b.Update(id, queue.Change{Set: queue.SetQueue | queue.SetAttempts, Queue: queue.Deferred, Attempts: attempts[id], Outcomes: []mail.Outcome{{Rcpt: 0, Reason: "try again later"}}})
				stay = append(stay, id)
			default:
				attempts[id]++
				rcpt := r.IntN(2)
				b.Handed(id, []int{rcpt}, "mx")
				if inHand[id] == nil {
					inHand[id] = map[int]bool{}
				}
				inHand[id][rcpt] = true
				stay = append(stay, id)
			}
		}
		order = stay
		if err := e.Commit(b); err != nil {
			t.Fatal(err)
		}
		tidy(t, e)
		bytes, live, segments := e.space()
		if limit := 2*live + (slack+2)*st.segmentSize; bytes > limit {
			t.Fatalf("day %d: %d octets in the tables, %d alive: over %d", day, bytes, live, limit)
		}
		most = max(most, segments)
		if day%15 == 14 {
			e.Close()
			before := live
			e = st.mustOpen(t)
			if _, after, _ := e.space(); after < before*9/10 || after > before*11/10 {
				t.Errorf("day %d: %d octets are alive after a start, %d before", day, after, before)
			}
		}
		compare(t, e, alive)
		for id := range alive {
			for rcpt := range 2 {
				if got := len(e.InHand(id, []int{rcpt})) > 0; got != inHand[id][rcpt] {
					t.Fatalf("day %d: %s: recipient %d in hand: %v", day, id, rcpt, got)
				}
			}
		}
	}
	e.mu.RLock()
	last := e.home.nextSeg
	e.mu.RUnlock()
	if int(last) < 2*most {
		t.Errorf("%d segments were used in all, %d at once: nothing was cleaned", last, most)
	}
	var changed int64
	err := d.conn().QueryRow(t.Context(), "SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables WHERE relname LIKE 'seg\\_%' AND schemaname = current_schema()").Scan(&changed)
	if err != nil || changed != 0 {
		t.Errorf("%d rows were changed or deleted, %v", changed, err)
	}
}

// compare fails the test when the queue is not what alive says.
func compare(t *testing.T, e *engine, alive map[mail.QueueID]string) {
	t.Helper()
	rd := e.store.Reader()
	n := 0
	for en := range e.Entries {
		n++
		want, ok := alive[en.ID]
		if !ok {
			t.Fatalf("%s has come back", en.ID)
		}
		read(t, rd, en, want)
	}
	if n != len(alive) {
		t.Fatalf("%d messages, want %d", n, len(alive))
	}
}

// read compares the content of a message.
func read(t *testing.T, rd storage.Reader, en queue.Entry, want string) {
	t.Helper()
	stored, err := rd.Read(en.Ref, en.ID)
	if err != nil {
		t.Fatal(err)
	}
	c, err := stored.Content()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.ReadAll(c); err != nil || string(got) != want {
		t.Fatalf("%s: %d octets, want %d: %v", en.ID, len(got), len(want), err)
	}
	if rcpts, err := stored.Recipients(0, -1); err != nil || len(rcpts) != 2 {
		t.Fatalf("%s: %d recipients, %v", en.ID, len(rcpts), err)
	}
}

// Long content is copied when its segment is emptied; who reads it meanwhile reads on.
func TestLongContentMoves(t *testing.T) {
	t.Parallel()
	st := newDatabase(t, newServer(t), 1).store("a")
	st.segmentSize = 64 << 10
	e := st.mustOpen(t)
	b := e.NewBatch()
	text := strings.Repeat("0123456789abcdef", 60000)
	f, err := e.NewFile()
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(f, text)
	m := message(t, e, "")
	m.Content, m.File = nil, f
	b.Add(m)
	if err := e.Commit(b); err != nil {
		t.Fatal(err)
	}
	_, number, _ := m.ID.Parse() // it is one that we made
	rd := st.Reader()
	en, _ := e.Locate(m.ID)
	before, err := rd.Content(en.Ref, m.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, before, 1000); err != nil {
		t.Fatal(err)
	}
	for range 5 { // the segment is the head no more
		if _, err := put(t, e, strings.Repeat("x", 70000)); err != nil {
			t.Fatal(err)
		}
	}
	e.mu.RLock()
	old := e.idx.big[number]
	e.mu.RUnlock()
	if err := e.order(&copying{shard: e.home, victim: old.seg, numbers: []uint64{number}}); err != nil {
		t.Fatal(err)
	}
	e.mu.RLock()
	now := e.idx.big[number]
	e.mu.RUnlock()
	if now.seg == old.seg {
		t.Fatal("it has not moved")
	}
	tidy(t, e)
	rest, err := io.ReadAll(before)
	if err != nil || string(rest) != text[1000:] {
		t.Errorf("the reader of before got %d octets, %v", len(rest), err)
	}
	before.Close()
	en, _ = e.Locate(m.ID)
	read(t, rd, en, text)
	e.mu.Lock()
	e.home.segs[old.seg].read -= int64(readGrace) // it is later
	e.mu.Unlock()
	tidy(t, e)
	e.mu.RLock()
	_, there := e.home.segs[old.seg]
	e.mu.RUnlock()
	if there {
		t.Error("the emptied segment is kept for ever")
	}
	e.Close()
	e = st.mustOpen(t)
	en, _ = e.Locate(m.ID)
	read(t, rd, en, text)
}

// A table that cannot be cleaned keeps the cleaner from no other, and does not end the queue.
func TestCleanPastFailure(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	st := d.store("a")
	st.segmentSize = 1
	e := st.mustOpen(t)
	for range 4 {
		id, err := put(t, e, "x")
		if err != nil {
			t.Fatal(err)
		}
		b := e.NewBatch()
		b.Remove(id)
		if err := e.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	// It can neither be read nor dropped as a table.
	if _, err := d.conn().Exec(t.Context(), "ALTER TABLE seg_1_1 RENAME TO kept; CREATE VIEW seg_1_1 AS SELECT * FROM kept"); err != nil {
		t.Fatal(err)
	}
	tidy(t, e)
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.err != nil || e.home.segs[1] == nil || e.home.segs[2] != nil || e.home.segs[3] != nil {
		t.Errorf("%v, %v", e.err, slices.Sorted(maps.Keys(e.home.segs)))
	}
}

// spoilt is a queue of one shard: a message is alive in its first segment, beside four that have left, and nothing in the next ones.
func spoilt(t *testing.T, s *testservers.Server, warn func(string, ...any)) (d *database, e *engine, id mail.QueueID) {
	t.Helper()
	d = newDatabase(t, s, 1)
	st := d.store("a")
	st.segmentSize = 1
	en, err := st.Open(t.Context(), storage.Options{TempDir: t.TempDir(), InlineLimit: 128 << 10, Warn: warn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { en.Close() })
	e = en.(*engine)
	b, gone := e.NewBatch(), e.NewBatch()
	for i := range 5 {
		m := message(t, e, "content")
		if b.Add(m); i == 0 {
			id = m.ID
		} else {
			gone.Remove(m.ID)
		}
	}
	for _, b := range []storage.Batch{b, gone} {
		if err := e.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		id, err := put(t, e, "x")
		if err != nil {
			t.Fatal(err)
		}
		b := e.NewBatch()
		b.Remove(id)
		if err := e.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	return d, e, id
}

// What the database does not give at the moment when its table is cleaned does not go with the table: that stays, the others are cleaned, the queue goes
// on, and when the table is whole again so is the message.
func TestCleanKeepsUnreadable(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for name, view := range map[string]string{
		"its records":               "SELECT pos, kind, number, lost() AS head, rest, body FROM kept_seg_1_1",
		"its envelope":              "SELECT pos, kind, number, head, lost() AS rest, body FROM kept_seg_1_1",
		"its content":               "SELECT pos, kind, number, head, rest, lost() AS body FROM kept_seg_1_1",
		"that it has any":           "SELECT * FROM kept_seg_1_1 WHERE pos < 0",
		"that it has any, by index": "SELECT * FROM kept_seg_1_1 WHERE current_setting('enable_indexscan') = 'off'",
		"the table":                 "",
	} {
		d, e, id := spoilt(t, s, t.Logf)
		d.spoil(1, 1, dataCorrupted, "false")
		sql := "DROP VIEW seg_1_1"
		if view != "" {
			sql += "; CREATE VIEW seg_1_1 AS " + view
		}
		if _, err := d.conn().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		tidy(t, e)
		e.mu.RLock()
		if e.err != nil || e.home.segs[1] == nil || e.home.segs[3] != nil || e.home.segs[4] != nil {
			t.Errorf("%s: %v, segments %v", name, e.err, slices.Sorted(maps.Keys(e.home.segs)))
		}
		e.mu.RUnlock()
		if _, err := put(t, e, "new"); err != nil {
			t.Errorf("%s: new mail: %v", name, err)
		}
		if _, err := d.conn().Exec(t.Context(), "DROP VIEW IF EXISTS seg_1_1; ALTER TABLE kept_seg_1_1 RENAME TO seg_1_1"); err != nil {
			t.Fatal(err)
		}
		if err := readAll(e.store.Reader(), e, id); err != nil {
			t.Errorf("%s: when it is whole again: %v", name, err)
		}
	}
}

// Long content is copied whole or not at all.
func TestCleanKeepsLong(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for name, view := range map[string]string{
		"its parts": "CREATE VIEW %s AS SELECT * FROM kept WHERE kind <> 6",
		"one part":  "CREATE VIEW %s AS SELECT * FROM kept WHERE kind <> 6 OR pos <> (SELECT max(pos) FROM kept WHERE kind = 6)",
		"the table": "",
	} {
		d := newDatabase(t, s, 1)
		st := d.store("a")
		st.segmentSize = 1
		e := st.mustOpen(t)
		m := addLong(t, e)
		if _, err := put(t, e, "x"); err != nil { // its segments are the head no more
			t.Fatal(err)
		}
		e.mu.RLock()
		at := e.idx.big[number(m.ID)]
		e.mu.RUnlock()
		table := segmentTable(1, at.seg)
		sql := "ALTER TABLE " + table + " RENAME TO kept"
		if view != "" {
			sql += "; " + fmt.Sprintf(view, table)
		}
		if _, err := d.conn().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		if err := e.order(&copying{shard: e.home, victim: at.seg, numbers: []uint64{number(m.ID)}}); !isOfTable(err) || e.Err() != nil {
			t.Errorf("%s: %v; %v", name, err, e.Err())
		}
		if _, err := d.conn().Exec(t.Context(), "DROP VIEW IF EXISTS "+table+"; ALTER TABLE kept RENAME TO "+table); err != nil {
			t.Fatal(err)
		}
		if err := readAll(e.store.Reader(), e, m.ID); err != nil {
			t.Errorf("%s: when it is whole again: %v", name, err)
		}
	}
}

// Of what is written with a transaction that the cleaner's table spoils nothing is refused: it goes into the next one.
func TestCleanSpoilsTransaction(t *testing.T) {
	t.Parallel()
	d, e, id := spoilt(t, newServer(t), t.Logf)
	d.spoil(1, 1, dataCorrupted, "false")
	if _, err := d.conn().Exec(t.Context(), "CREATE OR REPLACE VIEW seg_1_1 AS SELECT pos, kind, number, head, rest, lost() AS body FROM kept_seg_1_1"); err != nil {
		t.Fatal(err)
	}
	b := e.NewBatch()
	m := message(t, e, "new")
	b.Add(m)
	upkeep := &request{upkeep: &copying{shard: e.home, victim: 1, numbers: []uint64{number(id)}}, ch: make(chan error, 1)}
	mail := &request{b: b.(*batch), ch: make(chan error, 1)}
	q := &e.queue
	q.mu.Lock()
	q.list, q.urgent = append(q.list, upkeep, mail), true
	q.mu.Unlock()
	signal(e.wake)
	if err := <-upkeep.ch; !isOfTable(err) {
		t.Errorf("the cleaner is told %v", err)
	}
	if err := <-mail.ch; err != nil {
		t.Errorf("new mail: %v", err)
	}
	if _, ok := e.Locate(m.ID); !ok || e.Err() != nil {
		t.Errorf("it is there: %v; %v", ok, e.Err())
	}
}

// The end of a message that is damaged is written again for no other message, and its table is kept.
func TestDamagedEndKept(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	st := d.store("a")
	st.segmentSize = 1
	e := st.mustOpen(t)
	b := e.NewBatch()
	stays, goes := message(t, e, strings.Repeat("x", 1000)), message(t, e, "x")
	b.Add(stays)
	b.Add(goes)
	gone := e.NewBatch()
	gone.Remove(goes.ID)
	for _, b := range []storage.Batch{b, gone} {
		if err := e.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := put(t, e, strings.Repeat("x", 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.conn().Exec(t.Context(), "UPDATE seg_1_2 SET number = $1", int64(number(stays.ID))); err != nil {
		t.Fatal(err)
	}
	tidy(t, e)
	e.mu.RLock()
	if e.err != nil || e.home.segs[2] == nil {
		t.Errorf("%v, segments %v", e.err, slices.Sorted(maps.Keys(e.home.segs)))
	}
	e.mu.RUnlock()
	e.Close()
	if _, ok := st.mustOpen(t).Locate(stays.ID); !ok {
		t.Error("a message is gone that nobody has removed")
	}
}

// When the queue has ended, whatever of, the cleaner does not say of each table that it cannot be cleaned.
func TestCleanEnded(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var said []string
	_, e, _ := spoilt(t, newServer(t), func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if text := fmt.Sprintf(format, args...); strings.Contains(text, "cleaning") {
			said = append(said, text)
		}
	})
	ended := e.fail(fmt.Errorf("%w: %w", queue.ErrBroken, errRefused))
	if _, err := e.clean(t.Context()); !errors.Is(err, ended) {
		t.Errorf("%v, want %v", err, ended)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(said) > 0 {
		t.Errorf("the log has %q", said)
	}
}

// A table that cannot be cleaned is tried again ever more seldom, each hour in the end, and at once after it could be.
func TestCleanAgain(t *testing.T) {
	t.Parallel()
	e, s := &engine{born: time.Now()}, new(segment)
	for _, want := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		if got := e.putOff(s, errRefused); got != want {
			t.Errorf("again in %v, want %v", got, want)
		}
	}
	for range 1000 {
		e.putOff(s, errRefused)
	}
	if got := s.again(); got != maxCleanAgain {
		t.Errorf("again in %v in the end", got)
	}
	if got := e.putOff(s, nil); got != 0 || s.again() != 0 {
		t.Errorf("again in %v, and %v, after it was cleaned", got, s.again())
	}
}
