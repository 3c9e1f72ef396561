// Package ldaptable is lookup tables in LDAP directories, with the settings of
// Postfix's ldap_table(5). Package query says where settings are, and what %s,
// %u and so on mean in query_filter, search_base and result_format.
//
// # Settings
//
//	server_host           localhost: servers, the first that answers: host, host:port,
//	                      ldap://host:port, ldaps://host, ldapi://%2Frun%2Fslapd%2Fldapi
//	server_port           389, for servers that are named without a port
//	timeout               10: seconds for connecting, and for each search
//	search_base           where to search; templates such as ou=%d,dc=example are taken
//	scope                 sub, one or base
//	query_filter          mailacceptinggeneralid=%s
//	result_format         %s: what becomes of each value
//	domain                the domains that the table is for; empty: any key
//	result_attribute      maildrop: attributes of what was found that make the answer
//	leaf_result_attribute of entries without special attributes only
//	terminal_result_attribute
//	                      where an entry has one of them, nothing else of it counts
//	special_result_attribute
//	                      attributes that hold DNs and ldap:// URLs of further
//	                      entries, such as the members of a group
//	recursion_limit       1000: how deep such entries may refer to others
//	expansion_limit       0: more values than this are an error
//	size_limit            as expansion_limit: more entries than this are an error
//	dereference           0 to 3: never, when searching, when finding the base, always
//	chase_referrals       0; 1: other servers are asked where the directory says so
//	bind                  yes; no; sasl, with sasl_mechs = EXTERNAL
//	bind_dn bind_pw       the account; none is anonymous
//	version               3 is what is spoken; 2 is warned of
//	start_tls             no
//	tls_ca_cert_file tls_ca_cert_dir tls_cert tls_key tls_require_cert
//
// # Servers
//
// There is one connection, for any number of lookups at a time. When it
// breaks the next lookup makes another, and only when that fails too has it
// failed. A base that does not exist is an error, unless it was made
// of the key: then nothing is found there.
//
// # Security
//
// Keys come from strangers. They are escaped as RFC 4515 section 3 wants it in
// filters and as RFC 4514 section 2.4 wants it in names. How many
// searches one lookup makes is bounded, as a directory may refer in circles.
//
// # Standards
//
// RFC 4511, 4513 (simple bind, StartTLS, EXTERNAL), 4514, 4515, 4516.
package ldaptable

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-ldap/ldap/v3"

	"posthaste/internal/config"
	"posthaste/internal/table"
	"posthaste/internal/table/query"
)

// maxSearches bounds the searches of one lookup.
const maxSearches = 10000

// ldapTable is one table.
type ldapTable struct {
	keys      query.Keys
	base      *query.Template
	filter    *query.Template
	format    *query.Template
	scope     int
	deref     int
	limit     int
	sizeLimit int
	depth     int

	attributes     []string // to ask for: all of those below
	leaf, terminal map[string]bool
	special        map[string]bool
	chase          bool
	warn           func(string)
	title          string
	dir            *directory
}

// Open returns the opener of ldap tables. cfg is main.cf, for tables whose
// settings are there.
func Open(cfg *config.Config) table.Opener {
	return func(name string, o table.Options) (table.Table, error) {
		s, err := query.Load(name, cfg)
		if err != nil {
			return nil, err
		}
		t := newTable(s, o)
		t.dir = newDirectory(s, o)
		if err := s.End(o); err != nil {
			return nil, err
		}
		return t, nil
	}
}

var scopes = map[string]int{"sub": ldap.ScopeWholeSubtree, "one": ldap.ScopeSingleLevel, "base": ldap.ScopeBaseObject}

func newTable(s *query.Settings, o table.Options) *ldapTable {
	t := &ldapTable{
		keys: s.Domain(o), base: s.Template("search_base", ""), filter: s.Template("query_filter", "mailacceptinggeneralid=%s"),
		format: s.ResultFormat(), limit: s.Limit(), depth: s.Int("recursion_limit", 1000, 1, 1<<20),
		deref: s.Int("dereference", 0, 0, 3), chase: s.Bool("chase_referrals", false),
		leaf: make(map[string]bool), terminal: make(map[string]bool), special: make(map[string]bool),
		title: s.Where(), warn: o.Warn,
	}
	t.sizeLimit = s.Int("size_limit", t.limit, 0, 1<<30)
	if t.filter != nil {
		// The template has to make a filter of any key.
		if _, err := ldap.CompileFilter(braces(sample(t.filter))); err != nil {
			s.Fail("query_filter", "%q: %v", t.filter, err)
		}
	}
	scope := s.Text("sub", "scope")
	var ok bool
	if t.scope, ok = scopes[scope]; !ok {
		s.Fail("scope", "%q: expected sub, one or base", scope)
	}
	t.attributes = append(t.attributes, table.SplitList(s.Text("maildrop", "result_attribute"))...)
	for setting, set := range map[string]map[string]bool{"leaf_result_attribute": t.leaf,
		"terminal_result_attribute": t.terminal, "special_result_attribute": t.special} {
		for _, a := range table.SplitList(s.Text("", setting)) {
			set[strings.ToLower(a)] = true
			t.attributes = append(t.attributes, a)
		}
	}
	return t
}

// sample is a filter as a template makes it.
func sample(t *query.Template) string {
	text, _ := t.Query("a@b.c.d.e.f.g.h.i.j", func(string) string { return "x" })
	return text
}

// braces puts a filter into the parentheses that it may lack.
func braces(filter string) string {
	if strings.HasPrefix(filter, "(") {
		return filter
	}
	return "(" + filter + ")"
}

// Lookup implements table.Table.
func (t *ldapTable) Lookup(ctx context.Context, key string) (string, bool, error) {
	key, ok, err := t.keys.Key(ctx, key)
	if err != nil || !ok {
		return "", false, err
	}
	base, ok := t.base.Query(key, ldap.EscapeDN)
	if !ok {
		return "", false, nil
	}
	filter, ok := t.filter.Query(key, ldap.EscapeFilter)
	if !ok {
		return "", false, nil
	}
	l := &lookup{t: t, found: query.Results{Key: key, Format: t.format, Limit: t.limit}}
	err = l.search(ctx, target{base: base, scope: t.scope, filter: braces(filter)}, 0)
	switch {
	case ldap.IsErrorWithCode(err, ldap.LDAPResultNoSuchObject) && !t.base.Fixed():
		return "", false, nil
	case ldap.IsErrorWithCode(err, ldap.LDAPResultNoSuchObject):
		return "", false, fmt.Errorf("%s: search_base %q does not exist: %w", t.title, base, err)
	case err != nil:
		return "", false, query.OneLine(err)
	}
	value, found := l.found.Answer()
	return value, found, nil
}

// Pattern implements table.Table.
func (t *ldapTable) Pattern() bool { return false }

// Close implements table.Table.
func (t *ldapTable) Close() error { return t.dir.close() }

// target is what to search.
type target struct {
	server string // a referral's; "" is the table's own
	base   string
	scope  int
	filter string
}

// lookup is one lookup under way.
type lookup struct {
	t        *ldapTable
	found    query.Results
	searches int
}

// search adds what is found at a target, and what that refers to.
func (l *lookup) search(ctx context.Context, at target, depth int) error {
	t := l.t
	if err := ctx.Err(); err != nil {
		return err
	}
	if depth > t.depth {
		return fmt.Errorf("%s: entries refer to others more than recursion_limit (%d) deep", t.title, t.depth)
	}
	if l.searches++; l.searches > maxSearches {
		return fmt.Errorf("%s: the lookup of %q takes more than %d searches", t.title, l.found.Key, maxSearches)
	}
	seconds := int(t.dir.timeout.Seconds())
	res, err := t.dir.search(at.server, ldap.NewSearchRequest(at.base, at.scope, t.deref, t.sizeLimit, seconds, false, at.filter, t.attributes, nil))
	var elsewhere []string
	if err != nil && t.chase {
		elsewhere = referral(err)
	}
	if err != nil && elsewhere == nil {
		return err
	}
	if res != nil {
		for _, e := range res.Entries {
			if err := l.entry(ctx, at, e, depth); err != nil {
				return err
			}
		}
		if t.chase {
			elsewhere = append(elsewhere, res.Referrals...)
		}
	}
	for _, r := range elsewhere {
		next, err := parseURL(r)
		if err != nil {
			t.warning("referral %q: %v", r, err)
			continue
		}
		if next.base == "" {
			next.base = at.base
		}
		next.filter, next.scope = at.filter, at.scope
		if err := l.search(ctx, next, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// entry adds the attributes of one entry that count.
func (l *lookup) entry(ctx context.Context, at target, e *ldap.Entry, depth int) error {
	t := l.t
	var terminal, special bool
	for _, a := range e.Attributes {
		name := strings.ToLower(a.Name)
		terminal = terminal || t.terminal[name] && len(a.Values) > 0
		special = special || t.special[name] && len(a.Values) > 0
	}
	for _, a := range e.Attributes {
		name := strings.ToLower(a.Name)
		switch {
		case terminal && !t.terminal[name]:
		case t.special[name]:
			for _, v := range a.Values {
				if err := l.follow(ctx, at, v, depth); err != nil {
					return err
				}
			}
		case special && t.leaf[name] && !terminal:
		default:
			for _, v := range a.Values {
				if err := l.found.Add(v); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// follow looks at the entries that a special attribute refers to. One that
// is gone is passed over.
func (l *lookup) follow(ctx context.Context, at target, value string, depth int) error {
	next := target{base: value, scope: ldap.ScopeBaseObject, filter: everything}
	if strings.Contains(value, "://") {
		u, err := parseURL(value)
		if err != nil {
			l.t.warning("%s %q: %v", l.found.Key, value, err)
			return nil
		}
		next = u
	} else if _, err := ldap.ParseDN(value); err != nil {
		l.t.warning("%s: %q in a special_result_attribute is neither a DN nor an LDAP URL", l.found.Key, value)
		return nil
	}
	next.server = at.server // also for a URL, as the account is this directory's
	err := l.search(ctx, next, depth+1)
	if ldap.IsErrorWithCode(err, ldap.LDAPResultNoSuchObject) {
		l.t.warning("%s: %q does not exist", l.found.Key, value)
		return nil
	}
	return err
}

func (t *ldapTable) warning(format string, args ...any) {
	if t.warn != nil {
		t.warn(t.title + ": " + fmt.Sprintf(format, args...))
	}
}

const everything = "(objectClass=*)"

// parseURL reads an LDAP URL, RFC 4516: scheme://server/base?attributes?scope?filter.
func parseURL(text string) (target, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "ldap" && u.Scheme != "ldaps" && u.Scheme != "ldapi" {
		return target{}, errors.New("expected an LDAP URL")
	}
	at := target{base: strings.TrimPrefix(u.Path, "/"), scope: ldap.ScopeBaseObject, filter: everything}
	if u.Host != "" {
		at.server = u.Scheme + "://" + u.Host
	}
	parts := strings.Split(u.RawQuery, "?")
	if len(parts) > 1 && parts[1] != "" {
		scope, ok := scopes[parts[1]]
		if !ok {
			return target{}, fmt.Errorf("unknown scope %q", parts[1])
		}
		at.scope = scope
	}
	if len(parts) > 2 && parts[2] != "" {
		filter, err := url.PathUnescape(parts[2])
		if err != nil {
			return target{}, err
		}
		at.filter = braces(filter)
		if _, err := ldap.CompileFilter(at.filter); err != nil {
			return target{}, err
		}
	}
	return at, nil
}
