package local

import (
	"strings"

	"golang.org/x/sys/unix"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/rfc5322"
	"posthaste/local/mailbox"
	"posthaste/local/users"
)

// maxLevel bounds how deep expansions may nest. Every step counts one, whatever it is, so that no
// mixture of aliases, files and addresses goes on for ever.
const maxLevel = 100

// aliasLevels is how much deeper an alias of an alias is.
const aliasLevels = 4

// Status codes of what the administrator must mend, and of what mends itself.
var (
	configError = dsn.S(5, 3, 5)
	tryLater    = dsn.S(4, 3, 0)
)

// configText is all that a sender is told of a mistake in the configuration: the log has the rest.
const configText = "mail system configuration error"

// recipient delivers to one address: the one that was asked for, or one that
// it was expanded to.
func (d *delivery) recipient(st state) {
	if st.level++; st.level > maxLevel+aliasLevels { // loops of aliases are told of by name, before this
		d.bounce(&st, dsn.S(5, 4, 6), "recipient nesting limit exceeded")
		return
	}
	// With the level: the same address may be reached again by another way that leads further.
	if d.seen("recipient %d %s", st.level, strings.ToLower(st.addr)) {
		return
	}
	// The message has been here before, as its own header says. Without this, two hosts that forward
	// to each other would send it round until the hop count is reached.
	if d.visited[strings.ToLower(st.addr)] {
		d.bounce(&st, dsn.S(5, 4, 6), "mail forwarding loop for %s", mailbox.External(st.addr))
		return
	}
	if st.delivered == "" {
		st.delivered = st.addr
	}
	local, domain, at := rfc5322.Split(strings.ToLower(st.addr))
	if !at {
		d.Log.LogWarning(maillog.AddressProblem{Address: mailbox.External(st.addr), Fault: maillog.AddressNoDomain})
	}
	st.local, st.domain = local, domain
	user, ext := d.split.SplitExtension(local)
	st.user, st.ext, st.delim = user, "", ""
	if ext != "" {
		st.delim, st.ext = ext[:1], ext[1:]
	}
	// Extensions are in the names of .forward files: this one would name a file elsewhere.
	if strings.Contains(st.ext, "/") {
		d.Log.LogWarning(maillog.AddressProblem{ID: string(d.request.Envelope.ID), Address: mailbox.External(st.local), Fault: maillog.AddressExtension})
		st.ext = ""
	}
	st.unmatched = st.ext
	if st.user == "" {
		d.bounce(&st, dsn.S(5, 1, 3), "null username in %q", st.addr)
		return
	}
	d.choose(st)
}

// choose is the order of delivery methods: aliases, .forward, the mailbox (local(8) of Postfix). What
// a method does not know it leaves to the next one. One that fails for now ends the search: the
// next would deliver where the owner did not want it.
func (d *delivery) choose(st state) {
	st.level++
	if strings.HasPrefix(st.user, `\`) { // no aliases, no .forward
		st.user, st.local = st.user[1:], strings.TrimPrefix(st.local, `\`)
		if !d.mailbox(st) {
			d.unknown(st)
		}
		return
	}
	st.unmatched = ""
	// user+ext first: an alias may be for one extension alone.
	if d.alias(st, st.local) {
		return
	}
	if st.ext != "" {
		if d.propagate&inAlias != 0 {
			st.unmatched = st.ext
		}
		if d.alias(st, st.user) {
			return
		}
		st.unmatched = st.ext
	}
	// Mail that somebody's alias or .forward sends to another local user is
	// queued again, so that each of them has a record of his own.
	if st.owner != "" && !strings.EqualFold(st.owner, st.user) || st.kind == inInclude {
		d.indirect(st)
		return
	}
	// A .forward file on a disk that is not mounted is not the same as none.
	if d.requireHome && !d.homeIsThere(&st) {
		return
	}
	if !d.dotforward(st) && !d.mailbox(st) {
		d.unknown(st)
	}
}

// homeIsThere keeps mail for users whose home directory is away.
func (d *delivery) homeIsThere(st *state) bool {
	u, err := d.user(st.user)
	if err != nil {
		d.userError(st, err)
		return false
	}
	if u == nil {
		return true
	}
	if err := u.Files().Do(func() error { return unix.Stat(u.Home, new(unix.Stat_t)) }); err != nil {
		d.deferIt(st, tryLater, "cannot access home directory %s: %s", u.Home, mailbox.Reason(err))
		return false
	}
	return true
}

// user is the account of that name, nil when there is none. Who asks again, step by
// step, gets the same: it does not change in the middle.
func (d *delivery) user(name string) (*users.User, error) {
	if d.account == nil || d.account.Name != name {
		var err error
		if d.account, err = d.Users.Lookup(name); err != nil {
			return nil, err
		}
	}
	return d.account, nil
}

// userError defers: a directory service that is away must not have users refused.
func (d *delivery) userError(st *state, err error) {
	d.Log.LogWarning(maillog.UserLookupFailed{User: mailbox.External(st.user), Reason: err.Error()})
	d.deferIt(st, dsn.S(4, 0, 0), "user lookup error")
}
