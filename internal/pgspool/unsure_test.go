package pgspool

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// named lists the messages and recipients that are named as doubtful.
func (d *database) named() (list []string) {
	d.t.Helper()
	if err := d.store("look").EachDoubt(d.t.Context(), func(x *Doubt) error {
		list = append(list, fmt.Sprintf("%s %d lost=%v shard=%d", x.ID, x.Recipient, x.Lost, x.Shard))
		return nil
	}); err != nil {
		d.t.Fatal(err)
	}
	slices.Sort(list)
	return list
}

// delivered has the first recipient of a message in hand of an agent, and then done; last is the position of the record of that.
func delivered(t *testing.T, e *engine, id mail.QueueID) (last uint32) {
	t.Helper()
	b := e.NewBatch()
	b.Done(id, []int{0})
	if err := leave(e, id); err != nil {
		t.Fatal(err)
	}
	if err := e.Commit(b); err != nil {
		t.Fatal(err)
	}
	return e.home.head.next - 1
}

// A lost record may have said that a message was delivered, or was in hand: whatever may be delivered twice because of it is named as doubtful before, and
// so are all messages that it may have been about, when nothing says which it was. What is newer than the lost record is not named, nor is what has left.
func TestLostRecords(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoilt string   // what is lost, of rows that the database does not give: %s are their positions
		want   []string // of the messages: "old" that has a record lost, "idle" that is as old, "new" that is newer
	}{
		"whose it was is known":         {"CASE WHEN pos IN (%s) THEN lost() ELSE head END", []string{"old 0", "old 1"}},
		"whose it was is not known":     {"", []string{"idle 0", "idle 1", "old 0", "old 1"}},
		"what the records say is wrong": {"CASE WHEN pos IN (%s) THEN set_byte(head, 4, get_byte(head, 4) # 1) ELSE head END", []string{"idle 0", "idle 1", "old 0", "old 1"}},
	} {
		d := newDatabase(t, newServer(t), 1)
		e := d.store("a").mustOpen(t)
		ids := map[string]mail.QueueID{}
		add := func(name string) {
			id, err := put(t, e, "x")
			if err != nil {
				t.Fatal(err)
			}
			ids[name] = id
		}
		for _, name := range []string{"gone", "idle", "old", "early"} {
			add(name)
		}
		last := delivered(t, e, ids["old"])
		stateOf(t, e, ids["early"]) // it is newer than what is lost
		b := e.NewBatch()
		b.Remove(ids["gone"])
		if err := e.Commit(b); err != nil {
			t.Fatal(err)
		}
		add("new")
		segno := e.home.head.segno
		e.Close()
		spoil := spoilView
		lost := fmt.Sprint(last-1, ",", last)
		if test.spoilt != "" {
			d.spoil(1, segno, dataCorrupted, "false")
			spoil = fmt.Sprintf("CREATE OR REPLACE VIEW seg_1_%d AS SELECT pos, kind, number, "+test.spoilt+" AS head, rest, body FROM kept_seg_1_%d", segno, lost, segno)
		} else {
			d.spoil(1, segno, dataCorrupted, "false")
			spoil = fmt.Sprintf(spoil, segno, lost, segno)
		}
		if _, err := d.conn().Exec(t.Context(), spoil); err != nil {
			t.Fatal(err)
		}
		d.expire()
		var want []string
		for _, w := range test.want {
			var who string
			var rcpt int
			fmt.Sscan(w, &who, &rcpt)
			want = append(want, fmt.Sprintf("%s %d lost=true shard=0", ids[who], rcpt))
		}
		slices.Sort(want)
		for i, node := range []string{"b", "a"} { // the second one finds the same, and names nothing anew
			d.expire()
			b := d.store(node).mustOpen(t)
			if got := d.named(); !slices.Equal(got, want) {
				t.Errorf("%s: doubtful are\n%q, want\n%q", name, got, want)
			}
			told := 0
			for _, x := range b.Recovery().InDoubt {
				if x.Kind == queue.DoubtLost {
					told += len(x.Rcpts)
				}
			}
			if told != len(want)*(1-i) {
				t.Errorf("%s: %s: %d recipients are reported: %+v", name, node, told, b.Recovery())
			}
			b.Close()
		}
	}
}

// spoilView is a table of which some rows are lost altogether.
const spoilView = `CREATE OR REPLACE VIEW seg_1_%d AS SELECT pos, CASE WHEN pos IN (%s) THEN octet_length(lost())::smallint ELSE kind END AS kind, number, head, rest, body FROM kept_seg_1_%d`

// That a message has ended is not believed of a record that is not whole: it may be another message's, which nobody would hear of again. The message
// that it seems to be about is given out again, and is in doubt.
func TestLostEnd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(d *database, other mail.QueueID)
		named int // recipients; each message has two
	}{
		"the database does not give it": {func(d *database, _ mail.QueueID) { d.spoil(1, 1, dataCorrupted, fmt.Sprint("kind = ", rowGONE)) }, 2},
		"it is another message's": {func(d *database, other mail.QueueID) {
			if _, err := d.conn().Exec(d.t.Context(), "UPDATE seg_1_1 SET number = $1 WHERE kind = $2", int64(number(other)), rowGONE); err != nil {
				d.t.Fatal(err)
			}
		}, 4},
	} {
		d := newDatabase(t, newServer(t), 1)
		e := d.store("a").mustOpen(t)
		other, err := put(t, e, "x")
		if err != nil {
			t.Fatal(err)
		}
		id, err := put(t, e, "x")
		if err != nil {
			t.Fatal(err)
		}
		b := e.NewBatch()
		b.Remove(id)
		if err := e.Commit(b); err != nil {
			t.Fatal(err)
		}
		e.Close()
		test.spoil(d, other)
		if list, _, err := e.store.Reader().(storage.Viewer).View(t.Context(), 1, 0, 0, 10); err == nil && !slices.ContainsFunc(list, func(v storage.Viewed) bool { return v.ID == other }) {
			t.Errorf("%s: a view has %+v", name, list)
		}
		e = d.store("a").mustOpen(t)
		named := strings.Join(d.named(), "\n")
		if _, ok := e.Locate(other); !ok {
			t.Errorf("%s: the other message is gone", name)
		}
		if strings.Count(named, "lost=true") != test.named {
			t.Errorf("%s: doubtful are\n%s", name, named)
		}
	}
}

// With more messages than can be named, and with a table that is missing, one row stands for those that are not.
func TestLostRecordsOfMany(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	st := d.store("a")
	st.segmentSize = 1
	e := st.mustOpen(t)
	for range 5 {
		if _, err := put(t, e, "x"); err != nil {
			t.Fatal(err)
		}
	}
	e.Close()
	if _, err := d.conn().Exec(t.Context(), "DROP TABLE seg_1_5"); err != nil {
		t.Fatal(err)
	}
	st = d.store("a")
	st.unsure, st.page = 4, 1
	e = st.mustOpen(t)
	got := map[string]int{}
	if err := d.store("look").EachDoubt(t.Context(), func(x *Doubt) error {
		got[fmt.Sprintf("lost=%v shard=%d", x.Lost, x.Shard)]++
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := map[string]int{"lost=true shard=0": 4, "lost=true shard=1": 1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v; %+v", got, want, e.Recovery())
	}
	var r storage.Recovery = e.Recovery()
	if len(r.InDoubt) != 2 || r.Exact {
		t.Errorf("%+v", r)
	}
	e.Close()
	st.mustOpen(t)
	if n := strings.Count(strings.Join(d.named(), "\n"), "shard=1"); n != 1 {
		t.Errorf("%d rows stand for the others when the shard has been read once more", n)
	}
}
