package smtpd

import (
	"strings"
)

// verb is a command, in the order of Postfix's table: it is the order in
// which the disconnect line has them.
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

var verbs = func() map[string]verb {
	m := make(map[string]verb, nverbs)
	for v := range vUnknown {
		m[strings.ToUpper(commands[v].name)] = v
	}
	return m
}()
