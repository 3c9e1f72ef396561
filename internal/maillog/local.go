package maillog

import "strconv"

// The events of local delivery, besides Delivery: what is wrong with an alias, with the files that
// users and aliases name, and with addresses. All are logged with LogWarning.

// An AliasProblem is why mail for an alias waits, or is discarded.
type AliasProblem struct {
	Alias string
	Fault AliasFault
}

// An AliasFault is what is wrong with an alias.
type AliasFault uint8

// The faults of aliases.
const (
	AliasEmpty   AliasFault = iota // it stands for nobody: its mail waits
	AliasUnsafe                    // anybody could have written the table: its mail waits
	AliasMissing                   // postmaster, mailer-daemon: there is neither a user nor an alias, and the mail is discarded
)

// Append implements Event.
func (e AliasProblem) Append(b []byte) []byte {
	switch e.Fault {
	case AliasUnsafe:
		return join(b, "alias_maps: the table that has ", e.Alias, " has no owner, or is world-writable")
	case AliasMissing:
		return join(b, "required alias not found: ", e.Alias)
	}
	return join(b, "no recipient in alias lookup result for ", e.Alias)
}

// AppendFields implements Fielder.
func (e AliasProblem) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "alias problem"), "alias", e.Alias), "fault", e.Fault.String())
}

// String is the fault in a word or two.
func (f AliasFault) String() string { return [...]string{"empty", "unsafe", "missing"}[f] }

// A FileFault is what is wrong with a file that lists destinations.
type FileFault uint8

// The faults of files. Those from FileNesting on are of :include: files alone.
const (
	FileUnreadable   FileFault = iota // Reason says why
	FileNotRegular                    // a directory, a device, a symbolic link
	FileWorldWrite                    // everybody could have written it
	FileOwner                         // it is neither the user's nor root's
	FileNesting                       // one includes another, and so on, too often
	FileRelative                      // its name does not begin with "/"
	FileUnknownOwner                  // its owner, whose rights it is to be used with, is no user
)

var fileFaults = [...]string{"unreadable", "not regular", "world writable", "bad owner", "nesting limit", "relative path", "unknown owner"}

// String is the fault in a word or two.
func (f FileFault) String() string { return fileFaults[f] }

// A ForwardProblem is why a user's .forward file does not count or, with FileUnreadable, why any
// file of destinations does not: it lists too many.
type ForwardProblem struct {
	File   string
	Fault  FileFault
	UID    int    // of its owner, with FileOwner
	Reason string // with FileUnreadable
}

// Append implements Event.
func (e ForwardProblem) Append(b []byte) []byte {
	b = join(b, "file ", e.File)
	switch e.Fault {
	case FileNotRegular:
		return append(b, " is not a regular file"...)
	case FileWorldWrite:
		return append(b, " is world writable"...)
	case FileOwner:
		return strconv.AppendInt(append(b, " has bad owner uid "...), int64(e.UID), 10)
	}
	return join(b, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e ForwardProblem) AppendFields(b []byte) []byte {
	return appendFileFields(appendEvent(b, "forward problem"), e.File, e.Fault, e.UID, e.Reason)
}

func appendFileFields(b []byte, file string, fault FileFault, uid int, why string) []byte {
	b = appendString(appendString(b, "file", file), "fault", fault.String())
	if fault == FileOwner || fault == FileUnknownOwner {
		b = appendNumber(b, "uid", int64(uid))
	}
	return appendString(b, "reason", why)
}

// An IncludeProblem is why an :include: file does not count.
type IncludeProblem struct {
	File   string
	Fault  FileFault
	UID    int    // of its owner, with FileUnknownOwner
	Reason string // with FileUnreadable; with FileUnknownOwner, where the lookup failed
}

// Append implements Event.
func (e IncludeProblem) Append(b []byte) []byte {
	switch e.Fault {
	case FileNotRegular:
		return join(b, ":include: file ", e.File, " is not a regular file")
	case FileWorldWrite:
		return join(b, ":include: file ", e.File, " is world writable")
	case FileNesting:
		return join(b, ":include: nesting limit exceeded for ", e.File)
	case FileRelative:
		return join(b, ":include:", e.File, " uses a relative path")
	case FileUnknownOwner:
		b = strconv.AppendInt(append(b, "cannot find username for uid "...), int64(e.UID), 10)
		return appendAttr(join(b, ", owner of :include: file ", e.File), ": ", e.Reason)
	}
	return join(b, "cannot open :include: file ", e.File, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e IncludeProblem) AppendFields(b []byte) []byte {
	return appendFileFields(appendEvent(b, "include problem"), e.File, e.Fault, e.UID, e.Reason)
}

// A HomeProblem is why ~/FILE, which an alias or a file of destinations names, leads nowhere.
type HomeProblem struct {
	Text   string // as it is written
	Syntax bool   // it does not begin with "~/"; else it stands where there is no home directory
}

// Append implements Event.
func (e HomeProblem) Append(b []byte) []byte {
	if e.Syntax {
		return join(b, "bad home directory syntax for: ", e.Text)
	}
	return join(b, "unknown home directory for: ", e.Text)
}

// AppendFields implements Fielder.
func (e HomeProblem) AppendFields(b []byte) []byte {
	return appendString(appendEvent(b, "home problem"), "address", e.Text)
}

// UserLookupFailed says that it cannot be found out whether there is a user of a name: mail for it
// waits.
type UserLookupFailed struct{ User, Reason string }

// Append implements Event.
func (e UserLookupFailed) Append(b []byte) []byte {
	return join(b, "error looking up passwd info for ", e.User, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e UserLookupFailed) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "user lookup failed"), "address", e.User), "reason", e.Reason)
}

// An AddressProblem is something odd about an address that mail is delivered to.
type AddressProblem struct {
	ID      string
	Address string
	Fault   AddressFault
}

// An AddressFault is what is odd about an address.
type AddressFault uint8

// The faults of addresses.
const (
	AddressTooMany   AddressFault = iota // aliases and files lead from it to more destinations than are followed
	AddressExtension                     // its extension has "/" in it, and is left out
	AddressNoDomain                      // it has no @, and is taken for a local part. No queue ID is in the line
)

// Append implements Event.
func (e AddressProblem) Append(b []byte) []byte {
	switch e.Fault {
	case AddressTooMany:
		return join(appendID(b, e.ID), e.Address, " leads to too many destinations")
	case AddressExtension:
		return join(appendID(b, e.ID), "address with illegal extension: ", e.Address)
	}
	return join(b, "no @ in recipient address: ", e.Address)
}

// AppendFields implements Fielder.
func (e AddressProblem) AppendFields(b []byte) []byte {
	fault := [...]string{"too many destinations", "illegal extension", "no domain"}[e.Fault]
	b = appendString(appendEvent(b, "address problem"), "queue_id", e.ID)
	return appendString(appendString(b, "address", e.Address), "fault", fault)
}

// ForwardFailed says that a copy for others cannot be queued: it all is done again later.
type ForwardFailed struct{ ID, Reason string }

// Append implements Event.
func (e ForwardFailed) Append(b []byte) []byte {
	return join(appendID(b, e.ID), "cannot forward: ", e.Reason)
}

// AppendFields implements Fielder.
func (e ForwardFailed) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "forward failed"), "queue_id", e.ID), "reason", e.Reason)
}

// MaildirDenied says that a user has no right to write to the directory that the user's mail is to
// go to.
type MaildirDenied struct {
	UID, GID int
	Reason   string
}

// Append implements Event.
func (e MaildirDenied) Append(b []byte) []byte {
	b = strconv.AppendInt(append(b, "maildir access problem for UID/GID="...), int64(e.UID), 10)
	b = strconv.AppendInt(append(b, '/'), int64(e.GID), 10)
	return join(b, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e MaildirDenied) AppendFields(b []byte) []byte {
	b = appendNumber(appendEvent(b, "maildir denied"), "uid", int64(e.UID))
	return appendString(appendNumber(b, "gid", int64(e.GID)), "reason", e.Reason)
}

// TransportLoop says that a parameter hands mail to the very transport that has it already: the
// mail waits.
type TransportLoop struct {
	Parameter string // mailbox_transport, fallback_transport, ...
	Transport string // its value
	Address   string
}

// Append implements Event.
func (e TransportLoop) Append(b []byte) []byte {
	return join(b, e.Parameter, " = ", e.Transport, ": mail for ", e.Address, " would come back here")
}

// AppendFields implements Fielder.
func (e TransportLoop) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "transport loop"), "parameter", e.Parameter)
	return appendString(appendString(b, "value", e.Transport), "address", e.Address)
}
