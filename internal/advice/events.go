package advice

import (
	"path/filepath"
	"slices"

	"posthaste/internal/config"
	"posthaste/internal/event"
)

// events looks at event_sinks, and whether the service runs that it is for.
func (c *checker) events() {
	for _, v := range c.of("event_sinks") {
		items, err := config.SplitList(v.text)
		if err != nil || len(items) == 0 {
			continue // an error of the configuration, which check says; or nobody is to be told
		}
		if !slices.ContainsFunc(c.services, func(s config.Service) bool { return s.Type == "unix" && s.Name == c.cfg.String("event_service_name") }) {
			c.warn(v, "master.cf has no service %s: mail waits for it once, and events are lost", c.cfg.String("event_service_name"))
		}
		sinks, err := event.ParseSinks(items)
		if err != nil {
			c.warn(v, "%v: the events service does not start", err)
		}
		for i := range sinks {
			c.sinkFiles(v, &sinks[i])
		}
	}
}

// sinkFiles looks for what a sink reads and writes.
func (c *checker) sinkFiles(v value, s *event.Sink) {
	for _, path := range []string{s.SecretFile, s.SASLFile, s.CAFile} {
		if path == "" {
			continue
		}
		if _, err := c.system.Stat(path); err != nil {
			c.warn(v, "%v: the events service does not start", err)
		}
	}
	if s.Type != event.File {
		return
	}
	dir := filepath.Dir(s.Target)
	if dir == c.cfg.String("event_directory") {
		return // the service makes it
	}
	if _, err := c.system.Stat(dir); err != nil {
		c.warn(v, "%v: events wait until it is there; it must be writable for the mail owner", err)
	}
}
