// Package table is lookup tables: questions with a text as key and a text as
// answer, asked of files, patterns, lists and servers, all under one door.
// Posthaste's configuration names them as Postfix's does, type:name.
//
// [Open] opens one table. [Maps] is an ordered list of tables, as in
// "virtual_alias_maps = hash:/etc/virtual, inline:{...}", and knows the order
// in which the parts of an address are looked up. [List] is a match list, as
// in mydestination or mynetworks.
//
// # Types
//
//	hash btree lmdb dbm sdbm  NAME.phdb, our own indexed file, built by postmap; of the
//	                      first three also NAME.db and NAME.lmdb, built by Postfix
//	cdb                   NAME.cdb, the public format, built by postmap
//	texthash              a text file, kept in memory
//	regexp pcre cidr      patterns, first match wins
//	inline static         in the configuration itself
//	unionmap pipemap randmap  made of other tables
//	environ unix          environment variables, the system's users and groups
//	socketmap tcp         servers
//	fail                  always an error
//	suppress              who is on the suppression list: the suppress service is asked
//	ldap mysql pgsql sqlite memcache mongodb
//	                      databases: the proxymap service asks them
//	proxy                 proxy:type:name is the same as type:name
//
// Databases are asked by one process for all. Its program, posthaste-tables, has the clients of
// all of them; the services, of which there are many, are spared their memory,
// and the databases their connections. It has these types in
// [Options.Types], and so opens them itself.
//
// # Change
//
// A table in a file is read again when the file has changed, without a
// restart: it is looked at at most once a second while the table is in use. A
// file that has become unreadable or vanished leaves the old contents in
// force, with a warning.
//
// # Errors
//
// Not found and "could not look" are different things, and no caller may
// take one for the other: a lookup that fails defers mail, it does not bounce
// or accept it.
//
// # Security
//
// Tables are the administrator's and are trusted; keys come from strangers.
// Patterns are matched in time linear in the key unless they need a
// backtracking matcher, which is then given [Options.MatchTimeout], and all those of
// a message or a command a [Budget]. Answers from servers are bounded in size and
// time.
//
// What answers a table may give depends on their use ([Options.Sensitive]): a
// pattern's "|command $1" in an alias would put strangers' words into a
// command line.
package table

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"posthaste/internal/confine"
	"posthaste/internal/lockstep"
)

// A Table answers lookups. All methods may be called concurrently.
type Table interface {
	// Lookup finds key. found is false and err nil when the table has no such
	// key; err is not nil when that could not be found out. Tables with fixed
	// keys look the key up in lower case.
	Lookup(ctx context.Context, key string) (value string, found bool, err error)

	// Pattern says that keys are matched against patterns or sent to a
	// server that matches as it likes. Such a table is only asked for whole
	// keys: not for the domain of an address or the network of a client.
	Pattern() bool

	// Close releases what the table holds. Lookups after it fail.
	Close() error
}

// Owned is a Table that knows who owns what it is made of, which local
// delivery needs to decide with whose rights a command runs.
type Owned interface {
	// Owner is the owner's user id. ok is false when it is not known, or means
	// nothing because everybody can write to the table.
	Owner() (uid int, ok bool)
}

// A Sequence is a Table that can list what it holds.
type Sequence interface {
	// All calls fn with each key and value, in the order they were written,
	// until fn returns false.
	All(fn func(key, value string) bool) error
}

// Options is what all tables of a process share. The zero value is usable.
type Options struct {
	// Warn receives trouble that does not stop anything: a malformed line in
	// a table, a table that could not be read again. It may be called
	// concurrently. Nil drops it.
	Warn func(text string)

	// Confined is what the process has given up since it opened the table: nil
	// if nothing. A table whose file changes is opened again by the process,
	// or by its successor.
	Confined *confine.Confinement

	// NoSubstitution has regexp and pcre tables pass over rules with $1 and the
	// like, with a warning: see Sensitive.
	NoSubstitution bool

	// Stops says of the result of a rule that cannot be read, in a cidr, regexp or
	// pcre table, whether a lookup that comes to this rule must fail. An access
	// table must not let through what a rule with a typing error was to
	// refuse. The result is "" when it cannot be read either. Nil means that
	// such rules are passed over with a warning, as in Postfix.
	Stops func(result string) bool

	// NoServers refuses tables of the types socketmap, tcp and memcache, whose
	// servers do not prove who they are, or let anybody write: see Sensitive.
	NoServers bool

	// NoFold leaves fixed keys in the letter case they are in.
	NoFold bool

	// MatchTimeout bounds one match of a pattern that needs a backtracking
	// matcher; zero means one second.
	MatchTimeout time.Duration

	// Recheck is how long a file is taken to be unchanged after it was
	// looked at: zero means one second, negative not at all.
	Recheck time.Duration

	// Changes is told of the table, and so can tell when it changes; nil: nobody asks.
	Changes *Changes

	// Timeout bounds one request to a server (socketmap, tcp, proxymap); zero
	// means 100 seconds, as in Postfix.
	Timeout time.Duration

	// MaxQuery and MaxReply bound what a socketmap server is asked and may
	// answer, in octets; zero means 10,000 and 100,000, as in Postfix. What is longer
	// than MaxQuery is in no table; a longer reply is an error.
	MaxQuery, MaxReply int

	// Dial opens connections to servers; nil means net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Rand picks one of n for randmap; nil means math/rand.
	Rand func(n int) int

	// Types adds types to those built in, and comes before them.
	Types map[string]Opener

	// Proxy is the path of the proxymap service's socket; empty means
	// DefaultProxy.
	Proxy string
}

// An Opener opens tables of one type, given what follows "type:".
type Opener func(name string, o Options) (Table, error)

// Sensitive are the options for tables whose answers say what is executed or
// written, and with whose rights: what a stranger has written, in an address or
// as a server, must not become part of them. Tables with the names of mail
// transports need the first half of it.
func (o Options) Sensitive() Options {
	o.NoSubstitution, o.NoServers = true, true
	return o
}

func (o *Options) warn(format string, args ...any) {
	if o.Warn != nil {
		o.Warn(fmt.Sprintf(format, args...))
	}
}

// stops says whether a lookup fails at a rule that cannot be read.
func (o *Options) stops(result string) bool { return o.Stops != nil && o.Stops(result) }

func (o *Options) fold(key string) string {
	if o.NoFold {
		return key
	}
	return Fold(key)
}

// Fold is key in lower case, as tables with fixed keys keep theirs and look
// them up. In a key that is not UTF-8 only ASCII letters change, so that
// different keys stay different.
func Fold(key string) string {
	for i := 0; i < len(key); i++ {
		if c := key[i]; c >= 'A' && c <= 'Z' || c > 127 {
			if !utf8.ValidString(key) {
				return foldASCII(key)
			}
			return strings.ToLower(key)
		}
	}
	return key
}

func foldASCII(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + ('a' - 'A')
		}
	}
	return string(b)
}

func (o *Options) timeout() time.Duration {
	if o.Timeout == 0 {
		return 100 * time.Second
	}
	return o.Timeout
}

func (o *Options) matchTimeout() time.Duration {
	if o.MatchTimeout == 0 {
		return time.Second
	}
	return o.MatchTimeout
}

// ErrClosed is returned by lookups in a table that was closed.
var ErrClosed = lockstep.ErrClosed

// builtin finds the opener of a built-in type. It is a function, not a map,
// because some types open others.
func builtin(kind string) Opener {
	switch kind {
	case "hash", "btree", "lmdb", "dbm", "sdbm":
		return func(name string, o Options) (Table, error) { return openIndexed(kind, name, o) }
	case "cdb":
		return openCDB
	case "texthash":
		return openText
	case "regexp":
		return func(name string, o Options) (Table, error) { return openPatterns(dialectPOSIX, name, o) }
	case "pcre":
		return func(name string, o Options) (Table, error) { return openPatterns(dialectPerl, name, o) }
	case "cidr":
		return openCIDR
	case "inline":
		return openInline
	case "static":
		return openStatic
	case "unionmap":
		return openUnion
	case "pipemap":
		return openPipe
	case "randmap":
		return openRandom
	case "environ":
		return openEnviron
	case "unix":
		return openUnix
	case "socketmap":
		return openSocketmap
	case "tcp":
		return openTCP
	case "fail":
		return openFail
	case "suppress":
		return openSuppressed
	case "ldap", "memcache", "mongodb", "mysql", "pgsql", "sqlite":
		return func(name string, o Options) (Table, error) { return openProxied(kind, name, o) }
	case "proxy":
		return Open
	}
	return nil
}

// Types is the names of all built-in types, sorted, as "postconf -m" lists them.
func Types() []string {
	return []string{"btree", "cdb", "cidr", "environ", "fail", "hash", "inline", "ldap", "lmdb", "memcache", "mongodb", "mysql",
		"pcre", "pgsql", "pipemap", "proxy", "randmap", "regexp", "socketmap", "sqlite", "static", "suppress", "tcp", "texthash", "unionmap", "unix"}
}

// Open opens the table that spec names, "type:name". A missing or unreadable
// file is an error, and so is an unknown type.
func Open(spec string, o Options) (Table, error) {
	kind, name, ok := strings.Cut(spec, ":")
	if !ok || kind == "" || name == "" {
		return nil, fmt.Errorf("table %q: expected type:name, for example hash:/etc/posthaste/virtual", spec)
	}
	open := o.Types[kind]
	if open == nil {
		open = builtin(kind)
	}
	if open == nil {
		return nil, fmt.Errorf("table %s: unknown type %q: known are %s", spec, kind, strings.Join(o.types(), " "))
	}
	if o.NoServers && (kind == "socketmap" || kind == "tcp" || kind == "memcache") {
		return nil, fmt.Errorf("table %s: %s is not allowed for security-sensitive data", spec, kind)
	}
	// A table that cannot be opened is tried again, and must not leave parts behind.
	all, own := o.Changes, &Changes{blind: o.Types[kind] != nil || !sees(kind)}
	o.Changes = own
	t, err := open(name, o)
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", spec, err)
	}
	all.adopt(own)
	return t, nil
}

func (o *Options) types() []string {
	list := Types()
	for kind := range o.Types {
		list = append(list, kind)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// IsSpec says whether an element of a list names a table: type:name. IPv6
// addresses, in brackets or not, do not.
func IsSpec(s string) bool {
	kind, _, ok := strings.Cut(s, ":")
	if !ok || kind == "" || s[0] == '[' {
		return false
	}
	for i := 0; i < len(kind); i++ {
		c := kind[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' && (c < 'A' || c > 'Z') {
			return false
		}
	}
	// 2001:db8::1 has the form of type:name; a type begins with a letter and
	// an IPv6 address that does (fe80::1) has nothing but hexadecimal digits,
	// colons, a mask or a zone after its first colon.
	return !isIPv6(s)
}
