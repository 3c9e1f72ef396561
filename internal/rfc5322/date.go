package rfc5322

import (
	"time"
)

// AppendDate appends t in the form of RFC 5322 section 3.3, in the zone that t
// is in, followed by the zone's name as a comment where it has one:
//
//	Fri, 20 Nov 2026 17:56:01 +0000 (UTC)
func AppendDate(b []byte, t time.Time) []byte {
	b = t.AppendFormat(b, "Mon, 2 Jan 2006 15:04:05 -0700")
	if zone, _ := t.Zone(); zone != "" && zone[0] != '+' && zone[0] != '-' {
		b = append(b, " ("...)
		b = append(b, zone...)
		b = append(b, ')')
	}
	return b
}

// Date is AppendDate as a string.
func Date(t time.Time) string { return string(AppendDate(nil, t)) }
