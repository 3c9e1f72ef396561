package pgspool

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
	"posthaste/internal/testwait"
)

// Whatever is changed in a row, by a defect of the database or by hand, is found before it is given out, and a
// start says what it concerns.
func TestDamage(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	e := d.store("a").mustOpen(t)
	conn := d.conn()
	rd := e.store.Reader()
	parts := message(t, e, "")
	f, err := e.NewFile()
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(f, strings.Repeat("x", partLen+1))
	parts.Content, parts.File = nil, f
	b := e.NewBatch()
	b.Add(parts)
	if err := e.Commit(b); err != nil {
		t.Fatal(err)
	}
	table := segmentTable(e.home.id, e.home.head.segno)
	set := func(column string, kind int) string {
		return "UPDATE " + table + " SET " + column + " = set_byte(" + column + ", octet_length(" + column + ") - 1, get_byte(" + column + ", octet_length(" + column + ") - 1) # 1) WHERE kind = " + string(rune('0'+kind))
	}
	for _, damage := range []string{set("body", rowMSG), set("rest", rowMSG), set("head", rowMSG), set("body", rowPART), set("head", rowPART)} {
		id, err := put(t, e, "some content")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(damage, "kind = 6") {
			id = parts.ID
		}
		if err := readAll(rd, e, id); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), damage); err != nil {
			t.Fatal(err)
		}
		if err := readAll(rd, e, id); !errors.Is(err, queue.ErrCorrupt) {
			t.Errorf("%s: %v", damage, err)
		}
		if _, err := conn.Exec(t.Context(), damage); err != nil { // which is how it was
			t.Fatal(err)
		}
		if err := readAll(rd, e, id); err != nil {
			t.Error(err)
		}
	}
	id, _ := put(t, e, "x")
	en, _ := e.Locate(id)
	if _, err := conn.Exec(t.Context(), set("head", rowMSG)); err != nil {
		t.Fatal(err)
	}
	e.Close()
	e = d.store("a").mustOpen(t)
	if r := e.Recovery(); !strings.Contains(r.Report, "is left out") {
		t.Errorf("a start does not tell of it: %+v", r)
	}
	// A table that is gone is damage, unless the cleaner has dropped it.
	if _, err := conn.Exec(t.Context(), "DROP TABLE "+table); err != nil {
		t.Fatal(err)
	}
	if _, err := rd.Read(en.Ref, id); !errors.Is(err, queue.ErrCorrupt) {
		t.Errorf("a missing table: %v", err)
	}
	if _, err := conn.Exec(t.Context(), "DELETE FROM segment"); err != nil {
		t.Fatal(err)
	}
	if _, err := rd.Read(en.Ref, id); !errors.Is(err, queue.ErrStale) {
		t.Errorf("a dropped segment: %v", err)
	}
}

// readAll reads everything of a message.
func readAll(rd storage.Reader, e *engine, id mail.QueueID) error {
	en, ok := e.Locate(id)
	if !ok {
		return queue.ErrStale
	}
	st, err := rd.Read(en.Ref, id)
	if err != nil {
		return err
	}
	c, err := st.Content()
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = io.Copy(io.Discard, c)
	return err
}

// A segment to which content is being written is not dropped, though nothing in it is alive yet.
func TestPinned(t *testing.T) {
	t.Parallel()
	st := newDatabase(t, newServer(t), 1).store("a")
	st.segmentSize = 1
	e := st.mustOpen(t)
	f, err := e.NewFile()
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(f, "content")
	_, p, err := e.uploadFile(f.(*file), 1)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // it is not the head any more
		if _, err := put(t, e, "x"); err != nil {
			t.Fatal(err)
		}
	}
	there := func() bool {
		e.mu.RLock()
		defer e.mu.RUnlock()
		return e.home.segs[p.seg] != nil
	}
	if tidy(t, e); !there() {
		t.Fatal("it has been dropped")
	}
	e.unpin(e.home, p.seg)
	if tidy(t, e); there() {
		t.Error("it is kept for ever")
	}
}

// The segment that a transaction writes to is not dropped either, when another has become the head meanwhile. It is so
// when content that was to fill the rest of it could not be stored.
func TestPinnedByTransaction(t *testing.T) {
	t.Parallel()
	e := newDatabase(t, newServer(t), 1).store("a").mustOpen(t)
	s, err := e.head(t.Context(), e.home, e.conn) // as the committer does; nothing else is under way
	if err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	s.bytes = e.store.segmentSize
	e.mu.Unlock()
	next, err := e.head(t.Context(), e.home, e.conn)
	if err != nil || next == s {
		t.Fatal(next, err)
	}
	if v := e.victim(e.home); v != nil {
		t.Fatalf("segment %d would be dropped", v.segno)
	}
	e.unpin(e.home, s.segno)
	if v := e.victim(e.home); v != s {
		t.Fatalf("%+v would be dropped", v)
	}
	e.unpin(e.home, next.segno)
	id, err := put(t, e, "x")
	if err != nil {
		t.Fatal(err)
	}
	b := e.NewBatch()
	b.Remove(id)
	if err := e.Commit(b); err != nil {
		t.Fatal(err)
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, s := range e.home.segs {
		if s.pins != 0 {
			t.Errorf("segment %d is kept for %d", s.segno, s.pins)
		}
	}
}

// A batch that cannot be stored leaves neither files nor pins behind.
func TestRefusedContent(t *testing.T) {
	t.Parallel()
	e := newDatabase(t, newServer(t), 1).store("a").mustOpen(t)
	b := e.NewBatch()
	var files []*file
	for range 2 {
		m := message(t, e, "")
		f, err := e.NewFile()
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(f, "content")
		m.Content, m.File = nil, f
		b.Add(m)
		files = append(files, f.(*file))
	}
	files[1].f.Close() // it cannot be read
	if err := e.Commit(b); !errors.Is(err, queue.ErrUnstored) {
		t.Fatal(err)
	}
	if files[0].f != nil || e.home.head.pins != 0 {
		t.Errorf("%v, %d", files[0].f, e.home.head.pins)
	}
}

// A segment whose table is missing, since the answer to its end did not come, does not end the cleaning of the others.
func TestDroppedAlready(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	st := d.store("a")
	st.segmentSize = 1
	e := st.mustOpen(t)
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
	if _, err := d.conn().Exec(t.Context(), dropSegment(e.home.id, 2)); err != nil {
		t.Fatal(err)
	}
	tidy(t, e)
	if _, _, n := e.space(); n > 2 {
		t.Errorf("%d segments", n)
	}
}

// Also who has found a shard free, and comes too late, does not get it: the lease is looked at once more when
// the row is locked.
func TestTakeLate(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a, b := d.store("a"), d.store("b")
	if err := b.register(t.Context(), d.conn()); err != nil {
		t.Fatal(err)
	}
	e := a.mustOpen(t)
	if got, err := b.take(t.Context(), d.conn(), 1); got != nil || err != nil {
		t.Fatalf("%+v, %v", got, err)
	}
	e.stop()
	var got *taken
	testwait.Until(t, "it is free", func() (ok bool) {
		d.expire() // again: a renewal may have been under way
		var err error
		if got, err = b.take(t.Context(), d.conn(), 1); err != nil {
			t.Fatal(err)
		}
		return got != nil
	})
	if got.from != "a" {
		t.Errorf("%+v", got)
	}
}

// A row of which the database cannot read a part, as when its disk has lost a block, is left out by itself: what is read together with
// it is not taken for damaged.
func TestUnreadableRow(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	e := d.store("a").mustOpen(t)
	var pos []int64
	want := map[uint64]bool{}
	for i := range 20 {
		id, err := put(t, e, "x")
		if err != nil {
			t.Fatal(err)
		}
		at, _ := e.Locate(id)
		if pos = append(pos, int64(at.Ref.Offset)); i != 3 {
			want[number(id)] = true
		}
	}
	conn := d.conn()
	p := rowAt{e.home.id, e.home.head.segno}
	e.Close()
	table := segmentTable(p.shard, p.seg)
	for _, sql := range []string{
		"CREATE FUNCTION lost() RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RAISE 'missing chunk' USING ERRCODE = 'XX001'; END $$",
		"ALTER TABLE " + table + " RENAME TO kept",
		fmt.Sprintf("CREATE VIEW %s AS SELECT pos, kind, number, head, CASE pos WHEN %d THEN lost() ELSE rest END AS rest, body FROM kept", table, pos[3]),
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	got := map[uint64]bool{}
	// What the index does not give is there without it.
	if _, err := conn.Exec(t.Context(), "CREATE VIEW unindexed AS SELECT * FROM kept WHERE current_setting('enable_indexscan') = 'off'; ALTER VIEW "+table+" RENAME TO spoilt; ALTER VIEW unindexed RENAME TO "+table); err != nil {
		t.Fatal(err)
	}
	all := map[uint64]bool{}
	if err := readRows(t.Context(), conn, p, pos, func(r *row) { all[r.number] = true }, func(err error) { t.Error(err) }); err != nil || len(all) != len(pos) {
		t.Errorf("%d rows without the index, want %d: %v", len(all), len(pos), err)
	}
	if _, err := conn.Exec(t.Context(), "DROP VIEW "+table+"; ALTER VIEW spoilt RENAME TO "+table); err != nil {
		t.Fatal(err)
	}
	lost := 0
	if err := readRows(t.Context(), conn, p, pos, func(r *row) { got[r.number] = true }, func(error) { lost++ }); err != nil || !maps.Equal(got, want) || lost != 1 {
		t.Errorf("%d rows, want %d, %d lost: %v", len(got), len(want), lost, err)
	}
}
