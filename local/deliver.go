package local

import (
	"context"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/local/command"
	"posthaste/local/macro"
	"posthaste/local/mailbox"
	"posthaste/local/users"
)

const traceProbe = mail.TraceProbe

// mailbox is the last method for a user who exists: mailbox_transport_maps and mailbox_transport,
// mailbox_command_maps and mailbox_command, home_mailbox, or the file in mail_spool_directory. The
// first that is set counts, as local(8) of Postfix says. found is false when there is no such
// user: nothing has been done then.
func (d *delivery) mailbox(st state) (found bool) {
	if d.seen("mailbox %s", st.local) {
		return true
	}
	// mailbox_transport comes before the question whether there is such a user: the other transport
	// may know users that the system does not.
	transport, ok := d.mapped(&st, d.transports, d.mailboxTransport)
	if !ok {
		return true
	}
	if transport != "" {
		d.pass(&st, "mailbox_transport", transport)
		return true
	}
	u, err := d.user(st.user)
	if err != nil {
		d.userError(&st, err)
		return true
	}
	if u == nil {
		return false
	}
	st.rights = u
	line, ok := d.mapped(&st, d.commandMaps, d.mailboxCommand)
	switch {
	case !ok:
	case line != "":
		d.command(st, line)
	// A name that ends in "/" is a maildir's, as everywhere in Postfix.
	case d.homeMailbox != "" && lastSlash(d.homeMailbox):
		d.maildir(st, u, u.Home+"/"+d.homeMailbox, "")
	case d.spoolDir != "" && lastSlash(d.spoolDir):
		d.maildir(st, u, d.spoolDir+st.user+"/", d.spoolDir)
	default:
		d.mbox(st, u)
	}
	return true
}

// mapped is the setting for a user: from a table, or the same for all. ok is
// false when the table could not be asked, and the mail deferred.
func (d *delivery) mapped(st *state, maps interface {
	Lookup(context.Context, string, bool) (string, bool, error)
	Title() string
}, fallback string) (value string, ok bool) {
	value, found, err := maps.Lookup(d.ctx, st.user, false)
	if err != nil {
		d.Log.Warning("%v", err)
		d.deferIt(st, tryLater, "table lookup failure")
		return "", false
	}
	if !found {
		value = fallback
	}
	return value, true
}

// pass has the present address delivered by another transport,
// transport:nexthop. That is a part like others.
func (d *delivery) pass(st *state, setting, transport string) {
	name, nexthop, _ := strings.Cut(transport, ":")
	if name == d.Service {
		d.Log.LogWarning(maillog.TransportLoop{Parameter: setting, Transport: transport, Address: mailbox.External(st.addr)})
		d.deferIt(st, dsn.S(4, 3, 5), configText)
		return
	}
	if nexthop == "" {
		nexthop = string(d.request.Nexthop)
	}
	o := d.request.PassTo(d.index, st.envelope(), mail.Transport(name), mail.Nexthop(nexthop))
	d.adopt(st.addr, &o)
}

// mbox delivers to the user's mailbox file.
func (d *delivery) mbox(st state, u *users.User) {
	if d.request.Envelope.Trace.DontDeliver() {
		d.sent(&st, "delivers to mailbox")
		return
	}
	m := mailbox.Mbox{Rights: u.Files(), Lock: d.locks, Limit: d.mailboxLimit, Owner: -1, Otherwise: dsn.S(5, 2, 0)}
	if d.strictOwner {
		m.Owner = u.UID
	}
	if d.homeMailbox != "" {
		m.Path = u.Home + "/" + d.homeMailbox
	} else {
		m.Path = d.spoolDir + "/" + st.user
		var dir unix.Stat_t
		switch err := unix.Stat(d.spoolDir, &dir); {
		// Everybody may make files in the spool directory: file and lock are made by the user.
		case err != nil || dir.Mode&unix.S_IWOTH != 0:
		// The directory's group may, "mail" on most systems: file and lock are made with it.
		case dir.Mode&unix.S_IWGRP != 0:
			m.Group = int(dir.Gid)
		default:
			m.Private = true
		}
	}
	// comsat(8) hears of the message when it is whole: what cannot be written is taken back.
	err := d.store.Append(d.ctx, &m, d.head(&st, d.final(&st), d.headers&toFile != 0, true), d.content)
	d.stored(&st, err, "cannot update mailbox "+m.Path+" for user "+st.user+". ", "delivered to mailbox")
	if err == nil {
		d.biff.notify(st.user, m.Start)
	}
}

// maildir delivers to a maildir of u's, which is in the directory spool if that
// is not empty.
func (d *delivery) maildir(st state, u *users.User, path, spool string) {
	if d.request.Envelope.Trace.DontDeliver() {
		d.sent(&st, "delivers to maildir")
		return
	}
	m := mailbox.Maildir{Path: path, Spool: spool, Rights: u.Files(), Limit: d.mailboxLimit, Otherwise: dsn.S(5, 2, 0)}
	err := d.store.Deliver(&m, d.head(&st, d.final(&st), d.headers&toFile != 0, false), d.content)
	if errors.Is(err, unix.EACCES) {
		d.Log.LogWarning(maillog.MaildirDenied{UID: u.UID, GID: u.GID, Reason: err.Error()})
		d.Log.Warning("perhaps you need to create the maildirs in advance")
	}
	d.stored(&st, err, "maildir delivery failed: ", "delivered to maildir")
}

// final is the address for the Delivered-To: line of a mailbox.
func (d *delivery) final(st *state) string {
	if d.frozen {
		return st.delivered
	}
	return st.addr
}

// stored reports what came of storing a message.
func (d *delivery) stored(st *state, err error, prefix, done string) {
	var e *mailbox.Error
	switch {
	case err == nil:
		d.sent(st, "%s", done)
	case errors.As(err, &e):
		d.failed(st, e.Status, prefix+e.Error(), "", "")
	default:
		d.deferIt(st, tryLater, "%s%v", prefix, err)
	}
}

// person is with whose rights a file is written or a command run: never root,
// nor who owns the queue.
func (d *delivery) person(st *state) *users.User {
	// A command that strangers' mail starts must not be able to write the queue, nor become root.
	if st.rights == nil || st.rights.UID == 0 || st.rights.UID == d.mailOwner {
		return d.privileged
	}
	// Some systems have users whose group is root's: nobody who writes to them gets that.
	if st.rights.GID == 0 {
		u := *st.rights
		u.GID = d.privileged.GID
		return &u
	}
	return st.rights
}

// file delivers to /file, which a user or an alias names.
func (d *delivery) file(st state, path string) {
	st.level++
	if d.seen("file %d %s", uidOf(st.rights), path) {
		return
	}
	// allow_mail_to_files: an address in a message never comes here, only what an alias or a file names.
	if d.files&st.kind == 0 {
		d.bounce(&st, dsn.S(5, 7, 1), "mail to file is restricted")
		return
	}
	if d.request.Envelope.Trace.DontDeliver() {
		d.sent(&st, "delivers to file: %s", path)
		return
	}
	if lastSlash(path) {
		d.maildir(st, d.person(&st), path, "")
		return
	}
	m := mailbox.Mbox{Path: path, Rights: d.person(&st).Files(), Lock: d.locks, LockMay: true, Limit: d.mailboxLimit,
		Owner: -1, Special: true, Otherwise: dsn.S(5, 2, 0)}
	err := d.store.Append(d.ctx, &m, d.head(&st, st.delivered, d.headers&toFile != 0, true), d.content)
	d.stored(&st, err, "cannot append message to file "+path+": ", "delivered to file: "+path)
}

// restrictedCommand is a |command of an alias, a .forward or :include: file.
func (d *delivery) restrictedCommand(st state, line string) {
	// allow_mail_to_commands. mailbox_command is the administrator's own, and is not asked about.
	if d.commands&st.kind == 0 {
		d.bounce(&st, dsn.S(5, 7, 1), "mail to command is restricted")
		return
	}
	d.command(st, line)
}

// command delivers to a command.
func (d *delivery) command(st state, line string) {
	st.level++
	if d.seen("command %s:%d %s", st.user, uidOf(st.rights), line) {
		return
	}
	if d.request.Envelope.Trace.DontDeliver() {
		d.sent(&st, "delivers to command: %s", line)
		return
	}
	dir := "" // where we are, the queue directory: entered by us, so that the user need not be able to
	if d.commandDir != "" {
		var err error
		dir, _, err = macro.Expand(d.commandDir, d.names(&st, st.rights, nil), d.dirFilter)
		if err != nil {
			d.Log.Warning("command_execution_directory = %s: cannot be expanded for %s: %v", d.commandDir, mailbox.External(st.addr), err)
			d.deferIt(&st, dsn.S(4, 3, 5), configText)
			return
		}
	}
	c := command.Command{Line: line, Shell: d.shell, Env: d.environment(&st), Dir: dir, Rights: d.person(&st).All(d.mailGroup), Limit: d.commandLimit}
	head := d.head(&st, st.delivered, d.headers&toCommand != 0, true)
	res := c.Run(d.ctx, func(w *os.File) error { return feed(w, head, d.content) })
	if res.OK {
		d.sent(&st, "delivered to command: %s", line)
		return
	}
	d.failed(&st, res.Status, res.Text, "x-unix", res.Diag)
}

// feed writes a message to a command. The error is of this side alone: that the message cannot be
// read.
func feed(w *os.File, head []byte, content mailbox.Content) error {
	err := mailbox.WriteTo(w, head, content, "", mailbox.Form{})
	var r *mailbox.ReadError
	if errors.As(err, &r) {
		return &command.FeedError{Err: r.Err}
	}
	return nil // a command may stop reading
}

// defaultPath is what commands find programs in.
const defaultPath = "/usr/bin:/bin"

// environment is what a command gets to know. Characters that mean something
// to shells are taken out of what comes from strangers.
func (d *delivery) environment(st *state) []string {
	// The environment is made anew: nothing of the mail system's own reaches a user's command.
	env := []string{"PATH=" + defaultPath} // whatever export_environment says
	for _, name := range d.exports {
		key, value, ok := strings.Cut(name, "=")
		if !ok {
			value, ok = d.Environ(name)
		}
		if ok && key != "PATH" {
			env = append(env, key+"="+value)
		}
	}
	add := func(name, value string) {
		if value != "" {
			env = append(env, name+"="+macro.Censor(value, d.commandFilter))
		}
	}
	e := d.request.Envelope
	if st.rights != nil {
		add("HOME", st.rights.Home)
		add("SHELL", st.rights.Shell)
	}
	// Set even if empty: that is the null sender, of reports, which must not be replied to.
	env = append(env, "SENDER="+macro.Censor(st.sender, d.commandFilter))
	add("LOGNAME", st.user)
	add("USER", st.user)
	add("RECIPIENT", st.addr)
	add("LOCAL", st.local)
	add("DOMAIN", st.domain)
	add("EXTENSION", st.ext)
	add("ORIGINAL_RECIPIENT", st.orig)
	add("ENVID", st.envID)
	add("CLIENT_HOSTNAME", e.Client.Name)
	add("CLIENT_ADDRESS", e.Client.Addr)
	add("CLIENT_HELO", e.Client.Helo)
	add("CLIENT_PROTOCOL", e.Client.Proto)
	add("SASL_METHOD", e.SASL.Method)
	add("SASL_SENDER", e.SASL.Sender)
	add("SASL_USERNAME", e.SASL.Username)
	return env
}

// unknown is for recipients that are neither alias nor user: fallback_transport_maps and
// fallback_transport, luser_relay, then a bounce. smtpd has refused most of these at RCPT.
func (d *delivery) unknown(st state) {
	if d.seen("unknown %s", st.local) && !st.relayed {
		return
	}
	transport, ok := d.mapped(&st, d.fallbacks, d.fallbackTransport)
	if !ok {
		return
	}
	if transport != "" {
		d.pass(&st, "fallback_transport", transport)
		return
	}
	// Once: luser_relay may itself lead to a user that is not there.
	if d.luser != "" && !st.relayed && d.relayUnknown(st) {
		return
	}
	// Every site must have a postmaster (RFC 5321 section 4.5.1). To return mail for one that is not
	// set up would send reports about reports: Postfix discards it, and says so in the log.
	if strings.EqualFold(st.user, "mailer-daemon") || strings.EqualFold(st.user, "postmaster") {
		d.Log.LogWarning(maillog.AliasProblem{Alias: st.user, Fault: maillog.AliasMissing})
		d.sent(&st, "discarded")
		return
	}
	d.bounce(&st, dsn.S(5, 1, 1), `unknown user: "%s"`, st.user)
}

// relayUnknown sends mail for unknown users where luser_relay says. What the
// sender wrote is in that, so it is one address, whatever it looks like: never
// a list, a |command, a /file or an :include: file.
func (d *delivery) relayUnknown(st state) bool {
	to, _, err := macro.Expand(d.luser, d.names(&st, nil, nil), "")
	if err != nil {
		d.Log.Warning("luser_relay = %s: %v", d.luser, err)
		d.deferIt(&st, dsn.S(4, 3, 5), configText)
		return true
	}
	if to == "" {
		return false
	}
	full, err := d.Rewriter.Rewrite(d.ctx, "local", to)
	if err != nil {
		d.deferIt(&st, tryLater, "address resolver failure")
		return true
	}
	if strings.EqualFold(full, st.addr) { // no relay to itself
		return false
	}
	st.unmatched, st.relayed = "", true
	d.resolve(st, to)
	return true
}
