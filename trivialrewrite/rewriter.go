// Package trivialrewrite is the address service: it puts addresses into
// standard form, and it finds for each address the transport, the next hop
// and the recipient address to deliver to. It is Postfix's trivial-rewrite(8).
//
// [Rewriter.Rewrite] is a pure function of the address and the configuration.
// [Rewriter.Resolve] also looks into lookup tables, and fails when one of them
// does: the caller then tries again later.
//
// # Standards
//
// None: RFC 5321 section 3.6.1 and RFC 5322 section 4.4 only say what obsolete
// forms of addresses there are; what they mean here is convention.
//
// # Security
//
// Addresses come from strangers. An address can name a path of hosts in many
// ways (user%host@here, host!user, "user@host"@here, @here:user@host); Resolve
// takes all of them apart down to the last host that is not this one, so
// that the relay control of smtpd judges where mail really goes.
//
// # Parameters
//
// Rewriting: myorigin mydomain append_at_myorigin append_dot_mydomain
// allow_percent_hack swap_bangpath remote_header_rewrite_domain
// recipient_delimiter owner_request_special.
//
// Resolving: mydestination inet_interfaces proxy_interfaces myhostname
// virtual_alias_domains virtual_mailbox_domains relay_domains local_transport
// virtual_transport relay_transport default_transport relayhost transport_maps
// relocated_maps sender_dependent_relayhost_maps
// sender_dependent_default_transport_maps empty_address_recipient
// empty_address_relayhost_maps_lookup_key
// empty_address_default_transport_maps_lookup_key resolve_dequoted_address
// resolve_null_domain resolve_numeric_domain allow_min_user smtputf8_enable
// relocated_prefix_enable parent_domain_matches_subdomains helpful_warnings; the
// address_verify_ forms of the transports, relayhosts and maps for probes.
//
// Limits: destination_rollup destination_provider_maps destination_limit_maps
// destination_mx_timeout
//
// Sources: egress_source_maps egress_pool_maps default_egress_pool
// sender_dependent_egress_pool_maps
// destination_mx_timeout.
//
// # Diagnostics
//
// Warnings go to the function given to [New]: domains listed in two address
// classes (with helpful_warnings), tables that cannot be opened, malformed table entries,
// limits that are not understood.
package trivialrewrite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"posthaste/internal/addrform"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/table"
)

// Contexts in which addresses are rewritten: they differ in the domain that is
// added to incomplete ones.
const (
	contextLocal  = "local"  // $myorigin and $mydomain
	contextRemote = "remote" // remote_header_rewrite_domain
)

// A Rewriter answers for one configuration. All methods may be called
// concurrently.
//
// All fields but mu and warned are set by New and only read afterwards.
type Rewriter struct {
	// The standard form of addresses from this system (context local), and from
	// others (context remote). They differ in Origin and Domain alone.
	form, remote addrform.Form

	hostname        string // myhostname: the domain of a local part that nothing else gives one
	dequote         bool   // resolve_dequoted_address: look for routing behind quotes, too
	nullDomain      bool   // resolve_null_domain: "user@" is the local user
	numericDomain   bool   // resolve_numeric_domain: user@192.0.2.1 is user@[192.0.2.1]
	minUser         bool   // allow_min_user: a recipient may begin with "-"
	utf8            bool   // smtputf8_enable: domains beyond ASCII are names
	relocatedPrefix bool   // relocated_prefix_enable: tables have the new address alone
	// What an address that is left in a virtual alias domain is told: a status and a text.
	unknownAlias mail.Nexthop

	emptyRecipient    string // who gets mail for <>; an address, perhaps without domain
	emptyRelayhostKey string // what <> is looked up as in sender_dependent_relayhost_maps
	emptyTransportKey string // the same in sender_dependent_default_transport_maps

	// The address classes, in the order in which they are asked. A domain in none of them
	// is of the default class.
	local          *table.Local // mydestination, and this host's addresses
	aliasDomains   *table.List
	mailboxDomains *table.List
	relayDomains   *table.List

	search     *table.Search // how an address becomes the keys of a table
	relocated  *table.Maps   // empty: nobody has moved
	dotParents bool          // transport_maps has parents as .parent

	sites         *sites         // what destinations share; nil: nothing is limited, and there are no pools
	egressPools   *egressPools   // what mail goes from; nil: there are no pools
	plain, verify routes         // of mail, and of address probes
	changes       *table.Changes // of all tables
	warn          func(string)   // never nil; called by any goroutine
	helpful       bool           // helpful_warnings

	// warned keeps a domain that is listed twice from being warned of with
	// each message; it is bounded by maxWarned.
	mu     sync.Mutex
	warned map[string]struct{} // both lists' names and the domain; guarded by mu
}

// maxWarned bounds the warnings of domains that are listed twice. A pattern may have
// put any number of strangers' domains in two lists: after so many, everybody who reads
// the log knows.
const maxWarned = 1000

// routes is the parameters that differ between mail and address probes (address_verify_*).
// A probe often has to reach the host that would know the user, where mail takes another way.
type routes struct {
	local, virtual, relay, other string      // transports, "name" or "name:nexthop"; never empty in a valid main.cf
	relayhost                    string      // empty: mail goes to the recipient's domain
	transports                   *table.Maps // transport_maps; it overrides all of the others
	senderRelayhost              *table.Maps // by sender; it overrides relayhost
	senderTransport              *table.Maps // by sender; it overrides other
}

// New makes a Rewriter of cfg. o is for the lookup tables; o.Warn also
// receives the Rewriter's own warnings. A match list that is malformed is an
// error; a table that cannot be opened makes Resolve fail until it can.
func New(cfg *config.Config, o table.Options) (*Rewriter, error) {
	warn := o.Warn
	if warn == nil {
		warn = func(string) {}
	}
	r := &Rewriter{
		form:              addrform.New(cfg),
		hostname:          cfg.String("myhostname"),
		dequote:           cfg.Bool("resolve_dequoted_address"),
		nullDomain:        cfg.Bool("resolve_null_domain"),
		numericDomain:     cfg.Bool("resolve_numeric_domain"),
		minUser:           cfg.Bool("allow_min_user"),
		utf8:              cfg.Bool("smtputf8_enable"),
		relocatedPrefix:   cfg.Bool("relocated_prefix_enable"),
		emptyRecipient:    cfg.String("empty_address_recipient"),
		emptyRelayhostKey: cfg.String("empty_address_relayhost_maps_lookup_key"),
		emptyTransportKey: cfg.String("empty_address_default_transport_maps_lookup_key"),
		warn:              warn,
		helpful:           cfg.Bool("helpful_warnings"),
		changes:           new(table.Changes),
		unknownAlias:      "5.1.1 User unknown",
		warned:            make(map[string]struct{}),
	}
	// An incomplete address that a stranger wrote is not one of ours: myorigin must not be
	// added to it, or it would look as if a user here had written. Without a
	// remote_header_rewrite_domain both are empty, and the address stays as it is.
	r.remote = r.form
	r.remote.Origin = cfg.String("remote_header_rewrite_domain")
	r.remote.Domain = r.remote.Origin
	if cfg.Bool("show_user_unknown_table_name") {
		r.unknownAlias += " in virtual alias table"
	}
	o.Changes = r.changes
	// All that is wrong is said at once, not one mistake with each start.
	var errs []error
	list := func(name string, kind table.Kind) *table.List {
		l, err := table.NewList(name, cfg.List(name), table.ListOptions{
			Kind: kind, Parent: parentMatches(cfg, name), Table: o})
		errs = append(errs, err)
		return l
	}
	r.aliasDomains = list("virtual_alias_domains", table.Strings)
	r.mailboxDomains = list("virtual_mailbox_domains", table.Strings)
	r.relayDomains = list("relay_domains", table.Domains)
	local, err := table.OpenLocal(context.Background(), cfg, o)
	errs = append(errs, err)
	r.local = local
	r.search = &table.Search{
		Delimiters:   cfg.String("recipient_delimiter"),
		OwnerRequest: cfg.Bool("owner_request_special"),
		DoubleBounce: cfg.String("double_bounce_sender"),
		Local:        r.local.IsLocal,
	}
	r.dotParents = !parentMatches(cfg, "transport_maps")
	maps := func(name string) *table.Maps { return table.OpenMaps(name, cfg.List(name), o) }
	r.relocated = maps("relocated_maps")
	o.NoSubstitution = true // a stranger's address is to choose no transport and no host
	r.initRoutes(cfg, maps)
	errs = append(errs, r.initSending(cfg, maps))
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// initSending reads what is said of mail that leaves this host, besides where it goes: what is
// limited, and what it goes from.
func (r *Rewriter) initSending(cfg *config.Config, maps func(name string) *table.Maps) error {
	pools, err := newEgress(cfg, maps)
	r.egressPools = pools
	// Limits of a source go by what destinations share, so that pools need this, too.
	sites, err2 := newSites(cfg, maps, pools != nil, r.warn)
	r.sites = sites
	return errors.Join(err, err2)
}

// initRoutes reads the routes of mail and of probes. maps opens tables in which
// nothing of the address is put into the answer.
func (r *Rewriter) initRoutes(cfg *config.Config, maps func(name string) *table.Maps) {
	r.plain = routes{
		local:           cfg.String("local_transport"),
		virtual:         cfg.String("virtual_transport"),
		relay:           cfg.String("relay_transport"),
		other:           cfg.String("default_transport"),
		relayhost:       cfg.String("relayhost"),
		transports:      maps("transport_maps"),
		senderRelayhost: maps("sender_dependent_relayhost_maps"),
		senderTransport: maps("sender_dependent_default_transport_maps"),
	}
	r.verify = routes{
		local:           cfg.String("address_verify_local_transport"),
		virtual:         cfg.String("address_verify_virtual_transport"),
		relay:           cfg.String("address_verify_relay_transport"),
		other:           cfg.String("address_verify_default_transport"),
		relayhost:       cfg.String("address_verify_relayhost"),
		transports:      maps("address_verify_transport_maps"),
		senderRelayhost: maps("address_verify_sender_dependent_relayhost_maps"),
		senderTransport: maps("address_verify_sender_dependent_default_transport_maps"),
	}
}

// Close closes the tables.
func (r *Rewriter) Close() error {
	var errs []error
	for _, m := range []*table.Maps{r.relocated, r.plain.transports, r.plain.senderRelayhost, r.plain.senderTransport,
		r.verify.transports, r.verify.senderRelayhost, r.verify.senderTransport} {
		errs = append(errs, m.Close())
	}
	if s := r.sites; s != nil {
		errs = append(errs, s.providers.Close(), s.limits.Close())
	}
	if e := r.egressPools; e != nil {
		errs = append(errs, e.sources.Close(), e.pools.Close(), e.bySender.Close())
	}
	return errors.Join(errs...)
}

// parentMatches says whether a domain in the parameter name stands for its
// subdomains too.
func parentMatches(cfg *config.Config, name string) bool {
	return slices.Contains(cfg.List("parent_domain_matches_subdomains"), name)
}

// warnTwice warns once for each domain that is listed in two address classes.
func (r *Rewriter) warnTwice(domain, one, other string) {
	if !r.helpful {
		return
	}
	key := one + "\x00" + other + "\x00" + strings.ToLower(domain)
	// The warning itself is given without the lock: the log may wait for its disk.
	r.mu.Lock()
	_, done := r.warned[key]
	if !done && len(r.warned) < maxWarned {
		r.warned[key] = struct{}{}
	}
	full := len(r.warned) >= maxWarned
	r.mu.Unlock()
	if !done && !full {
		r.warn(fmt.Sprintf("do not list domain %s in BOTH %s and %s", domain, one, other))
	}
}
