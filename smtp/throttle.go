// Replies by which a server asks for less mail (smtp_throttle_replies).

package smtp

import (
	"fmt"
	"strings"
)

// throttle are the replies by which a destination says that it wants less mail at a
// time: those of smtp_throttle_replies, and 421 in any case (RFC 5321 section 3.8:
// the server closes the channel).
type throttle struct {
	codes    map[int]bool
	statuses []string // "4.7.28", or, with a dot at its end, the beginning of one
}

// parseThrottle reads smtp_throttle_replies, whose name is given: reply codes (450)
// and enhanced status codes (4.7.28), or the first two parts of these (4.7).
func parseThrottle(name string, list []string) (throttle, error) {
	// 421 counts whatever the list says.
	t := throttle{codes: map[int]bool{421: true}}
	for _, item := range list {
		if code, ok := replyCode([]byte(item)); ok && len(item) == 3 && code/100 == 4 {
			t.codes[code] = true
			continue
		}
		parts := strings.Split(item, ".")
		good := len(parts) <= 3 && len(parts) >= 2 && parts[0] == "4"
		for _, p := range parts {
			good = good && p != "" && len(p) <= 3 && strings.Trim(p, "0123456789") == ""
		}
		if !good {
			return t, fmt.Errorf("%s: %q: expected reply codes such as 450 and status codes such as 4.7.28 or 4.7, of class 4", name, item)
		}
		if len(parts) == 2 {
			item += "."
		}
		t.statuses = append(t.statuses, item)
	}
	return t, nil
}

// has says whether r is one of them.
func (t *throttle) has(r *reply) bool {
	if t.codes[r.code] {
		return true
	}
	if len(t.statuses) == 0 || r.code/100 != 4 {
		return false
	}
	// A server without enhanced codes has a status made from its code, such as
	// 4.0.0.
	status := r.status.String()
	for _, s := range t.statuses {
		if status == s || strings.HasSuffix(s, ".") && strings.HasPrefix(status, s) {
			return true
		}
	}
	return false
}
