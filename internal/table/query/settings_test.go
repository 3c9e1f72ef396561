package query

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/table"
)

func TestLoadFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.cf")
	if err := os.WriteFile(path, []byte("# users\nhosts = a b\nquery = SELECT x FROM y\n  WHERE z = '%s'\ntimeout=3\nodd = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Template("query", "").String(); got != "SELECT x FROM y  WHERE z = '%s'" {
		t.Errorf("query %q", got)
	}
	if s.Text("", "hosts") != "a b" || s.Seconds("timeout", time.Minute) != 3*time.Second || s.Int("absent", 7, 0, 9) != 7 {
		t.Error("wrong values")
	}
	var warned []string
	if err := s.End(table.Options{Warn: func(text string) { warned = append(warned, text) }}); err != nil {
		t.Error(err)
	}
	if len(warned) != 1 || !strings.Contains(warned[0], "unknown setting odd") {
		t.Errorf("warned %q", warned)
	}
	for _, bad := range []string{"just words\n", "=x\n"} {
		if _, err := ParseSettings("x.cf", bad); err == nil || !strings.Contains(err.Error(), "x.cf, line 1") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := Load(filepath.Dir(path), nil); err == nil {
		t.Error("a directory is taken")
	}
}

func TestLoadMain(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("users_hosts = $myhostname\nmyhostname = mx.example\nusers_query = SELECT '%s'\n")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Load("users", cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Text("", "hosts"); got != "mx.example" {
		t.Errorf("hosts %q", got)
	}
	if _, err := Load("others", cfg); err == nil || !strings.Contains(err.Error(), "others_") {
		t.Errorf("%v", err)
	}
}

func TestWrongSettings(t *testing.T) {
	t.Parallel()
	for text, read := range map[string]func(*Settings){
		"n = x":               func(s *Settings) { s.Int("n", 1, 0, 9) },
		"n = 10":              func(s *Settings) { s.Int("n", 1, 0, 9) },
		"b = maybe":           func(s *Settings) { s.Bool("b", false) },
		"q = %x":              func(s *Settings) { s.Template("q", "") },
		"result_filter = %":   func(s *Settings) { s.ResultFormat() },
		"a = b":               func(s *Settings) { s.Need("dbname") },
		"timeout = 0":         func(s *Settings) { s.Seconds("timeout", time.Second) },
		"expansion_limit = -": func(s *Settings) { s.Limit() },
	} {
		s, err := ParseSettings("x.cf", text)
		if err != nil {
			t.Fatal(err)
		}
		read(s)
		if err := s.End(table.Options{}); err == nil || !strings.Contains(err.Error(), "x.cf: ") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	s, err := ParseSettings("x.cf", "domain = example.com, inline:{b.example=x}")
	if err != nil {
		t.Fatal(err)
	}
	k := s.Domain(table.Options{})
	for key, want := range map[string]string{
		"User@Example.COM": "user@example.com", "u@b.example": "u@b.example",
		"u@sub.example.com": "", "example.com": "", "@example.com": "", "user": "", "u@": "",
		"u\xff@example.com": "", "u\x00@example.com": "", "": "",
		"ÄÖ@example.com": "äö@example.com",
	} {
		got, ok, err := k.Key(context.Background(), key)
		if err != nil || ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q %v %v, expected %q", key, got, ok, err, want)
		}
	}
	s, err = ParseSettings("x.cf", "domain = fail:x")
	if err != nil {
		t.Fatal(err)
	}
	k = s.Domain(table.Options{})
	if _, _, err := k.Key(context.Background(), "u@d"); err == nil {
		t.Error("a domain list that cannot be asked says no")
	}
	var all Keys
	if key, ok, err := all.Key(context.Background(), "Any"); key != "any" || !ok || err != nil {
		t.Error(key, ok, err)
	}
}
