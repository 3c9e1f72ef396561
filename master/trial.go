package master

import (
	"fmt"
	"slices"
	"strings"

	"posthaste/internal/maillog"
	"posthaste/internal/service"
	"posthaste/internal/table"
)

// trial has the services read their settings and open what these name, as
// they do when they start. complaints is what they complain of, and failures why
// those could not start that the mail system cannot do without.
func trial(s *settings) (complaints, failures []string) {
	warn := func(text string) {
		if !slices.Contains(complaints, text) {
			complaints = append(complaints, text)
		}
	}
	for _, e := range s.services {
		cfg, err := e.configured(s.config)
		if err != nil {
			continue // loadSettings has said so
		}
		log := maillog.New(e.spec.Process, complainant(warn))
		err = service.Try(e.spec, &e.line, cfg, log)
		log.Close()
		text := fmt.Sprintf("%s:%d: service %s/%s: %v", e.File, e.Line, e.Name, e.Type, err)
		switch {
		case err == nil:
		case e.spec.Rank == service.Agent: // all else goes on without it
			warn(text)
		default:
			failures = append(failures, text)
		}
	}
	// postdrop has these opened for each message, and nobody else.
	table.OpenMaps("local_login_sender_maps", s.config.List("local_login_sender_maps"), table.Options{Warn: warn}).Close()
	return complaints, failures
}

// foretell tells the person who starts or reloads the mail system what its
// services will complain of. They start when they are needed, which may be much
// later, and then say it to the log, so that the log is not told here.
func (c *control) foretell(s *settings) {
	if c.journaled() {
		return
	}
	person := *c
	person.log = nil
	complaints, failures := trial(s)
	for _, text := range slices.Concat(s.missing(), complaints) {
		person.warn("%s", text)
	}
	for _, text := range slices.Concat(c.unwritable(), failures) {
		person.warn("it will not serve: %s", text)
	}
}

// complainant is a log that passes on what is more than information.
type complainant func(text string)

func (complainant) Format() maillog.Format { return maillog.Plain }

func (f complainant) Write(lines []byte) (taken int, err error) {
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

func (complainant) Close() error { return nil }
