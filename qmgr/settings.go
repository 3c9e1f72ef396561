// The parameters of the queue manager, as values. Nothing else here reads main.cf, so
// this file says which parameters the service has and how they are bounded. It runs
// before the process serves: an error stops a reload, and the old settings go on.

package qmgr

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/feedback"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/selection"
	"posthaste/internal/shaping"
	"posthaste/internal/storage"
	"posthaste/internal/table"
	"posthaste/qmgr/sched"
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
	ExactDoubt     bool          // no delivery is made before it is recorded that it is about to be (spool_exact_doubt)
	DeliveryTime   time.Duration // how long an agent may take for one delivery, at most; 0: no limit
	// RequeueFilter and RequeueFlags are what mail that is queued again goes through
	// cleanup with: what pickup would say of it (content_filter,
	// receive_override_options).
	RequeueFilter string
	RequeueFlags  proto.SubmitFlags

	// The resolver is asked for limits: some are set.
	limits bool
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
// configuration.
func Load(cfg *config.Config, services []config.Service, warn func(string, ...any)) (Settings, error) {
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
	weights, err := tenantWeights(cfg.List("tenant_weights"))
	if err != nil {
		return s, err
	}
	// Without any of these parameters nothing is looked up for a destination, and nothing counted.
	s.limits = sharesLimits(cfg)
	if err := s.loadShaping(cfg); err != nil {
		return s, err
	}
	s.loadSched(cfg, services, warn)
	// Without weights the scheduler does not ask, and all tenants are equal.
	if len(weights) > 0 {
		s.Sched.TenantWeight = func(tenant string) int { return weights[tenant] }
	}
	return s, nil
}

// loadSched reads what the scheduler wants to know. Nothing of it can be wrong: what could is replaced by a
// default, and told.
func (s *Settings) loadSched(cfg *config.Config, services []config.Service, warn func(string, ...any)) {
	s.Sched = sched.Config{
		ActiveLimit:   cfg.Int("qmgr_message_active_limit"),
		DeferredLimit: keptPerActive * cfg.Int("qmgr_message_active_limit"),
		// As in Postfix: each active message must be able to have a recipient in memory.
		RecipientLimit:   max(cfg.Int("qmgr_message_recipient_limit"), cfg.Int("qmgr_message_active_limit")),
		RecipientMinimum: cfg.Int("qmgr_message_recipient_minimum"),
		MinimalBackoff:   cfg.Duration("minimal_backoff_time"),
		MaximalBackoff:   cfg.Duration("maximal_backoff_time"),
		QueueRunDelay:    cfg.Duration("queue_run_delay"),
		MaximalLifetime:  cfg.Duration("maximal_queue_lifetime"),
		BounceLifetime:   min(cfg.Duration("bounce_queue_lifetime"), cfg.Duration("maximal_queue_lifetime")),
		DelayWarning:     cfg.Duration("delay_warning_time"),
		TransportRetry:   cfg.Duration("transport_retry_time"),
		ClogWarn:         cfg.Duration("qmgr_clog_warn_time"),
		FeedbackDebug:    cfg.Bool("destination_concurrency_feedback_debug"),
		DeferTransports:  cfg.List("defer_transports"),
		// Retries of two servers that started together must not stay in step.
		Seed: uint64(time.Now().UnixNano()),
	}
	// Of the mail that waits for one limit, so much is in the active queue; the rest is outside, so that other mail
	// finds room.
	s.Sched.SharedActiveLimit = cfg.Int("shared_limit_active_limit")
	// Who wants no advice is not warned of a clogged active queue either, as with Postfix.
	if !cfg.Bool("helpful_warnings") {
		s.Sched.ClogWarn = 0
	}
	limits := make(map[string]int)
	for i := range services {
		// Every entry, since any service may be named as a transport.
		limits[services[i].Name] = services[i].MaxProc
	}
	s.Sched.DefaultTransports = sched.DefaultConfig().DefaultTransports
	s.Sched.Transport = func(name mail.Transport, t sched.TransportConfig) sched.TransportConfig {
		return transportSettings(cfg, string(name), t, limits, warn)
	}
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

// tenantWeights reads tenant_weights: NAME=WEIGHT, by tenant. A tenant of which nothing is said has the weight 1. Of a
// name that is there twice the last counts, as in a table.
func tenantWeights(list []string) (map[string]int, error) {
	weights := make(map[string]int)
	for _, item := range list {
		name, text, _ := strings.Cut(item, "=")
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if name = strings.TrimSpace(name); err != nil || !mail.GroupName(name) || n < 1 || n > sched.MaxWeight {
			return nil, fmt.Errorf("tenant_weights: %q: expected NAME=WEIGHT, the weight from 1 to %d", item, sched.MaxWeight)
		}
		weights[name] = n
	}
	return weights, nil
}

// sharesLimits says whether anything is limited for several destinations, several are one, or
// mail goes from pools of sources. A table of providers alone limits nothing: it only names them.
func sharesLimits(cfg *config.Config) bool {
	rollup := cfg.List("destination_rollup")
	if len(rollup) > 1 || len(rollup) == 1 && !strings.EqualFold(rollup[0], "no") {
		return true
	}
	return len(cfg.List("destination_limit_maps")) > 0 || len(cfg.List("shaping_files")) > 0 || len(cfg.List("egress_source_maps")) > 0 || len(cfg.List("egress_pool_maps")) > 0 ||
		len(cfg.List("sender_dependent_egress_pool_maps")) > 0 || cfg.String("default_egress_pool") != ""
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

// transportSettings reads one transport's parameters: TRANSPORT_x where it is set, else
// default_x. t has what is common to all transports.
func transportSettings(cfg *config.Config, name string, t sched.TransportConfig, limits map[string]int,
	warn func(string, ...any)) sched.TransportConfig {
	own := cfg.Prefix(name)
	// A feedback that does not parse is warned of and replaced, as in Postfix, where it
	// is found only when the transport is first used.
	fraction := func(suffix string) feedback.Feedback {
		text := own.String(suffix)
		f, err := feedback.Parse(text)
		if err != nil {
			warn("%s: %q: %v; %g is used", own.Name(suffix), text, err, f.Base)
		}
		return f
	}
	// A transport that is not in master.cf cannot be reached at all; the default is as
	// good as any.
	if n, ok := limits[name]; ok {
		t.ProcessLimit = n
	}
	t.ConcurrencyLimit = own.Int("destination_concurrency_limit")
	t.InitialConcurrency = own.Int("initial_destination_concurrency")
	t.PositiveFeedback = fraction("destination_concurrency_positive_feedback")
	t.NegativeFeedback = fraction("destination_concurrency_negative_feedback")
	t.FailedCohortLimit = own.Int("destination_concurrency_failed_cohort_limit")
	t.BatchLimit = own.Int("destination_recipient_limit")
	t.DestinationRateDelay = own.Duration("destination_rate_delay")
	t.TransportRateDelay = own.Duration("transport_rate_delay")
	// Agents must be told as well (internal/agent), or the orders would wait there for a place.
	t.SlowLimit = own.Int("slow_delivery_limit")
	t.SlowTime = own.Duration("slow_delivery_time")
	t.SlotCost = own.Int("delivery_slot_cost")
	t.SlotLoan = own.Int("delivery_slot_loan")
	t.SlotDiscount = own.Int("delivery_slot_discount")
	t.MinimumSlots = own.Int("minimum_delivery_slots")
	t.RecipientLimit = own.Int("recipient_limit")
	t.ExtraRecipientLimit = own.Int("extra_recipient_limit")
	t.RefillLimit = own.Int("recipient_refill_limit")
	t.RefillDelay = own.Duration("recipient_refill_delay")
	// "preemptive" is the zero value.
	switch own.String("scheduler") {
	case "fifo":
		t.Mode = sched.FIFO
	case "thread":
		t.Mode = sched.Thread
	}
	if own.String("thread_order") == "random" {
		t.Order = sched.Random
	}
	t.AgentsPerThread = own.Int("thread_agents")
	t.ThreadQuantum = own.Int("thread_quantum")
	t.IdleMax = own.Duration("idle_agent_time")
	return t
}
