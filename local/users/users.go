// Package users is who there is on this system: the accounts that mail is
// delivered to and that commands run as.
package users

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"posthaste/local/rights"
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

// All are u's rights as a login would have them.
func (u *User) All() rights.Rights { return rights.Rights{UID: u.UID, GID: u.GID, Groups: u.Groups} }

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
	r := u.All()
	if hasGroup {
		gid, found, err := db.LookupGroup(group)
		if err != nil || !found {
			return rights.Rights{}, fmt.Errorf("user=%s: there is no group %q: %w", spec, group, err)
		}
		r.GID = gid
	}
	switch owner, err := db.Lookup(mailOwner); {
	case err != nil:
		return rights.Rights{}, fmt.Errorf("user=%s: %w", spec, err)
	case u.UID == 0 || r.GID == 0:
		return rights.Rights{}, fmt.Errorf("user=%s: expected a user who does not have root's rights", spec)
	case owner != nil && rights.Switching() && (u.UID == owner.UID || r.GID == owner.GID):
		return rights.Rights{}, fmt.Errorf("user=%s: expected a user who does not have the mail system's rights", spec)
	}
	return r, nil
}

// System is the system's user database: /etc/passwd and /etc/group, read
// again when they change, and whatever else nsswitch.conf names, asked by the
// program getent. The zero System is ready for use.
type System struct {
	mu            sync.Mutex
	passwd, group version
	byName        map[string]*User
	byID          map[int]*User
	groups        map[string]int
}

// version is a file as it was when it was last read.
type version struct {
	size int64
	time time.Time
}

const getentTimeout = 30 * time.Second

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
	return getent(name)
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
	return getent(strconv.Itoa(uid))
}

// LookupGroup implements Database.
func (s *System) LookupGroup(name string) (gid int, found bool, err error) {
	s.mu.Lock()
	err = s.refresh()
	gid, found = s.groups[name]
	s.mu.Unlock()
	if found || err != nil || !otherSources() || name == "" || name[0] == '-' {
		return gid, found, err
	}
	out, found, err := runGetent("group", name)
	if err != nil || !found {
		return 0, false, err
	}
	f := strings.Split(out, ":")
	if len(f) < 3 {
		return 0, false, fmt.Errorf("getent group %s: unexpected answer %.80q", name, out)
	}
	gid, err = strconv.Atoi(f[2])
	return gid, err == nil, err
}

// refresh reads the files again when they have changed. Called with mu held.
func (s *System) refresh() error {
	p, err := look("/etc/passwd")
	if err != nil {
		return err
	}
	g, err := look("/etc/group")
	if err != nil {
		return err
	}
	if s.byName != nil && p == s.passwd && g == s.group {
		return nil
	}
	users, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return err
	}
	groups, err := os.ReadFile("/etc/group")
	if err != nil {
		return err
	}
	s.byName, s.byID, s.groups = parse(string(users), string(groups))
	s.passwd, s.group = p, g
	return nil
}

func look(file string) (version, error) {
	st, err := os.Stat(file)
	if err != nil {
		return version{}, err
	}
	return version{st.Size(), st.ModTime()}, nil
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
func getent(key string) (*User, error) {
	if !otherSources() || strings.HasPrefix(key, "-") {
		return nil, nil
	}
	out, found, err := runGetent("passwd", key)
	if err != nil || !found {
		return nil, err
	}
	u := parseUser(strings.TrimSpace(out))
	if u == nil {
		return nil, fmt.Errorf("getent passwd %s: unexpected answer %.80q", key, out)
	}
	out, _, err = runGetent("initgroups", u.Name)
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

// runGetent runs getent. found is false when it says that there is no such key.
func runGetent(database, key string) (out string, found bool, err error) {
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

// otherSources says whether users come from elsewhere than files.
func otherSources() bool {
	b, err := os.ReadFile("/etc/nsswitch.conf")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		sources, ok := strings.CutPrefix(strings.TrimSpace(line), "passwd:")
		if !ok {
			continue
		}
		for _, s := range strings.Fields(sources) {
			if s != "files" && s != "compat" && s[0] != '[' {
				return true
			}
		}
	}
	return false
}
