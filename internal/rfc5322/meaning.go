package rfc5322

import (
	"slices"
	"strings"
)

// meant are fields that have a meaning of their own, in lower case, without those of meantPrefixes: the registry of RFC 3864 has them,
// or mail systems heed them.
var meant = []string{"accept-language", "also-control", "alternate-recipient", "apparently-to", "archive", "archived-at", "authentication-results", "auto-submitted", "autoforwarded", "autosubmitted",
	"bcc", "cc", "comments", "conversion", "date", "delivered-to", "delivery-date", "disposition-notification-options", "disposition-notification-to", "dkim-signature", "encoding", "errors-to", "expires", "feedback-id", "from",
	"importance", "in-reply-to", "jabber-id", "keywords", "language", "mail-followup-to", "mail-reply-to", "message-id", "mime-version", "mt-priority", "organization", "original-from", "original-recipient", "original-sender", "original-subject",
	"path", "pics-label", "precedence", "prevent-nondelivery-report", "priority", "received", "received-spf", "references", "reply-by", "reply-to", "require-recipient-valid-since", "require-tls", "requiretls", "return-path", "return-receipt-to",
	"sender", "sensitivity", "solicitation", "subject", "supersedes", "tls-report-domain", "tls-report-submitter", "tls-required", "to", "user-agent", "x-original-to"}

// meantPrefixes begin the names of further ones.
var meantPrefixes = []string{"arc-", "bimi-", "content-", "list-", "resent-"}

// HasMeaning says whether a field of that name, in any letter case, has a meaning of its own in a message. A field that a client uses
// to tell this mail system something, and that is removed, should be another one.
func HasMeaning(name string) bool {
	name = strings.ToLower(name)
	_, found := slices.BinarySearch(meant, name)
	return found || slices.ContainsFunc(meantPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// FreeField says whether name can be that of a field without a meaning of its own.
func FreeField(name string) bool {
	return !strings.ContainsAny(name, ": \t") && IsField(name+":") && !HasMeaning(name)
}
