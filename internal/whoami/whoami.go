// Package whoami is the entry of the calling user in the system's user
// database, for programs that are started for each message. They are built without
// the C library, whose loading takes as long as all else that they do: the
// file /etc/passwd is read, and getent(1) is asked for users who are not in it,
// as those of LDAP, who nsswitch.conf knows of.
//
// # Security
//
// It may be used by set-gid programs. getent is executed by its full path,
// without the caller's environment and with the caller's own group, and has a
// few seconds.
package whoami

import (
	"context"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A User is what the database says of somebody.
type User struct {
	Name  string // login name
	Gecos string // the comment: full name, and more after a comma
}

const getentTimeout = 5 * time.Second

// Lookup finds the calling user, by the real user ID. ok is false for one who
// is not in the database.
func Lookup() (u User, ok bool) { return lookup(os.Getuid(), "/usr/bin/getent") }

func lookup(uid int, getent ...string) (u User, ok bool) {
	id := strconv.Itoa(uid)
	if found, err := user.LookupId(id); err == nil {
		return User{found.Username, found.Name}, true
	}
	ctx, cancel := context.WithTimeout(context.Background(), getentTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, getent[0], append(getent[1:], "passwd", id)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	if gid := os.Getgid(); gid != os.Getegid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: true}}
	}
	out, err := cmd.Output()
	if err != nil {
		return User{}, false
	}
	f := strings.Split(strings.TrimSpace(string(out)), ":")
	if len(f) < 5 || f[0] == "" || f[2] != id {
		return User{}, false
	}
	return User{f[0], f[4]}, true
}

// Name is the login name of the calling user, "unknown" if there is none.
func Name() string {
	if u, ok := Lookup(); ok {
		return u.Name
	}
	return "unknown"
}
