package users

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/rights"
)

func TestParseUsers(t *testing.T) {
	t.Parallel()
	byName, byID, groups := parse("root:x:0:0:root:/root:/bin/bash\nbad\n#c:x:1:1::/:\njoe:x:7:8:J,,:/home/joe:/bin/sh\njoe:x:9:9:::\n",
		"wheel:x:0:joe\njoe:x:8:joe\nmail:x:12:ann,joe\n")
	u := byName["joe"]
	if len(byName) != 2 || groups["mail"] != 12 || u == nil || byID[7] != u || u.GID != 8 || u.Home != "/home/joe" || u.Shell != "/bin/sh" || !slices.Equal(u.Groups, []int{0, 12}) {
		t.Errorf("%+v", u)
	}
	if me, err := new(System).LookupID(os.Getuid()); err != nil || me == nil || me.UID != os.Getuid() {
		t.Errorf("myself: %+v, %v", me, err)
	}
	if u, err := new(System).Lookup("no-such-user"); u != nil || err != nil {
		t.Errorf("nobody: %+v, %v", u, err)
	}
}

// getent is a program that answers as the C library's does: it takes what is a
// number for an id. It counts its calls.
type getent struct {
	calls  []string
	broken bool
}

func (g *getent) ask(database, key string) (string, bool, error) {
	g.calls = append(g.calls, database+" "+key)
	if g.broken {
		return "", false, fmt.Errorf("the directory is down")
	}
	number := strings.TrimLeft(key, " +0")
	switch database + " " + number {
	case "passwd ": // 0 in some form
		return "root:x:0:0:root:/root:/bin/sh\n", true, nil
	case "passwd 1000":
		return "ada:x:1000:1000:::\n", true, nil
	case "passwd 2000":
		return "2000:x:2000:2000:::\n", true, nil
	case "passwd 3000":
		return "wrong:x:3001:3001:::\n", true, nil
	case "passwd ada":
		return "ada@far.test:x:1000:1000:::\n", true, nil
	case "passwd odd":
		return "nonsense\n", true, nil
	case "initgroups ada", "initgroups ada@far.test":
		return key + " 1000 0 77\n", true, nil
	case "group crowd":
		return "crowd:x:500:\n", true, nil
	case "group ":
		return "root:x:0:\n", true, nil
	}
	return "", false, nil
}

func newSystem(t *testing.T, nsswitch string) (*System, *getent) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"passwd": "joe:x:7:8::/home/joe:/bin/sh\n", "group": "joe:x:8:\n", "nsswitch.conf": nsswitch} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	g := new(getent)
	return &System{etc: dir, ask: g.ask}, g
}

// TestNumbers: a name that getent takes for a user id is nobody's but who is
// called so.
func TestNumbers(t *testing.T) {
	t.Parallel()
	s, g := newSystem(t, "# a comment\npasswd: files systemd\ngroup: files ldap # another\n")
	for name, want := range map[string]string{"0": "", "+0": "", " 0": "", "00": "", "1000": "", "2000": "2000", "ada": "ada@far.test", "joe": "joe", "eve": ""} {
		u, err := s.Lookup(name)
		if err != nil || u == nil && want != "" || u != nil && u.Name != want {
			t.Errorf("%q: %+v, %v; want %q", name, u, err, want)
		}
	}
	if !slices.Contains(g.calls, "passwd 0") {
		t.Error("getent was not asked")
	}
	if u, err := s.LookupID(1000); err != nil || u == nil || u.Name != "ada" || !slices.Equal(u.Groups, []int{0, 77}) {
		t.Errorf("by id: %+v, %v", u, err)
	}
	if u, err := s.LookupID(3000); u != nil || err != nil {
		t.Errorf("by an id that is another's: %+v, %v", u, err)
	}
	if _, err := s.Lookup("odd"); err == nil || !strings.Contains(err.Error(), "unexpected answer") {
		t.Errorf("nonsense: %v", err)
	}
	for name, want := range map[string]int{"crowd": 500, "joe": 8, "0": -1, "none": -1} {
		gid, found, err := s.LookupGroup(name)
		if err != nil || found != (want >= 0) || found && gid != want {
			t.Errorf("group %q: %d, %v, %v", name, gid, found, err)
		}
	}
	s, g = newSystem(t, "passwd: files [NOTFOUND=return]\nshadow: files ldap\n")
	if u, err := s.Lookup("ada"); u != nil || err != nil || len(g.calls) != 0 {
		t.Errorf("with no other sources: %+v, %v, %q", u, err, g.calls)
	}
}

// TestAnswers: what getent says of a name is asked for once in a while, and
// not kept without bound.
func TestAnswers(t *testing.T) {
	t.Parallel()
	s, g := newSystem(t, "passwd: files systemd\n")
	synctest.Test(t, func(t *testing.T) {
		for range 3 {
			s.Lookup("eve")
			s.Lookup("ada")
		}
		if want := []string{"passwd eve", "passwd ada", "initgroups ada@far.test"}; !slices.Equal(g.calls, want) {
			t.Errorf("calls %q, want %q", g.calls, want)
		}
		time.Sleep(believed + time.Second)
		if s.Lookup("eve"); len(g.calls) != 4 {
			t.Errorf("calls %q: an old answer was believed", g.calls)
		}
		for i := range 3 * maxAnswers {
			s.Lookup(fmt.Sprint("stranger", i))
		}
		if len(s.answers) > maxAnswers {
			t.Errorf("%d answers kept", len(s.answers))
		}
		g.broken = true
		if _, err := s.Lookup("bob"); err == nil {
			t.Error("a failure was taken for an answer")
		}
		g.broken = false
		if _, err := s.Lookup("bob"); err != nil {
			t.Errorf("a failure was remembered: %v", err)
		}
		// A change of the files is a change of the answers.
		if err := os.WriteFile(filepath.Join(s.etc, "passwd"), []byte("bob:x:9:9:::\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if u, err := s.Lookup("bob"); err != nil || u == nil || u.UID != 9 {
			t.Errorf("a new account: %+v, %v", u, err)
		}
	})
}

// TestNamed: whose rights commands of master.cf have.
func TestNamed(t *testing.T) {
	t.Parallel()
	s, _ := newSystem(t, "")
	os.WriteFile(filepath.Join(s.etc, "passwd"), []byte("root:x:0:0:::\nmailer:x:5:5:::\njoe:x:7:8:::\nann:x:9:0:::\n"), 0o644)
	os.WriteFile(filepath.Join(s.etc, "group"), []byte("root:x:0:joe\nmailer:x:5:joe\njoe:x:8:\nvideo:x:44:joe\n"), 0o644)
	r, err := Named("joe", s, "mailer")
	if want := (rights.Rights{UID: 7, GID: 8, Groups: []int{44}}); err != nil || fmt.Sprint(r) != fmt.Sprint(want) {
		t.Errorf("joe: %+v, %v; want %+v", r, err, want)
	}
	for spec, want := range map[string]string{"root": "without root's privileges", "ann": "without root's privileges", "joe:root": "without root's privileges",
		"joe:none": `user=joe:none: there is no group "none"`, "who": `there is no user "who"`} {
		if _, err := Named(spec, s, "mailer"); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", spec, err, want)
		}
	}
	if rights.Switching() {
		for _, spec := range []string{"mailer", "joe:mailer"} {
			if _, err := Named(spec, s, "mailer"); err == nil || !strings.Contains(err.Error(), "the mail system's privileges") {
				t.Errorf("%s: %v", spec, err)
			}
		}
	}
}
