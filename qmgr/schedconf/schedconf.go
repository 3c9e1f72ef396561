// Package schedconf reads the scheduler's settings from main.cf and master.cf: for the queue
// manager, and for forecasts of what it would do with others (internal/whatif).
package schedconf

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/feedback"
	"posthaste/internal/mail"
	"posthaste/qmgr/sched"
)

// Load reads the settings. services are master.cf's entries: their process limits bound how many
// deliveries of a transport are under way at once. What cannot be read is replaced by a default, and
// warn is told, but for tenant_weights, which is an error. DeferredLimit is left at 0.
func Load(cfg *config.Config, services []config.Service, warn func(string, ...any)) (sched.Config, error) {
	c := sched.Config{
		ActiveLimit: cfg.Int("qmgr_message_active_limit"),
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
	c.SharedActiveLimit = cfg.Int("shared_limit_active_limit")
	// Without helpful_warnings there is no warning of a clogged active queue either, as with Postfix.
	if !cfg.Bool("helpful_warnings") {
		c.ClogWarn = 0
	}
	limits := make(map[string]int)
	for i := range services {
		// Every entry, since any service may be named as a transport.
		limits[services[i].Name] = services[i].MaxProc
	}
	c.DefaultTransports = sched.DefaultConfig().DefaultTransports
	c.Transport = func(name mail.Transport, t sched.TransportConfig) sched.TransportConfig {
		return transport(cfg, string(name), t, limits, warn)
	}
	weights, err := tenantWeights(cfg.List("tenant_weights"))
	// Without weights the scheduler does not ask, and all tenants are equal.
	if len(weights) > 0 {
		c.TenantWeight = func(tenant string) int { return weights[tenant] }
	}
	return c, err
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

// transport reads one transport's parameters: TRANSPORT_x where it is set, else
// default_x. t has what is common to all transports.
func transport(cfg *config.Config, name string, t sched.TransportConfig, limits map[string]int,
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
	// What a destination answers may make its window smaller than the limit, and its deliveries slower, and never more.
	t.Adaptive = own.Bool("destination_adaptive")
	t.AdaptiveFloor = own.Int("destination_adaptive_floor")
	t.AdaptiveDelay = own.Duration("destination_adaptive_delay_limit")
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
