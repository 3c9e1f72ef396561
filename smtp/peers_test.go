package smtp

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/testpeers"
	"posthaste/internal/testport"
	"posthaste/internal/testwait"
)

// smtpSink runs the real smtp-sink(1) with options on a port of loopback, or
// on a unix socket for LMTP.
func smtpSink(t *testing.T, addr string, options ...string) {
	t.Helper()
	program := testpeers.Program(t, "smtp-sink")
	args := options
	if os.Getuid() == 0 {
		args = append([]string{"-u", "nobody"}, args...)
	}
	network := "tcp"
	if rest, ok := strings.CutPrefix(addr, "unix:"); ok {
		network = "unix"
		args = append(args, addr, "100")
		addr = rest
	} else {
		args = append(args, addr, "100")
	}
	cmd := exec.Command(program, args...)
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for limit := time.Now().Add(testwait.Patience); time.Now().Before(limit); {
		c, err := net.Dial(network, addr)
		if err == nil {
			c.Close()
			return
		}
		time.Sleep(10 * time.Millisecond) // until the program listens
	}
	t.Fatalf("smtp-sink does not listen: %s", out.String())
}

// TestSMTPSink: Postfix's own test server, in many moods.
func TestSMTPSink(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		options []string
		want    string // of each of two recipients, and the site failure
	}{
		{"plain", nil, "250 2.0.0 Ok; 250 2.0.0 Ok; "},
		{"no ESMTP", []string{"-e"}, "250 2.0.0 Ok; 250 2.0.0 Ok; "},
		{"no pipelining", []string{"-p"}, "250 2.0.0 Ok; 250 2.0.0 Ok; "},
		{"no 8BITMIME", []string{"-8"}, "250 2.0.0 Ok; 250 2.0.0 Ok; "},
		{"RCPT refused", []string{"-f", "rcpt"}, "HOST said: 500 5.3.0 Error: command failed (in reply to RCPT TO command); HOST said: 500 5.3.0 Error: command failed (in reply to RCPT TO command); "},
		{"RCPT refused for now", []string{"-r", "rcpt"}, "HOST said: 450 4.3.0 Error: command failed (in reply to RCPT TO command); HOST said: 450 4.3.0 Error: command failed (in reply to RCPT TO command); "},
		{"MAIL refused", []string{"-f", "mail"}, "HOST said: 500 5.3.0 Error: command failed (in reply to MAIL FROM command); HOST said: 500 5.3.0 Error: command failed (in reply to MAIL FROM command); "},
		{"DATA refused", []string{"-f", "data"}, "HOST said: 500 5.3.0 Error: command failed (in reply to DATA command); HOST said: 500 5.3.0 Error: command failed (in reply to DATA command); "},
		{"message refused", []string{"-f", "."}, "HOST said: 500 5.3.0 Error: command failed (in reply to end of DATA command); HOST said: 500 5.3.0 Error: command failed (in reply to end of DATA command); "},
		{"EHLO refused", []string{"-f", "ehlo"}, "250 2.0.0 Ok; 250 2.0.0 Ok; "},
		{"greeting refused", []string{"-f", "connect"}, "REFUSED 500 5.3.0 Error: command failed; REFUSED 500 5.3.0 Error: command failed; 4.3.0"},
		{"hangs up at MAIL", []string{"-q", "mail"}, "lost connection with HOST while sending MAIL FROM; lost connection with HOST while sending MAIL FROM; 4.4.2"},
		{"hangs up at RCPT", []string{"-q", "rcpt"}, "lost connection with HOST while sending RCPT TO; lost connection with HOST while sending RCPT TO; 4.4.2"},
		{"hangs up at the dot", []string{"-q", "."}, "DOT; DOT; 4.4.2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			port := strconv.Itoa(testport.Free(t))
			smtpSink(t, "127.0.0.1:"+port, tt.options...)
			a := tcpAgent(t, "")
			env := envelope(100)
			env.Recipients = append(env.Recipients, mail.Recipient{Address: "second@sink.test"})
			env.Body = mail.Body8Bit
			r := agent.NewTestRequest(env, mail.Nexthop("[127.0.0.1]:"+port), []byte("Content-Transfer-Encoding: 8bit\r\n\r\n\xe9\r\n"), nil)
			a.Deliver(context.Background(), r)
			var got strings.Builder
			for _, o := range r.Outcomes() {
				got.WriteString(o.Reason + "; ")
			}
			site, _ := r.Site()
			got.WriteString(site.String())
			text := strings.NewReplacer("host 127.0.0.1[127.0.0.1] refused to talk to me: ", "REFUSED ", "host 127.0.0.1[127.0.0.1]", "HOST", "127.0.0.1[127.0.0.1]", "HOST",
				"lost connection with 127.0.0.1[127.0.0.1] while sending end of data -- message may be sent more than once", "DOT").Replace(got.String())
			if text != tt.want {
				t.Errorf("got  %s\nwant %s", text, tt.want)
			}
		})
	}
}

// TestSMTPSinkLMTP: LMTP over a unix socket.
func TestSMTPSinkLMTP(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "lmtp") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	smtpSink(t, "unix:"+path, "-L")
	a := lmtpAgent(t)
	for range 3 {
		env := envelope(100)
		env.Recipients = append(env.Recipients, mail.Recipient{Address: "second@sink.test"})
		r := agent.NewTestRequest(env, mail.Nexthop("unix:"+path), []byte("Subject: x\r\n\r\nx\r\n"), nil)
		r.CacheLoad, r.CacheKeep = true, true
		a.Deliver(context.Background(), r)
		for _, o := range r.Outcomes() {
			if o.Status.Class != 2 || o.Relay != "me.test["+path+"]" {
				t.Errorf("%+v", o)
			}
		}
		if !r.Kept() {
			t.Error("the session was not kept")
		}
	}
}

// TestLargeMessage: 5 MB, from a file as it were, with dots and without.
func TestLargeMessage(t *testing.T) {
	t.Parallel()
	port := strconv.Itoa(testport.Free(t))
	smtpSink(t, "127.0.0.1:"+port)
	a := tcpAgent(t, "")
	content := bytes.Repeat([]byte(".dot\r\n"+strings.Repeat("x", 500)+"\r\n"), 10000)
	for _, flags := range []mail.Body{0, mail.BodyDots | mail.BodyLong} {
		if flags == 0 {
			content = bytes.ReplaceAll(content, []byte("\r\n."), []byte("\r\n-"))
			content[0] = '-'
		}
		env := envelope(len(content))
		env.Body = flags
		r := agent.NewTestRequest(env, mail.Nexthop("[127.0.0.1]:"+port), content, nil)
		a.deliver(context.Background(), observed{Request: r, t: t, big: true}, order{env: r.Envelope, nexthop: r.Nexthop})
		if o := r.Outcomes()[0]; o.Status.Class != 2 {
			t.Error(fmt.Sprint(flags), o)
		}
	}
}

// TestBindAddress: a source address that this system does not have is warned
// of and done without, or fails the connection if it is to be enforced.
func TestBindAddress(t *testing.T) {
	t.Parallel()
	next := mail.Nexthop("sink.test:" + sink(t))
	for _, tt := range []struct{ config, want string }{
		{"smtp_bind_address = 192.0.2.77", "2.0.0 250 2.0.0 Ok: queued as 1234567890"},
		{"smtp_bind_address = 192.0.2.77\nsmtp_bind_address_enforce = yes", "4.4.0 server configuration error"},
		// An address that only inet_interfaces names is never enforced.
		{"inet_interfaces = 192.0.2.77\nsmtp_bind_address_enforce = yes", "2.0.0 250 2.0.0 Ok: queued as 1234567890"},
		{"smtp_bind_address = 127.0.0.9", "2.0.0 250 2.0.0 Ok: queued as 1234567890"},
	} {
		a := tcpAgent(t, tt.config)
		r := agent.NewTestRequest(envelope(10), next, []byte("A: b\r\n\r\n"), nil)
		a.Deliver(context.Background(), r)
		if o := r.Outcomes()[0]; o.Status.String()+" "+o.Reason != tt.want {
			t.Errorf("%s: %s %s, want %s", tt.config, o.Status, o.Reason, tt.want)
		}
	}
	cfg, err := config.LoadString("smtp_bind_address = mail.test\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newAgent(deps{Config: cfg}); err == nil || !strings.Contains(err.Error(), "smtp_bind_address = mail.test") {
		t.Errorf("a name for a source address: %v", err)
	}
}
