package suppressclient

import (
	"strings"

	"posthaste/internal/resolver"
	"posthaste/internal/returnpath"
)

// maxAddress bounds an address, in octets.
const maxAddress = 512

// ValidAddress says whether the list can have an address: one without spaces and control characters of ASCII, of at most 512
// octets. Those with a space in a quoted local part never are on it.
func ValidAddress(address string) bool {
	return len(address) <= maxAddress && strings.Contains(address, "@") && !strings.ContainsFunc(address, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

// Canonical is the form of an address in which the list has it, and by which addresses are compared: without regard to the
// case of ASCII letters, and with a domain in ASCII. A bounce may have either form of joe@bücher.example. Of a domain that
// is none only the letter case changes.
func Canonical(names resolver.Names, address string) string {
	at := strings.LastIndexByte(address, '@')
	if domain, ok := names.ToASCII(address[at+1:]); at >= 0 && ok {
		address = address[:at+1] + domain
	}
	return returnpath.Fold(address)
}
