package overview

import (
	"fmt"
	"strings"
	"time"

	"posthaste/internal/history"
)

// Waits say how long those recipients of a domain have waited that have not got their mail: half of them, 95 and 99 in 100, at most so
// many minutes. They are the ends of the columns by age; 0 is longer than all of these.
type Waits struct {
	Half int `json:"p50" doc:"Half of those who wait have waited for at most so many minutes: the end of a column by age; 0: for longer than 1280"`
	Many int `json:"p95" doc:"95 in 100 of them"`
	Most int `json:"p99" doc:"99 in 100 of them"`
}

// WaitsOf are those of a domain in a sample, of mail that is not on hold; nil: none waits that is known.
func WaitsOf(s *history.Sample, domain string) *Waits {
	var all history.Counts
	for i := range s.Tables {
		if t := &s.Tables[i]; t.Domains() && t.Queue != "hold" {
			for j := range t.Rows {
				if strings.EqualFold(t.Rows[j].Domain, domain) {
					all.Add(&t.Rows[j].Counts)
				}
			}
		}
	}
	total := all.Sum()
	if total == 0 {
		return nil
	}
	until := func(percent int64) int {
		n := int64(0)
		for i, v := range all[:history.Buckets-1] {
			if n += v; 100*n >= percent*total {
				return int(history.Tick/time.Minute) << i
			}
		}
		return 0
	}
	return &Waits{until(50), until(95), until(99)}
}

// String is w in a sentence.
func (w *Waits) String() string {
	span := func(minutes int) string {
		if minutes == 0 {
			return fmt.Sprintf("for more than %d min", int(history.Tick/time.Minute)<<(history.Buckets-2))
		}
		return fmt.Sprintf("for at most %d min", minutes)
	}
	return fmt.Sprintf("Of those who wait half have waited %s, 95 in 100 %s, and 99 in 100 %s.", span(w.Half), span(w.Many), span(w.Most))
}
