package smtp

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// resumes does a handshake with a server that gives tickets, reads what it
// says, and tells whether a session was resumed.
func resumes(t *testing.T, c *tlsSessions, server *tls.Config) bool {
	t.Helper()
	ours, theirs := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		s := tls.Server(theirs, server)
		_, _ = s.Write([]byte("x"))
		_ = s.Close()
	})
	conn := tls.Client(ours, &tls.Config{InsecureSkipVerify: true, ServerName: "mx1.dest.test", ClientSessionCache: c})
	if err := conn.HandshakeContext(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil { // with it comes the ticket
		t.Fatal(err)
	}
	_ = ours.Close()
	wg.Wait()
	return conn.ConnectionState().DidResume
}

// TestTLSSessions has sessions outlive the process, for as long as they may.
func TestTLSSessions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		server := &tls.Config{Certificates: []tls.Certificate{testCA().certs["good"]}, Time: time.Now}
		server.SetSessionTicketKeys([][32]byte{{1}})
		open := func() *tlsSessions {
			c, err := newTLSSessions("smtp_tls_session_cache_database", "btree:"+filepath.Join(dir, "scache"), time.Hour)
			if err == nil {
				err = c.load()
			}
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		first, other := open(), open()
		if resumes(t, first, server) || !resumes(t, first, server) {
			t.Error("not resumed in the process")
		}
		other.Put("other", first.known["mx1.dest.test"].state)
		for _, c := range []*tlsSessions{first, other} {
			if err := c.save(); err != nil {
				t.Fatal(err)
			}
		}
		if fi, err := os.Stat(filepath.Join(dir, "scache.json")); err != nil || fi.Mode().Perm() != 0o600 {
			t.Error(fi, err)
		}
		next := open()
		if len(next.known) != 2 {
			t.Errorf("%d sessions in the file", len(next.known))
		}
		if !resumes(t, next, server) {
			t.Error("not resumed by the next process")
		}
		time.Sleep(time.Hour)
		if resumes(t, next, server) {
			t.Error("resumed after smtp_tls_session_cache_timeout")
		}
		if late := open(); len(late.known) > 0 {
			t.Errorf("%d old sessions", len(late.known))
		}
		if err := os.WriteFile(filepath.Join(dir, "scache.json"), []byte("[{\"key\": 3"), 0o600); err != nil {
			t.Fatal(err)
		}
		if broken := open(); len(broken.known) > 0 {
			t.Error("sessions in a broken file")
		}
	})
}

func TestTLSSessionBounds(t *testing.T) {
	t.Parallel()
	c, err := newTLSSessions("x", "", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxTLSSessions + 10 {
		c.Put(strings.Repeat("x", i), new(tls.ClientSessionState))
	}
	if len(c.known) != maxTLSSessions {
		t.Errorf("%d sessions", len(c.known))
	}
	c.Put("x", nil)
	if _, ok := c.Get("x"); ok {
		t.Error("a session that was taken away")
	}
	if err := c.save(); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"btree", "/x", ":/x", "btree:x"} {
		if _, err := newTLSSessions("x", bad, time.Hour); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}
