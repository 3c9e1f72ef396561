package domain

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/tabletext"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/rights"
)

// newEmpty is a site without domains, whose keys nobody's group may read.
func newEmpty(t *testing.T, settings string) *stage {
	s := &stage{zone: "x.test. A 192.0.2.1\n", dir: t.TempDir(), certNames: []string{"mail.a.test"}}
	s.passable(t)
	var err error
	if s.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	s.main = "# the head\ncompatibility_level = 3.6\nmyhostname = mail.a.test\nmydestination = $myhostname,\n  localhost\nmail_owner = nobody\n" + settings
	s.now = time.Date(2026, 11, 27, 8, 0, 0, 0, time.UTC)
	return s
}

// tree is what is below a directory: each file with its mode and content.
func tree(t *testing.T, dir string) map[string]string {
	files := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		files[name] = info.Mode().String() + "\n" + string(text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func (s *stage) read(t *testing.T, name string) string {
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A new domain gets its class, a pending key that mail_owner may read, and a table for the entry
// to come; the record is printed in both forms. Another run changes nothing and says so.
func TestAdd(t *testing.T) {
	t.Parallel()
	s := newEmpty(t, "")
	out, errs, status := s.run(t, "add", "--class=virtual", "-r", "hostmaster@new.test", "new.test")
	if status != 0 || errs != "" {
		t.Fatalf("status %d: %s", status, errs)
	}
	wantMain := "# the head\ncompatibility_level = 3.6\nmyhostname = mail.a.test\nmydestination = $myhostname,\n  localhost\nmail_owner = nobody\n" +
		"virtual_mailbox_domains = $virtual_mailbox_maps, new.test\ndkim_sign_maps = texthash:" + s.dir + "/dkim_keys\n"
	if got := s.read(t, "main.cf"); got != wantMain {
		t.Errorf("main.cf:\n%s", got)
	}
	file := filepath.Join(s.dir, "dkim", "new.test.202611a.pem")
	key, err := dkimkey.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := dkimkey.Record(key)
	if err != nil || !strings.HasPrefix(text, "v=DKIM1; k=rsa; p=") {
		t.Fatal(text, err)
	}
	for _, part := range []string{"dkim: a new directory\n", "new.test.202611a.pem: a new key (rsa, 2048 bits)\n", "new.test.keys: 202611a is pending\n", "dkim_keys: a new table\n",
		"note: posthaste reload takes up", "note: name the mailboxes in virtual_mailbox_maps",
		"  name   202611a._domainkey.new.test\n  type   TXT\n  value  " + text + "\n", "202611a._domainkey.new.test. IN TXT " + quoted(text) + "\n", "new.test. IN MX 10 mail.a.test.\n", "rua=mailto:hostmaster@new.test"} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is not printed:\n%s", part, out)
		}
	}
	if rights.Switching() {
		info, err := os.Stat(file)
		dir, err2 := os.Stat(filepath.Dir(file))
		if err != nil || err2 != nil || info.Mode().Perm() != 0o640 || dir.Mode().Perm() != 0o750 {
			t.Error(info, dir, err, err2)
		}
	}
	if got := s.read(t, "dkim/new.test.keys"); !strings.HasSuffix(got, "\n202611a      rsa      pending   2026-11-27T08:00:00Z\n") {
		t.Errorf("the file of keys:\n%s", got)
	}
	before := tree(t, s.dir)
	out, errs, status = s.again(t, "add", "new.test")
	if status != 0 || errs != "" || !strings.HasPrefix(out, "new.test is as it should be: nothing is changed\n") || !strings.Contains(out, text) {
		t.Errorf("again: status %d, %s%s", status, out, errs)
	}
	same(t, before, tree(t, s.dir))
	// A key of the other kind comes beside it.
	if out, errs, status = s.again(t, "add", "--ed25519", "new.test"); status != 0 || !strings.Contains(out, "new.test.202611ae.pem: a new key (ed25519)") || !strings.Contains(out, "k=ed25519") || strings.Contains(out, "rsa, 2048") {
		t.Errorf("ed25519: status %d, %s%s", status, out, errs)
	}
}

// same compares two trees.
func same(t *testing.T, want, got map[string]string) {
	t.Helper()
	for name, text := range got {
		if want[name] != text {
			t.Errorf("%s is\n%s\nand was\n%s", name, text, want[name])
		}
	}
	if len(want) != len(got) {
		t.Errorf("%d files, and there were %d", len(got), len(want))
	}
}

// With --dry-run nothing is changed, and what would be is told.
func TestAddDry(t *testing.T) {
	t.Parallel()
	s := newEmpty(t, "")
	s.run(t, "records", "a.test") // writes the configuration
	before := tree(t, s.dir)
	out, errs, status := s.again(t, "add", "--dry-run", "--class", "relay", "--ed25519", "--login", "ann", "new.test")
	if status != 0 || errs != "" {
		t.Fatalf("status %d: %s", status, errs)
	}
	same(t, before, tree(t, s.dir))
	for _, part := range []string{"would change:\n", "relay_domains = new.test\n", "202611a.pem: a new key", "202611ae.pem: a new key", "smtpd_sender_login_maps = texthash:", "@new.test\tann\n",
		"relay_recipient_maps", "reject_sender_login_mismatch", "_dmarc.new.test", "new.test. IN MX 10 mail.a.test.\n"} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is not printed:\n%s", part, out)
		}
	}
	if _, err := os.Lstat(filepath.Join(s.dir, "dkim")); err == nil {
		t.Error("the directory was made")
	}
}

// A run that ends after any number of steps leaves a configuration that can be read, and the next
// run does the rest.
func TestAddInterrupted(t *testing.T) {
	t.Parallel()
	for n := 0; ; n++ {
		s := newEmpty(t, "smtpd_sender_login_maps = hash:DIR/logins\nsmtpd_sender_restrictions = reject_sender_login_mismatch\n")
		s.write(t, "logins", "# who\n@b.test  bob\n")
		s.run(t, "records", "a.test")
		(tabletext.File{Spec: "hash:" + s.dir + "/logins", Path: s.dir + "/logins", Built: true}).Build(s.dir)
		cfg, err := config.Load(s.dir)
		if err != nil {
			t.Fatal(err)
		}
		site, err := OpenSite(t.Context(), cfg, nil, nil, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		c := &command{Tool: cli.Tool{Stderr: t.Output()}, Now: s.now, domains: []string{"new.test"}, orders: orders{class: "local", ed25519: true, logins: []string{"ann"}}}
		a, err := c.planAdd(t.Context(), cfg, site)
		if err != nil {
			t.Fatal(err)
		}
		all := len(a.steps)
		for _, step := range a.steps[:min(n, all)] {
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
		}
		a.vault.Close()
		site.Close()
		if _, err := config.Load(s.dir); err != nil {
			t.Errorf("after %d steps: %v", n, err)
		}
		args := []string{"add", "--class=local", "--ed25519", "--login=ann", "new.test"}
		if out, errs, status := s.again(t, args...); status != 0 {
			t.Fatalf("after %d steps: status %d, %s%s", n, status, out, errs)
		}
		out, _, _ := s.again(t, args...)
		if !strings.HasPrefix(out, "new.test is as it should be") {
			t.Errorf("after %d steps and a run there is still something to do:\n%s", n, out)
		}
		s.finished(t, n)
		if n == all {
			break
		}
	}
}

// finished says whether the domain of TestAddInterrupted is complete, with nothing left over.
func (s *stage) finished(t *testing.T, n int) {
	if got := s.read(t, "logins"); got != "# who\n@b.test  bob\n@new.test\tann\n" {
		t.Errorf("after %d steps: logins:\n%s", n, got)
	}
	if (tabletext.File{Spec: "hash:" + s.dir + "/logins", Path: s.dir + "/logins", Built: true}).Stale() {
		t.Errorf("after %d steps: the table is not built", n)
	}
	if got := s.read(t, "main.cf"); !strings.Contains(got, "\nmydestination = $myhostname,  localhost, new.test\n") || strings.Count(got, "dkim_sign_maps") != 1 {
		t.Errorf("after %d steps: main.cf:\n%s", n, got)
	}
	files, err := os.ReadDir(filepath.Join(s.dir, "dkim"))
	if err != nil || len(files) != 3 {
		t.Errorf("after %d steps: %v %v", n, files, err)
	}
}

// What contradicts main.cf, or is not said, is refused, and nothing is changed.
func TestAddRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, settings string
		args           []string
		status         int
		want           string
	}{
		{"another class", "relay_domains = new.test\n", []string{"--class=local", "new.test"}, 78, "--class local: new.test is in relay_domains already"},
		{"no class after all", "relay_domains = new.test\n", []string{"--class=none", "new.test"}, 78, "in relay_domains already"},
		{"two classes", "relay_domains = new.test\nvirtual_mailbox_domains = new.test\n", []string{"new.test"}, 78, "is in virtual_mailbox_domains and in relay_domains"},
		{"not said", "", []string{"new.test"}, 64, "add --class"},
		{"no such class", "", []string{"--class=mine", "new.test"}, 64, "expected local"},
		{"no domain", "", []string{"--class=local"}, 64, "usage"},
		{"not a login", "", []string{"--class=local", "--login", "a,b", "new.test"}, 64, "expected the name"},
		{"an option of nobody's", "", []string{"--ed448", "new.test"}, 64, "unknown option --ed448"},
		{"a value where none is", "", []string{"--dry-run=no", "new.test"}, 64, "has no value"},
		{"no value", "", []string{"new.test", "--class"}, 64, "usage"},
		{"a damaged file of keys", "dkim_key_directory = DIR/keys\n", []string{"--class=local", "new.test"}, 78, "new.test.keys, line 1: \"dsa\""},
		{"a directory for all", "dkim_key_directory = DIR/open\n", []string{"--class=local", "new.test"}, 78, "mode 0777 lets others put keys there"},
		{"no such owner", "mail_owner = nosuchuser\n", []string{"--class=local", "new.test"}, 78, "mail_owner"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.name == "no such owner" && !rights.Switching() {
				t.Skip("only root gives files to others")
			}
			s := newEmpty(t, tt.settings)
			for dir, mode := range map[string]fs.FileMode{"keys": 0o700, "open": 0o777} {
				if err := os.Mkdir(filepath.Join(s.dir, dir), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(filepath.Join(s.dir, dir), mode); err != nil {
					t.Fatal(err)
				}
			}
			s.write(t, "keys/new.test.keys", "202611a dsa pending 2026-11-27T08:00:00Z\n")
			s.run(t, "check", "-Z") // writes the configuration
			before := tree(t, s.dir)
			out, errs, status := s.again(t, append([]string{"add"}, tt.args...)...)
			if status != tt.status || out != "" || !strings.Contains(errs, tt.want) {
				t.Errorf("status %d, expected %d with %q\n%s%s", status, tt.status, tt.want, out, errs)
			}
			same(t, before, tree(t, s.dir))
		})
	}
}

// Who sits at a terminal is asked for the class, until the answer is one.
func TestAddAsks(t *testing.T) {
	t.Parallel()
	s := newEmpty(t, "")
	s.answer = "mine\nalias\n"
	out, errs, status := s.run(t, "add", "-j", "new.test")
	if status != 0 || !strings.Contains(errs, "What becomes of mail for new.test?") || !strings.Contains(errs, "expected local") {
		t.Fatalf("status %d, %s", status, errs)
	}
	var got outcome
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Domain != "new.test" || len(got.Changed) != 5 || len(got.Notes) != 3 || len(got.Records) == 0 {
		t.Errorf("%v: %+v", err, got)
	}
	if main := s.read(t, "main.cf"); !strings.Contains(main, "virtual_alias_domains = $virtual_alias_maps, new.test\n") {
		t.Error(main)
	}
	s = newEmpty(t, "")
	s.answer = "mine\n"
	if _, errs, status = s.run(t, "add", "new.test"); status != 64 || !strings.Contains(errs, "nothing is changed") {
		t.Errorf("no answer: status %d, %s", status, errs)
	}
}

// A domain that signs already, by a key from elsewhere, gets none; entries of a login table are
// completed.
func TestAddExisting(t *testing.T) {
	t.Parallel()
	s := newEmpty(t, "dkim_sign_maps = inline:{ new.test=s1:DIR/a.test.s1.pem }\nsmtpd_sender_login_maps = texthash:DIR/logins\nsmtpd_sender_restrictions = reject_sender_login_mismatch\nvirtual_mailbox_maps = inline:{ x=y }\n")
	if status := dkimkey.Command([]string{"genkey", "-d", "a.test", "-s", "s1", "-t", "ed25519", "-o", s.dir}, io.Discard, t.Output()); status != 0 {
		t.Fatal("no key")
	}
	s.write(t, "logins", "@new.test  bob\n # kept\n  carl\nlast x")
	out, errs, status := s.run(t, "add", "--class=virtual", "--login=ann", "--login=bob", "new.test")
	if status != 0 || errs != "" || strings.Contains(out, "a new key") || strings.Contains(out, "reject_sender") || strings.Contains(out, "virtual_mailbox_maps:") {
		t.Errorf("status %d, %s%s", status, out, errs)
	}
	if got := s.read(t, "logins"); got != "@new.test\tbob, carl, ann\n # kept\nlast x" {
		t.Errorf("logins:\n%s", got)
	}
}

// The file of keys can be read again, and what is not well-formed is refused with its line.
func TestRing(t *testing.T) {
	t.Parallel()
	r := &ring{domain: "new.test"}
	now := time.Date(2026, 11, 27, 8, 0, 0, 5, time.UTC)
	for i, state := range []KeyState{Retired, Retiring, Active, Pending} {
		r.add(selectors(kindRSA, now)[i], kindRSA, state, now)
	}
	again, err := parseRing("new.test", r.String())
	if err != nil || again.String() != r.String() || len(again.in(Active)) != 1 || again.find("202611C").State != Active {
		t.Errorf("%v\n%s", err, again)
	}
	for _, text := range []string{"x", "a b c d", "a rsa pending yesterday", "../a rsa pending 2026-11-27T08:00:00Z", "a rsa sleeping 2026-11-27T08:00:00Z",
		"a rsa active 2026-11-27T08:00:00Z\nA rsa pending 2026-11-27T08:00:00Z"} {
		if _, err := parseRing("new.test", "# head\n"+text); err == nil || !strings.Contains(err.Error(), "new.test.keys, line ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzRing(f *testing.F) {
	f.Add("202611a rsa pending 2026-11-27T08:00:00Z\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRing("a.test", text)
		if err != nil {
			return
		}
		again, err := parseRing("a.test", r.String())
		if err != nil || again.String() != r.String() {
			t.Errorf("%v: %s is read as %s", err, r, again)
		}
	})
}

// Accounts that are called by an address of the domain own that address.
func TestAddAccounts(t *testing.T) {
	t.Parallel()
	s := newEmpty(t, "smtpd_sasl_type = accounts\naccount_maps = texthash:DIR/accounts\nsmtpd_sender_login_maps = texthash:DIR/logins\nsmtpd_sender_restrictions = reject_sender_login_mismatch\n")
	s.write(t, "accounts", "ann@new.test x\nBob@New.test x\ncarl@else.test x\ndora x\n")
	s.write(t, "logins", "bob@new.test  carl\n")
	out, errs, status := s.run(t, "add", "--class=local", "new.test")
	if status != 0 {
		t.Fatal(out, errs)
	}
	if got := s.read(t, "logins"); got != "bob@new.test  carl\nann@new.test\tann@new.test\n" && got != "Bob@New.test\tcarl, Bob@New.test\nann@new.test\tann@new.test\n" {
		t.Errorf("logins:\n%s", got)
	}
	if out, errs, status := s.again(t, "add", "--class=local", "new.test"); status != 0 || !strings.Contains(out, "nothing is changed") {
		t.Errorf("%d %s %s", status, out, errs)
	}
}
