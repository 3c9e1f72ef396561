// The parameters of the queue manager, as values. Nothing else here reads main.cf, so
// this file says which parameters the service has and how they are bounded. It runs
// before the process serves: an error stops a reload, and the old settings go on.

package qmgr

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/selection"
	"posthaste/internal/shaping"
	"posthaste/internal/storage"
	"posthaste/internal/table"
	"posthaste/qmgr/sched"
	"posthaste/qmgr/schedconf"
)

// Settings are what the queue manager takes from main.cf and master.cf. They are not
// changed after Load, and may be read by any goroutine.
type Settings struct {
	// The scheduler's part. It is copied by the scheduler.
	Sched         sched.Config
	Myhostname    string
	FilterNexthop string // default_filter_nexthop
	DoubleBounce  string // double_bounce_sender
	// delay_logging_resolution_limit: decimals of the delays in the log
	Resolution maillog.Resolution
	FlowLimit  int // default_process_limit: flow control tokens at most
	// ConfirmCleared: who was told of a delay hears of the delivery too
	// (confirm_delay_cleared).
	ConfirmCleared bool
	Nodes          bool          // other nodes may deliver to the same destinations (spool_type)
	Node           string        // what this node is called among them; empty: it shares its queue with nobody (cluster_node_name)
	ExactDoubt     bool          // no delivery is made before it is recorded that it is about to be (spool_exact_doubt)
	DeliveryTime   time.Duration // how long an agent may take for one delivery, at most; 0: no limit
	// RequeueFilter and RequeueFlags are what mail that is queued again goes through
	// cleanup with: what pickup would say of it (content_filter,
	// receive_override_options).
	RequeueFilter string
	RequeueFlags  proto.SubmitFlags

	// The resolver is asked for limits: some are set.
	limits bool
	// What tables say of tenants; nil: there are none.
	tenants *tenancies
	// shaping_files, for their rules; nil: there are none. automation is shaping_automation.
	shaping    *shaping.Rules
	automation bool
	rewriting  *rewriting // nil: senders are not rewritten
	// How a local part is taken apart into user and extension.
	search    table.Search
	flush     *table.List        // fast_flush_domains
	queueOnly []selection.Target // queue_only_destinations
	// Filled on demand, since a transport need not be in main.cf to be used. Loads ask
	// from many goroutines.
	batches *sync.Map // mail.Transport to int: destination_recipient_limit, as asked for so far
	cfg     *config.Config
}

// queueName is the name of the destination queue of a recipient: see sched.QueueName. It
// may be called by any goroutine.
func (s *Settings) queueName(t mail.Transport, nexthop mail.Nexthop, addr string) string {
	limit := s.batchLimit(t)
	user := ""
	if limit == 1 {
		user = s.baseUser(addr)
	}
	return sched.QueueName(&sched.TransportConfig{BatchLimit: limit}, t, nexthop, user)
}

// batchLimit is a transport's destination_recipient_limit. It may be called by any
// goroutine.
func (s *Settings) batchLimit(t mail.Transport) int {
	limit, ok := s.batches.Load(t)
	if !ok {
		limit = s.cfg.Prefix(string(t)).Int("destination_recipient_limit")
		s.batches.Store(t, limit)
	}
	return limit.(int)
}

// FlushDomain says whether a domain's mail may be flushed by ETRN and "postqueue -s".
// When the lookup fails it may not: a flush can be asked for again.
func (s *Settings) FlushDomain(domain string) bool {
	if s.flush.Empty() || domain == "" {
		return false
	}
	ok, err := s.flush.Match(context.Background(), domain)
	return ok && err == nil
}

// baseUser is the local part of an address without its extension. user+a and user+b are
// one mailbox, and share a destination where deliveries are limited per mailbox.
func (s *Settings) baseUser(addr string) string {
	local, _, _ := rfc5322.Split(addr)
	user, _ := s.search.SplitExtension(local)
	return user
}

// Load reads the settings. services are master.cf's entries: their process limits bound
// how many deliveries of a transport are under way at once. warn is told of values that
// are replaced by a default; an error means that the process cannot start with this
// configuration. Tables of tenants are opened with o.
func Load(cfg *config.Config, services []config.Service, o table.Options, warn func(string, ...any)) (Settings, error) {
	s := Settings{
		Myhostname:     cfg.String("myhostname"),
		FilterNexthop:  cfg.String("default_filter_nexthop"),
		DoubleBounce:   cfg.String("double_bounce_sender"),
		Resolution:     maillog.ResolutionLimit(cfg.Int("delay_logging_resolution_limit")),
		FlowLimit:      cfg.Int("default_process_limit"),
		ConfirmCleared: cfg.Bool("confirm_delay_cleared"),
		ExactDoubt:     storage.ExactDoubt(cfg),
		Nodes:          storage.Elsewhere(cfg),
		DeliveryTime:   cfg.Duration("daemon_timeout") + agentGrace,
		search: table.Search{Delimiters: cfg.String("recipient_delimiter"),
			OwnerRequest: cfg.Bool("owner_request_special")},
		batches: new(sync.Map),
		cfg:     cfg,
	}
	if s.Nodes {
		s.Node = cfg.String("cluster_node_name")
	}
	if err := s.loadRequeue(services); err != nil {
		return s, err
	}
	// Read here and not when mail comes: a mistake stops the start, and does not let mail go that was to stay.
	for _, text := range cfg.List("queue_only_destinations") {
		t, err := selection.NewTarget("destination", text)
		if err != nil {
			return s, fmt.Errorf("queue_only_destinations: %w", err)
		}
		s.queueOnly = append(s.queueOnly, t)
	}
	var err error
	if s.rewriting, err = loadRewriting(cfg); err != nil {
		return s, err
	}
	// The list of ETRN's domains is kept by the queue manager itself, which has the whole queue in any case; Postfix's
	// flush service keeps files of its own for it.
	s.flush, err = table.NewList("fast_flush_domains", cfg.List("fast_flush_domains"), table.ListOptions{
		Kind: table.Domains, Parent: slices.Contains(cfg.List("parent_domain_matches_subdomains"), "fast_flush_domains")})
	if err != nil {
		return s, fmt.Errorf("fast_flush_domains: %w", err)
	}
	// Without any of these parameters nothing is looked up for a destination, and nothing counted.
	s.limits, s.tenants = sharesLimits(cfg), openTenancies(cfg, o, warn)
	if err := s.loadShaping(cfg); err != nil {
		return s, err
	}
	if s.Sched, err = schedconf.Load(cfg, services, warn); err != nil {
		return s, err
	}
	s.Sched.DeferredLimit = keptPerActive * s.Sched.ActiveLimit
	return s, nil
}

// loadShaping reads the rules of automation. trivial-rewrite reads the same files, and says what has no effect.
func (s *Settings) loadShaping(cfg *config.Config) (err error) {
	s.automation = cfg.Bool("shaping_automation")
	if files := cfg.List("shaping_files"); len(files) > 0 {
		if s.shaping, _, err = shaping.Load(files); err != nil {
			return fmt.Errorf("shaping_files: %w", err)
		}
	}
	return nil
}

// counts says whether something is counted that must outlive a restart.
func (s *Settings) counts() bool { return s.limits || s.tenants.counts() }

// sharesLimits says whether anything is limited for several destinations, several are one, or
// mail goes from pools of sources. A table of providers alone limits nothing: it only names them.
func sharesLimits(cfg *config.Config) bool {
	rollup := cfg.List("destination_rollup")
	if len(rollup) > 1 || len(rollup) == 1 && !strings.EqualFold(rollup[0], "no") {
		return true
	}
	return len(cfg.List("destination_limit_maps")) > 0 || len(cfg.List("shaping_files")) > 0 || len(cfg.List("egress_source_maps")) > 0 || len(cfg.List("egress_pool_maps")) > 0 ||
		len(cfg.List("tenant_destination_limit_maps")) > 0 || len(cfg.List("sender_dependent_egress_pool_maps")) > 0 || cfg.String("default_egress_pool") != ""
}

// loadRequeue reads what holds for mail that is queued again (postsuper -r): what pickup
// would read, with the -o options of its entry in master.cf, since Postfix takes such
// mail through pickup.
func (s *Settings) loadRequeue(services []config.Service) error {
	cfg := s.cfg
	for i := range services {
		if services[i].Command != "pickup" {
			continue
		}
		var err error
		if cfg, err = cfg.With(services[i].Overrides()...); err != nil {
			return fmt.Errorf("the options of %s in master.cf: %w", services[i].Name, err)
		}
		break
	}
	s.RequeueFilter = cfg.String("content_filter")
	// Milters are left out: they saw the message when it first came.
	all := proto.SubmitMap | proto.SubmitFilter | proto.SubmitBCC
	s.RequeueFlags = all&^proto.OverrideFlags(cfg.List("receive_override_options")) | proto.SubmitBounce | proto.SubmitRequeued
	return nil
}
