// A trial of the services' settings, for "posthaste check", start and reload: each
// service reads its settings and opens its tables as it would at its start, in this
// process. Services start when they are needed, which may be much later; a mistake should
// be seen by the person who made it.

package master

import (
	"fmt"
	"slices"
	"strings"

	"posthaste/internal/advice"
	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/service"
	"posthaste/internal/table"
)

// trial has each service try its settings. It returns what they complain of, with the
// place in main.cf or master.cf where the setting is, and why some could not start.
func trial(s *settings) (complaints []advice.Mistake, failures []string) {
	var from *entry
	warn := func(text string) {
		m := s.placed(from, text)
		if !slices.ContainsFunc(complaints, func(other advice.Mistake) bool { return sameComplaint(m, other) }) {
			complaints = append(complaints, m)
		}
	}
	for _, e := range s.services {
		// With the options of this service's line, as it will have them.
		cfg, err := e.configured(s.config)
		if err != nil {
			continue // loadSettings has said so
		}
		from = e
		// The service logs as ever; what it logs comes back as complaints.
		log := maillog.New(e.spec.Process, complainant(warn))
		err = service.Try(e.spec, &e.line, cfg, log)
		log.Close()
		if err != nil {
			text := fmt.Sprintf("%s:%d: service %s/%s: %v", e.File, e.Line, e.Name, e.Type, err)
			// The service's line says which service fails; the parameter may be in
			// main.cf.
			if m := s.placed(nil, err.Error()); m.Line > 0 && !e.overrides(parameterOf(err.Error())) {
				text += fmt.Sprintf(" (%s is set at %s:%d)", s.config.Source(parameterOf(err.Error())), m.File, m.Line)
			}
			failures = append(failures, text)
		}
	}
	from = nil
	// postdrop has these opened for each message, and nobody else.
	//
	// postdrop fails for every user if it cannot be opened.
	table.OpenMaps("local_login_sender_maps", s.config.List("local_login_sender_maps"), table.Options{Warn: warn}).Close()
	return complaints, failures
}

// sameComplaint says whether two complaints are about one mistake. A parameter whose
// default is the value of another parameter repeats that one's mistakes.
func sameComplaint(a, b advice.Mistake) bool {
	if a.File != b.File || a.Line != b.Line {
		return false
	}
	_, x, _ := strings.Cut(a.Text, ": ")
	_, y, _ := strings.Cut(b.Text, ": ")
	return a.Text == b.Text || x == y && strings.HasPrefix(x, "table ")
}

// ownCertificate are the parameters that the server's certificate can be missing for, and
// those that ask for TLS.
var ownCertificate = []string{"smtpd_tls_chain_files", "smtpd_tls_cert_file", "smtpd_tls_eccert_file", "smtpd_tls_key_file",
	"smtpd_tls_security_level", "smtpd_use_tls"}

// placed gives a complaint of the form "parameter: what is wrong" the place where the
// parameter is set. e is the service that complains; nil: none.
func (s *settings) placed(e *entry, text string) advice.Mistake {
	_, rest, _ := strings.Cut(text, ": ")
	parameter := parameterOf(text)
	if parameter == "TLS is disabled" {
		parameter = ownCertificate[slices.IndexFunc(ownCertificate, func(name string) bool {
			return name == "smtpd_use_tls" || s.sets(e, name)
		})]
		text = parameter + ": " + text
	}
	// Stops: mail waits or is refused until it is mended. A table that cannot be opened
	// defers whatever needs it; a restriction that is wrong defers all mail.
	m := advice.Mistake{Text: text, Complaint: true, Stops: strings.HasPrefix(text, parameter+": TLS is disabled") ||
		strings.HasPrefix(rest, "table ") || restricts(s.config, parameter) && !strings.HasSuffix(rest, "is ignored")}
	if e != nil && e.overrides(parameter) {
		m.File, m.Line, m.Text = e.File, e.Line, fmt.Sprintf("service %s/%s: -o %s", e.Name, e.Type, text)
	} else if set, file, line := s.config.IsSet(s.config.Source(parameter)); set {
		m.File, m.Line = file, line
	}
	return m
}

// parameterOf is the parameter that a complaint begins with: "name: ...", "name, other:
// ..." or "name = value: ...".
func parameterOf(text string) string {
	if strings.HasPrefix(text, "TLS is disabled: ") {
		return "TLS is disabled"
	}
	end := strings.IndexFunc(text, func(r rune) bool { return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') })
	return text[:max(end, 0)]
}

// sets says whether a parameter is set, in main.cf or in the service's options.
func (s *settings) sets(e *entry, name string) bool {
	set, _, _ := s.config.IsSet(name)
	return set || e != nil && e.overrides(name)
}

// overrides says whether the service's -o options set a parameter.
func (e *entry) overrides(name string) bool {
	return slices.ContainsFunc(e.Overrides(), func(o config.Override) bool { return o.Name == name })
}

// restricts says whether a parameter is a list of smtpd restrictions, in which a mistake
// refuses or defers mail.
func restricts(cfg *config.Config, parameter string) bool {
	return strings.HasPrefix(parameter, "smtpd_") && strings.HasSuffix(parameter, "_restrictions") ||
		slices.Contains(cfg.List("smtpd_restriction_classes"), parameter)
}

// verdicts are all mistakes that can be found without carrying mail, and why
// services could not start.
func (s *settings) verdicts() (mistakes []advice.Mistake, failures []string) {
	services := make([]config.Service, 0, len(s.services))
	for _, e := range s.services {
		services = append(services, e.Service)
	}
	complaints, failures := trial(s)
	failures = slices.Concat(s.faults(), failures)
	return slices.Concat(s.missing(), complaints, advice.Mistakes(s.config, services, advice.System{})), failures
}

// faults are what is wrong with entries of master.cf, whose services are left out.
func (s *settings) faults() (list []string) {
	for _, f := range s.faulty {
		list = append(list, f.Error())
	}
	return list
}

// foretell tells the person who starts or reloads the mail system what its services will
// complain about, and what mail will wait for. The log is not told: the services do that
// when they start.
func (c *control) foretell(s *settings) {
	if c.journaled() {
		return
	}
	person := *c
	person.log = nil
	mistakes, failures := s.verdicts()
	for _, m := range mistakes {
		if m.Stops || m.Complaint {
			person.warn("%s", m)
		}
	}
	for _, text := range slices.Concat(c.unwritable(), failures) {
		person.warn("it will not serve: %s", text)
	}
}

// A complainant is a log that passes on warnings and worse.
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
