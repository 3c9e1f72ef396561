package table

import (
	"context"
	"strconv"
	"strings"

	"posthaste/internal/rfc5322"
)

// Search says how addresses are taken apart for lookups. It is shared by all
// tables of a process and not changed after it is made.
type Search struct {
	// Delimiters are the characters that may separate user and extension
	// (recipient_delimiter): the first of any of them in the local part does.
	Delimiters string

	// OwnerRequest keeps owner-list and list-request whole when "-" is a
	// delimiter (owner_request_special).
	OwnerRequest bool

	// DoubleBounce is the local part of double_bounce_sender, never split.
	DoubleBounce string

	// Local says whether mail for a domain is delivered here: it is $myorigin,
	// listed in mydestination, or an address literal of this host. Nil means
	// that none is.
	Local func(ctx context.Context, domain string) (bool, error)
}

// SplitExtension cuts the extension off a local part: user+ext into user and
// +ext, the delimiter with it. Reserved names have no extension.
func (s *Search) SplitExtension(local string) (user, ext string) {
	if s == nil || s.Delimiters == "" {
		return local, ""
	}
	i := strings.IndexAny(local, s.Delimiters)
	// A delimiter at the start would leave no user.
	if i <= 0 {
		return local, ""
	}
	switch {
	case strings.EqualFold(local, "mailer-daemon"), s.DoubleBounce != "" && strings.EqualFold(local, s.DoubleBounce):
		return local, ""
	case s.OwnerRequest && strings.Contains(s.Delimiters, "-") && isOwnerRequest(local): // whichever delimiter comes first
		return local, ""
	}
	return local[:i], local[i:]
}

func isOwnerRequest(local string) bool {
	lower := strings.ToLower(local)
	return strings.HasPrefix(lower, "owner-") || strings.HasSuffix(lower, "-request")
}

// Strip removes the extension from an address, with or without a domain.
func (s *Search) Strip(addr string) (bare, ext string) {
	local, _, _ := rfc5322.Split(addr)
	user, ext := s.SplitExtension(local)
	if ext == "" {
		return addr, ""
	}
	return user + addr[len(local):], ext
}

// Keys is the set of keys that an address is looked up under.
type Keys uint16

const (
	KeyFull          Keys = 1 << iota // user+ext@domain
	KeyBare                           // user@domain, and without the extension below too
	KeyLocalpart                      // user+ext, user: only if the domain is local
	KeyLocalpartAt                    // user+ext@, user@: whatever the domain
	KeyAtDomain                       // @domain
	KeyDomain                         // domain
	KeyParents                        // parent domains, as domain
	KeyDotParents                     // parent domains, as .domain
	KeyExternalFirst                  // quoted form of a key before the internal form, when they differ

	// KeysDefault is the usual order: canonical, virtual, relocated and so on.
	KeysDefault = KeyFull | KeyBare | KeyLocalpart | KeyAtDomain | KeyExternalFirst
)

// LookupAddress finds addr, in internal form, under the keys of which, most
// specific first: full, bare, local part if the domain is local, @domain,
// domain and parents, local part with @. ext is the extension, delimiter
// included, that was taken off to find a match: "" when it took part.
func (m *Maps) LookupAddress(ctx context.Context, s *Search, addr string, which Keys) (value, ext string, found bool, err error) {
	if m.Empty() {
		return "", "", false, nil
	}
	f := finder{ctx: ctx, maps: m, which: which}
	local, domain, at := rfc5322.Split(addr)
	bare := local
	if which&KeyBare != 0 {
		bare, f.ext = s.SplitExtension(local)
	}
	tail := addr[len(local):]

	if which&KeyFull != 0 && f.try(addr, false) {
		return f.value, "", f.err == nil, f.err
	}
	if f.ext != "" && f.try(bare+tail, true) {
		return f.value, f.ext, f.err == nil, f.err
	}
	if at && which&KeyLocalpart != 0 && s != nil && s.Local != nil {
		here, err := s.Local(ctx, domain)
		if err != nil {
			return "", "", false, err
		}
		if here && f.tryLocal(local, bare, "") {
			return f.value, f.used, f.err == nil, f.err
		}
	}
	if at && which&KeyAtDomain != 0 {
		if value, found, err := m.Lookup(ctx, tail, true); found || err != nil {
			return value, "", found, err
		}
	}
	if at && which&KeyDomain != 0 && f.tryDomain(domain) {
		return f.value, "", f.err == nil, f.err
	}
	if which&KeyLocalpartAt != 0 && f.tryLocal(local, bare, "@") {
		return f.value, f.used, f.err == nil, f.err
	}
	return "", "", false, nil
}

// finder tries keys until one is found or a lookup fails.
type finder struct {
	ctx   context.Context
	maps  *Maps
	which Keys
	ext   string // the extension of the address
	used  string // that which was taken off for the key found

	value string
	err   error
}

// try looks key up and says whether the search is over.
func (f *finder) try(key string, partial bool) bool {
	var found bool
	if f.which&KeyExternalFirst != 0 {
		if quoted := rfc5322.Quote(key); quoted != key {
			if f.value, found, f.err = f.maps.Lookup(f.ctx, quoted, partial); found || f.err != nil {
				return true
			}
		}
	}
	f.value, found, f.err = f.maps.Lookup(f.ctx, key, partial)
	return found || f.err != nil
}

func (f *finder) tryLocal(local, bare, suffix string) bool {
	f.used = ""
	if f.try(local+suffix, true) {
		return true
	}
	if f.ext == "" {
		return false
	}
	f.used = f.ext
	return f.try(bare+suffix, true)
}

func (f *finder) tryDomain(domain string) bool {
	for name := range Parents(domain, f.which&KeyDotParents != 0) {
		if value, found, err := f.maps.Lookup(f.ctx, name, true); found || err != nil {
			f.value, f.err = value, err
			return true
		}
		if f.which&(KeyParents|KeyDotParents) == 0 {
			break
		}
	}
	return false
}

// LookupDomain finds a domain, then its parents: as .parent when dot is set,
// as parent otherwise. The parents are partial keys.
func (m *Maps) LookupDomain(ctx context.Context, domain string, dot bool) (value string, found bool, err error) {
	if m.Empty() {
		return "", false, nil
	}
	partial := false
	for name := range Parents(domain, dot) {
		if value, found, err = m.Lookup(ctx, name, partial); found || err != nil {
			return value, found, err
		}
		partial = true
	}
	return "", false, nil
}

// LookupClientAddr finds an IP address, then the networks it is in: an IPv4
// address loses its last octet, an IPv6 address its last group, again and
// again (access(5)).
func (m *Maps) LookupClientAddr(ctx context.Context, addr string) (value string, found bool, err error) {
	if m.Empty() {
		return "", false, nil
	}
	sep := "."
	if strings.Contains(addr, ":") {
		sep = ":"
	}
	for key, partial := addr, false; key != ""; partial = true {
		if value, found, err = m.Lookup(ctx, key, partial); found || err != nil {
			return value, found, err
		}
		i := strings.LastIndex(key, sep)
		if i < 0 {
			break
		}
		key = strings.TrimRight(key[:i], sep)
	}
	return "", false, nil
}

// LookupLevel finds the level that is set for a peer: by its name and the
// domains above it, then by its address and the networks it is in, as
// LookupDomain and LookupClientAddr find them. DUNNO, and any error, which is
// given to warn, mean that there is none (smtp_tls_loglevel_maps).
func (m *Maps) LookupLevel(ctx context.Context, name, addr string, dot bool, warn func(format string, args ...any)) (level int, found bool) {
	key := name
	value, found, err := m.LookupDomain(ctx, name, dot)
	if !found && err == nil {
		key = addr
		value, found, err = m.LookupClientAddr(ctx, addr)
	}
	switch {
	case err != nil:
		warn("%v", err)
		return 0, false
	case !found || strings.EqualFold(value, "DUNNO"):
		return 0, false
	}
	level, err = strconv.Atoi(value)
	if err != nil || level < 0 {
		warn("%s: %s: %q is not a log level", m.Title(), key, value)
		return 0, false
	}
	return level, true
}

// Parents yields domain and each of its parents, up to the last label: as
// .parent when dot is set.
func Parents(domain string, dot bool) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for domain != "" && yield(domain) {
			i := strings.IndexByte(domain[1:], '.')
			if i < 0 {
				return
			}
			domain = domain[1+i:]
			if !dot {
				domain = domain[1:]
			}
		}
	}
}
