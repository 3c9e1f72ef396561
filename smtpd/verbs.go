// The commands of SMTP that the server knows, and what distinguishes them.

package smtpd

import (
	"strings"
)

// verb is a command, in the order of Postfix's table: it is the order in which the
// disconnect line has them, and log analyzers expect it.
type verb uint8

const (
	vHelo verb = iota
	vEhlo
	vXclient
	vXforward
	vStartTLS
	vAuth
	vMail
	vRcpt
	vData
	vBdat
	vRset
	vNoop
	vVrfy
	vEtrn
	vQuit
	vHelp
	vUnknown
	nverbs
)

// A command's traits.
const (
	tJunk   = 1 << iota // counts towards smtpd_junk_command_limit
	tPreTLS             // allowed before STARTTLS when TLS is a must
	tLast               // must be the last of a pipelined group, RFC 2920 section 3.1
)

// commands has the name and the traits of each command. The name is in lower case,
// as in the disconnect line.
//
// NOOP, HELO, EHLO, RSET, VRFY and ETRN are junk: a client can send any number of
// them without getting on, be it to hold the connection or to find addresses.
var commands = [nverbs]struct {
	name   string
	traits uint8
}{
	vHelo: {"helo", tJunk | tPreTLS | tLast}, vEhlo: {"ehlo", tJunk | tPreTLS | tLast},
	vXclient: {"xclient", tPreTLS}, vXforward: {"xforward", 0}, vStartTLS: {"starttls", tPreTLS | tLast},
	vAuth: {"auth", tLast}, vMail: {"mail", 0}, vRcpt: {"rcpt", 0}, vData: {"data", tLast}, vBdat: {"bdat", 0},
	vRset: {"rset", tJunk}, vNoop: {"noop", tJunk | tPreTLS | tLast}, vVrfy: {"vrfy", tJunk | tLast},
	vEtrn: {"etrn", tJunk}, vQuit: {"quit", tPreTLS}, vHelp: {"help", tPreTLS}, vUnknown: {"unknown", 0},
}

// verbs is from the name in upper case, as ParseCommand returns it, to the command.
var verbs = func() map[string]verb {
	m := make(map[string]verb, nverbs)
	for v := range vUnknown {
		m[strings.ToUpper(commands[v].name)] = v
	}
	return m
}()
