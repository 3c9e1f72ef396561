package policyhost

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
	"posthaste/internal/tlspolicy/mtasts"
)

// A site is what main.cf says. It is not changed once it has been read.
type site struct {
	domains *table.List // policyhost_domains
	names   resolver.Names
	policy  *mtasts.Policy // of all domains; nil: none is served
	servers []server       // policyhost_servers
	local   bool           // users log in with the local part of their address, else with all of it
	display string         // policyhost_display_name; empty: the domain's name
	warn    func(string)
}

// A server is one of policyhost_servers.
type server struct {
	protocol string // imap, pop3 or smtp
	host     string
	port     int
	wrapped  bool // TLS from the first octet, else STARTTLS
}

// schemes are those of policyhost_servers, each with its port (RFC 8314).
var schemes = map[string]server{
	"imaps":       {"imap", "", 993, true},
	"imap":        {"imap", "", 143, false},
	"pop3s":       {"pop3", "", 995, true},
	"pop3":        {"pop3", "", 110, false},
	"submissions": {"smtp", "", 465, true},
	"submission":  {"smtp", "", 587, false},
}

// read reads main.cf. An error names the parameter.
func read(cfg *config.Config, o table.Options) (*site, error) {
	s := &site{names: resolver.NamesOf(cfg), local: cfg.String("policyhost_user_name") == "localpart", display: cfg.String("policyhost_display_name"), warn: o.Warn}
	var err error
	if s.domains, err = table.NewList("policyhost_domains", cfg.List("policyhost_domains"), table.ListOptions{Kind: table.Strings, Table: o}); err != nil {
		return nil, err
	}
	if s.policy, err = mtasts.Own(cfg); err != nil {
		return nil, err
	}
	for _, text := range cfg.List("policyhost_servers") {
		srv, err := s.parseServer(text)
		if err != nil {
			return nil, fmt.Errorf("policyhost_servers: %s: %w", text, err)
		}
		s.servers = append(s.servers, srv)
	}
	isSMTP := func(srv server) bool { return srv.protocol == "smtp" }
	if n := len(s.servers); n > 0 && (!slices.ContainsFunc(s.servers, isSMTP) || !slices.ContainsFunc(s.servers, func(srv server) bool { return !isSMTP(srv) })) {
		return nil, errors.New("policyhost_servers: expected a server for outgoing mail (submissions://host) and one for incoming mail (imaps://host)")
	}
	return s, nil
}

// parseServer reads scheme://host or scheme://host:port.
func (s *site) parseServer(text string) (server, error) {
	u, err := url.Parse(text)
	if err != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return server{}, errors.New("expected a protocol and a host, such as imaps://mail.example.org or submissions://mail.example.org:465")
	}
	srv, ok := schemes[u.Scheme]
	if !ok {
		return server{}, errors.New("expected imaps, imap, pop3s, pop3, submissions or submission before ://; those without the last s use STARTTLS")
	}
	if srv.host, ok = s.names.ToASCII(u.Hostname()); !ok || !strings.Contains(srv.host, ".") {
		return server{}, errors.New("expected the full name of a host after ://")
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return server{}, errors.New("expected a port from 1 to 65535")
		}
		srv.port = int(n)
	}
	return srv, nil
}

// domain is a domain of this system in ASCII, or "" if it is not one of policyhost_domains. A table
// that fails is an error.
func (s *site) domain(ctx context.Context, name string) (string, error) {
	ascii, ok := s.names.ToASCII(name)
	if !ok || len(ascii) > 253 {
		return "", nil
	}
	for _, form := range []string{ascii, s.names.OtherForm(ascii)} {
		if form == "" {
			continue
		}
		if found, err := s.domains.Match(ctx, form); err != nil || found {
			return ascii, err
		}
	}
	return "", nil
}

// A user is an address that a mail program has sent, of one of our domains. Whether there is such a user is not known.
type user struct {
	address string // as it was sent, in UTF-8 without control characters
	local   string // its local part
	domain  string // in ASCII
}

const maxAddress = 320 // octets: RFC 5321 section 4.5.3.1

// user reads an address. It is nil if the address is none, or not of this system.
func (s *site) user(ctx context.Context, address string) (*user, error) {
	at := strings.LastIndexByte(address, '@')
	if at < 1 || len(address) > maxAddress || !printable(address) {
		return nil, nil
	}
	domain, err := s.domain(ctx, address[at+1:])
	if domain == "" || err != nil {
		return nil, err
	}
	return &user{address, address[:at], domain}, nil
}

// login is what a user logs in with.
func (s *site) login(u *user) string {
	if s.local {
		return u.local
	}
	return u.address
}

// title is what a mail program calls the account.
func (s *site) title(domain string) string {
	if s.display != "" {
		return s.display
	}
	return domain
}
