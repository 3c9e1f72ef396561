package pgspool

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
	"posthaste/internal/testservers"
	"posthaste/internal/testwait"
)

// keepIndex returns what makes an index an older version of itself, as it is now, and starts the server again: so it is when the disk has lost
// what was written since. The index is whole by itself, and the server notices nothing. index is its OID in SQL.
func keepIndex(t *testing.T, s *testservers.Server, d *database, index string) (restore func()) {
	t.Helper()
	var name string
	if err := d.conn().QueryRow(t.Context(), "SELECT pg_relation_filepath(("+index+"))").Scan(&name); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.Socket, "data", name)
	s.Load("CHECKPOINT;")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		s.Stop()
		if err := os.WriteFile(path, old, 0o600); err != nil {
			t.Fatal(err)
		}
		s.Start()
	}
}

// addMany adds so many messages in one transaction.
func addMany(t *testing.T, e *engine, n int, content string) (ids []mail.QueueID) {
	t.Helper()
	b := e.NewBatch()
	for range n {
		m := message(t, e, content)
		ids = append(ids, m.ID)
		b.Add(m)
	}
	persist(t, e, b)
	return ids
}

// persist commits, and tries again when the machine has been too slow for the lease.
func persist(t *testing.T, e *engine, b storage.Batch) {
	t.Helper()
	testwait.Until(t, "mail is taken", func() bool {
		err := e.Commit(b)
		if err != nil && !errors.Is(err, queue.ErrSilent) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// removeAll has messages leave the queue.
func removeAll(t *testing.T, e *engine, ids []mail.QueueID) {
	t.Helper()
	b := e.NewBatch()
	for _, id := range ids {
		b.Remove(id)
	}
	if err := e.Commit(b); err != nil {
		t.Fatal(err)
	}
}

// An index that lacks rows in silence takes no mail: a takeover finds out before anything of the table is given out, and reads it without the index. Nothing that was
// acknowledged is missing, nothing that has left is there again, the table is kept, and whoever asks is told.
func TestShortIndex(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	d := newDatabase(t, s, 1)
	e := d.store("a").mustOpen(t)
	early := addMany(t, e, 500, "some content")
	restore := keepIndex(t, s, d, "'seg_1_1_pkey'::regclass")
	late := addMany(t, e, 500, "some content")
	if err := leave(e, early[7]); err != nil {
		t.Fatal(err)
	}
	removeAll(t, e, slices.Concat(early[10:20], late[10:20]))
	e.Close()
	restore()
	d.expire()
	st := d.store("b")
	st.page = 100
	e = st.mustOpen(t)
	testwait.Until(t, "all has been read", func() bool { return len(e.whole()) == 1 })
	there := slices.Concat(early[:10], early[20:], late[:10], late[20:])
	if n := len(seen(e)); n != len(there) {
		t.Errorf("%d messages, want %d", n, len(there))
	}
	if len(e.InHand(early[7], []int{0})) == 0 {
		t.Error("what was in hand is forgotten")
	}
	for _, id := range []mail.QueueID{early[0], late[499]} {
		if err := readAll(st.Reader(), e, id); err != nil {
			t.Errorf("content: %v", err)
		}
	}
	if list, _, err := st.Reader().(storage.Viewer).View(t.Context(), 1, 0, 0, 2000); err != nil || len(list) != len(there) {
		t.Errorf("a view has %d messages: %v", len(list), err)
	}
	if list := d.damagedIndexes(); len(list) != 1 || !strings.Contains(list[0].Why, "it has 500, and the table 1021") {
		t.Errorf("the state of the cluster: %+v", list)
	}
	removeAll(t, e, there)
	if tidy(t, e); e.Err() != nil || e.home.segs[1] == nil {
		t.Errorf("%v; the table is there: %v", e.Err(), e.home.segs[1] != nil)
	}
	e.Close()
	s.Load("REINDEX DATABASE mail;")
	e = d.store("b").mustOpen(t)
	if tidy(t, e); len(d.damagedIndexes()) != 0 || e.home.segs[1] != nil {
		t.Errorf("with a new index: %+v; the table is there: %v", d.damagedIndexes(), e.home.segs[1] != nil)
	}
}

// Which tables there are is read without an index, too.
func TestShortIndexOfSegments(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	d := newDatabase(t, s, 1)
	st := d.store("a")
	st.segmentSize = 1
	e := st.mustOpen(t)
	addMany(t, e, 1, "x")
	restore := keepIndex(t, s, d, "'segment_pkey'::regclass")
	addMany(t, e, 1, "x")
	addMany(t, e, 1, "x")
	e.Close()
	restore()
	e = d.store("a").mustOpen(t)
	if n := len(seen(e)); n != 3 {
		t.Errorf("%d messages", n)
	}
	if list, _, err := st.Reader().(storage.Viewer).View(t.Context(), 1, 0, 0, 10); err != nil || len(list) != 3 {
		t.Errorf("a view has %d messages: %v", len(list), err)
	}
	addMany(t, e, 1, "new")
}

// A table that the server does not find by its name, since the index of its list of tables lacks it, is not taken for dropped: the shard waits until that is mended.
func TestHiddenTable(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	d := newDatabase(t, s, 1)
	e := d.store("a").mustOpen(t)
	restore := keepIndex(t, s, d, "'pg_class_relname_nsp_index'::regclass")
	id := addMany(t, e, 1, "x")[0]
	e.Close()
	restore()
	e = d.store("a").mustOpen(t)
	if got := e.Reading(); !slices.Equal(got, []int{1}) || e.Recovery().Report != "" {
		t.Errorf("being read: %v, %+v", got, e.Recovery())
	}
	status, err := d.store("look").Status(t.Context())
	if err != nil || !strings.Contains(status.Shards[0].Unread, "REINDEX TABLE pg_class") {
		t.Errorf("the state of the cluster: %+v, %v", status, err)
	}
	s.Load("REINDEX TABLE pg_class;")
	testwait.Until(t, "it has been read", func() bool { return len(e.whole()) == 1 })
	if err := readAll(e.store.Reader(), e, id); err != nil {
		t.Errorf("content: %v", err)
	}
}

// Long content that the database does not give, since the index of the table beside it is damaged, stays where it is: its messages cannot be read for now, and are not taken for
// damaged, others are read, the queue goes on, and when the index has been made anew all is as before.
func TestDamagedIndexOfContent(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	d := newDatabase(t, s, 1)
	st := d.store("a")
	st.segmentSize = 1 << 20
	e := st.mustOpen(t)
	long := strings.Repeat("0123456789abcde\n", 512) // too long for the row itself
	early := addMany(t, e, 20, long)
	restore := keepIndex(t, s, d, "SELECT indexrelid FROM pg_index JOIN pg_class ON reltoastrelid = indrelid WHERE pg_class.oid = 'seg_1_1'::regclass")
	late := addMany(t, e, 20, long)
	short := addMany(t, e, 200, "some content")
	e.Close()
	restore()
	d.expire()
	e = d.store("b").mustOpen(t)
	testwait.Until(t, "all has been read", func() bool { return len(e.whole()) == 1 })
	all := slices.Concat(early, late, short)
	if n := len(seen(e)); n != len(all) || e.Recovery().Report != "" {
		t.Errorf("%d messages, want %d; %+v", n, len(all), e.Recovery())
	}
	rd := e.store.Reader()
	for i, id := range all {
		if err := readAll(rd, e, id); errors.Is(err, queue.ErrUnread) != (i >= 20 && i < 40) || err != nil && !errors.Is(err, queue.ErrUnread) {
			t.Errorf("message %d: %v", i, err)
		}
	}
	stateOf(t, e, late[0])
	e.mu.Lock()
	e.home.head = nil // so that the table is one that can be cleaned
	e.mu.Unlock()
	removeAll(t, e, slices.Concat(early, short))
	e.mu.RLock()
	victim := e.home.segs[1]
	e.mu.RUnlock()
	if err := e.order(&copying{shard: e.home, victim: 1, numbers: []uint64{number(late[0]), number(late[1])}}); !isOfTable(err) || e.Err() != nil || victim == nil {
		t.Errorf("cleaned: %v; %v", err, e.Err())
	}
	s.Load("REINDEX DATABASE mail;")
	for i, id := range late {
		if err := readAll(rd, e, id); err != nil {
			t.Errorf("with a new index: message %d: %v", i, err)
		}
	}
}
