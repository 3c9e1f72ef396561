package master

import (
	"fmt"
	"strings"

	"posthaste/internal/maillog"
	"posthaste/internal/service"
)

// trial has the services read their settings and open what these name, as
// they do when they start, and says what they complain of. ok is false if one
// of them could not start that the mail system cannot do without.
func (c *control) trial(s *settings) (ok bool) {
	ok = true
	said := make(map[string]bool)
	warn := func(text string) {
		if !said[text] {
			said[text] = true
			c.warn("%s", text)
		}
	}
	for _, e := range s.services {
		cfg, err := e.configured(s.config)
		if err != nil {
			continue // loadSettings has said so
		}
		log := maillog.New(e.spec.Process, complaints(warn))
		err = service.Try(e.spec, &e.line, cfg, log)
		log.Close()
		text := fmt.Sprintf("%s:%d: service %s/%s: %v", e.File, e.Line, e.Name, e.Type, err)
		switch {
		case err == nil:
		case e.spec.Rank == service.Agent: // all else goes on without it
			warn(text)
		default:
			ok = false
			c.fatal("%s", text) // each has a line of its own
		}
	}
	return ok
}

// complaints is a log that passes on what is more than information.
type complaints func(text string)

func (complaints) Format() maillog.Format { return maillog.Plain }

func (f complaints) Write(lines []byte) (taken int, err error) {
	for line := range strings.Lines(string(lines)) {
		_, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ") // after the service's name
		for _, level := range []string{"warning: ", "error: ", "fatal: "} {
			if text, ok := strings.CutPrefix(text, level); ok {
				f(text)
			}
		}
	}
	return len(lines), nil
}

func (complaints) Close() error { return nil }
