package sqltable

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"posthaste/internal/table"
	"posthaste/internal/table/query"
)

// endlessPostgres lets everybody in, and has rows without end for each query.
func endlessPostgres(c net.Conn, accepted *atomic.Int64) {
	defer c.Close()
	b := pgproto3.NewBackend(c, c)
	for {
		m, err := b.ReceiveStartupMessage()
		if _, ok := m.(*pgproto3.CancelRequest); ok || err != nil {
			return
		}
		if _, ok := m.(*pgproto3.StartupMessage); ok {
			break
		}
		c.Write([]byte("N")) // no TLS
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if b.Flush() != nil {
		return
	}
	if _, err := b.Receive(); err != nil {
		return
	}
	text, _ := (&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("a"), DataTypeOID: 25}}}).Encode(nil)
	row, _ := (&pgproto3.DataRow{Values: [][]byte{make([]byte, 64<<10)}}).Encode(nil)
	for {
		n, err := c.Write(text)
		if accepted.Add(int64(n)); err != nil {
			return
		}
		text = row
	}
}

// What a server says to one question is bounded.
func TestAnswerWithoutEnd(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepted atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { endlessPostgres(c, &accepted) }) // a cancellation has a connection of its own
		}
	})
	defer func() { l.Close(); wg.Wait() }()
	path := filepath.Join(t.TempDir(), "table.cf")
	if err := os.WriteFile(path, []byte("hosts = "+l.Addr().String()+"\nuser = u\npassword = p\ndbname = d\nquery = SELECT '%s'\ntimeout = 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tab, err := PostgreSQL(nil)(path, table.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	if value, _, err := tab.Lookup(t.Context(), "joe"); err == nil {
		t.Errorf("answer of %d octets", len(value))
	} else {
		t.Log(err)
	}
	n := accepted.Load()
	if n < 64<<10 || n > 3*query.MaxAnswer {
		t.Errorf("the client has taken %d octets", n)
	}
}
