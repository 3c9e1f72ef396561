package suppressclient

import (
	"strings"

	"posthaste/internal/resolver"
	"posthaste/internal/returnpath"
)

// maxAddress bounds an address, in octets.
const maxAddress = 512

// ValidAddress says whether the list can have an address, which is in internal form: one without control characters of
// ASCII, and without spaces in its domain, of at most 512 octets.
func ValidAddress(address string) bool {
	at := strings.LastIndexByte(address, '@')
	return at >= 0 && len(address) <= maxAddress && strings.IndexByte(address[at:], ' ') < 0 &&
		!strings.ContainsFunc(address, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// Canonical is the form of an address in which the list has it, and by which addresses are compared: without regard to the
// case of ASCII letters, with a domain in ASCII, and in internal form, as all of the mail system has it. What people and
// other programs write and read has quotes where RFC 5321 wants them: see rfc5322.Mailbox and rfc5322.Quote. A bounce may have either form of joe@bücher.example. Of a domain that
// is none only the letter case changes.
func Canonical(names resolver.Names, address string) string {
	at := strings.LastIndexByte(address, '@')
	if domain, ok := names.ToASCII(address[at+1:]); at >= 0 && ok {
		address = address[:at+1] + domain
	}
	return returnpath.Fold(address)
}
