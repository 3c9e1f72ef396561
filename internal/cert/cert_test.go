package cert

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/servercert"
)

// site makes a configuration with tls_acme, and its store.
func site(t *testing.T, more string) (dir string, s *servercert.Store) {
	t.Helper()
	dir = t.TempDir()
	main := "tls_acme = yes\nmyhostname = mail.example.org\ndata_directory = " + dir + "\n" + more
	if err := os.WriteFile(filepath.Join(dir, "main.cf"), []byte(main), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = servercert.OpenStore(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return dir, s
}

func run(args ...string) (status int, out, stderr string) {
	var o, e bytes.Buffer
	status = Run("posthaste cert", args, &o, &e)
	return status, o.String(), e.String()
}

// TestList: what serves, until when, and the record of its key.
func TestList(t *testing.T) {
	t.Parallel()
	dir, s := site(t, "")
	if status, _, stderr := run("list", "-c", dir); status != cli.ExitUnavailable || !strings.Contains(stderr, "the acme service has not run yet") {
		t.Errorf("%d, %s", status, stderr)
	}
	key, err := s.Key("ecdsa")
	if err != nil {
		t.Fatal(err)
	}
	text, err := servercert.SelfSigned(key, []string{"mail.example.org", "*.example.org", "mta-sts.example.org", "autoconfig.example.org", "autodiscover.example.org"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	next := time.Date(2026, 11, 27, 18, 30, 0, 0, time.UTC)
	if err := errors.Join(s.SaveSelfSigned(text), s.SaveState(&servercert.State{Trouble: servercert.Trouble{Problem: "rateLimited: too many", Next: next}})); err != nil {
		t.Fatal(err)
	}
	tlsa, err := servercert.TLSA(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	status, out, stderr := run("list", "-c", dir)
	for _, want := range []string{"mail.example.org *.example.org mta-sts.example.org autoconfig.example.org autodiscover.example.org\n", "itself: no authority vouches for it", "3649 days left", "rateLimited: too many", "2026-11-27 18:30 UTC",
		"_25._tcp.mail.example.org. IN TLSA " + tlsa + "\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if status != 0 || stderr != "" || strings.Count(out, "TLSA") != 2 {
		t.Errorf("%d, %s\n%s", status, stderr, out)
	}
	var c Certificate
	if _, out, _ = run("list", "-jc", dir); json.Unmarshal([]byte(out), &c) != nil || !c.SelfSigned || c.Days != 3649 || len(c.TLSA) != 1 || !c.Next.Equal(next) {
		t.Errorf("%s", out)
	}
	// The next key is made once.
	status, out, stderr = run("rollover", "-c", dir)
	nextKey, err := s.NextKey()
	if err != nil {
		t.Fatal(status, stderr, err)
	}
	if tlsa, err = servercert.TLSA(nextKey.Public()); err != nil || status != 0 || !strings.Contains(out, "\n_25._tcp.mail.example.org. IN TLSA "+tlsa+"\n") {
		t.Errorf("%d, %s, %v", status, out, err)
	}
	if _, again, _ := run("rollover", "-c", dir); again != out {
		t.Errorf("another key: %s", again)
	}
	if _, out, _ := run("list", "-c", dir); !strings.Contains(out, "next TLSA   _25._tcp.mail.example.org. IN TLSA "+tlsa+"\n") {
		t.Errorf("%s", out)
	}
	if tlsa, err = servercert.TLSA(key.Public()); err != nil {
		t.Fatal(err)
	}
	// The administrator's own files.
	chain := filepath.Join(dir, "chain")
	if err := os.WriteFile(chain, text, 0o600); err != nil {
		t.Fatal(err)
	}
	other, _ := site(t, "smtpd_tls_chain_files = "+chain+"\n")
	if status, out, stderr := run("list", "-c", other); status != 0 || !strings.Contains(out, tlsa) || strings.Contains(out, "rateLimited") {
		t.Errorf("%d, %s, %s", status, out, stderr)
	}
	other, _ = site(t, "smtpd_tls_chain_files = /nonexistent/x\n")
	if status, _, stderr := run("list", "-c", other); status != cli.ExitConfig || !strings.Contains(stderr, "/nonexistent/x") {
		t.Errorf("%d, %s", status, stderr)
	}
	if status, _, stderr := run("renew", "-c", other); status != cli.ExitConfig || !strings.Contains(stderr, "set tls_acme = yes") {
		t.Errorf("%d, %s", status, stderr)
	}
	for _, args := range []string{"", "lists", "list x", "renew -j", "list -x"} {
		if status, _, stderr := run(strings.Fields(args)...); status != cli.ExitUsage || !strings.Contains(stderr, "usage: posthaste cert") {
			t.Errorf("%q: %d, %s", args, status, stderr)
		}
	}
}

// TestWait: the command returns with the outcome of an attempt that began after the request, and says
// if there is none.
func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, s := site(t, "")
		old := &servercert.State{Attempt: time.Now().Add(-time.Hour), Finished: time.Now().Add(-time.Hour), Trouble: servercert.Trouble{Problem: "of before"}}
		if err := s.SaveState(old); err != nil {
			t.Fatal(err)
		}
		asked := time.Now()
		if _, err := wait(t.Context(), s, asked); err == nil || !strings.Contains(err.Error(), "has not taken the request up") || time.Since(asked) > takenTime+time.Second {
			t.Errorf("%v after %v", err, time.Since(asked))
		}
		asked = time.Now()
		go func() {
			time.Sleep(20 * time.Second)
			st := &servercert.State{Attempt: time.Now(), Finished: old.Finished}
			s.SaveState(st)
			time.Sleep(5 * time.Minute)
			st.Finished, st.Problem = time.Now(), "connection: refused"
			s.SaveState(st)
		}()
		if st, err := wait(t.Context(), s, asked); err != nil || st.Problem != "connection: refused" || time.Since(asked) > 7*time.Minute {
			t.Errorf("%+v, %v after %v", st, err, time.Since(asked))
		}
		asked = time.Now()
		if err := s.SaveState(&servercert.State{Attempt: asked}); err != nil {
			t.Fatal(err)
		}
		if _, err := wait(t.Context(), s, asked); err == nil || !strings.Contains(err.Error(), "the attempt has not ended") {
			t.Errorf("%v", err)
		}
	})
}
