package pgspool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
)

// A connection that is lost while rows are left out does not make them forgotten: when it goes on, they are told of, and their table is kept.
func TestGapKept(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	e := d.store("a").mustOpen(t)
	var pos []int
	for range 8 {
		id, err := put(t, e, "x")
		if err != nil {
			t.Fatal(err)
		}
		at, _ := e.Locate(id)
		pos = append(pos, int(at.Ref.Offset))
	}
	segno := e.home.head.segno
	table := segmentTable(1, segno)
	conn := d.conn()
	e.Close()
	// It is read as by the next process.
	next := &engine{store: e.store, opt: e.opt, idx: newIndex()}
	r := next.newReading(&taken{shard: shard{id: 1, epoch: e.home.epoch, segs: map[uint32]*segment{}}})
	for _, sql := range []string{
		"SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off", // as with a table that is not as short
		"CREATE FUNCTION lost(code text) RETURNS bytea STABLE LANGUAGE plpgsql AS $$ BEGIN RAISE 'missing chunk' USING ERRCODE = code; END $$",
		"ALTER TABLE " + table + " RENAME TO kept",
		fmt.Sprintf("CREATE VIEW %s AS SELECT pos, kind, number, CASE WHEN pos = %d THEN lost('XX001') WHEN pos = %d AND current_setting('enable_indexscan') = 'on' THEN lost('57P01') ELSE head END AS head, rest, body FROM kept", table, pos[5], pos[4]),
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.begin(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if _, err := r.next(t.Context(), conn); sqlState(err) != "57P01" {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), fmt.Sprintf("CREATE OR REPLACE VIEW %s AS SELECT pos, kind, number, CASE pos WHEN %d THEN lost('XX001') ELSE head END AS head, rest, body FROM kept", table, pos[5])); err != nil {
		t.Fatal(err)
	}
	a, err := r.next(t.Context(), conn)
	if err != nil || !a.last || a.idx.n != 7 {
		t.Fatalf("%+v, %v", a, err)
	}
	if !r.lost || !r.t.segs[segno].lost || len(r.damage) != 1 {
		t.Errorf("lost %v, kept %v, %q", r.lost, r.t.segs[segno].lost, r.damage)
	}
}

// Tables that are kept since rows of them are lost take no part in what the cleaner decides by: the others are not copied round and round.
func TestKeptTablesBesideCleaning(t *testing.T) {
	t.Parallel()
	st := newDatabase(t, newServer(t), 1).store("a")
	st.segmentSize = 1000
	e := st.mustOpen(t)
	for range 3 * slack {
		if _, err := put(t, e, strings.Repeat("x", 1000)); err != nil {
			t.Fatal(err)
		}
	}
	e.mu.Lock()
	n := 0
	for _, s := range e.home.segs {
		if s != e.home.head && n < 2*slack {
			s.lost, s.live = true, 0
			n++
		}
	}
	e.mu.Unlock()
	if v := e.victim(e.home); v != nil {
		t.Errorf("%+v is to be emptied", v)
	}
}

// A row of long content that the database does not give is left out with its message, whatever is at fault.
func TestUnreadableLong(t *testing.T) {
	t.Parallel()
	for _, code := range []string{dataCorrupted, ioError} {
		d := newDatabase(t, newServer(t), 1)
		st := d.store("a")
		st.segmentSize = 1
		e := st.mustOpen(t)
		m := addLong(t, e)
		at, _ := e.Locate(m.ID)
		segno := uint32(at.Ref.Segno)
		other, err := put(t, e, "x")
		if err != nil {
			t.Fatal(err)
		}
		if err := leave(e, m.ID); err != nil {
			t.Fatal(err)
		}
		b := e.NewBatch()
		b.Done(m.ID, []int{1})
		if err := e.Commit(b); err != nil {
			t.Fatal(err)
		}
		stateOf(t, e, m.ID)
		e.Close()
		d.spoil(1, segno, code, fmt.Sprint("kind = ", rowMSG))
		e = d.store("a").mustOpen(t)
		if got := e.Reading(); len(got) != 0 {
			t.Errorf("%s: being read: %v", code, got)
		}
		if _, ok := e.Locate(other); !ok {
			t.Errorf("%s: the other is not there", code)
		}
	}
}

func stateOf(t *testing.T, e *engine, id mail.QueueID) {
	t.Helper()
	b := e.NewBatch()
	b.Update(id, queue.Change{Set: queue.SetQueue | queue.SetAttempts, Queue: queue.Deferred, Attempts: 1})
	if err := e.Commit(b); err != nil {
		t.Fatal(err)
	}
}

// A block of a table that is lost takes the rows of that block with it, and no others.
func TestLostBlock(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	d := newDatabase(t, s, 2)
	e := d.store("a").mustOpen(t)
	conn := d.conn()
	lost := map[string]int64{} // blocks of files
	for id, n := range map[uint32]int{1: 100, 2: 20} {
		e.mu.Lock()
		e.home = e.shards[id]
		e.mu.Unlock()
		b := e.NewBatch()
		for range n {
			b.Add(message(t, e, strings.Repeat("y", 800)))
		}
		if err := e.Commit(b); err != nil {
			t.Fatal(err)
		}
		var path string
		if err := conn.QueryRow(t.Context(), "SELECT pg_relation_filepath($1::regclass)", segmentTable(id, 1)).Scan(&path); err != nil {
			t.Fatal(err)
		}
		lost[path] = 1
	}
	e.Close()
	s.Stop()
	for path, block := range lost {
		f, err := os.OpenFile(filepath.Join(s.Socket, "data", path), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 8192), 8192*block)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	s.Start()
	e = d.store("a").mustOpen(t)
	if n := len(seen(e)); n < 100 || n > 110 || len(e.Reading()) > 0 {
		t.Errorf("%d messages, being read: %v", n, e.Reading())
	}
}
