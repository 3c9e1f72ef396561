package service

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"syscall"
)

// An Account is a user of the system, as far as privileges go.
type Account struct {
	Name     string
	UID, GID int
	Groups   []int // supplementary
}

// LookupAccount finds a user by name.
func LookupAccount(name string) (*Account, error) {
	u, err := user.Lookup(name)
	if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
		return nil, fmt.Errorf("there is no user %q: create the account, or name another one in main.cf", name)
	}
	if err != nil {
		return nil, fmt.Errorf("user %q: %w", name, err)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, fmt.Errorf("user %q: user ID %q is not a number", name, u.Uid)
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return nil, fmt.Errorf("user %q: group ID %q is not a number", name, u.Gid)
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("groups of user %q: %w", name, err)
	}
	a := &Account{Name: name, UID: uid, GID: gid}
	for _, id := range ids {
		if n, err := strconv.Atoi(id); err == nil && n != gid {
			a.Groups = append(a.Groups, n)
		}
	}
	return a, nil
}

// Become makes the process that user's, for good, with its groups and no
// others: by one of them a filter's socket may be reached. The process must be root's.
func (a *Account) Become() error {
	if a.UID == 0 {
		return fmt.Errorf("user %q is root, which the mail system must not run as: choose another mail_owner", a.Name)
	}
	if err := syscall.Setgroups(append([]int{a.GID}, a.Groups...)); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := syscall.Setgid(a.GID); err != nil {
		return fmt.Errorf("setgid %d: %w", a.GID, err)
	}
	if err := syscall.Setuid(a.UID); err != nil {
		return fmt.Errorf("setuid %d: %w", a.UID, err)
	}
	if syscall.Setuid(0) == nil {
		panic("service: root privileges could be regained after giving them up")
	}
	return nil
}
