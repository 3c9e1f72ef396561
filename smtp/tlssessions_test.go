package smtp

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

// TestTLSSessionFile: of a file that others have written too what makes sense is read, and is young; it is bounded, whatever has
// been written into it.
func TestTLSSessionFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		server := &tls.Config{Certificates: []tls.Certificate{testCA().certs["good"]}, Time: time.Now}
		server.SetSessionTicketKeys([][32]byte{{1}})
		file := filepath.Join(dir, "scache.json")
		open := func() *tlsSessions {
			t.Helper()
			c, err := newTLSSessions("x", "btree:"+filepath.Join(dir, "scache"), time.Hour)
			if err == nil {
				err = c.load()
			}
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		first := open()
		resumes(t, first, server)
		if err := first.save(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list []storedSession
		if err := json.Unmarshal(text, &list); err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		good := list[0]
		write := func(list ...storedSession) {
			t.Helper()
			text, err := json.Marshal(list)
			if err == nil {
				err = os.WriteFile(file, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		at := func(key string, when time.Time) storedSession {
			s := good
			s.Key, s.When = key, when
			return s
		}
		nonsense := at("nonsense", time.Now())
		nonsense.State = []byte("nonsense")
		write(nonsense, at("late", time.Now().Add(time.Second)), at("old", time.Now().Add(-time.Hour)), at("now", time.Now()), at("young", time.Now().Add(time.Second-time.Hour)))
		if c := open(); len(c.known) != 2 || c.known["now"].state == nil || c.known["young"].state == nil {
			t.Errorf("of the file these are known: %v", c.known)
		}
		var many []storedSession
		for i := range maxTLSSessions + 5 {
			many = append(many, at(fmt.Sprint(i), time.Now()))
		}
		write(many...)
		c := open()
		if len(c.known) != maxTLSSessions {
			t.Errorf("%d sessions are read", len(c.known))
		}
		write(many[10:]...) // another process has written some more meanwhile
		if err := c.save(); err != nil {
			t.Fatal(err)
		}
		if again := open(); len(again.known) != maxTLSSessions {
			t.Errorf("%d sessions are written", len(again.known))
		}
		// What is too old by now is not written.
		time.Sleep(time.Hour)
		if err := c.save(); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != "null" {
			t.Errorf("written are %.100s, %v", text, err)
		}
	})
}

// TestTLSSessionTrouble: a file that cannot be read or written is told of, and leaves nothing behind.
func TestTLSSessionTrouble(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	away, err := newTLSSessions("x", "btree:"+filepath.Join(dir, "none", "scache"), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := away.load(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the directory: %v", err)
	}
	if err := away.save(); err != nil {
		t.Errorf("what could not be opened: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "scache.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := newTLSSessions("x", "btree:"+filepath.Join(dir, "scache"), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.load(); err == nil {
		t.Error("a directory is read")
	}
	if err := c.save(); err == nil {
		t.Error("a directory is read before it is written")
	}
	if err := c.replace([]byte("x")); err == nil {
		t.Error("a directory is written")
	}
	if names, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(names) != 1 {
		t.Errorf("left are %v, %v", names, err)
	}
}
