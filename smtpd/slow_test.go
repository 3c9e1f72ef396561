package smtpd

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
)

// addressed is a pipe whose ends have addresses.
type addressed struct{ net.Conn }

func (addressed) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(198, 51, 100, 7), Port: 40000}
}
func (addressed) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 25), Port: 25} }

// A client may take smtpd_timeout for each octet, unless a command as a whole
// must be there in that time (smtpd_per_request_deadline).
func TestSlowClient(t *testing.T) {
	t.Parallel()
	const command = "EHLO client.test\r\n"
	octets := time.Duration(len(command))
	for _, tt := range []struct {
		name, main  string
		every, ends time.Duration // the time between two octets, and until the answer
		code        string
	}{
		{"just in time", "smtpd_timeout = 300s\n", 299 * time.Second, octets * 299 * time.Second, "250"},
		{"too late", "smtpd_timeout = 300s\n", 301 * time.Second, 300 * time.Second, "421"},
		{"command in time", "smtpd_timeout = 300s\nsmtpd_per_request_deadline = yes\n", 10 * time.Second, octets * 10 * time.Second, "250"},
		{"command too late", "smtpd_timeout = 300s\nsmtpd_per_request_deadline = yes\n", 20 * time.Second, 300 * time.Second, "421"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { slowClient(t, tt.main, command, tt.every, tt.ends, tt.code) })
		})
	}
}

func slowClient(t *testing.T, main, command string, every, ends time.Duration, code string) {
	cfg, err := config.LoadString("compatibility_level = 3.6\nmyhostname = mx.example.test\nmynetworks = 127.0.0.0/8\n" + main)
	if err != nil {
		t.Fatal(err)
	}
	log := maillog.New("smtpd", maillog.NewWriter(io.Discard, maillog.Classic))
	defer log.Close()
	s, err := New(t.Context(), Deps{Config: cfg, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	near, far := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.ServeConn(t.Context(), addressed{far})
	}()
	r := bufio.NewReader(near)
	if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "220 ") {
		t.Fatal(line, err)
	}
	begun := time.Now()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range len(command) {
			time.Sleep(every)
			if _, err := near.Write([]byte{command[i]}); err != nil {
				return
			}
		}
	}()
	line, err := r.ReadString('\n')
	if took := time.Since(begun); err != nil || !strings.HasPrefix(line, code) || took != ends {
		t.Errorf("%q, %v after %v; want %s after %v", line, err, took, code, ends)
	}
	go io.Copy(io.Discard, r) // the rest of the answer
	if code == "250" {
		near.Close()
	}
	<-served
	near.Close()
	<-sent
}
