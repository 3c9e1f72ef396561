package whatif

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
)

// maxWarnings is how many warnings of settings a report has.
const maxWarnings = 10

// A Question is what somebody wants to know of a copy of the queue.
type Question struct {
	Changes []config.Override // none: how it goes on with the settings as they are
	Seed    uint64            // of the first run
	Within  time.Duration     // how long all runs together may take
}

// Ask makes the forecasts of a copy: with the settings, and with the changes if there are any. It ends
// early when ctx does. The errors have exit statuses (package cli): 64 a change is not understood, or
// has no effect, and the error names it; 65 there is no forecast for this mail.
func (s *Settings) Ask(ctx context.Context, c *Copy, q Question) (*Report, error) {
	if c.Messages() == 0 {
		return nil, cli.Errorf(cli.ExitData, "%w", ErrEmpty)
	}
	var said []string
	warn := func(format string, a ...any) {
		text := fmt.Sprintf(format, a...)
		if len(said) < maxWarnings && !slices.Contains(said, text) { // settings are looked at many times
			said = append(said, text)
		}
	}
	now, err := s.read(nil, warn)
	if err != nil {
		return nil, err
	}
	if err := s.effective(c, q.Changes, func(string, ...any) {}); err != nil {
		return nil, err
	}
	then, err := s.read(q.Changes, warn)
	if err != nil {
		return nil, err
	}
	with := &then
	if len(q.Changes) == 0 {
		with = nil
	}
	ctx, cancel := context.WithTimeout(ctx, q.Within)
	defer cancel()
	report, err := Compare(ctx, c, now, with, q.Seed)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, cli.Errorf(cli.ExitData, "the forecast has not come to an end within %v", q.Within)
	case err != nil:
		return nil, cli.Errorf(cli.ExitData, "%w", err)
	}
	report.Changed, report.Warnings = title(q.Changes), said
	return report, nil
}
