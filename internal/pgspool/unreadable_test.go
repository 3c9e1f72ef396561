package pgspool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/storage"
	"posthaste/internal/testwait"
)

// spoil has the database fail with this code when the heads of some rows of a segment are read.
func (d *database) spoil(shard, segno uint32, code, rows string) {
	d.t.Helper()
	conn, table := d.conn(), segmentTable(shard, segno)
	for _, sql := range []string{
		"CREATE OR REPLACE FUNCTION lost() RETURNS bytea STABLE LANGUAGE plpgsql AS $$ BEGIN RAISE 'missing chunk' USING ERRCODE = '" + code + "'; END $$",
		"ALTER TABLE " + table + " RENAME TO kept_" + table,
		fmt.Sprintf("CREATE VIEW %s AS SELECT pos, kind, number, CASE WHEN %s THEN lost() ELSE head END AS head, rest, body FROM kept_%s", table, rows, table),
	} {
		if _, err := conn.Exec(d.t.Context(), sql); err != nil {
			d.t.Fatal(err)
		}
	}
}

// mend ends that.
func (d *database) mend(shard, segno uint32) {
	d.t.Helper()
	table := segmentTable(shard, segno)
	if _, err := d.conn().Exec(d.t.Context(), "DROP VIEW "+table+"; ALTER TABLE kept_"+table+" RENAME TO "+table); err != nil {
		d.t.Fatal(err)
	}
}

// Rows that the database does not give are left out and reported, and the others are there, wherever in the segment they are and whether its disk
// or its tables are at fault. The table is kept, so that they are there again when it has been mended.
func TestUnreadableRows(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	e := d.store("a").mustOpen(t)
	var ids []mail.QueueID
	var pos []int
	for range 20 {
		id, err := put(t, e, "x")
		if err != nil {
			t.Fatal(err)
		}
		at, _ := e.Locate(id)
		ids, pos = append(ids, id), append(pos, int(at.Ref.Offset))
	}
	segno := e.home.head.segno
	e.Close()
	for _, test := range []struct {
		code string
		lost []int
	}{{dataCorrupted, []int{19, 18, 4}}, {ioError, []int{0, 7}}} {
		code, lost := test.code, test.lost
		where := "pos IN (-1"
		for _, i := range lost {
			where += fmt.Sprint(", ", pos[i])
		}
		d.spoil(1, segno, code, where+")")
		e = d.store("a").mustOpen(t)
		for i, id := range ids {
			if _, ok := e.Locate(id); ok == slices.Contains(lost, i) {
				t.Errorf("%s: message %d is there: %v", code, i, ok)
			}
		}
		if r := e.Recovery(); r.Exact || strings.Count(r.Report, "left out") != 2 || len(e.Reading()) != 0 {
			t.Errorf("%s: %+v", code, r)
		}
		b := e.NewBatch()
		for _, id := range ids {
			if _, ok := e.Locate(id); ok {
				b.Remove(id)
			}
		}
		if code == ioError {
			// Nothing of the segment is alive, and there are others.
			if err := e.Commit(b); err != nil {
				t.Fatal(err)
			}
			tidy(t, e)
		}
		e.Close()
		d.mend(1, segno)
	}
	e = d.store("a").mustOpen(t)
	for _, i := range []int{0, 7} {
		if _, ok := e.Locate(ids[i]); !ok {
			t.Errorf("message %d is gone", i)
		}
	}
}

// A shard whose newest rows the database does not give keeps no node from opening its queue with the others, though it was this node's. The log
// and the state of the cluster say so, new mail goes elsewhere, and when the tables have been mended it is read; what was in hand is in doubt.
func TestUnreadableShard(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 2)
	a := d.store("a").mustOpen(t)
	var ids []mail.QueueID
	for _, n := range []uint32{2, 1} {
		a.mu.Lock()
		a.home = a.shards[n]
		a.mu.Unlock()
		id, err := put(t, a, "x")
		if err = errors.Join(err, leave(a, id)); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	a.Close()
	d.spoil(1, 1, "XX000", "true")
	var mu sync.Mutex
	said := 0
	warn := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if text := fmt.Sprintf(format, args...); strings.Contains(text, "part 1 of the queue cannot be read to its end") && strings.Contains(text, "table seg_1_1") {
			said++
		}
	}
	found := make(chan storage.Recovery, 10)
	a = adopting(t, d, "a", 10, warn, func(_ *engine, r storage.Recovery) { found <- r })
	if got := a.Reading(); !slices.Equal(got, []int{1}) {
		t.Fatalf("being read: %v", got)
	}
	_, there := a.Locate(ids[0])
	_, early := a.Locate(ids[1])
	if !there || early || len(a.Recovery().InDoubt) != 0 {
		t.Errorf("%v, %v, %+v", there, early, a.Recovery())
	}
	id, err := put(t, a, "new")
	if en, _ := a.Locate(id); err != nil || en.Ref.File != 2 {
		t.Errorf("new mail: %+v, %v", en, err)
	}
	state := func() (why string) {
		st, err := d.store("look").Status(t.Context())
		if err != nil || st.Shards[1].Unread != "" {
			t.Fatalf("%+v, %v", st, err)
		}
		return st.Shards[0].Unread
	}
	if why := state(); !strings.Contains(why, "table seg_1_1: the database says: missing chunk (XX000)") {
		t.Errorf("the state of the cluster: %q", why)
	}
	d.mend(1, 1)
	testwait.Until(t, "it has been read", func() bool { return len(a.whole()) == 2 })
	if _, ok := a.Locate(ids[1]); !ok {
		t.Error("its mail is not there")
	}
	if r := <-found; len(r.InDoubt) != 1 || r.InDoubt[0].ID != ids[1] {
		t.Errorf("in doubt: %+v", r)
	}
	testwait.Until(t, "the state of the cluster is good", func() bool { return state() == "" })
	mu.Lock()
	defer mu.Unlock()
	if said != 1 {
		t.Errorf("the log says it %d times", said)
	}
}

// A table of which nothing can be read is not taken for one of lost rows.
func TestUnreadableTable(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a := d.store("a").mustOpen(t)
	b := a.NewBatch()
	for range maxGap + 1 {
		b.Add(message(t, a, "x"))
	}
	if err := a.Commit(b); err != nil {
		t.Fatal(err)
	}
	a.Close()
	d.spoil(1, 1, dataCorrupted, "true")
	a = d.store("a").mustOpen(t)
	if got := a.Reading(); !slices.Equal(got, []int{1}) || a.Recovery().Report != "" {
		t.Errorf("being read: %v, %+v", got, a.Recovery())
	}
	d.mend(1, 1)
	testwait.Until(t, "it has been read", func() bool { return len(a.whole()) == 1 })
	if n := len(seen(a)); n != maxGap+1 {
		t.Errorf("%d messages", n)
	}
	if list := d.named(); len(list) > 0 {
		t.Errorf("nothing is lost, and %d deliveries are in doubt, the first of them %s", len(list), list[0])
	}
}

// A fault of the database that concerns all shards is told of once, whoever meets it.
func TestRemindOnce(t *testing.T) {
	t.Parallel()
	said := 0
	e := &engine{coming: map[uint32]*shard{}}
	e.opt.Warn = func(string, ...any) { said++ }
	for i := range 64 {
		e.remind(errors.New("the way to it is cut"))
		e.leave(e.newReading(&taken{shard: shard{id: uint32(i)}}), errors.New("the way to it is cut"))
	}
	if said != 1 {
		t.Errorf("it is said %d times", said)
	}
}

// What a node says of a shard that it has lost does not take the place of what the owner says.
func TestUnreadableNoteOfFormerOwner(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a := d.store("a").mustOpen(t)
	former := a.newReading(&taken{shard: shard{id: 1, epoch: a.home.epoch - 1, segs: map[uint32]*segment{}}})
	own := a.newReading(&taken{shard: shard{id: 1, epoch: a.home.epoch, segs: map[uint32]*segment{}}})
	why := func() string {
		st, err := d.store("look").Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st.Shards[0].Unread
	}
	a.waits(own, errors.New("one thing"))
	a.waits(former, errors.New("another"))
	if got := why(); !strings.Contains(got, "one thing") {
		t.Errorf("the state of the cluster: %q", got)
	}
	former.t.bad = true
	a.readAll(former)
	if got := why(); got == "" {
		t.Error("the note of the owner is gone")
	}
}
