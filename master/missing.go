// Checks of master.cf as a whole, for "posthaste check" and the start: services that mail
// cannot do without, and ports that another program has.

package master

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"posthaste/internal/advice"
	"posthaste/internal/config"
	"posthaste/internal/occupant"
	"posthaste/internal/service"
	"posthaste/internal/table"
)

// missing lists what mail cannot do without and master.cf does not have. Without these
// checks a client would wait for a service that never comes, or the log would say for
// each message that it is missing.
func (s *settings) missing() (list []advice.Mistake) {
	stop := func(format string, args ...any) {
		list = append(list, advice.Mistake{Text: fmt.Sprintf(format, args...), Stops: true})
	}
	has := func(name string) bool {
		return slices.ContainsFunc(s.services, func(e *entry) bool { return e.Name == name && e.Type != "inet" })
	}
	// Without any of these four there is no mail system, only a port that answers.
	for _, need := range []struct{ parameter, without string }{
		{"cleanup_service_name", "no message can be taken in"},
		{"queue_service_name", "nothing is delivered"},
		{"rewrite_service_name", "no message can be taken in"},
		{"bounce_service_name", "what cannot be delivered is not returned"},
	} {
		if name := s.config.String(need.parameter); !has(name) {
			stop("%s/master.cf has no service %s/unix (%s): %s", s.config.Dir(), name, need.parameter, need.without)
		}
	}
	// A transport that no domain uses need not exist.
	for _, parameter := range []string{"local_transport", "virtual_transport", "relay_transport", "default_transport", "content_filter"} {
		if unused(s.config, parameter) {
			continue
		}
		if text := withoutTransport(s.config.String(parameter), has); text != "" {
			stop("%s%s = %s", place(s.config, parameter), parameter, text)
		}
	}
	// Databases are asked by proxymap alone, so that their clients are in no other
	// process.
	if name := filepath.Base(table.DefaultProxy); !has(name) {
		if spec := s.database(); spec != "" {
			stop("%s/master.cf has no service %s/unix, which asks %s: every lookup in it will fail",
				s.config.Dir(), name, spec)
		}
	}
	for _, e := range s.services {
		if program := e.spec.ProgramFor(s.config); program != "" && (e.spec.Process != "proxymap" || s.database() != "") {
			// Services with a program of their own (databases) may not be installed.
			if _, err := service.ProgramPath(program, s.config.String("daemon_directory")); err != nil {
				list = append(list, advice.Mistake{File: e.File, Line: e.Line, Text: fmt.Sprintf("service %s/%s: %v", e.Name, e.Type, err),
					Stops: e.spec.Process == "proxymap" || e.spec.Queue}) // mail does without the others
			}
		}
		for _, o := range e.Overrides() {
			if o.Name != "content_filter" {
				continue
			}
			// An -o content_filter is as good a way to name a transport.
			if value, err := s.config.Expand(o.Value); err == nil {
				if text := withoutTransport(value, has); text != "" {
					stop("%s:%d: service %s/%s: -o %s=%s", e.File, e.Line, e.Name, e.Type, o.Name, text)
				}
			}
		}
	}
	return list
}

// occupied says which addresses other programs listen on, most often the mail system that
// was there before. It is only for when this mail system does not run: it would find
// itself.
func (s *settings) occupied() (list []string) {
	for _, e := range s.services {
		for _, ep := range e.endpoints {
			if ep.network != "tcp" {
				continue
			}
			// An address that nobody uses is not worth a word.
			if p, ok := occupant.Of(ep.addr); ok {
				list = append(list, fmt.Sprintf("%s:%d: service %s/%s: %s listens on %s: stop it before the start", e.File, e.Line, e.Name, e.Type, p, ep))
			}
		}
	}
	return list
}

// database is the first table in a database that a parameter names; "" if there is none.
func (s *settings) database() string {
	for _, name := range s.config.Names() {
		if config.NoEffect(name) != "" {
			continue
		}
		value, err := s.config.Value(name)
		if err != nil {
			continue
		}
		for _, spec := range table.Proxied(value) {
			if !strings.HasPrefix(spec, "unix:") { // these are proxymap's for services in chroot alone
				return spec
			}
		}
	}
	return ""
}

// unused says that there are no domains whose mail a transport's parameter is for.
func unused(cfg *config.Config, parameter string) bool {
	domains, ok := map[string]string{"local_transport": "mydestination", "virtual_transport": "virtual_mailbox_domains",
		"relay_transport": "relay_domains"}[parameter]
	return ok && cfg.String(domains) == ""
}

// withoutTransport says that the transport in "transport:nexthop" does not exist; "" if
// it does.
func withoutTransport(value string, has func(name string) bool) string {
	transport, _, _ := strings.Cut(value, ":")
	if transport == "" || has(transport) {
		return ""
	}
	return fmt.Sprintf("%s: master.cf has no service %s/unix: the mail waits in the queue", value, transport)
}
