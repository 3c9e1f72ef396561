// What the scheduler is configured with. It reads no parameters: qmgr/settings.go
// translates main.cf and master.cf into these values, and tests and the simulator make
// them directly.

package sched

import (
	"strings"
	"time"

	"posthaste/internal/feedback"
	"posthaste/internal/mail"
)

// Config is what the scheduler is told to respect. Field names follow the
// parameters; DefaultConfig has Postfix's defaults.
type Config struct {
	ActiveLimit       int           // qmgr_message_active_limit, at least 1
	DeferredLimit     int           // deferred messages in memory, about; 0: all. It is not changed by EventReconfigured
	RecipientLimit    int           // qmgr_message_recipient_limit
	RecipientMinimum  int           // qmgr_message_recipient_minimum, at least 1
	MinimalBackoff    time.Duration // minimal_backoff_time
	MaximalBackoff    time.Duration // maximal_backoff_time
	QueueRunDelay     time.Duration // queue_run_delay: retries are spread over this much
	MaximalLifetime   time.Duration // maximal_queue_lifetime
	BounceLifetime    time.Duration // bounce_queue_lifetime
	DelayWarning      time.Duration // delay_warning_time, 0: none
	TransportRetry    time.Duration // transport_retry_time
	ClogWarn          time.Duration // qmgr_clog_warn_time, 0: no warning
	FeedbackDebug     bool          // destination_concurrency_feedback_debug
	DeferTransports   []string      // defer_transports
	SharedActiveLimit int           // shared_limit_active_limit: messages that wait for one shared limit; 0: any number
	// TenantWeight is the weight of a tenant's turns, from 1 on; nil: all have 1. It is called when
	// mail of the tenant comes and there was none, and at EventReconfigured.
	TenantWeight      func(tenant string) int
	DefaultTransports TransportConfig
	// Two schedulers with the same Seed that are given the same events do the same.
	Seed uint64 // for jitter and random order

	// Transport gives a transport's own settings, given the common ones; nil:
	// every transport has the common ones. It is called when a transport is
	// first used and at EventReconfigured, and must always answer the same.
	Transport func(name mail.Transport, common TransportConfig) TransportConfig
}

// Scheduler modes of a transport.
type Mode uint8

const (
	Preemptive Mode = iota // nqmgr: first come first served, but small mail slips past large mail
	FIFO                   // first come first served
	Thread                 // ZMailer: destinations in turn, each for ThreadQuantum deliveries
)

// Order is the order of mail within a thread.
type Order uint8

const (
	Age    Order = iota // oldest first, by the time of arrival
	Random              // any: one bad message does not stand in front of all others
)

// TransportConfig holds the parameters that can be set for each transport.
type TransportConfig struct {
	// How many deliveries may go on at once: for the transport, for a destination, and
	// for a destination of which nothing is known yet.
	ProcessLimit       int // master.cf maxproc: delivery requests at once; 0: no limit
	ConcurrencyLimit   int // destination_concurrency_limit; 0: no limit
	InitialConcurrency int // initial_destination_concurrency, at least 1
	// How a destination's window grows and shrinks (feedback.go), and after how many
	// failed windows in a row the destination is dead.
	PositiveFeedback     feedback.Feedback
	NegativeFeedback     feedback.Feedback
	PlainFeedback        bool          // sum feedback as the document's pseudocode of 2007 does, without allowance for rounding
	FailedCohortLimit    int           // destination_concurrency_failed_cohort_limit; 0: never dead
	BatchLimit           int           // destination_recipient_limit: recipients per request; 0: no limit
	DestinationRateDelay time.Duration // destination_rate_delay: pause after each delivery to a destination
	TransportRateDelay   time.Duration // transport_rate_delay: pause before each delivery by the transport

	// Deliveries that have gone on for SlowTime take no place of ProcessLimit, up to SlowLimit of
	// them; 0: all take one, as with Postfix (slow.go).
	SlowLimit int           // slow_delivery_limit
	SlowTime  time.Duration // slow_delivery_time

	// Window and pace of each destination follow what it answers, and how long it takes (adaptive.go).
	Adaptive      bool          // destination_adaptive
	AdaptiveFloor int           // destination_adaptive_floor: deliveries at once, at least
	AdaptiveDelay time.Duration // destination_adaptive_delay_limit: the longest time between two deliveries

	// Preemption, as in Postfix's SCHEDULER_README: how many deliveries of a large
	// message pay for one of a smaller message that goes first (job.go).
	SlotCost     int // delivery_slot_cost: entries selected per slot earned; below 2: no preemption
	SlotLoan     int // delivery_slot_loan
	SlotDiscount int // delivery_slot_discount, per cent
	MinimumSlots int // minimum_delivery_slots

	// Recipients in memory (limit.go). RefillLimit and RefillDelay keep a message from
	// being read a few recipients at a time.
	RecipientLimit      int           // recipient_limit
	ExtraRecipientLimit int           // extra_recipient_limit
	RefillLimit         int           // recipient_refill_limit
	RefillDelay         time.Duration // recipient_refill_delay

	Mode            Mode          // scheduler
	Order           Order         // thread_order: of the mail within a thread
	AgentsPerThread int           // thread_agents: requests at once for one thread; 0: as the window says. Thread mode only
	ThreadQuantum   int           // thread_quantum: deliveries in one turn while other threads wait; 0: no bound. Thread mode only
	IdleMax         time.Duration // idle_agent_time: how long a hungry agent waits for more; 0: not at all
}

// DefaultConfig returns Postfix's defaults.
//
// DeferredLimit is 0: all deferred mail is in memory, as tests and the simulator want it.
// qmgr sets a limit.
func DefaultConfig() Config {
	return Config{
		ActiveLimit:      20000,
		RecipientLimit:   20000,
		RecipientMinimum: 10,
		MinimalBackoff:   300 * time.Second,
		MaximalBackoff:   4000 * time.Second,
		QueueRunDelay:    300 * time.Second,
		MaximalLifetime:  5 * 24 * time.Hour,
		BounceLifetime:   5 * 24 * time.Hour,
		TransportRetry:   60 * time.Second,
		ClogWarn:         300 * time.Second,

		SharedActiveLimit: 1000,
		DefaultTransports: TransportConfig{
			ProcessLimit:        100,
			ConcurrencyLimit:    20,
			InitialConcurrency:  5,
			PositiveFeedback:    feedback.Feedback{Base: 1},
			NegativeFeedback:    feedback.Feedback{Base: 1},
			FailedCohortLimit:   1,
			BatchLimit:          50,
			SlowTime:            time.Second,
			AdaptiveFloor:       1,
			AdaptiveDelay:       time.Minute,
			SlotCost:            5,
			SlotLoan:            3,
			SlotDiscount:        50,
			MinimumSlots:        3,
			RecipientLimit:      20000,
			ExtraRecipientLimit: 1000,
			RefillLimit:         100,
			RefillDelay:         5 * time.Second,
			AgentsPerThread:     1,
			ThreadQuantum:       10,
			IdleMax:             5 * time.Second,
		},
	}
}

// Transport names with a meaning of their own. Both are run by the error
// agent: one defers, the other bounces, with the nexthop as the reason.
const (
	RetryTransport mail.Transport = "retry"
	ErrorTransport mail.Transport = "error"
)

// QueueName is the name of the destination queue for a recipient: the
// nexthop, or with one recipient per delivery, so that scheduling is per
// mailbox, user@nexthop. user is the local part without its extension.
func QueueName(t *TransportConfig, transport mail.Transport, nexthop mail.Nexthop, user string) string {
	if t.BatchLimit != 1 || transport == RetryTransport || transport == ErrorTransport {
		return strings.ToLower(string(nexthop))
	}
	return strings.ToLower(user + "@" + string(nexthop))
}
