// The postscreen_ parameters, and what a Screen is made of.

package postscreen

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"posthaste/internal/access"
	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
)

// action is what to do with a client that fails a test.
type action uint8

const (
	actIgnore  action = iota // note it, and test again next time
	actEnforce               // let it go on, and refuse every recipient
	actDrop                  // send it away at once
)

// test is one of postscreen's. The cache's file has the tests in this order.
type test uint8

const (
	testPregreet test = iota
	testDNSBL
	testPipelining
	testNonSMTP
	testBareLF
	ntests
)

// deep are the tests after the greeting.
var deep = [...]test{testPipelining, testNonSMTP, testBareLF}

// Options are what a Screen is made of.
type Options struct {
	Config *config.Config
	Log    *maillog.Logger // postscreen's own, not that of the sessions
	DNS    resolver.Resolver
	// Local says whether a client is in mynetworks.
	Local func(ctx context.Context, who *access.Client) (bool, error)
	// Sessions is how many clients may be served at a time; others wait. More than 0.
	Sessions int
	Tables   table.Options
	Now      func() time.Time
}

// A Screen tests the clients of one service. It does not change but for the
// cache and the gate, which have locks of their own: all methods may be called
// concurrently.
type Screen struct {
	log   *maillog.Logger
	dns   resolver.Resolver
	local func(ctx context.Context, who *access.Client) (bool, error)
	now   func() time.Time
	cache *cache
	gate  *gate

	// postscreen_access_list
	access []string               // its elements
	lists  map[string]*table.Maps // the tables among them, by element
	deny   action                 // postscreen_denylist_action

	// The tests before the greeting.
	teaser    string        // the first line of the greeting, sent before the wait; empty: none
	wait      time.Duration // for a client that speaks too early
	sites     []dnsblSite
	threshold int           // a score from which on a client has failed
	allow     int           // under 0: a score down to which a client has passed all tests; else unused
	timeout   time.Duration // for the answers of all lists
	minTTL    time.Duration // the least, and
	maxTTL    time.Duration // the most that an answer of the lists is remembered
	replyMap  *table.Maps   // names of lists, for clients

	// All tests.
	enabled   [ntests]bool
	action    [ntests]action
	ttl       [ntests]time.Duration // how long a client need not be tested again; of testDNSBL the lists say it
	forbidden *table.List           // words that are commands of other protocols
	// allowOn are our addresses where clients can pass; a client that comes
	// to another one first is tested and not remembered.
	allowOn *table.List

	// Of a client that is tested.
	commandTime  time.Duration // for one command,
	commandCount int           // and how many it may give; 0: any number

	// The words of log lines: ALLOWLISTED, DENYLISTED, ALLOWLIST VETO, or their old forms.
	allowWord, denyWord, vetoWord string
}

// New reads the postscreen_ parameters and opens the cache. Close frees what it
// opened. The error names all parameters that are wrong.
func New(o Options) (*Screen, error) {
	cfg := o.Config
	c := &Screen{log: o.Log, dns: o.DNS, local: o.Local, now: o.Now, access: cfg.List("postscreen_access_list"), lists: map[string]*table.Maps{},
		wait: cfg.Duration("postscreen_greet_wait"), threshold: cfg.Int("postscreen_dnsbl_threshold"),
		allow: cfg.Int("postscreen_dnsbl_allowlist_threshold"), timeout: cfg.Duration("postscreen_dnsbl_timeout"),
		minTTL: cfg.Duration("postscreen_dnsbl_min_ttl"), maxTTL: cfg.Duration("postscreen_dnsbl_max_ttl"),
		replyMap:    table.OpenMaps("postscreen_dnsbl_reply_map", cfg.List("postscreen_dnsbl_reply_map"), o.Tables),
		commandTime: cfg.Duration("postscreen_command_time_limit"), commandCount: cfg.Int("postscreen_command_count_limit"),
		allowWord: "ALLOWLISTED", denyWord: "DENYLISTED", vetoWord: "ALLOWLIST VETO"}
	if !cfg.Bool("respectful_logging") {
		c.allowWord, c.denyWord, c.vetoWord = "WHITELISTED", "BLACKLISTED", "WHITELIST VETO"
	}
	if banner := cfg.String("postscreen_greet_banner"); banner != "" {
		c.teaser = "220-" + banner + "\r\n"
	}
	c.gate = &gate{preLimit: cfg.Int("postscreen_pre_queue_limit"), postLimit: cfg.Int("postscreen_post_queue_limit"),
		clientLimit: cfg.Int("postscreen_client_connection_count_limit"), sessions: make(chan struct{}, o.Sessions),
		clients: map[netip.Addr]int{}}
	err := errors.Join(c.readTests(cfg), c.readLists(cfg, o.Tables))
	var openErr error
	c.cache, openErr = openCache(cachePath(cfg), cfg.Duration("postscreen_cache_retention_time"), cfg.Duration("postscreen_cache_cleanup_interval"))
	return c, errors.Join(err, openErr)
}

// readTests reads which tests there are, what follows from a failure, and how
// long a success counts.
func (c *Screen) readTests(cfg *config.Config) error {
	var errs []error
	read := func(name string) action {
		switch v := cfg.String(name); v {
		case "ignore":
			return actIgnore
		case "enforce":
			return actEnforce
		case "drop":
			return actDrop
		default:
			errs = append(errs, fmt.Errorf("%s = %s: expected ignore, enforce or drop", name, v))
			return actIgnore
		}
	}
	c.deny = read("postscreen_denylist_action")
	c.action = [ntests]action{testPregreet: read("postscreen_greet_action"), testDNSBL: read("postscreen_dnsbl_action"),
		testPipelining: read("postscreen_pipelining_action"), testNonSMTP: read("postscreen_non_smtp_command_action"),
		testBareLF: read("postscreen_bare_newline_action")}
	for _, w := range cfg.List("postscreen_dnsbl_sites") {
		site, err := parseSite(w)
		if err != nil {
			errs = append(errs, fmt.Errorf("postscreen_dnsbl_sites: %w", err))
			continue
		}
		c.sites = append(c.sites, site)
	}
	c.enabled = [ntests]bool{testPregreet: c.wait > 0, testDNSBL: len(c.sites) > 0, testPipelining: cfg.Bool("postscreen_pipelining_enable"),
		testNonSMTP: cfg.Bool("postscreen_non_smtp_command_enable"), testBareLF: cfg.Bool("postscreen_bare_newline_enable")}
	c.ttl = [ntests]time.Duration{testPregreet: cfg.Duration("postscreen_greet_ttl"),
		testPipelining: cfg.Duration("postscreen_pipelining_ttl"), testNonSMTP: cfg.Duration("postscreen_non_smtp_command_ttl"),
		testBareLF: cfg.Duration("postscreen_bare_newline_ttl")}
	return errors.Join(errs...)
}

// readLists opens the tables and lists that clients and commands are looked up in.
func (c *Screen) readLists(cfg *config.Config, o table.Options) error {
	for _, w := range c.access {
		if table.IsSpec(w) {
			strict := o
			strict.Stops = func(result string) bool { return !strings.EqualFold(result, "permit") }
			c.lists[w] = table.OpenMaps("postscreen_access_list", []string{w}, strict)
		}
	}
	var errs []error
	list := func(name string, kind table.Kind) *table.List {
		l, err := table.NewList(name, cfg.List(name), table.ListOptions{Kind: kind, Table: o})
		if err != nil {
			errs = append(errs, err)
		}
		return l
	}
	c.forbidden = list("postscreen_forbidden_commands", table.Strings)
	c.allowOn = list("postscreen_allowlist_interfaces", table.Clients)
	return errors.Join(errs...)
}

// cachePath is the cache's file. The type that postscreen_cache_map begins with
// does not matter: the file is of a form of its own.
func cachePath(cfg *config.Config) string {
	if _, path, _ := strings.Cut(cfg.String("postscreen_cache_map"), ":"); path != "" {
		return path
	}
	return filepath.Join(cfg.String("data_directory"), "postscreen_cache")
}

// Writes is what a process with a Screen writes to besides the usual places:
// service.Spec.Sandbox.
func Writes(cfg *config.Config) (dirs []string, ok bool) {
	return []string{filepath.Dir(cachePath(cfg))}, true
}

// Close closes the cache and the tables. No Visit may go on.
func (c *Screen) Close() {
	c.replyMap.Close()
	for _, m := range c.lists {
		m.Close()
	}
	if err := c.cache.Close(); err != nil {
		c.log.Warning("%v", err)
	}
}
