// Package users is who there is on this system: the accounts that mail is
// delivered to and that commands run as.
//
// # Security
//
// Names come from strangers. getent, which is asked for accounts that are
// elsewhere than in /etc/passwd, takes a name that is a number for a user id;
// an answer about somebody else is no answer. What it says of a name, also
// that there is nobody, is believed for a few seconds, so that mail for one
// name asks once, and mail for many costs a bounded memory.
//
// Commands have the supplementary groups of their account, which Postfix does
// not give them, but never group 0 nor the mail system's.
package users

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/rights"
)

// A User is one account of the system.
type User struct {
	Name     string
	UID, GID int
	Home     string
	Shell    string
	Groups   []int // supplementary
}

// A Database answers who there is. Methods may be called concurrently. A user that
// does not exist is nil without an error; an error means that it could not
// be found out.
type Database interface {
	Lookup(name string) (*User, error)
	LookupID(uid int) (*User, error)
	LookupGroup(name string) (gid int, found bool, err error)
}

// Files are the rights to reach files as u: no supplementary groups, as with
// Postfix.
func (u *User) Files() rights.Rights {
	if u.UID == 0 {
		return rights.Own
	}
	return rights.Rights{UID: u.UID, GID: u.GID}
}

// All are u's rights as a login would have them, with the supplementary groups
// but for 0 and those in without. The primary group is as it is: who may not
// have it is refused elsewhere (package rights, [Named]).
func (u *User) All(without ...int) rights.Rights {
	r := rights.Rights{UID: u.UID, GID: u.GID}
	for _, g := range u.Groups {
		if g != 0 && !slices.Contains(without, g) {
			r.Groups = append(r.Groups, g)
		}
	}
	return r
}

// Named are the rights of user=NAME or user=NAME:GROUP in master.cf. Root's are
// refused, and those of mailOwner, who the mail system is.
func Named(spec string, db Database, mailOwner string) (rights.Rights, error) {
	name, group, hasGroup := strings.Cut(spec, ":")
	u, err := db.Lookup(name)
	if err != nil {
		return rights.Rights{}, fmt.Errorf("user=%s: %w", spec, err)
	}
	if u == nil {
		return rights.Rights{}, fmt.Errorf("user=%s: there is no user %q", spec, name)
	}
	owner, err := db.Lookup(mailOwner)
	if err != nil {
		return rights.Rights{}, fmt.Errorf("user=%s: %w", spec, err)
	}
	r := u.All()
	if owner != nil {
		r = u.All(owner.GID)
	}
	if hasGroup {
		gid, found, err := db.LookupGroup(group)
		if err != nil {
			return rights.Rights{}, fmt.Errorf("user=%s: %w", spec, err)
		}
		if !found {
			return rights.Rights{}, fmt.Errorf("user=%s: there is no group %q", spec, group)
		}
		r.GID = gid
	}
	switch {
	case u.UID == 0 || r.GID == 0:
		return rights.Rights{}, fmt.Errorf("user=%s: expected a user without root's privileges", spec)
	case owner != nil && rights.Switching() && (u.UID == owner.UID || r.GID == owner.GID):
		return rights.Rights{}, fmt.Errorf("user=%s: expected a user without the mail system's privileges", spec)
	}
	return r, nil
}

// System is the system's user database: /etc/passwd and /etc/group, read
// again when they change, and whatever else nsswitch.conf names, asked by the
// program getent. The zero System is ready for use.
type System struct {
	etc string                                                      // where the files are; empty: /etc
	ask func(database, key string) (out string, ok bool, err error) // empty: getent

	mu        sync.Mutex
	versions  [3]version // of files
	byName    map[string]*User
	byID      map[int]*User
	groups    map[string]int
	elsewhere map[string]bool   // databases that have other sources than files
	answers   map[string]answer // getent's, by key
}

// In is the database whose files are in the directory etc; empty: the system's.
func In(etc string) *System { return &System{etc: etc} }

// files are what a System reads, in this order.
var files = [...]string{"passwd", "group", "nsswitch.conf"}

// version is a file as it was when it was last read.
type version struct {
	inode uint64
	size  int64
	time  unix.Timespec
}

// An answer is what getent has said of a key; user nil: nobody.
type answer struct {
	user  *User
	until time.Time
}

const (
	getentTimeout = 30 * time.Second
	// believed is how long an answer of getent's counts: as long as a delivery
	// asks again, not as long as somebody waits for a new account to work.
	believed = 5 * time.Second
	// maxAnswers is how many are kept.
	maxAnswers = 1000
)

// Lookup implements Database.
func (s *System) Lookup(name string) (*User, error) {
	if name == "" || strings.ContainsAny(name, ":\n\x00/") {
		return nil, nil
	}
	s.mu.Lock()
	err := s.refresh()
	u := s.byName[name]
	s.mu.Unlock()
	if u != nil || err != nil {
		return u, err
	}
	return s.getent(name, func(u *User) bool { return u.Name == name || !isNumber(name) })
}

// LookupID implements Database.
func (s *System) LookupID(uid int) (*User, error) {
	s.mu.Lock()
	err := s.refresh()
	u := s.byID[uid]
	s.mu.Unlock()
	if u != nil || err != nil {
		return u, err
	}
	return s.getent(strconv.Itoa(uid), func(u *User) bool { return u.UID == uid })
}

// isNumber says whether getent takes a name for a number, as strtoul(3) does.
func isNumber(name string) bool {
	name = strings.TrimLeft(name, " \t\v\f\r\n")
	name = strings.TrimPrefix(strings.TrimPrefix(name, "+"), "-")
	return strings.Trim(name, "0123456789") == ""
}

// LookupGroup implements Database.
func (s *System) LookupGroup(name string) (gid int, found bool, err error) {
	s.mu.Lock()
	err = s.refresh()
	gid, found = s.groups[name]
	others := s.elsewhere["group"]
	s.mu.Unlock()
	if found || err != nil || !others || name == "" || name[0] == '-' {
		return gid, found, err
	}
	out, found, err := s.run("group", name)
	if err != nil || !found {
		return 0, false, err
	}
	f := strings.Split(out, ":")
	if len(f) < 3 {
		return 0, false, fmt.Errorf("getent group %s: unexpected answer %.80q", name, out)
	}
	if isNumber(name) && f[0] != name {
		return 0, false, nil
	}
	gid, err = strconv.Atoi(f[2])
	return gid, err == nil, err
}

// refresh reads the files again when they have changed. Called with mu held.
func (s *System) refresh() error {
	etc := s.etc
	if etc == "" {
		etc = "/etc"
	}
	var now [len(files)]version
	for i, name := range files {
		var st unix.Stat_t
		if err := unix.Stat(etc+"/"+name, &st); err == nil {
			now[i] = version{st.Ino, st.Size, st.Mtim}
		} else if name != "nsswitch.conf" {
			return &fs.PathError{Op: "stat", Path: etc + "/" + name, Err: err}
		}
	}
	if s.byName != nil && now == s.versions {
		return nil
	}
	var text [len(files)]string
	for i, name := range files {
		b, err := os.ReadFile(filepath.Join(etc, name))
		if err != nil && name != "nsswitch.conf" {
			return err
		}
		text[i] = string(b)
	}
	s.byName, s.byID, s.groups = parse(text[0], text[1])
	s.elsewhere = otherSources(text[2])
	s.versions, s.answers = now, nil
	return nil
}

// parse reads passwd(5) and group(5). The first entry of a name or uid counts.
func parse(passwd, group string) (byName map[string]*User, byID map[int]*User, groups map[string]int) {
	byName, byID, groups = map[string]*User{}, map[int]*User{}, map[string]int{}
	for line := range strings.Lines(passwd) {
		u := parseUser(strings.TrimSpace(line))
		if u == nil || byName[u.Name] != nil {
			continue
		}
		byName[u.Name] = u
		if byID[u.UID] == nil {
			byID[u.UID] = u
		}
	}
	for line := range strings.Lines(group) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 {
			continue
		}
		gid, err := strconv.Atoi(f[2])
		if err != nil {
			continue
		}
		if _, again := groups[f[0]]; !again {
			groups[f[0]] = gid
		}
		for member := range strings.SplitSeq(f[3], ",") {
			if u := byName[member]; u != nil && u.GID != gid {
				u.Groups = append(u.Groups, gid)
			}
		}
	}
	return byName, byID, groups
}

func parseUser(line string) *User {
	f := strings.Split(line, ":")
	if len(f) < 7 || f[0] == "" || f[0][0] == '#' {
		return nil
	}
	uid, err1 := strconv.Atoi(f[2])
	gid, err2 := strconv.Atoi(f[3])
	if errors.Join(err1, err2) != nil {
		return nil
	}
	return &User{Name: f[0], UID: uid, GID: gid, Home: f[5], Shell: f[6]}
}

// getent asks the other sources that nsswitch.conf names, if there are any.
// It takes a name that is a number for an id: right says whether the answer is
// about the one who was asked for.
func (s *System) getent(key string, right func(*User) bool) (*User, error) {
	now := time.Now()
	s.mu.Lock()
	known, ok := s.answers[key]
	others := s.elsewhere["passwd"]
	s.mu.Unlock()
	if !others || strings.HasPrefix(key, "-") {
		return nil, nil
	}
	if !ok || now.After(known.until) {
		u, err := s.askUser(key)
		if err != nil {
			return nil, err
		}
		known = answer{u, now.Add(believed)}
		s.keep(key, known, now)
	}
	if known.user == nil || !right(known.user) {
		return nil, nil
	}
	return known.user, nil
}

// keep remembers an answer, and forgets others when there are too many.
func (s *System) keep(key string, a answer, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.answers) >= maxAnswers {
		maps.DeleteFunc(s.answers, func(_ string, a answer) bool { return now.After(a.until) })
	}
	if s.answers == nil || len(s.answers) >= maxAnswers {
		s.answers = map[string]answer{}
	}
	s.answers[key] = a
}

// askUser is getent's answer; nil: nobody.
func (s *System) askUser(key string) (*User, error) {
	out, found, err := s.run("passwd", key)
	if err != nil || !found {
		return nil, err
	}
	u := parseUser(strings.TrimSpace(out))
	if u == nil {
		return nil, fmt.Errorf("getent passwd %s: unexpected answer %.80q", key, out)
	}
	out, _, err = s.run("initgroups", u.Name)
	if err != nil {
		return nil, err
	}
	for i, f := range strings.Fields(out) {
		if g, err := strconv.Atoi(f); err == nil && i > 0 && g != u.GID {
			u.Groups = append(u.Groups, g)
		}
	}
	return u, nil
}

// run runs getent. found is false when it says that there is no such key.
func (s *System) run(database, key string) (out string, found bool, err error) {
	if s.ask != nil {
		return s.ask(database, key)
	}
	ctx, cancel := context.WithTimeout(context.Background(), getentTimeout)
	defer cancel()
	b, err := exec.CommandContext(ctx, "getent", database, key).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("getent %s %s: %w", database, key, err)
	}
	return string(b), true, nil
}

// otherSources are the databases that, by nsswitch.conf, come from elsewhere
// than files.
func otherSources(nsswitch string) map[string]bool {
	elsewhere := map[string]bool{}
	for line := range strings.Lines(nsswitch) {
		line, _, _ = strings.Cut(line, "#")
		database, sources, _ := strings.Cut(strings.TrimSpace(line), ":")
		for _, s := range strings.Fields(sources) {
			if s != "files" && s != "compat" && s[0] != '[' {
				elsewhere[strings.TrimSpace(database)] = true
			}
		}
	}
	return elsewhere
}
