package local

import (
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/rights"
	"posthaste/local/mailbox"
	"posthaste/local/users"
)

// alias delivers to what name stands for in alias_maps, if it is there.
func (d *delivery) alias(st state, name string) (found bool) {
	if st.level++; st.level > maxLevel {
		d.bounce(&st, dsn.S(5, 4, 6), "alias database loop for %s", mailbox.External(name))
		return true
	}
	if st.from != "" && strings.EqualFold(st.from, name) { // an alias that contains itself means the user
		return false
	}
	// Whose the table is comes from the file that was opened, not from its name, which may have
	// been given to another file since.
	value, uid, owned, found, err := d.aliases.LookupOwned(d.ctx, name, false)
	if err != nil {
		d.Log.Warning("%v", err)
		d.deferIt(&st, tryLater, "alias database unavailable")
		return true
	}
	if !found {
		return false
	}
	// An address probe wants to know whether there is such an address, not what it leads to.
	if d.probe() {
		d.sent(&st, "aliased to %s", value)
		return true
	}
	if !d.aliasRights(&st, name, uid, owned) || !d.aliasOwner(&st, name) {
		return true
	}
	st.from, st.kind, st.own = name, inAlias, false
	if !d.frozen {
		st.delivered = st.addr
	}
	tokens := parseTokens(value)
	// Mail that goes to nobody would be lost without a trace: Postfix keeps it until the table is
	// mended, and so do we.
	if len(tokens) == 0 {
		d.Log.LogWarning(maillog.AliasProblem{Alias: mailbox.External(name), Fault: maillog.AliasEmpty})
		d.deferIt(&st, tryLater, "alias database unavailable")
		return true
	}
	d.expanded(&st)
	d.tokens(st, tokens)
	return true
}

// probe says whether only the address itself is asked about.
func (d *delivery) probe() bool { return d.request.Envelope.Trace&traceProbe != 0 }

// aliasRights sets whose rights commands and files of an alias get: those of
// the database's owner, or, when that is root, nobody's in particular.
func (d *delivery) aliasRights(st *state, name string, uid int, owned bool) bool {
	switch {
	// Whoever can write the table can run commands with the rights of whoever else is in it.
	case !owned:
		d.Log.LogWarning(maillog.AliasProblem{Alias: mailbox.External(name), Fault: maillog.AliasUnsafe})
		d.deferIt(st, tryLater, configText)
		return false
	case uid == 0:
		st.rights = nil
		return true
	}
	u, err := d.Users.LookupID(uid)
	if err != nil || u == nil {
		d.Log.Warning("cannot find alias database owner, uid %d: %v", uid, err)
		d.deferIt(st, tryLater, "cannot find alias database owner")
		return false
	}
	st.rights = u
	return true
}

// aliasOwner has problems with a list go to the list's owner, owner-NAME, if
// there is one.
func (d *delivery) aliasOwner(st *state, name string) bool {
	if !d.ownerRequest {
		return true
	}
	owner := "owner-" + name
	value, found, err := d.aliases.Lookup(d.ctx, owner, false)
	if err != nil {
		d.Log.Warning("%v", err)
		d.deferIt(st, tryLater, "alias database unavailable")
		return false
	}
	if !found {
		// reset_owner_alias: a list inside a list answers for itself.
		if d.resetOwner {
			st.owner, st.listOwner = "", false
		}
		return true
	}
	// expand_owner_alias: a bounce then goes to the owner's own address, and not to the alias.
	if d.expandOwner {
		owner = value
	}
	full, err := d.Rewriter.Rewrite(d.ctx, "local", owner)
	if err != nil {
		d.deferIt(st, tryLater, "address resolver failure")
		return false
	}
	// The list's owner answers for what goes out to the list: what the
	// sender asked to be told does not hold for its members (RFC 3461
	// section 5.2.7.4).
	st.sender, st.owner, st.listOwner = full, full, true
	d.expanded(st)
	st.envID, st.ret, st.orcpt, st.orig, st.notify = "", dsn.RetUnset, "", "", 0
	return true
}

// expanded is called when a recipient becomes others: its sender is told of
// success now, and not by them (RFC 3461 section 5.2.7).
func (d *delivery) expanded(st *state) {
	if st.notify&dsn.NotifySuccess != 0 {
		d.unfolded = dsn.Expanded
		if st.listOwner {
			d.unfolded = dsn.Delivered
		}
	}
	// Success alone was asked for, and has been told. NOTIFY left empty would mean the default,
	// which is failures.
	if st.notify == dsn.NotifySuccess {
		st.notify = dsn.NotifyNever
	}
	st.notify &^= dsn.NotifySuccess
}

// tokens delivers to each of a list of destinations.
func (d *delivery) tokens(st state, list []token) {
	for i, t := range list {
		if i%maxForeseen == 0 && len(list) > 1 {
			d.foresee(&st, list[i:min(i+maxForeseen, len(list))])
		}
		d.token(st, t)
	}
}

// maxForeseen is how many members of a list trivial-rewrite is asked about
// together: it and we then wake up once for all of them.
const maxForeseen = 64

// foresee has what resolve is going to ask about these destinations asked ahead,
// as far as they are plainly addresses in standard form.
func (d *delivery) foresee(st *state, list []token) {
	for _, t := range list {
		if t.kind == tokenAddress && strings.Contains(t.text, "@") {
			d.Rewriter.Foresee(d.ctx, st.sender, t.text)
		}
	}
}

// token delivers to one destination. In a message a recipient that looks like a command is an
// address: this is for what aliases and files say.
func (d *delivery) token(st state, t token) {
	switch t.kind {
	case tokenCommand:
		d.restrictedCommand(st, t.text)
	case tokenFile:
		d.file(st, t.text)
	case tokenHome:
		d.home(st, t.text)
	case tokenInclude:
		d.include(st, t.text)
	default:
		d.resolve(st, t.text)
	}
}

// home delivers to ~/file.
func (d *delivery) home(st state, text string) {
	switch {
	case !strings.HasPrefix(text, "~/"):
		d.Log.LogWarning(maillog.HomeProblem{Text: text, Syntax: true})
		d.bounce(&st, configError, configText)
	case st.rights == nil || st.rights.Home == "":
		d.Log.LogWarning(maillog.HomeProblem{Text: text})
		d.bounce(&st, configError, configText)
	default:
		d.file(st, strings.TrimRight(st.rights.Home, "/")+text[1:])
	}
}

// include delivers to the destinations listed in a file.
func (d *delivery) include(st state, path string) {
	st.level++
	if st.level > maxLevel {
		d.Log.LogWarning(maillog.IncludeProblem{File: path, Fault: maillog.FileNesting})
		d.bounce(&st, dsn.S(5, 4, 6), ":include: nesting limit exceeded")
		return
	}
	if d.seen("include %d %s", uidOf(st.rights), path) {
		return
	}
	// A file that names its own list is a loop, and is found by the level.
	st.from, st.kind = st.local, inInclude
	if !strings.HasPrefix(path, "/") {
		d.Log.LogWarning(maillog.IncludeProblem{File: path, Fault: maillog.FileRelative})
		d.bounce(&st, configError, configText)
		return
	}
	// What cannot be opened is a mistake of the administrator's or the user's: it is returned, as
	// Postfix does, rather than tried for days.
	f, info, who, err := openAs(st.rights, path, 0)
	if err != nil {
		d.Log.LogWarning(maillog.IncludeProblem{File: path, Fault: maillog.FileUnreadable, Reason: err.Error()})
		d.bounce(&st, configError, configText)
		return
	}
	defer f.Close()
	switch {
	case info.Mode&unix.S_IFMT != unix.S_IFREG:
		d.Log.LogWarning(maillog.IncludeProblem{File: path, Fault: maillog.FileNotRegular})
		d.bounce(&st, configError, configText)
		return
	case info.Mode&unix.S_IWOTH != 0:
		d.Log.LogWarning(maillog.IncludeProblem{File: path, Fault: maillog.FileWorldWrite})
		d.bounce(&st, configError, configText)
		return
	}
	// A file that root's alias names and that is not root's gives its owner's
	// rights, one in somebody's directory those of whoever that is: rights only become less. Users who include
	// files get nobody's rights but their own.
	// The rights only ever become less.
	if ours(st.rights) && (!who.IsOwn() || info.Uid != 0) {
		uid := int(info.Uid)
		if !who.IsOwn() {
			uid = who.UID
		}
		u, err := d.includer(uid)
		if err != nil || u == nil {
			problem := maillog.IncludeProblem{File: path, Fault: maillog.FileUnknownOwner, UID: uid}
			if err != nil {
				problem.Reason = err.Error()
			}
			d.Log.LogWarning(problem)
			d.deferIt(&st, dsn.S(4, 3, 5), configText)
			return
		}
		st.rights = u
	}
	// The members of a file are on their own: each gets a queue record (see choose), and what goes
	// wrong with one of them does not hold up the others.
	if st.owner == "" {
		st.owner = st.addr
	}
	if d.propagate&inInclude == 0 {
		st.unmatched = ""
	}
	if !st.own { // of any length: read as it is delivered to
		if err := d.listed(st, f); err != nil {
			d.unreadable(&st, path, err)
		}
		return
	}
	lines, err := st.led.lines(f)
	if err != nil {
		d.unreadable(&st, path, err)
		return
	}
	d.lines(st, lines)
}

// listed delivers to the destinations in a file of any length.
func (d *delivery) listed(st state, f io.Reader) error {
	var lines [][]token // read, and not delivered to
	n, next := 0, true  // how many destinations
	err := eachLine(f, func(line string) bool {
		list := parseTokens(line)
		lines, n = append(lines, list), n+len(list)
		if n >= maxForeseen || len(lines) >= maxForeseen {
			next = d.lines(st, lines)
			lines, n = lines[:0], 0
		}
		return next
	})
	if next {
		next = d.lines(st, lines)
	}
	if !next {
		return nil
	}
	return err
}

// includer is the user whose rights an :include: file gives.
func (d *delivery) includer(uid int) (*users.User, error) {
	if uid == rights.Anybody {
		return d.privileged, nil
	}
	return d.Users.LookupID(uid)
}

// ours says whether rights are the mail system's own, root's: those of root's alias
// database, and of root's .forward file.
func ours(u *users.User) bool { return u == nil || u.Files().IsOwn() }

// uidOf is a user's id in keys of the duplicate filter: two users may each have a file of one name.
func uidOf(u *users.User) int {
	if u == nil {
		return 0
	}
	return u.UID
}

// openAs opens a file of destinations with u's rights, or, if these are the mail system's own,
// with those of whoever controls the path: a user could have a link there to a file that
// only root can read, and its lines would be in a bounce. who says which. It does not wait
// for the other end of a pipe.
func openAs(u *users.User, path string, flags int) (f *os.File, info *unix.Stat_t, who rights.Rights, err error) {
	flags |= unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	if ours(u) {
		f, who, err = rights.Open(path, flags, 0)
	} else {
		who = u.Files()
		err = who.Do(func() error {
			fd, err := unix.Open(path, flags, 0)
			if err != nil {
				return &fs.PathError{Op: "open", Path: path, Err: err}
			}
			f = os.NewFile(uintptr(fd), path)
			return nil
		})
	}
	if err != nil {
		return nil, nil, who, err
	}
	info = new(unix.Stat_t)
	if err := unix.Fstat(int(f.Fd()), info); err != nil {
		f.Close()
		return nil, nil, who, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return f, info, who, nil
}
