package smtpd

import (
	"slices"
	"testing"

	"posthaste/internal/smtpwire"
)

// What a filter is told of an address, and of the parameters behind it.
func TestMilterArgs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		line string
		want []string
	}{
		{"MAIL FROM:<>", []string{"<>"}},
		{"MAIL FROM:<> SIZE=10 BODY=8BITMIME", []string{"<>", "SIZE=10", "BODY=8BITMIME"}},
		{"MAIL FROM: <> SIZE=10", []string{"<>", "SIZE=10"}},
		{"MAIL FROM:<a@b>", []string{"<a@b>"}},
		{"MAIL FROM:<a@b> SIZE=10", []string{"<a@b>", "SIZE=10"}},
		{"MAIL FROM: a@b SIZE=10", []string{"<a@b>", "SIZE=10"}},
	} {
		s := &session{cmd: smtpwire.ParseCommand(tt.line)}
		m, refusal := smtpwire.ParseMail(s.cmd.Args, 0, false)
		if refusal != nil {
			t.Errorf("%s: %v", tt.line, refusal)
			continue
		}
		if got := s.milterArgs(&m.From); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.line, got, tt.want)
		}
	}
}
