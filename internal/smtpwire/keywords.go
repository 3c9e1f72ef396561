package smtpwire

import (
	"slices"
	"strings"
)

// KnownKeywords are those of the words that name an EHLO keyword of ours, in
// capital letters and in the order in which logs have always told them. Letter
// case does not matter.
func KnownKeywords(words []string) []string {
	var known []string
	for _, k := range []string{"PIPELINING", "SIZE", "VRFY", "ETRN", "STARTTLS", "AUTH", "VERP", "XCLIENT", "XFORWARD",
		"ENHANCEDSTATUSCODES", "8BITMIME", "DSN", "SMTPUTF8", "CHUNKING", "REQUIRETLS", "LIMITS"} {
		if slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(w, k) }) {
			known = append(known, k)
		}
	}
	return known
}
