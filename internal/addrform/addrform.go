// Package addrform puts mail addresses into standard form: user@domain with a
// full domain. It is what the trivial-rewrite service does to every address,
// and what a program does to the addresses that its own tables give.
//
// # Parameters
//
// myorigin mydomain append_at_myorigin append_dot_mydomain allow_percent_hack
// swap_bangpath.
package addrform

import (
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/rfc5322"
)

// Form says what is done to an incomplete address. The zero value removes
// source routes and a dot at the end, and adds nothing.
type Form struct {
	Origin string // the domain of an address without one; "": none is added
	Domain string // what a domain of one label is in; "": nothing is added

	AppendAtOrigin, AppendDot bool
	PercentHack, SwapBangPath bool
}

// New reads the parameters: the form of addresses that come from this system.
func New(cfg *config.Config) Form {
	return Form{
		Origin:         cfg.String("myorigin"),
		Domain:         cfg.String("mydomain"),
		AppendAtOrigin: cfg.Bool("append_at_myorigin"),
		AppendDot:      cfg.Bool("append_dot_mydomain"),
		PercentHack:    cfg.Bool("allow_percent_hack"),
		SwapBangPath:   cfg.Bool("swap_bangpath"),
	}
}

// Rewrite puts addr, in internal form, into standard form. The null address
// stays as it is.
func (f *Form) Rewrite(addr string) string {
	if addr == "" || addr == "@" {
		return ""
	}
	addr = stripRoute(addr)
	if strings.IndexByte(addr, '@') < 0 {
		addr = f.addDomain(addr)
	}
	if f.AppendDot && f.Domain != "" && lacksDot(addr) {
		addr += "." + f.Domain
	}
	// One dot at the end goes; broken forms that end in ".." or "@." stay, to
	// be reported as they are.
	if n := len(addr); n > 1 && addr[n-1] == '.' && addr[n-2] != '.' && addr[n-2] != '@' {
		addr = addr[:n-1]
	}
	return addr
}

// stripRoute removes a source route, @a,@b:user@c (RFC 5321 appendix C). A
// colon inside an address literal does not end it.
func stripRoute(addr string) string {
	if addr[0] != '@' {
		return addr
	}
	literal := false
	for i := 0; i < len(addr)-1; i++ {
		switch addr[i] {
		case '[':
			literal = true
		case ']':
			literal = false
		case ':':
			if !literal {
				return addr[i+1:]
			}
		}
	}
	return addr
}

// addDomain gives an address without "@" a domain. A local part that needs
// quotes is not looked into.
func (f *Form) addDomain(local string) string {
	if !rfc5322.NeedsQuotes(local) {
		if i := strings.IndexByte(local, '!'); i >= 0 && f.SwapBangPath {
			return local[i+1:] + "@" + local[:i]
		}
		if i := strings.LastIndexByte(local, '%'); i >= 0 && f.PercentHack {
			return local[:i] + "@" + local[i+1:]
		}
	}
	if f.AppendAtOrigin && f.Origin != "" {
		return local + "@" + f.Origin
	}
	return local
}

// lacksDot says whether addr has a domain that is a single label.
func lacksDot(addr string) bool {
	domain := rfc5322.Domain(addr)
	return domain != "" && domain[0] != '[' && strings.IndexByte(domain, '.') < 0
}
