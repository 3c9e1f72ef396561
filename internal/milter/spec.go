package milter

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/pack"
)

// A stage is a moment at which macros are sent. The numbers are those of the
// protocol's macro lists; the last is not in it.
type stage uint8

const (
	stConnect stage = iota
	stHelo
	stMail
	stRcpt
	stData
	stEOM
	stEOH
	stUnknown
	nStages
)

// A Spec says how one filter is reached and treated.
type Spec struct {
	Endpoint                  string // inet:host:port or unix:path, as configured
	Protocol                  int    // highest version to offer: 2, 3, 4 or 6
	NoHeaderReply             bool   // whatever the version, the filter may say that it sends no reply to each header field
	Connect, Command, Content time.Duration
	Default                   string // milter_default_action
	// Reuse says that the filter serves one SMTP session after the other on
	// one connection.
	Reuse bool
	// Macros are the names to send at each stage, unless the filter asks for
	// others.
	Macros [nStages]string
}

// network splits the endpoint for package net.
func (s *Spec) network() (network, address string, err error) {
	kind, addr, _ := strings.Cut(s.Endpoint, ":")
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
	return "", "", fmt.Errorf("milter %q: expected inet:host:port or unix:path", s.Endpoint)
}

// Read reads a list of filters from the parameter of this name, smtpd_milters or
// non_smtpd_milters, and what milter_* parameters say of all of them.
func Read(cfg *config.Config, name string) ([]Spec, error) { return Parse(cfg, name, cfg.List(name)) }

// Parse is Read for a list that comes from elsewhere, a table's value; name is
// for errors. An item is an endpoint, or an endpoint and its own settings:
//
//	inet:host:port, connect_timeout=10s, default_action=accept
//
// Settings are command_timeout, connect_timeout, content_timeout,
// default_action, protocol, and connection_reuse.
func Parse(cfg *config.Config, name string, list []string) ([]Spec, error) {
	base := Spec{
		Default: cfg.String("milter_default_action"),
		Connect: cfg.Duration("milter_connect_timeout"), Command: cfg.Duration("milter_command_timeout"),
		Content: cfg.Duration("milter_content_timeout"),
		Macros: [nStages]string{
			stConnect: cfg.String("milter_connect_macros"), stHelo: cfg.String("milter_helo_macros"),
			stMail: cfg.String("milter_mail_macros"), stRcpt: cfg.String("milter_rcpt_macros"),
			stData: cfg.String("milter_data_macros"), stEOM: cfg.String("milter_end_of_data_macros"),
			stEOH: cfg.String("milter_end_of_header_macros"), stUnknown: cfg.String("milter_unknown_command_macros"),
		},
	}
	if err := base.setProtocol(strings.FieldsFunc(cfg.String("milter_protocol"), isSeparator)); err != nil {
		return nil, fmt.Errorf("milter_protocol: %w", err)
	}
	specs := make([]Spec, 0, len(list))
	for _, item := range list {
		s := base
		words := strings.FieldsFunc(item, isSeparator)
		if len(words) == 0 {
			continue
		}
		s.Endpoint = words[0]
		for _, w := range words[1:] {
			if err := s.set(w); err != nil {
				return nil, fmt.Errorf("%s: milter %s: %w", name, s.Endpoint, err)
			}
		}
		if _, _, err := s.network(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		specs = append(specs, s)
	}
	return specs, nil
}

func isSeparator(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' }

// setProtocol takes a version, and the one extension that has a name.
func (s *Spec) setProtocol(words []string) error {
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
func (s *Spec) set(word string) (err error) {
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
		err = s.setProtocol([]string{value})
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

// Append appends the packed form, for ipc.
func (s *Spec) Append(b []byte) []byte {
	b = pack.String(b, 'e', s.Endpoint)
	b = pack.Int(b, 'p', s.Protocol)
	b = pack.Int(b, 'o', int64(s.Connect))
	b = pack.Int(b, 'c', int64(s.Command))
	b = pack.Int(b, 't', int64(s.Content))
	b = pack.String(b, 'd', s.Default)
	b = pack.Bool(b, 'r', s.Reuse)
	b = pack.Bool(b, 'n', s.NoHeaderReply)
	for _, m := range s.Macros {
		b = pack.Bytes(b, 'm', m)
	}
	return b
}

// Decode reads the packed form.
func (s *Spec) Decode(b []byte) error {
	r := pack.NewReader(b)
	n := 0
	for r.Next() {
		switch r.Tag() {
		case 'e':
			s.Endpoint = r.String()
		case 'p':
			s.Protocol = int(r.Int())
		case 'o':
			s.Connect = time.Duration(r.Int())
		case 'c':
			s.Command = time.Duration(r.Int())
		case 't':
			s.Content = time.Duration(r.Int())
		case 'd':
			s.Default = r.String()
		case 'r':
			s.Reuse = r.Bool()
		case 'n':
			s.NoHeaderReply = r.Bool()
		case 'm':
			if n < len(s.Macros) {
				s.Macros[n] = r.String()
				n++
			}
		}
	}
	return r.Err()
}
