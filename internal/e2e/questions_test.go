package e2e

import (
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"posthaste/internal/testwait"
)

// A database stands in for PostgreSQL: it notes what it is asked for, and knows a few keys.
type database struct {
	l      net.Listener
	values map[string]string // by the text of the query
	wg     sync.WaitGroup
	mu     sync.Mutex
	asked  map[string]int // how often, by the text of the query
	conns  map[net.Conn]struct{}
}

func newDatabase(t *testing.T, values map[string]string) *database {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &database{l: l, values: values, asked: map[string]int{}, conns: map[net.Conn]struct{}{}}
	d.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.conns[c] = struct{}{}
			d.mu.Unlock()
			d.wg.Go(func() {
				defer c.Close()
				d.serve(pgproto3.NewBackend(c, c))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		d.mu.Lock()
		for c := range d.conns {
			c.Close()
		}
		d.mu.Unlock()
		d.wg.Wait()
	})
	return d
}

// serve is one connection: it takes whoever comes, and answers queries that come as they are.
func (d *database) serve(b *pgproto3.Backend) {
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for b.Flush() == nil {
		m, err := b.Receive()
		if err != nil {
			return
		}
		q, ok := m.(*pgproto3.Query)
		if !ok {
			return
		}
		d.mu.Lock()
		d.asked[q.String]++
		d.mu.Unlock()
		b.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("value"), DataTypeOID: 25}}})
		if v, ok := d.values[q.String]; ok {
			b.Send(&pgproto3.DataRow{Values: [][]byte{[]byte(v)}})
		}
		b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT")})
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	}
}

// take is what it has been asked for since the last call.
func (d *database) take() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := d.asked
	d.asked = map[string]int{}
	return asked
}

// table is the file of a table in it.
func (d *database) table(query string) string {
	return fmt.Sprintf("hosts = %s\nuser = mail\npassword = secret\ndbname = mail\nquery = %s\n", d.l.Addr(), query)
}

// What smtpd has learnt of a recipient cleanup does not ask for again, nor for the next recipient of the transaction: the
// number of queries for a message is exact.
func TestDatabaseQuestions(t *testing.T) {
	t.Parallel()
	tablesProgram(t)
	db := newDatabase(t, map[string]string{"alias joe@relay.test": "jane@relay.test", "recipient ann@relay.test": "x"})
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true, main: next.relayhost() +
		"virtual_alias_maps = pgsql:{dir}/etc/alias.cf\nrelay_domains = relay.test\nrelay_recipient_maps = proxy:pgsql:{dir}/etc/recipients.cf\nrelay_transport = smtp\n"})
	s.write("etc/alias.cf", db.table("alias %s"))
	s.write("etc/recipients.cf", db.table("recipient %s"))
	s.start()
	// Whether the domain is one of aliases is asked for by trivial-rewrite, which other questions do not touch.
	domain := "alias relay.test"
	for i, c := range []struct {
		to, arrives string
		asked       map[string]int
	}{
		{"joe@relay.test", "jane@relay.test", map[string]int{
			"alias joe@relay.test":  1, // Postfix: 2, of smtpd and of cleanup
			"alias jane@relay.test": 1, "alias @relay.test": 1}},
		{"ann@relay.test", "ann@relay.test", map[string]int{
			"alias ann@relay.test": 1, "alias @relay.test": 1, // Postfix: 2 of each
			"recipient ann@relay.test": 1}},
		{"ann@relay.test joe@relay.test", "ann@relay.test jane@relay.test", map[string]int{
			"alias ann@relay.test": 1, "alias joe@relay.test": 1, "alias jane@relay.test": 1, "alias @relay.test": 1, // Postfix: 2, 2, 1, 3
			"recipient ann@relay.test": 1}},
	} {
		db.take()
		if err := s.send("sender@local.test", strings.Fields(c.to), "Subject: x\r\n\r\nx\r\n"); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "the message arrives", func() bool { return len(next.received()) > i })
		if got := strings.Join(next.received()[i].to, " "); got != c.arrives {
			t.Errorf("to %s: it arrives at %s, expected %s", c.to, got, c.arrives)
		}
		got := db.take()
		for q := range got {
			if strings.HasPrefix(q, "--") || q == domain || strings.HasSuffix(q, "local.test") {
				delete(got, q)
			}
		}
		if !maps.Equal(got, c.asked) {
			t.Errorf("to %s: asked %v, expected %v", c.to, got, c.asked)
		}
	}
	if err := s.send("sender@local.test", []string{"nobody@relay.test"}, "x\r\n"); err == nil || !strings.Contains(err.Error(), "550") {
		t.Errorf("nobody@relay.test: %v", err)
	}
}
