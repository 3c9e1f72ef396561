package local

import (
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"posthaste/internal/maillog"
	"posthaste/local/macro"
	"posthaste/local/users"
)

// dotforward delivers to what the user's .forward file says, if there is one
// with anything in it. The first file of forward_path that exists counts, also if it is of no use:
// whoever has made it unreadable does not want another one to be used.
func (d *delivery) dotforward(st state) (found bool) {
	if len(d.forwardPath) == 0 {
		return false
	}
	u, err := d.user(st.user)
	if err != nil {
		d.userError(&st, err)
		return true
	}
	if u == nil {
		return false // the mailbox step says so
	}
	st.level++
	st.rights, st.kind, st.owner, st.listOwner = u, inForward, st.user, false
	if !d.frozen {
		st.delivered = st.addr
	}
	for _, pattern := range d.forwardPath {
		used := false
		path, undefined, err := macro.Expand(pattern, d.names(&st, u, &used), d.forwardFilter)
		if err != nil {
			d.Log.Warning("forward_path: %v", err)
			continue
		}
		// A user without a home directory has no file in it, and an address without an extension none
		// for that.
		if undefined {
			continue
		}
		done, exists := d.forwardFile(st, u, path, used)
		if exists {
			return done
		}
	}
	return false
}

// forwardFile delivers by one .forward file. exists says that it ends the
// search; done that mail was delivered by it.
func (d *delivery) forwardFile(st state, u *users.User, path string, extension bool) (done, exists bool) {
	if err := lstat(u, path); err != nil {
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ENAMETOOLONG) {
			d.Log.Warning("%v", err)
		}
		return false, false
	}
	if d.seen("forward %s", path) {
		// Done with: a duplicate. Else we are in the middle of it, and the
		// user has named himself: mailbox.
		return d.been["forward-done "+path], true
	}
	f, info, _, err := openAs(u, path, unix.O_NOFOLLOW)
	// O_NOFOLLOW: a link could lead to a file that only somebody else can read, and its lines would
	// be in a bounce.
	if errors.Is(err, unix.ELOOP) {
		d.Log.LogWarning(maillog.ForwardProblem{File: path, Fault: maillog.FileNotRegular})
		return false, true
	}
	if err != nil {
		d.Log.Warning("%v", err)
		return false, true
	}
	defer f.Close()
	switch {
	case info.Mode&unix.S_IFMT != unix.S_IFREG:
		d.Log.LogWarning(maillog.ForwardProblem{File: path, Fault: maillog.FileNotRegular})
		return false, true
	// Who owns the file says where the user's mail goes, and which commands run with the user's
	// rights: that must be the user, or root.
	case info.Uid != 0 && int(info.Uid) != u.UID:
		d.Log.LogWarning(maillog.ForwardProblem{File: path, Fault: maillog.FileOwner, UID: int(info.Uid)})
		return false, true
	case info.Mode&unix.S_IWOTH != 0:
		d.Log.LogWarning(maillog.ForwardProblem{File: path, Fault: maillog.FileWorldWrite})
		return false, true
	}
	// A file that is for the extension alone has used it up.
	if extension || d.propagate&inForward == 0 {
		st.unmatched = ""
	}
	st.from, st.own, st.led = st.local, true, d.allowance(st.user)
	lines, err := st.led.lines(f)
	if err != nil {
		d.unreadable(&st, path, err)
		return true, true
	}
	// An empty file is as none, which is how users turn forwarding off.
	if len(lines) == 0 {
		return false, true
	}
	if d.probe() {
		d.sent(&st, "forward via file: %s", path)
		return true, true
	}
	d.expanded(&st)
	d.lines(st, lines)
	d.seen("forward-done %s", path)
	return true, true
}

// lstat looks at a file as u, who may not be able to see it. Most users have none,
// which we can see with our own rights, and becoming the user takes longer.
func lstat(u *users.User, path string) error {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if err != unix.ENOENT {
		err = u.Files().Do(func() error { return unix.Lstat(path, &st) })
	}
	if err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return nil
}

// names are what settings may name of a recipient. used, if not nil, becomes
// true when the extension is asked for.
func (d *delivery) names(st *state, u *users.User, used *bool) macro.Names {
	return func(name string) (string, bool) {
		var v string
		switch name {
		case "user":
			v = st.user
		case "home":
			v = optional(u, func(u *users.User) string { return u.Home })
		case "shell":
			v = optional(u, func(u *users.User) string { return u.Shell })
		case "domain":
			v = st.domain
		case "local":
			v = st.local
		case "mailbox":
			v = st.local
		case "recipient":
			v = st.addr
		case "extension":
			if used != nil && st.ext != "" {
				*used = true
			}
			v = st.ext
		case "recipient_delimiter":
			v = st.delim
		}
		return v, v != ""
	}
}

// optional is a value of a user, empty where there is no user.
func optional(u *users.User, f func(*users.User) string) string {
	if u == nil {
		return ""
	}
	return f(u)
}

// lastSlash says whether a path names a maildir.
func lastSlash(path string) bool { return strings.HasSuffix(path, "/") }
