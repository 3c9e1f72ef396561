package schedconf

import "slices"

// common are the parameters of all transports together that a forecast depends on.
var common = []string{
	"default_process_limit", "defer_transports", "maximal_backoff_time", "maximal_queue_lifetime", "minimal_backoff_time",
	"qmgr_message_active_limit", "qmgr_message_recipient_limit", "qmgr_message_recipient_minimum", "queue_run_delay", "tenant_weights",
}

// suffixes are the parameters of a transport, without its name.
var suffixes = []string{
	"delivery_slot_cost", "delivery_slot_discount", "delivery_slot_loan", "destination_adaptive", "destination_adaptive_delay_limit", "destination_adaptive_floor", "destination_concurrency_failed_cohort_limit", "destination_concurrency_limit",
	"destination_concurrency_negative_feedback", "destination_concurrency_positive_feedback", "destination_rate_delay", "destination_recipient_limit",
	"extra_recipient_limit", "idle_agent_time", "initial_destination_concurrency", "minimum_delivery_slots", "recipient_limit", "recipient_refill_delay",
	"recipient_refill_limit", "scheduler", "slow_delivery_limit", "slow_delivery_time", "thread_agents", "thread_order", "thread_quantum", "transport_rate_delay",
}

// Parameters are the names of all parameters that what becomes of mail depends on, that goes by
// these transports.
func Parameters(transports []string) []string {
	list := slices.Clone(common)
	for _, s := range suffixes {
		if s == "initial_destination_concurrency" {
			list = append(list, s)
		} else {
			list = append(list, "default_"+s)
		}
		for _, t := range transports {
			list = append(list, t+"_"+s)
		}
	}
	slices.Sort(list)
	return list
}
