package metrics

import "strings"

// reasons tell the texts of refusals apart: the first part that is in the
// text decides. The texts are those of Postfix's smtpd and cleanup, which
// operators may extend with their own words (access tables, reject_rbl_client
// templates) but which keep these.
var reasons = []struct{ part, name string }{
	{"Relay access denied", "relay denied"},
	{"blocked using", "blocklist"},
	{"reylist", "greylisting"},
	{"User unknown", "unknown user"},
	{"undeliverable address", "undeliverable address"},
	{"unverified address", "undeliverable address"},
	{"Domain not found", "unknown domain"},
	{"nullMX", "unknown domain"},
	{"Sender address rejected", "sender address"},
	{"Recipient address rejected", "recipient address"},
	{"Client host rejected", "client host"},
	{"Helo command rejected", "helo"},
	{"cannot find your", "client host"},
	{"Data command rejected", "data command"},
	{"End-of-data rejected", "end of data"},
	{"Message size exceeds", "message size"},
	{"size limit", "message size"},
	{"Insufficient system storage", "storage"},
	{"too many recipients", "too many recipients"},
	{"too many", "limit"},
	{"queue file write error", "internal failure"},
	{"other servers have its queue", "internal failure"},
	{"STARTTLS", "tls required"},
	{"need fully-qualified", "syntax"},
	{"Bad sender address syntax", "syntax"},
	{"Bad recipient address syntax", "syntax"},
	{"Server configuration", "configuration"},
	{"ccess denied", "access denied"},
}

// Reason is what class of refusal a text means. There are about twenty, and
// "other".
func Reason(text string) string {
	for i := range reasons {
		if strings.Contains(text, reasons[i].part) {
			return reasons[i].name
		}
	}
	return Other
}
