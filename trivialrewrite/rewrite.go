package trivialrewrite

import (
	"strings"

	"posthaste/internal/rfc5322"
)

// Rewrite puts addr, in internal form, into standard form: user@domain with
// a full domain. context is Local or Remote; it decides what is added to an
// incomplete address. With Remote and no remote_header_rewrite_domain nothing
// is added. The null address stays as it is.
func (r *Rewriter) Rewrite(context, addr string) string {
	if context == Remote {
		return r.rewrite(addr, r.remoteDomain, r.remoteDomain)
	}
	return r.rewrite(addr, r.origin, r.domain)
}

func (r *Rewriter) rewrite(addr, origin, domain string) string {
	if addr == "" || addr == "@" {
		return ""
	}
	addr = stripRoute(addr)
	if strings.IndexByte(addr, '@') < 0 {
		addr = r.addDomain(addr, origin)
	}
	if r.appendDot && domain != "" && lacksDot(addr) {
		addr += "." + domain
	}
	// One dot at the end goes; broken forms that end in ".." or "@." stay, to
	// be reported as they are.
	if n := len(addr); n > 1 && addr[n-1] == '.' && addr[n-2] != '.' && addr[n-2] != '@' {
		addr = addr[:n-1]
	}
	return addr
}

// stripRoute removes a source route, @a,@b:user@c (RFC 5321 appendix C).
func stripRoute(addr string) string {
	if addr[0] != '@' {
		return addr
	}
	if i := strings.IndexByte(addr, ':'); i > 0 && i < len(addr)-1 {
		return addr[i+1:]
	}
	return addr
}

// addDomain gives an address without "@" a domain. A local part that needs
// quotes is not looked into.
func (r *Rewriter) addDomain(local, origin string) string {
	if !rfc5322.NeedsQuotes(local) {
		if i := strings.IndexByte(local, '!'); i >= 0 && r.swapBangPath {
			return local[i+1:] + "@" + local[:i]
		}
		if i := strings.LastIndexByte(local, '%'); i >= 0 && r.percentHack {
			return local[:i] + "@" + local[i+1:]
		}
	}
	if r.appendAtOrigin && origin != "" {
		return local + "@" + origin
	}
	return local
}

// lacksDot says whether addr has a domain that is a single label.
func lacksDot(addr string) bool {
	domain := rfc5322.Domain(addr)
	return domain != "" && domain[0] != '[' && strings.IndexByte(domain, '.') < 0
}
