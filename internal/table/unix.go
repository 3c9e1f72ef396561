package table

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strings"
)

// unixTable is unix:passwd.byname and unix:group.byname: the system's users
// and groups, whatever the system's name service gets them from. Inside chroot,
// where there is no /etc/passwd or the wrong one, proxymap is asked.
type unixTable struct {
	group bool
	opt   Options
	proxy *proxiedTable
}

func openUnix(name string, o Options) (Table, error) {
	if name != "passwd.byname" && name != "group.byname" {
		return nil, fmt.Errorf("expected unix:passwd.byname or unix:group.byname")
	}
	return unixTable{group: name == "group.byname", opt: o, proxy: newProxied("unix", name, o)}, nil
}

// Lookup answers with the line of passwd(5) or group(5), without password and
// members.
func (t unixTable) Lookup(ctx context.Context, key string) (string, bool, error) {
	if t.opt.Confined.Jailed() {
		return t.proxy.Lookup(ctx, key)
	}
	if strings.ContainsAny(key, ":\n\x00") {
		return "", false, nil
	}
	key = t.opt.fold(key)
	if t.group {
		g, err := user.LookupGroup(key)
		var unknown user.UnknownGroupError
		if errors.As(err, &unknown) {
			return "", false, nil
		}
		if err != nil {
			return "", false, err
		}
		return g.Name + ":x:" + g.Gid + ":", true, nil
	}
	u, err := user.Lookup(key)
	var unknown user.UnknownUserError
	if errors.As(err, &unknown) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	return u.Username + ":x:" + u.Uid + ":" + u.Gid + ":" + u.Name + ":" + u.HomeDir + ":", true, nil
}

func (unixTable) Pattern() bool      { return false }
func (t unixTable) Close() error     { return t.proxy.Close() }
func (unixTable) Owner() (int, bool) { return 0, true }
