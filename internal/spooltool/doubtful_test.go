package spooltool

import (
	"testing"

	"posthaste/internal/doubtful"
)

// The list says of each reason what it means.
func TestDoubtfulInWords(t *testing.T) {
	t.Parallel()
	for _, why := range []string{doubtful.InHand, doubtful.Trace, doubtful.New, doubtful.Agent, doubtful.Lost, doubtful.Withdrawn, doubtful.Unanswered} {
		if whyText[why] == "" {
			t.Errorf("nothing is said of %q", why)
		}
	}
}
