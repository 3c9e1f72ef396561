package cli

import (
	"errors"
	"strings"
	"testing"
)

// brokenPipe takes nothing.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// A tool with verbs: what is no verb's command line gets the usage, and each failure has its status.
func TestVerbs(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		args   string
		status int
		stderr string
	}{
		{"", ExitUsage, "USAGE"},
		{"sing", ExitUsage, "USAGE"},
		{"say", ExitUsage, "USAGE"},
		{"say a b c", ExitUsage, "USAGE"},
		{"say -x a", ExitUsage, "USAGE"},
		{"say -v loud a", 0, ""},
		{"say -v ill a", ExitConfig, "no voice"},
		{"say full", ExitIO, "broken pipe"},
		{"fail", ExitData, "it has failed"},
	} {
		var errs strings.Builder
		tool := &Tool{Name: "tool", Stdout: brokenPipe{}, Stderr: &errs}
		var args []string
		status := tool.Run(map[string]Verb{
			"say": {Letters: "v:", Min: 1, Max: 2, Do: func() error {
				if args[0] == "full" {
					tool.Stdout.Write([]byte("x"))
				}
				return nil
			}},
			"fail": {Do: func() error { return Errorf(ExitData, "it has failed") }},
		}, "USAGE", strings.Fields(x.args), func(opts []Option, rest []string) error {
			args = rest
			if len(opts) > 0 && opts[0].Value == "ill" {
				return Errorf(ExitConfig, "no voice")
			}
			return nil
		})
		if status != x.status || !strings.Contains(errs.String(), x.stderr) || x.stderr == "" && errs.Len() > 0 {
			t.Errorf("%q: status %d, %q", x.args, status, errs.String())
		}
	}
}
