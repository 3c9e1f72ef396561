package pgspool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
)

// exec carries statements out.
func (d *database) exec(list ...string) {
	d.t.Helper()
	conn := d.conn()
	for _, sql := range list {
		if _, err := conn.Exec(d.t.Context(), sql); err != nil {
			d.t.Fatal(err)
		}
	}
}

// flip changes the last octet of a column, and changes it back the next time.
func flip(column string) string {
	return fmt.Sprintf("UPDATE seg_1_1 SET %s = set_byte(%[1]s, octet_length(%[1]s) - 1, get_byte(%[1]s, octet_length(%[1]s) - 1) # 1) WHERE kind = %d", column, rowMSG)
}

// Of a record that is not whole nobody knows that it is not needed: its table is kept, both when it is read and when it is cleaned, and nothing of it is written again
// under a checksum that it has not.
func TestDamagedRecordKept(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, column := range []string{"rest", "head"} {
		d, e, id := spoilt(t, s, t.Logf)
		d.exec(flip(column))
		tidy(t, e)
		if err := readAll(e.store.Reader(), e, id); !errors.Is(err, queue.ErrCorrupt) {
			t.Errorf("%s: when it is damaged: %v", column, err)
		}
		e.mu.RLock()
		if e.err != nil || e.home.segs[1] == nil {
			t.Errorf("%s: cleaned: %v; the table is there: %v", column, e.err, e.home.segs[1] != nil)
		}
		e.mu.RUnlock()
		e.Close()
		e = e.store.mustOpen(t)
		tidy(t, e)
		e.Close()
		d.exec(flip(column))
		e = e.store.mustOpen(t)
		if err := readAll(e.store.Reader(), e, id); err != nil {
			t.Errorf("%s: when it is whole again: %v", column, err)
		}
	}
}

// While it is not known where the long content of a message is no table is cleaned away that may have it.
func TestUnknownPlaceKept(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	st := d.store("a")
	st.segmentSize = 1
	e := st.mustOpen(t)
	m := addLong(t, e)
	stateOf(t, e, m.ID)
	addMany(t, e, 1, "x") // the state is in a segment that is the head no more
	e.mu.RLock()
	at, l := e.idx.big[number(m.ID)], *e.idx.find(number(m.ID))
	e.mu.RUnlock()
	if at.seg == l.msgSeg || l.msgSeg == l.refSeg {
		t.Fatalf("content, record and state are in %d, %d, %d", at.seg, l.msgSeg, l.refSeg)
	}
	e.Close()
	d.spoil(1, l.msgSeg, dataCorrupted, fmt.Sprint("kind = ", rowMSG))
	e = st.mustOpen(t)
	if tidy(t, e); !strings.Contains(e.Recovery().Report, "says where its content is cannot be read") {
		t.Errorf("%+v", e.Recovery())
	}
	e.Close()
	d.mend(1, l.msgSeg)
	e = st.mustOpen(t)
	if err := readAll(st.Reader(), e, m.ID); err != nil {
		t.Errorf("when it can be read again: %v", err)
	}
}

// What the database does not give of one message ends the queue for no other, whatever it says of it.
func TestUnreadableEnvelope(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, code := range []string{dataCorrupted, "XX000", "58P01"} {
		d := newDatabase(t, s, 1)
		e := d.store("a").mustOpen(t)
		ids := addMany(t, e, 3, "x")
		at, _ := e.Locate(ids[1])
		e.Close()
		e = d.store("a").mustOpen(t) // it remembers no envelopes
		d.spoil(1, 1, code, "false")
		d.exec(fmt.Sprintf("CREATE OR REPLACE VIEW seg_1_1 AS SELECT pos, kind, number, head, CASE pos WHEN %d THEN lost() ELSE rest END AS rest, body FROM kept_seg_1_1", at.Ref.Offset))
		b := e.NewBatch()
		for _, id := range ids {
			b.Update(id, queue.Change{Set: queue.SetAttempts, Attempts: 1})
		}
		if err := e.Commit(b); err != nil || e.Err() != nil {
			t.Errorf("%s: %v; %v", code, err, e.Err())
		}
		for i, id := range []mail.QueueID{ids[0], ids[2]} {
			if err := readAll(e.store.Reader(), e, id); err != nil {
				t.Errorf("%s: message %d: %v", code, 2*i, err)
			}
		}
		d.mend(1, 1)
		if err := readAll(e.store.Reader(), e, ids[1]); err != nil {
			t.Errorf("%s: when it is given again: %v", code, err)
		}
	}
}

// A row that is read without the index before the database comes to what is damaged behind it is not lost.
func TestRescuedBeforeDamage(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	e := d.store("a").mustOpen(t)
	ids := addMany(t, e, 5, "x")
	at, _ := e.Locate(ids[2])
	e.Close()
	d.spoil(1, 1, dataCorrupted, "false")
	d.exec("CREATE FUNCTION block() RETURNS SETOF kept_seg_1_1 VOLATILE LANGUAGE plpgsql AS $$ BEGIN IF current_setting('enable_indexscan') = 'off' THEN PERFORM lost(); END IF; END $$",
		fmt.Sprintf("CREATE OR REPLACE VIEW seg_1_1 AS SELECT pos, kind, number, CASE WHEN pos = %d AND current_setting('enable_indexscan') = 'on' THEN lost() ELSE head END AS head, rest, body FROM kept_seg_1_1 UNION ALL SELECT * FROM block()", at.Ref.Offset))
	e = d.store("a").mustOpen(t)
	if n, r := len(seen(e)), e.Recovery(); n != 5 || r.Report != "" || !r.Exact {
		t.Errorf("%d messages, %+v", n, r)
	}
	if list := d.named(); len(list) > 0 {
		t.Errorf("in doubt: %q", list)
	}
}

// A cutting is a connection that is lost once, when the database has committed what is in doubt and before it can say so.
type cutting struct {
	net.Conn
	left *atomic.Int32
	said bool // what is in doubt
}

func (c *cutting) Write(p []byte) (int, error) {
	c.said = c.said || bytes.Contains(p, []byte("INSERT INTO doubtful"))
	n, err := c.Conn.Write(p)
	if err == nil && c.said && bytes.Contains(p, []byte("COMMIT")) && c.left.Add(-1) >= 0 {
		_, err = c.Conn.Read(make([]byte, 1<<10)) // it has
		c.Close()
	}
	return n, err
}

// What is in doubt because of lost records cleanup hears of, also when the end of the transaction is not known that noted it.
func TestLostRecordsTold(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	e := d.store("a").mustOpen(t)
	id := addMany(t, e, 1, "x")[0]
	delivered(t, e, id)
	e.Close()
	d.exec(fmt.Sprintf("UPDATE seg_1_1 SET head = set_byte(head, 4, get_byte(head, 4) # 1) WHERE kind IN (%d, %d)", rowDONE, rowHANDED))
	d.expire()
	var left atomic.Int32
	left.Store(1)
	st := d.store("b")
	plain := st.config.DialFunc
	st.config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := plain(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &cutting{Conn: conn, left: &left}, nil
	}
	e = st.mustOpen(t)
	if r := e.Recovery(); left.Load() > 0 || len(r.InDoubt) != 1 || r.InDoubt[0].Kind != queue.DoubtLost || len(r.InDoubt[0].Rcpts) != 2 {
		t.Errorf("%d; %+v", left.Load(), r)
	}
	e.Close()
	if e = st.mustOpen(t); len(e.Recovery().InDoubt) != 0 {
		t.Errorf("it is told again: %+v", e.Recovery())
	}
}
