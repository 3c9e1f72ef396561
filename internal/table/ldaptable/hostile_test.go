package ldaptable

import (
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"posthaste/internal/table"
	"posthaste/internal/table/query"
)

// What a server says to one question is bounded, also when it says that it is longer.
func TestAnswerWithoutEnd(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepted atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 4096))
			text := []byte{0x30, 0x84, 0x7f, 0, 0, 0, 0x04, 0x84, 0x7e, 0, 0, 0} // a packet with a string, of 2 GB
			for {
				n, err := c.Write(text)
				if accepted.Add(int64(n)); err != nil {
					break
				}
				text = make([]byte, 64<<10)
			}
			c.Close()
		}
	}()
	defer func() { l.Close(); <-done }()
	path := filepath.Join(t.TempDir(), "table.cf")
	if err := os.WriteFile(path, []byte("server_host = ldap://"+l.Addr().String()+"\nsearch_base = dc=x\nbind = no\nquery_filter = cn=%s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tab, err := Open(nil)(path, table.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	if value, _, err := tab.Lookup(t.Context(), "joe"); err == nil {
		t.Errorf("answer %q", value)
	} else {
		t.Log(err)
	}
	// It is asked once more on another connection, and the sockets hold some.
	if n := accepted.Load(); n < query.MaxAnswer/2 || n > 3*query.MaxAnswer {
		t.Errorf("the client has taken %d octets", n)
	}
}
