package milter

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mailfilter"
)

// network splits a filter's endpoint for package net.
func network(endpoint string) (network, address string, err error) {
	kind, addr, _ := strings.Cut(endpoint, ":")
	switch strings.ToLower(kind) {
	case "unix", "local":
		if addr != "" {
			return "unix", addr, nil
		}
	case "inet", "inet6":
		i := strings.LastIndexByte(addr, ':')
		if i <= 0 || i == len(addr)-1 {
			break
		}
		host := strings.Trim(addr[:i], "[]")
		return "tcp", "[" + host + "]" + addr[i:], nil
	}
	return "", "", fmt.Errorf("milter %q: expected inet:host:port or unix:path", endpoint)
}

// Read reads a list of filters from the parameter of this name, smtpd_milters or
// non_smtpd_milters, and what milter_* parameters say of all of them.
func Read(cfg *config.Config, name string) ([]mailfilter.Spec, error) {
	return Parse(cfg, name, cfg.List(name))
}

// Parse is Read for a list that comes from elsewhere, a table's value; name is
// for errors. An item is an endpoint, or an endpoint and its own settings:
//
//	inet:host:port, connect_timeout=10s, default_action=accept
//
// Settings are command_timeout, connect_timeout, content_timeout,
// default_action, protocol, and connection_reuse.
func Parse(cfg *config.Config, name string, list []string) ([]mailfilter.Spec, error) {
	base := mailfilter.Spec{
		Default: cfg.String("milter_default_action"),
		Connect: cfg.Duration("milter_connect_timeout"), Command: cfg.Duration("milter_command_timeout"),
		Content: cfg.Duration("milter_content_timeout"),
		Macros: [mailfilter.Stages]string{
			mailfilter.StageConnect: cfg.String("milter_connect_macros"), mailfilter.StageHelo: cfg.String("milter_helo_macros"),
			mailfilter.StageMail: cfg.String("milter_mail_macros"), mailfilter.StageRcpt: cfg.String("milter_rcpt_macros"),
			mailfilter.StageData: cfg.String("milter_data_macros"), mailfilter.StageEOM: cfg.String("milter_end_of_data_macros"),
			mailfilter.StageEOH: cfg.String("milter_end_of_header_macros"), mailfilter.StageUnknown: cfg.String("milter_unknown_command_macros"),
		},
	}
	if err := setProtocol(&base, strings.FieldsFunc(cfg.String("milter_protocol"), isSeparator)); err != nil {
		return nil, fmt.Errorf("milter_protocol: %w", err)
	}
	specs := make([]mailfilter.Spec, 0, len(list))
	for _, item := range list {
		s := base
		words := strings.FieldsFunc(item, isSeparator)
		if len(words) == 0 {
			continue
		}
		s.Endpoint = words[0]
		for _, w := range words[1:] {
			if err := set(&s, w); err != nil {
				return nil, fmt.Errorf("%s: milter %s: %w", name, s.Endpoint, err)
			}
		}
		if _, _, err := network(s.Endpoint); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		specs = append(specs, s)
	}
	return specs, nil
}

func isSeparator(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' }

// setProtocol takes a version, and the one extension that has a name.
func setProtocol(s *mailfilter.Spec, words []string) error {
	s.Protocol, s.NoHeaderReply = 0, false
	for _, w := range words {
		n, err := strconv.Atoi(w)
		_, known := offered[n]
		switch {
		case w == "no_header_reply":
			s.NoHeaderReply = true
		case err != nil || !known || s.Protocol != 0:
			return fmt.Errorf("%q: expected 2, 3, 4 or 6, and perhaps no_header_reply", strings.Join(words, " "))
		default:
			s.Protocol = n
		}
	}
	if s.Protocol == 0 {
		return fmt.Errorf("%q: expected 2, 3, 4 or 6", strings.Join(words, " "))
	}
	return nil
}

// set applies one setting of a filter's own.
func set(s *mailfilter.Spec, word string) (err error) {
	key, value, ok := strings.Cut(word, "=")
	if !ok {
		return fmt.Errorf("%q: expected name=value", word)
	}
	switch key {
	case "connect_timeout":
		s.Connect, err = parseTime(value)
	case "command_timeout":
		s.Command, err = parseTime(value)
	case "content_timeout":
		s.Content, err = parseTime(value)
	case "protocol":
		err = setProtocol(s, []string{value})
	case "connection_reuse":
		if s.Reuse = value == "yes"; !s.Reuse && value != "no" {
			err = fmt.Errorf("expected yes or no")
		}
	case "default_action":
		switch value {
		case "accept", "reject", "tempfail", "quarantine", "shutdown":
			s.Default = value
		default:
			err = fmt.Errorf("expected accept, reject, tempfail, quarantine or shutdown")
		}
	default:
		err = fmt.Errorf("unknown setting")
	}
	if err != nil {
		return fmt.Errorf("%q: %w", word, err)
	}
	return nil
}

// parseTime reads a time limit: a number with a unit, s if there is none.
func parseTime(text string) (time.Duration, error) {
	unit := time.Second
	digits := text
	if n := len(text); n > 0 {
		units := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour}
		if u, ok := units[text[n-1]]; ok {
			unit, digits = u, text[:n-1]
		}
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("expected a time such as 30s or 5m")
	}
	return time.Duration(n) * unit, nil
}

// ParseMacros reads milter_macro_defaults: name=value, where the name may
// have its braces or not.
func ParseMacros(list []string) ([]string, error) {
	pairs := make([]string, 0, 2*len(list))
	for _, item := range list {
		name, value, ok := strings.Cut(item, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return nil, fmt.Errorf("milter_macro_defaults: %q: expected name=value", item)
		}
		pairs = append(pairs, macroName(name), strings.TrimSpace(value))
	}
	return pairs, nil
}

// macroName gives a name its braces: those of one letter go without.
func macroName(name string) string {
	name = strings.TrimSuffix(strings.TrimPrefix(name, "{"), "}")
	if len(name) > 1 {
		return "{" + name + "}"
	}
	return name
}

// macroNames splits a list of names.
func macroNames(list string) []string {
	return strings.FieldsFunc(list, isSeparator)
}
