package pgspool

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/storage"
)

// A damaged index takes no mail: what it does not give is read without it, and so is content. Whoever asks how the cluster stands hears of it, the
// table is kept, and when the index has been made anew all is as before.
func TestDamagedIndex(t *testing.T) {
	t.Parallel()
	// The second one is a server that goes on with the plan of a statement that it has made once, as it does with one that is used often.
	for _, setting := range []string{"plan_cache_mode=auto", "plan_cache_mode=force_generic_plan"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			damagedIndex(t, setting)
		})
	}
}

func damagedIndex(t *testing.T, setting string) {
	s := newServer(t, setting)
	d := newDatabase(t, s, 1)
	e := d.store("a").mustOpen(t)
	b := e.NewBatch()
	var ids []mail.QueueID
	for range 1000 {
		m := message(t, e, "some content")
		ids = append(ids, m.ID)
		b.Add(m)
	}
	if err := e.Commit(b); err != nil {
		t.Fatal(err)
	}
	if err := leave(e, ids[0]); err != nil {
		t.Fatal(err)
	}
	var path string
	if err := d.conn().QueryRow(t.Context(), "SELECT pg_relation_filepath('seg_1_1_pkey')").Scan(&path); err != nil {
		t.Fatal(err)
	}
	e.Close()
	s.Stop()
	f, err := os.OpenFile(filepath.Join(s.Socket, "data", path), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 8192), 8192) // the first page of its entries; the root and others are behind it
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	s.Start()
	st := d.store("a")
	st.page = 100 // so few are read by the index
	e = st.mustOpen(t)
	for _, id := range ids[:7] { // what the committer reads, too
		stateOf(t, e, id)
	}
	if n, r := len(seen(e)), e.Recovery(); n != len(ids) || r.Report != "" || !r.Exact || len(e.Reading()) > 0 {
		t.Errorf("%d messages, %+v, being read: %v", n, r, e.Reading())
	}
	for _, id := range []mail.QueueID{ids[0], ids[999]} {
		if err := readAll(st.Reader(), e, id); err != nil {
			t.Errorf("content: %v", err)
		}
	}
	if list, _, err := st.Reader().(storage.Viewer).View(t.Context(), 1, 0, 0, 2000); err != nil || len(list) != len(ids) {
		t.Errorf("a view has %d messages: %v", len(list), err)
	}
	if list := d.damagedIndexes(); len(list) != 1 || !strings.HasSuffix(list[0].Table, ".seg_1_1") || !strings.Contains(list[0].Why, "XX00") {
		t.Errorf("the state of the cluster: %+v", list)
	}
	b = e.NewBatch()
	for _, id := range ids[1:] {
		b.Remove(id)
	}
	if err := e.Commit(b); err != nil {
		t.Fatal(err)
	}
	if tidy(t, e); e.Err() != nil || e.home.segs[1] == nil {
		t.Errorf("%v; the table is there: %v", e.Err(), e.home.segs[1] != nil)
	}
	e.Close()
	conn := d.conn()
	for _, sql := range []string{"SET search_path = public", "REINDEX TABLE " + d.damagedIndexes()[0].Table} { // as a person would type it
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	e = d.store("a").mustOpen(t)
	if list := d.damagedIndexes(); len(list) != 0 {
		t.Errorf("with a new index: %+v", list)
	}
	if tidy(t, e); e.home.segs[1] != nil {
		t.Error("the table is kept with a new index, too")
	}
}

// Of a damaged index the server also says that something is wrong with itself.
func TestDamagedIndexInternal(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	e := d.store("a").mustOpen(t)
	id, err := put(t, e, "x")
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	d.spoil(1, 1, "XX000", "current_setting('enable_indexscan') = 'on'")
	e = d.store("a").mustOpen(t)
	if _, ok := e.Locate(id); !ok || len(e.Reading()) > 0 || !e.home.segs[1].unindexed {
		t.Errorf("it is there: %v, being read: %v", ok, e.Reading())
	}
	if err := readAll(e.store.Reader(), e, id); err != nil {
		t.Errorf("content: %v", err)
	}
}
