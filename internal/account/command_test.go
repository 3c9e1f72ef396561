package account

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/sasl"
)

// A site is a configuration, and runs of the command on it.
type site struct{ dir, table string }

func newSite(t *testing.T, spec string) *site {
	s := &site{dir: t.TempDir()}
	s.table = filepath.Join(s.dir, "accounts")
	for name, text := range map[string]string{"main.cf": "compatibility_level = 3.6\naccount_maps = " + strings.ReplaceAll(spec, "DIR", s.dir) + "\n", "master.cf": ""} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *site) run(stdin, verb string, args ...string) (out, errs string, status int) {
	var o, e bytes.Buffer
	status = Run("posthaste account", append([]string{verb, "-c", s.dir}, args...), strings.NewReader(stdin), &o, &e)
	return o.String(), e.String(), status
}

// An account's life: made, given passwords for its programs, kept out, let in again, removed. A
// table that postmap builds is built.
func TestLife(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"texthash:DIR/accounts", "ldap:/x, hash:DIR/accounts"} {
		s := newSite(t, spec)
		for _, step := range []struct {
			stdin, verb string
			args        []string
			want        string // of the output, a pattern
		}{
			{"secret\n", "add", []string{"ann@example.org"}, "^$"},
			{"secret2", "add", []string{"-s", "bcrypt", "joe"}, "^$"},
			{"", "app-password", []string{"Ann@example.org", "phone"}, `^[a-z2-7]{5}(-[a-z2-7]{5}){3}\n$`},
			{"", "app-password", []string{"ann@example.org", "tablet"}, `^[a-z2-7]{5}(-[a-z2-7]{5}){3}\n$`},
			{"", "app-password", []string{"-r", "ann@example.org", "phone"}, "^$"},
			{"", "disable", []string{"ann@example.org", "joe"}, "^$"},
			{"", "enable", []string{"joe"}, "^$"},
			{"new\n", "passwd", []string{"-s", "sha512-crypt", "ann@example.org"}, "^$"},
			{"", "list", nil, "^ann@example.org; application passwords tablet; disabled\njoe\n$"},
			{"", "list", []string{"JOE"}, "^joe\n$"},
		} {
			out, errs, status := s.run(step.stdin, step.verb, step.args...)
			if status != 0 || errs != "" || !regexp.MustCompile(step.want).MatchString(out) {
				t.Fatalf("%s %q: %d %q %q", step.verb, step.args, status, out, errs)
			}
		}
		text, err := os.ReadFile(s.table)
		if err != nil || strings.Contains(string(text), "secret") || !regexp.MustCompile(`(?m)^ann@example.org\t\{SHA512-CRYPT\}\S+ tablet:\{SSHA256\}\S+ disabled$`).Match(text) {
			t.Errorf("%v\n%s", err, text)
		}
		if info, err := os.Stat(s.table); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%v %v", info.Mode(), err)
		}
		if built := filepath.Join(s.dir, "accounts.phdb"); strings.Contains(spec, "hash:DIR") && strings.HasPrefix(spec, "ldap") {
			if _, err := os.Stat(built); err != nil {
				t.Error(err)
			}
		}
		out, _, _ := s.run("", "list", "-j", "ann@example.org")
		var l Listed
		if err := json.Unmarshal([]byte(out), &l); err != nil || !l.Disabled || !l.Password || len(l.Apps) != 1 {
			t.Errorf("%v %s", err, out)
		}
		if _, errs, status := s.run("", "remove", "ann@example.org", "joe"); status != 0 {
			t.Errorf("%d %s", status, errs)
		}
		if out, _, status := s.run("", "list"); status != 0 || out != "" {
			t.Errorf("%d %q", status, out)
		}
	}
}

// An account that is called by an address may send as that address, until it is removed; what an
// administrator has written stays.
func TestOwner(t *testing.T) {
	t.Parallel()
	s := newSite(t, "texthash:DIR/accounts\nsmtpd_sender_login_maps = texthash:DIR/logins")
	logins := filepath.Join(s.dir, "logins")
	const start = "# who\nsales@example.org  ann@example.org, joe\n"
	if err := os.WriteFile(logins, []byte(start), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ann@example.org", "sales@example.org", "joe"} {
		if _, errs, status := s.run("secret\n", "add", name); status != 0 {
			t.Fatal(errs)
		}
	}
	if text, err := os.ReadFile(logins); err != nil || string(text) != start+"ann@example.org\tann@example.org\n" {
		t.Errorf("%s %v", text, err)
	}
	if _, errs, status := s.run("", "remove", "ann@example.org", "sales@example.org", "joe"); status != 0 {
		t.Error(errs)
	}
	if text, err := os.ReadFile(logins); err != nil || string(text) != start {
		t.Errorf("%s %v", text, err)
	}
}

// What goes wrong has a status of its own, says why, and changes nothing.
func TestFaults(t *testing.T) {
	t.Parallel()
	s := newSite(t, "texthash:DIR/accounts")
	if out, errs, status := s.run("", "list"); status != 0 || out != "" {
		t.Errorf("no table yet: %d %q %q", status, out, errs)
	}
	if _, errs, status := s.run("secret\n", "add", "ann"); status != 0 {
		t.Fatalf("%d %s", status, errs)
	}
	f, err := os.OpenFile(s.table, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("broken hello\n")
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(s.table)
	for _, tt := range []struct {
		status      int
		stdin, want string
		args        []string
	}{
		{64, "", "usage:", []string{"show", "ann"}}, {64, "", "usage:", []string{"add"}}, {64, "", "usage:", []string{"add", "ann", "secret"}},
		{64, "", "expected one of argon2id", []string{"add", "-s", "md5", "joe"}}, {64, "", "usage:", []string{"app-password", "ann"}}, {64, "", "usage:", []string{"disable"}},
		{65, "\n", "1 to 1024 octets", []string{"add", "joe"}}, {65, "", "standard input", []string{"add", "joe"}}, {65, "x\n", "cannot be a user's name", []string{"add", "two words"}},
		{65, "x\n", "cannot be a user's name", []string{"add", "#x"}}, {65, "", "cannot name", []string{"app-password", "ann", "my phone"}}, {65, "", "account broken: expected", []string{"disable", "broken"}},
		{66, "x\n", "there is no account joe", []string{"passwd", "joe"}}, {66, "", "there is no account joe", []string{"disable", "joe"}}, {66, "", "there is no account joe", []string{"remove", "joe"}},
		{66, "", "there is no account joe", []string{"list", "joe"}}, {66, "", "has no application password phone", []string{"app-password", "-r", "ann", "phone"}},
		{66, "", "there is no account joe", []string{"app-password", "joe", "phone"}}, {73, "x\n", "there is an account Ann", []string{"add", "Ann"}},
	} {
		out, errs, status := s.run(tt.stdin, tt.args[0], tt.args[1:]...)
		if status != tt.status || !strings.Contains(errs, tt.want) || out != "" {
			t.Errorf("%q: %d %q %q", tt.args, status, out, errs)
		}
	}
	if after, _ := os.ReadFile(s.table); !bytes.Equal(before, after) {
		t.Errorf("%s\nis now\n%s", before, after)
	}
	if out, _, _ := s.run("", "list", "broken"); !strings.Contains(out, "broken: nobody can log in: expected a password hash") {
		t.Errorf("%q", out)
	}
	if _, errs, status := newSite(t, "mysql:/x").run("", "add", "ann"); status != 78 || !strings.Contains(errs, "in a database") {
		t.Errorf("%d %s", status, errs)
	}
	// More application passwords than an account may have.
	for i := range 33 {
		_, errs, status := s.run("", "app-password", "ann", "app"+string(rune('A'+i%26))+string(rune('a'+i/26)))
		if (status == 0) != (i < 32) || i == 32 && !strings.Contains(errs, "33 application passwords") {
			t.Fatalf("%d: %d %s", i, status, errs)
		}
	}
}

// What the command writes is what the server reads.
func TestWritten(t *testing.T) {
	t.Parallel()
	s := newSite(t, "texthash:DIR/accounts")
	if _, errs, status := s.run("secret\n", "add", "ann"); status != 0 {
		t.Fatal(errs)
	}
	app, _, _ := s.run("", "app-password", "ann", "phone")
	text, err := os.ReadFile(s.table)
	if err != nil {
		t.Fatal(err)
	}
	_, value, _ := strings.Cut(strings.Split(strings.TrimSpace(string(text)), "\n")[1], "\t")
	a, err := sasl.ParseAccount(value)
	if err != nil || len(a.Apps) != 1 || a.Apps[0].Name != "phone" || app == "" {
		t.Errorf("%v %v %q", a, err, app)
	}
}
