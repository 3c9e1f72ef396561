package inject

import (
	"strconv"
	"time"
)

// parseTime reads a time: RFC 3339, or seconds since 1970.
func parseTime(text string) (time.Time, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 && n < 1<<40 {
		return time.Unix(n, 0), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, refuse("it is no time: RFC 3339, such as 2026-12-01T08:00:00Z, or seconds since 1970")
	}
	return t, nil
}
