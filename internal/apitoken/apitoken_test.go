package apitoken

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func open(t *testing.T, dir string, now *time.Time) *Store {
	t.Helper()
	s, err := Open(dir, func() time.Time { return *now })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// A token is good from when it is made until it is removed or expires, also for a process that had
// looked before; what is in the file does not tell it.
func TestLife(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "tokens")
	now := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
	command, service := open(t, dir, &now), open(t, dir, &now)
	if _, err := service.Find("pht_x"); err != ErrUnknown {
		t.Fatalf("before there is any: %v", err)
	}
	app, err := command.Add(Token{Name: "app", Tenant: "acme", Roles: []string{Inject}, Senders: []string{"example.com"}, Quota: 5, Expires: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	other, err := command.Add(Token{Name: "other", Roles: []string{Operate}})
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(lookAgain)
	found, err := service.Find(app)
	if err != nil || found.Name != "app" || found.Tenant != "acme" || found.Quota != 5 || !found.May(Inject) || found.May(Look) {
		t.Fatalf("%+v %v", found, err)
	}
	if found, err := service.Find(other); err != nil || !found.May(Look) || found.May(Inject) {
		t.Errorf("%+v %v", found, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil || strings.Contains(string(text), app) || strings.Contains(string(text), app[len(prefix):]) {
		t.Errorf("%v: the file has the token\n%s", err, text)
	}
	if info, err := os.Stat(filepath.Join(dir, fileName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	for _, wrong := range []string{"", "pht_", app[:len(app)-1], app + "x", strings.ToUpper(app), strings.Repeat("pht_", 1000)} {
		if _, err := service.Find(wrong); err != ErrUnknown {
			t.Errorf("%.20q: %v", wrong, err)
		}
	}
	if err := command.Remove("other"); err != nil {
		t.Fatal(err)
	}
	now = now.Add(lookAgain)
	if _, err := service.Find(other); err != ErrUnknown {
		t.Errorf("removed: %v", err)
	}
	now = now.Add(time.Hour)
	if _, err := service.Find(app); err != ErrExpired {
		t.Errorf("expired: %v", err)
	}
}

// Nobody has a token while the file cannot be read, and all have them again when it can.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := time.Now()
	s := open(t, dir, &now)
	token, err := s.Add(Token{Name: "a", Roles: []string{Look}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, fileName)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"{", `{"name": "x"}`, string(good) + string(good), strings.Replace(string(good), `"hash":"`, `"hash":"0`, 1),
		strings.Replace(string(good), "{", `{"more":1,`, 1), strings.TrimSuffix(string(good), "\n") + " {}\n", strings.Replace(string(good), "look", "all", 1)} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		now = now.Add(lookAgain)
		if _, err := s.Find(token); err == nil || errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%q: %v", bad, err)
		}
		if _, err := s.Add(Token{Name: "b", Roles: []string{Look}}); err == nil {
			t.Errorf("a token was added to %q", bad)
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	now = now.Add(lookAgain)
	if _, err := s.Find(token); err != nil {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := open(t, t.TempDir(), &now)
	if _, err := s.Add(Token{Name: "a", Roles: []string{Look}}); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []Token{
		{}, {Name: "a b", Roles: []string{Look}}, {Name: "b"}, {Name: "b", Roles: []string{"root"}}, {Name: "a", Roles: []string{Look}},
		{Name: "b", Roles: []string{Inject}}, {Name: "b", Roles: []string{Inject}, Senders: []string{""}}, {Name: "b", Roles: []string{Inject}, Senders: []string{"@x"}},
		{Name: "b", Roles: []string{Inject}, Senders: []string{"a b@x"}}, {Name: "b", Roles: []string{Look}, Quota: -1}, {Name: "b", Tenant: "a\nb", Roles: []string{Look}},
		{Name: strings.Repeat("n", MaxName+1), Roles: []string{Look}}, {Name: "b", Roles: []string{Look}, Senders: make([]string, maxSenders+1)},
	} {
		if token, err := s.Add(bad); err == nil {
			t.Errorf("%+v: %s", bad, token)
		}
	}
	if list, err := s.List(); err != nil || len(list) != 1 {
		t.Errorf("%+v %v", list, err)
	}
	if err := s.Remove("b"); err == nil {
		t.Error("what was not there was removed")
	}
}

// Two commands at a time lose nothing.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := time.Now()
	var wg sync.WaitGroup
	for i := range 8 {
		s := open(t, dir, &now)
		wg.Go(func() {
			if _, err := s.Add(Token{Name: string(rune('a' + i)), Roles: []string{Look}}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if list, err := open(t, dir, &now).List(); err != nil || len(list) != 8 {
		t.Errorf("%d %v", len(list), err)
	}
}

func TestPermits(t *testing.T) {
	t.Parallel()
	token := Token{Senders: []string{"example.com", ".example.net", "Joe@example.org"}}
	for address, want := range map[string]bool{
		"a@example.com": true, "a@EXAMPLE.com": true, "a@b.example.com": false, "a@notexample.com": false, "example.com": false, "a@example.com@evil.test": false,
		"a@example.net": false, "a@b.example.net": true, "a@bexample.net": false, "a@.example.net": false, "joe@Example.org": true, "jane@example.org": false, "": false, "@": false,
	} {
		if got := token.Permits(address); got != want {
			t.Errorf("%q: %v", address, got)
		}
	}
	token.Senders = []string{"<>"}
	if !token.Permits("") || token.Permits("a@b") {
		t.Error("<> is the null sender, and nothing else")
	}
	token.Senders = []string{"*"}
	if !token.Permits("") || !token.Permits("a@b") {
		t.Error("* is all")
	}
	if token.Senders = nil; token.Permits("") || token.Permits("a@b") {
		t.Error("without senders there is none")
	}
}

func TestBearer(t *testing.T) {
	t.Parallel()
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	for _, tt := range []struct {
		field, name, token string
		ok                 bool
	}{
		{"Bearer x", "", "x", true}, {"bearer  x ", "", "x", true}, {"Bearer", "", "", false}, {"Bearer ", "", "", false}, {"", "", "", false}, {"Digest x", "", "", false},
		{basic("app:x"), "app", "x", true}, {basic("x"), "", "", false}, {basic("x:"), "", "", false}, {"Basic !", "", "", false},
	} {
		name, token, ok := Bearer(tt.field)
		if ok != tt.ok || ok && (name != tt.name || token != tt.token) {
			t.Errorf("%q: %q %q %v", tt.field, name, token, ok)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add([]byte(`{"name":"a","hash":"` + strings.Repeat("0", 64) + `","roles":["look"],"created":"2026-11-28T03:00:00Z"}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := parse(text)
		if err != nil && !strings.HasPrefix(err.Error(), "line ") {
			t.Fatal(err)
		}
		for i := range list {
			if err := list[i].check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
