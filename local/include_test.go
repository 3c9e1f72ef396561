package local

import (
	"os"
	"strings"
	"testing"

	"posthaste/internal/rights"
)

const secretLines = "Secret-Password, |secret-command\n/secret-file \"secret\nhidden@far.test\n"

// A user who has a list in his own directory gets no more of root's files by it than by
// himself: neither delivered to, nor in a bounce or a log line.
func TestIncludeOfUsersDirectory(t *testing.T) {
	t.Parallel()
	if !rights.Switching() {
		t.Skip("not root: there is no other user")
	}
	const all = "allow_mail_to_commands = alias, forward, include\nallow_mail_to_files = alias, forward, include"
	for _, tt := range []struct {
		name  string
		plant func(s *site) error
		to    string
	}{
		{"a link", func(s *site) error { return os.Symlink(s.path("secret"), s.path("home/joe/list")) }, "list"},
		{"a second name", func(s *site) error { return os.Link(s.path("secret"), s.path("home/joe/list")) }, "list"},
		{"a link as the directory", func(s *site) error {
			os.Mkdir(s.path("private"), 0o700)
			os.WriteFile(s.path("private/list"), []byte(secretLines), 0o644)
			return os.Symlink(s.path("private"), s.path("home/joe/lists"))
		}, "deep"},
		{"a list that names the file", func(s *site) error {
			s.write("home/joe/list", ":include:%DIR%/secret\n", s.users["joe"])
			return nil
		}, "list"},
		{"root's link into the directory", func(s *site) error { return os.Symlink(s.path("secret"), s.path("home/joe/list")) }, "linked"},
		{"by root's list", func(s *site) error { return os.Symlink(s.path("secret"), s.path("home/joe/list")) }, "nested"},
		{"by root's .forward", func(s *site) error {
			s.write("home/root/.forward", ":include:%DIR%/home/joe/list\n", nil)
			return os.Symlink(s.path("secret"), s.path("home/joe/list"))
		}, "root"},
		{"by root's .forward and a list of the user's", func(s *site) error {
			s.write("home/root/.forward", ":include:%DIR%/home/joe/list\n", nil)
			s.write("home/joe/list", ":include:%DIR%/secret\n", s.users["joe"])
			return nil
		}, "root"},
		{"a .forward", func(s *site) error {
			s.forward("joe", ":include:%DIR%/secret\n")
			return nil
		}, "joe"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "list :include:%DIR%/home/joe/list\ndeep :include:%DIR%/home/joe/lists/list\nlinked :include:%DIR%/linked\nnested :include:%DIR%/nested\n", all)
			s.write("secret", secretLines, nil)
			s.write("nested", ":include:%DIR%/home/joe/list\n", nil)
			if err := os.Chmod(s.path("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
			s.mkdir(s.path("home/root"), nil)
			if err := os.Symlink(s.path("home/joe/list"), s.path("linked")); err != nil {
				t.Fatal(err)
			}
			if err := tt.plant(s); err != nil {
				t.Fatal(err)
			}
			got := s.deliver(tt.to + "@example.org")
			s.expect(got, "failed 5.3.5 mail system configuration error")
			said := strings.ToLower(strings.Join(got, "\n") + s.logged())
			said = strings.ReplaceAll(said, strings.ToLower(s.path("secret")), "")
			for _, word := range []string{"password", "secret", "hidden"} {
				if strings.Contains(said, word) {
					t.Errorf("%q is in %s", word, said)
				}
			}
			if len(s.queued) != 0 {
				t.Errorf("forwarded: %+v", s.queued)
			}
		})
	}
}

// What a list in a user's directory names is done with that user's rights, whoever owns the
// file: he can put any there.
func TestIncludeGivesRightsOfDirectory(t *testing.T) {
	t.Parallel()
	if !rights.Switching() {
		t.Skip("not root: there is no other user")
	}
	s := newSite(t, "list :include:%DIR%/home/joe/list\nplain :include:%DIR%/plain\nopen :include:%DIR%/open/list\n",
		"allow_mail_to_commands = alias, include")
	s.write("home/joe/list", "\"|id -u > %DIR%/spool/joe\"\n", s.users["ann"])
	os.Chmod(s.path("home/joe/list"), 0o644)
	s.write("plain", "\"|id -u > %DIR%/spool/plain\"\n", s.users["ann"])
	s.mkdir(s.path("open"), nil)
	os.Chmod(s.path("open"), 0o777)
	s.write("open/list", "\"|id -u > %DIR%/spool/open\"\n", s.users["ann"])
	os.Chmod(s.path("open/list"), 0o644)
	for name, want := range map[string]string{"list": "60001\n", "plain": "60002\n", "open": "60003\n"} {
		s.deliver(name + "@example.org")
		file := map[string]string{"list": "joe"}[name]
		if file == "" {
			file = name
		}
		if got := s.read("spool/" + file); got != want {
			t.Errorf("%s: ran as %q; want %q", name, got, want)
		}
	}
}
