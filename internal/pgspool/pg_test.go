package pgspool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
	"posthaste/internal/testservers"
	"posthaste/internal/testwait"
)

// schemas counts the schemas of the tests: each test has its own.
var schemas atomic.Int64

// A database is a schema with a queue in it.
type database struct {
	t   testing.TB
	url string
}

// newServer starts a server on which there can be queues.
func newServer(t testing.TB, settings ...string) *testservers.Server {
	t.Helper()
	return testservers.PostgreSQL(t, "GRANT CREATE ON DATABASE mail TO mail;", append([]string{"max_connections=100"}, settings...)...)
}

// newDatabase makes a queue with so many shards.
func newDatabase(t testing.TB, s *testservers.Server, shards int) *database {
	t.Helper()
	d := &database{t: t, url: fmt.Sprintf("postgres://mail@%s/mail?search_path=q%d", s.Addr, schemas.Add(1))}
	if err := d.store("init").Init(t.Context(), shards, func(string) {}); err != nil {
		t.Fatal(err)
	}
	return d
}

// store is that of a node, whose leases last for minutes: a test whose machine is busy does not lose them. Those that shall
// run out do so by expire.
func (d *database) store(node string) *Store {
	d.t.Helper()
	c, err := parseURL(d.url)
	if err != nil {
		d.t.Fatal(err)
	}
	c.Password = "secret"
	c.RuntimeParams["application_name"] = sessionName(node)
	s := &Store{config: c, node: node, instance: node + ":/q", lease: 5 * time.Minute, segmentSize: 64 << 20}
	d.t.Cleanup(s.Close)
	return s
}

// testOpen opens the queue for a node. It is closed with the test, if it has not been.
func (s *Store) testOpen(t testing.TB) (*engine, error) {
	t.Helper()
	en, err := s.Open(context.Background(), storage.Options{TempDir: t.TempDir(), InlineLimit: 128 << 10, PostDelay: 50 * time.Millisecond, Warn: t.Logf})
	if err != nil {
		return nil, err
	}
	e := en.(*engine)
	t.Cleanup(func() { e.Close() })
	return e, nil
}

// mustOpen is testOpen for a queue that is free. A server that is slow to answer is asked again, as cleanup does.
func (s *Store) mustOpen(t testing.TB) (e *engine) {
	t.Helper()
	testwait.Until(t, "the queue can be opened", func() (ok bool) {
		var err error
		if e, err = s.testOpen(t); err != nil && !errors.Is(err, queue.ErrBroken) {
			t.Fatal(err)
		}
		return err == nil
	})
	return e
}

// conn is a connection to look at the tables.
func (d *database) conn() *pgx.Conn {
	d.t.Helper()
	c, err := d.store("look").connect(context.Background())
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// expire has all leases run out, as they do when their owners have been silent for long enough.
func (d *database) expire() {
	d.t.Helper()
	if _, err := d.conn().Exec(d.t.Context(), "UPDATE lease SET until = '-infinity'"); err != nil {
		d.t.Fatal(err)
	}
}

// seize opens the queue for a node while another one, which renews its leases, has it: they are made to run out again and again.
func (d *database) seize(node string) (e *engine) {
	d.t.Helper()
	st := d.store(node)
	testwait.Until(d.t, "the queue is another node's", func() bool {
		d.expire()
		var err error
		if e, err = st.testOpen(d.t); err != nil && !errors.Is(err, queue.ErrBroken) && !errors.Is(err, queue.ErrNotOurs) {
			d.t.Fatal(err)
		}
		return err == nil
	})
	return e
}

// addLong queues a message whose content is in rows of its own, two of them.
func addLong(t testing.TB, e *engine) storage.Addition {
	t.Helper()
	m := message(t, e, "")
	f, err := e.NewFile()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f, strings.Repeat("x", partLen+1)); err != nil {
		t.Fatal(err)
	}
	m.Content, m.File = nil, f
	b := e.NewBatch()
	b.Add(m)
	if err := e.Commit(b); err != nil {
		t.Fatal(err)
	}
	return m
}

// damagedIndexes is what the state of the cluster says of indexes.
func (d *database) damagedIndexes() []DamagedIndex {
	d.t.Helper()
	st, err := d.store("look").Status(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	return st.Indexes
}

// message makes one with two recipients.
func message(t testing.TB, en storage.Engine, content string) storage.Addition {
	t.Helper()
	n, err := en.Lease(1)
	if err != nil {
		t.Fatal(err)
	}
	return messageOf(mail.MakeQueueID(time.Unix(1800000000, 0), n), content)
}

// messageOf is message with an ID.
func messageOf(id mail.QueueID, content string) storage.Addition {
	env := mail.Envelope{ID: id, Sender: "s@from.test", Size: int64(len(content))}
	return storage.Addition{ID: id, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test"}}),
		NRcpt: 2, Content: []byte(content)}
}

// put adds a message, and returns what Commit does.
func put(t testing.TB, en storage.Engine, content string) (mail.QueueID, error) {
	t.Helper()
	b := en.NewBatch()
	m := message(t, en, content)
	b.Add(m)
	return m.ID, en.Commit(b)
}

// leave asks for leave to deliver to the first recipient.
func leave(en storage.Engine, id mail.QueueID) error {
	b := en.NewBatch()
	b.Apart()
	b.Handed(id, []int{0}, "mx.to.test")
	if err := en.Commit(b); err != nil {
		return err
	}
	return b.Refused(0)
}
