// The two filters of a site's own: of the replies of servers, and of DNS records.

package smtp

import (
	"context"
	"strings"

	"posthaste/internal/maillog"
)

// filterReply gives what smtp_reply_filter makes of one line of a reply. What
// cannot be looked up stays as it is, and is warned of. A filter may turn one reply
// into another, so that its result is read as if the server had sent it.
func (a *Agent) filterReply(ctx context.Context, line []byte) []byte {
	value, found, err := a.tab.replies.Lookup(ctx, string(line), false)
	if err != nil {
		a.log.Warning("%v", err)
		return line
	}
	if !found {
		return line
	}
	return []byte(value)
}

// keepRecord says whether smtp_dns_reply_filter lets a DNS record pass. record is
// its text: name, TTL, class, type and data.
func (a *Agent) keepRecord(record string) bool {
	value, found, err := a.tab.records.Lookup(context.Background(), record, false)
	switch {
	case err != nil:
		a.log.Warning("%v", err)
		return false // what is not to be used may be dangerous
	case !found:
		return true
	case strings.EqualFold(strings.TrimSpace(value), "IGNORE"):
		a.log.Log(maillog.DNSRecordIgnored{Record: record})
		return false
	}
	a.log.Warning("%s: unknown DNS filter action: %q", a.tab.records.Title(), value)
	return true
}
