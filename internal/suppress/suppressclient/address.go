package suppressclient

import (
	"strings"

	"posthaste/internal/resolver"
	"posthaste/internal/returnpath"
)

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
