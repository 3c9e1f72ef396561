package smtpd

import (
	"bufio"
	"cmp"
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
	const (
		command = "EHLO client.test\r\n"
		chunk   = "BDAT 60\r\n012345678901234567890123456789012345678901234567890123456789"
		auth    = "AUTH LOGIN\r\nbm9ib2R5\r\neA==!\r\n"
		users   = "smtpd_sasl_auth_enable = yes\nsmtpd_sasl_type = table\nsmtpd_sasl_path = inline:{somebody=x}\n"
		slow    = "smtpd_timeout = 20s\nsmtpd_per_request_deadline = yes\nsmtpd_min_data_rate = 1\n"
	)
	octets := time.Duration(len(command))
	for _, tt := range []struct {
		name, main  string
		every, ends time.Duration // the time between two octets, and until the answer
		code        string
		command     string // empty: EHLO
	}{
		{name: "chunk in time", main: slow, every: time.Second, ends: time.Duration(len(chunk)) * time.Second, code: "503", command: chunk},
		{name: "chunk too late", main: "smtpd_timeout = 30s\nsmtpd_per_request_deadline = yes\nsmtpd_min_data_rate = 1\n", every: 3 * time.Second, ends: 71 * time.Second, code: "421", command: chunk},
		{name: "login in time", main: users + slow, every: time.Second, ends: time.Duration(len(auth)) * time.Second, code: "501", command: auth},
		{name: "wrong password", main: users, ends: time.Second, code: "535", command: "AUTH PLAIN AG5vYm9keQB4\r\n"},
		{name: "just in time", main: "smtpd_timeout = 300s\n", every: 299 * time.Second, ends: octets * 299 * time.Second, code: "250"},
		{name: "too late", main: "smtpd_timeout = 300s\n", every: 301 * time.Second, ends: 300 * time.Second, code: "421"},
		{name: "command in time", main: "smtpd_timeout = 300s\nsmtpd_per_request_deadline = yes\n", every: 10 * time.Second, ends: octets * 10 * time.Second, code: "250"},
		{name: "command too late", main: "smtpd_timeout = 300s\nsmtpd_per_request_deadline = yes\n", every: 20 * time.Second, ends: 300 * time.Second, code: "421"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { slowClient(t, tt.main, cmp.Or(tt.command, command), tt.every, tt.ends, tt.code) })
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
	for err == nil && strings.HasPrefix(line, "334") {
		line, err = r.ReadString('\n')
	}
	if took := time.Since(begun); err != nil || !strings.HasPrefix(line, code) || took != ends {
		t.Errorf("%q, %v after %v; want %s after %v", line, err, took, code, ends)
	}
	go io.Copy(io.Discard, r) // the rest of the answer
	if code != "421" {
		near.Close()
	}
	<-served
	near.Close()
	<-sent
}
