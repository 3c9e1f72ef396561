package smtpd

import (
	"crypto/tls"
	"net"
	"sync"
	"testing"
	"time"
)

// A session is resumed until its ticket is too old.
func TestTicketLife(t *testing.T) {
	t.Parallel()
	key, chain := keyPair(t, "x", false)
	cert, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		var mu sync.Mutex
		now := time.Unix(1_800_000_000, 0)
		server := &tls.Config{Certificates: []tls.Certificate{cert}, MaxVersion: version}
		limitTickets(server, time.Hour, func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return now
		})
		client := &tls.Config{InsecureSkipVerify: true, ServerName: "x", ClientSessionCache: tls.NewLRUClientSessionCache(1)}
		for i, tt := range []struct {
			pass    time.Duration
			resumed bool
		}{{0, false}, {0, true}, {59 * time.Minute, true}, {61 * time.Minute, false}, {time.Second, true}, {-time.Minute, false}} {
			mu.Lock()
			now = now.Add(tt.pass)
			mu.Unlock()
			if got := resumes(t, server, client); got != tt.resumed {
				t.Errorf("%s, handshake %d: resumed is %t", tls.VersionName(version), i, got)
			}
		}
		none := &tls.Config{Certificates: []tls.Certificate{cert}, MaxVersion: version}
		limitTickets(none, 0, time.Now)
		client = &tls.Config{InsecureSkipVerify: true, ServerName: "x", ClientSessionCache: tls.NewLRUClientSessionCache(1)}
		for i := range 2 {
			if resumes(t, none, client) {
				t.Errorf("%s, handshake %d: resumed without a life", tls.VersionName(version), i)
			}
		}
	}
}

// resumes has the two shake hands, and the client read once, which is when it
// gets its ticket.
func resumes(t *testing.T, server, client *tls.Config) bool {
	l, err := net.Listen("tcp", "127.0.0.1:0") // a pipe would not do: both ends write at once
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	result := make(chan error, 1)
	go func() {
		far, err := l.Accept()
		if err == nil {
			defer far.Close()
			_, err = tls.Server(far, server).Write([]byte("x"))
		}
		result <- err
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	return c.ConnectionState().DidResume
}
