package smtp

import (
	"context"
	"fmt"
	"strings"

	"posthaste/internal/agent"
	"posthaste/internal/dsn"
)

// filterReply gives what smtp_reply_filter makes of one line of a reply. What
// cannot be looked up stays as it is, and is warned of.
func (a *Agent) filterReply(line []byte) []byte {
	value, found, err := a.tab.replies.Lookup(context.Background(), string(line), false)
	if err != nil {
		a.log.Warning("%s: %v", a.tab.replies.Title(), err)
		return line
	}
	if !found {
		return line
	}
	return []byte(value)
}

// keepRecord says whether smtp_dns_reply_filter lets a DNS record pass.
func (a *Agent) keepRecord(record string) bool {
	value, found, err := a.tab.records.Lookup(context.Background(), record, false)
	switch {
	case err != nil:
		a.log.Warning("%s: %v", a.tab.records.Title(), err)
		return false // what is not to be used may be dangerous
	case !found:
		return true
	case strings.EqualFold(strings.TrimSpace(value), "IGNORE"):
		a.log.Info("ignoring DNS RR: %s", record)
		return false
	}
	a.log.Warning("%s: unknown DNS filter action: %q", a.tab.records.Title(), value)
	return true
}

// filterStatus gives what smtp_delivery_status_filter makes of an outcome. It
// may turn a failure that passes into one that does not, and the other way
// round, but neither into success, nor success into failure.
func (d *delivery) filterStatus(status dsn.Status, text string) (dsn.Status, string) {
	maps := d.tab.outcomes
	if maps.Empty() {
		return status, text
	}
	value, found, err := maps.Lookup(context.Background(), status.String()+" "+text, false)
	if err == nil && found {
		var s dsn.Status
		if s, err = changedStatus(status, value); err == nil {
			_, words, _ := dsn.CutStatus(value)
			return s, strings.TrimSpace(words)
		}
	}
	if err != nil {
		d.log.Warning("%s: %v", maps.Title(), err)
	}
	return status, text
}

// changedStatus checks the value of a status filter.
func changedStatus(old dsn.Status, value string) (dsn.Status, error) {
	s, _, ok := dsn.CutStatus(value)
	if !ok {
		return old, fmt.Errorf("%q: expected an enhanced status code and a text", value)
	}
	if (s.Class == 2) != (old.Class == 2) {
		return old, fmt.Errorf("%q: cannot turn %s into that", value, old)
	}
	return s, nil
}

// sent reports a recipient as delivered.
func (d *delivery) sent(i int, status dsn.Status, text string, det agent.Detail) {
	status, text = d.filterStatus(status, text)
	d.req.Sent(i, status, text, det)
}
