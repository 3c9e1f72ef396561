package smtp

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
)

// script writes a program and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTokens(t *testing.T) {
	t.Parallel()
	count := filepath.Join(t.TempDir(), "count")
	now := time.Now()
	counter := "echo x >>" + count + "; n=$(wc -l <" + count + ")\n"
	k := newTokens([]string{script(t, counter+`echo "$SASL_USER-$SMTP_HOST-$n-$1"`), "arg"}, 10*time.Minute)
	want := func(k *tokens, at time.Time, user, text string, kept bool) {
		t.Helper()
		got, isKept, err := k.get(t.Context(), user, "", "h", at)
		if got != text || isKept != kept || err != nil {
			t.Errorf("%s %q %t %v, want %q %t", user, got, isKept, err, text, kept)
		}
	}
	want(k, now, "u", "u-h-1-arg", false)
	want(k, now.Add(9*time.Minute), "u", "u-h-1-arg", true)
	want(k, now, "v", "v-h-2-arg", false)
	want(k, now.Add(11*time.Minute), "u", "u-h-3-arg", false)
	k.forget("u", "u-h-1-arg") // it has been renewed since
	want(k, now.Add(12*time.Minute), "u", "u-h-3-arg", true)
	k.forget("u", "u-h-3-arg")
	want(k, now.Add(12*time.Minute), "u", "u-h-4-arg", false)

	k = newTokens([]string{script(t, `echo '{"access_token":"abc","token_type":"Bearer","expires_in":300}'`)}, time.Hour)
	want(k, now, "u", "abc", false)
	want(k, now.Add(239*time.Second), "u", "abc", true)
	want(k, now.Add(241*time.Second), "u", "abc", false)

	for text, wrong := range map[string]string{
		"echo no such account >&2; exit 3": "exit status 3: no such account",
		"true":                             "not a token",
		"echo a; echo b":                   "not a token",
		`echo '{"error":"x"}'`:             "not a token",
		"echo '{'":                         "JSON",
		`i=0; while [ $i -lt 100 ]; do printf '%1000s' x; i=$((i+1)); done`: "over 64 KB", // not cut off to what would be one
		"yes | tr -d '\\n'": "over 64 KB",
		"yes":               "over 64 KB",
	} {
		k := newTokens([]string{script(t, text)}, time.Hour)
		if _, _, err := k.get(t.Context(), "u", "", "h", now); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v", text, err)
		}
		if _, kept, err := k.get(t.Context(), "u", "", "h", now.Add(time.Second)); err == nil || !kept {
			t.Errorf("%s: was run again at once: %v", text, err)
		}
	}
	if _, _, err := newTokens(nil, time.Hour).get(t.Context(), "u", "", "h", now); err == nil {
		t.Error("a token from nowhere")
	}
	if _, _, err := newTokens([]string{"/nonexistent"}, time.Hour).get(t.Context(), "u", "", "h", now); err == nil {
		t.Error("a token from a command that does not exist")
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("t1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, kept, err := newTokens(nil, time.Hour).get(t.Context(), "u", "file:"+path, "h", now); got != "t1" || kept || err != nil {
		t.Error(got, kept, err)
	}
	if err := os.WriteFile(path, make([]byte, maxToken+1), 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, wrong := range map[string]string{path: "over 64 KB", fifo: "regular file", "/dev/zero": "regular file", "/nonexistent": "no such file"} {
		if _, _, err := newTokens(nil, time.Hour).get(t.Context(), "u", "file:"+name, "h", now); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// With a table users may be any number: what is kept of them is bounded.
func TestTokensBound(t *testing.T) {
	t.Parallel()
	k := newTokens(nil, time.Hour)
	first := k.of("first")
	for i := range maxUsers - 1 {
		k.of(fmt.Sprint(i))
	}
	if len(k.users) != maxUsers || k.of("first") != first {
		t.Errorf("%d users, and the first is forgotten", len(k.users))
	}
	if k.of("last"); len(k.users) > maxUsers || k.of("last") != k.users["last"] {
		t.Errorf("%d users", len(k.users))
	}
}

// A command that does not end is ended, with what it has started.
func TestTokenNeverComes(t *testing.T) {
	t.Parallel()
	started := filepath.Join(t.TempDir(), "started")
	if err := syscall.Mkfifo(started, 0o600); err != nil {
		t.Fatal(err)
	}
	// Both hold the FIFO open: it comes to its end when neither is there any more.
	path := script(t, "exec 3>"+started+"; sleep 1000 & echo begun >&3; sleep 1000")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		f, err := os.Open(started)
		if err != nil {
			ended <- err
			return
		}
		defer f.Close()
		if _, err = f.Read(make([]byte, 100)); err == nil {
			cancel()
			_, err = io.Copy(io.Discard, f)
		}
		ended <- err
	}()
	_, _, err := newTokens([]string{path}, time.Hour).get(ctx, "u", "", "h", time.Now())
	if err == nil || !strings.Contains(err.Error(), path+" has not ended") {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestTokenWithdrawn has a server refuse a token that was good: the command is
// asked for another, in the same session.
func TestTokenWithdrawn(t *testing.T) {
	t.Parallel()
	count := filepath.Join(t.TempDir(), "count")
	cmd := script(t, "echo x >>"+count+"; wc -l <"+count+" | tr -d ' '")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	var said []string
	wg.Go(func() {
		for _, good := range []string{"1", "2", "never"} {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			said = append(said, tokenSession(conn, good)...)
		}
	})
	cfg, err := config.LoadString("myhostname = me.test\nsmtp_sasl_auth_enable = yes\nsmtp_sasl_password_maps = static:{joe:}\n" +
		"smtp_sasl_security_options =\nsmtp_sasl_mechanism_filter = xoauth2\nsmtp_sasl_token_command = " + cmd + "\nsmtp_sasl_auth_cache_name = yes\n")
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAgent(deps{Config: cfg, Log: maillog.New("smtp", new(lines))})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var got []string
	for range 3 {
		r := agent.NewTestRequest(envelope(10), mail.Nexthop("[127.0.0.1]:"+port(l)), []byte("A: b\r\n\r\n"), nil)
		a.Deliver(t.Context(), r)
		o := r.Outcomes()[0]
		got = append(got, fmt.Sprintf("%s %s", o.Action, o.Status))
	}
	wg.Wait()
	if want := "[delivered 2.0.0 delivered 2.0.0 delayed 4.7.8]"; fmt.Sprint(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
	if want := "[1+ 1- 2+ 2- 3-]"; fmt.Sprint(said) != want {
		t.Errorf("tokens %s, want %s", said, want)
	}
}

// tokenSession serves a connection whose client must log in with a token. It
// returns the tokens that came, with + for the good one.
func tokenSession(conn net.Conn, good string) (said []string) {
	defer conn.Close()
	in := bufio.NewScanner(conn)
	say := func(text string) { fmt.Fprintf(conn, "%s\r\n", text) }
	say("220 x ESMTP")
	for in.Scan() {
		verb, arg, _ := strings.Cut(in.Text(), " ")
		switch verb {
		case "EHLO":
			say("250-x\r\n250 AUTH XOAUTH2")
		case "AUTH":
			b, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(arg, "XOAUTH2 "))
			token := strings.TrimSuffix(strings.TrimPrefix(string(b), "user=joe\x01auth=Bearer "), "\x01\x01")
			if token == good {
				said = append(said, token+"+")
				say("235 ok")
				continue
			}
			said = append(said, token+"-")
			say("334 eyJzdGF0dXMiOiI0MDEifQ==")
			in.Scan()
			say("535 5.7.8 no")
		case "DATA":
			say("354 go")
			for in.Scan() && in.Text() != "." {
			}
			say("250 ok")
		case "QUIT":
			return said
		default:
			say("250 ok")
		}
	}
	return said
}
