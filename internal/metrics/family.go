package metrics

import "slices"

// A Kind is what may be done with a family's values.
type Kind uint8

// The kinds.
const (
	Counter   Kind = iota // only ever grows
	Gauge                 // goes up and down
	Histogram             // observations by size
)

var kindNames = [...]string{"counter", "gauge", "histogram"}

// String is the name of the kind in OpenMetrics.
func (k Kind) String() string { return kindNames[k] }

// An ID names a family.
type ID uint8

// The families. Their order is that of docs/metrics.md.
const (
	Accepted ID = iota
	AcceptedBytes
	Connections
	Commands
	LostConnections
	Rejected
	LimitsExceeded
	SASLFailures
	TLSSessions
	Deliveries
	DeliveryReplies
	DeliveryFailures
	DomainDeliveries
	TenantDeliveries
	Feedback
	DomainFeedback
	ProviderDeliveries
	ProviderFeedback
	SuppressRefused
	DeliveryDelay
	DeliveryStage
	ConnectFailures
	Activated
	Removed
	Expired
	Notifications
	QueueMessages
	QueueRecipients
	QueueOldest
	Decisions
	Preemptions
	DeliveriesBusy
	Destinations
	DestinationWindow
	DestinationBusy
	DestinationTodo
	DomainTodo
	DestinationDeadUntil
	TenantMessages
	TenantActive
	TenantBusy
	LimitBusy
	LimitWaiting
	LimitParked
	WarmupRecipients
	WarmupLimit
	Suspensions
	SuspendedMessages
	Limits
	Diversions
	SpoolMessages
	SpoolLiveBytes
	SpoolDiskBytes
	SpoolSegments
	SpoolBatches
	SpoolCommits
	SpoolWrittenBytes
	SpoolCopiedBytes
	SpoolFull
	SpoolDirectoryUp
	SpoolDirectoryMessages
	SpoolDirectoryDiskBytes
	ScrubPasses
	ScrubBytes
	ScrubFindings
	ScrubLast
	SpoolDoubtful
	EventsLost
	EventsRefused
	EventsSent
	EventsDead
	EventsLag
	EventsJournal
	FlowTokens
	LogLines
	ProcessLimits
	Processes
	CPUSeconds
	ResidentBytes
	Goroutines
	OpenFiles
	numFamilies
)

// A Family is a metric with all its labels. The exporter puts the label
// "service", the first column of master.cf, before those of PerService ones.
type Family struct {
	Name       string // in OpenMetrics, without the suffix _total
	Kind       Kind
	PerService bool
	Labels     []string
	Help       string
}

// Families are all of them, by ID.
func Families() []Family { return slices.Clone(families[:]) }

var families = [numFamilies]Family{
	Accepted:        {"posthaste_accepted_messages", Counter, false, []string{"source"}, "Messages that are on stable storage, by where they came from: network, local, internal (notifications, forwarding)."},
	AcceptedBytes:   {"posthaste_accepted_bytes", Counter, false, []string{"source"}, "Octets of the content of accepted messages."},
	Connections:     {"posthaste_smtpd_connections", Counter, true, nil, "Clients that have connected."},
	Commands:        {"posthaste_smtpd_commands", Counter, true, []string{"command", "result"}, "SMTP commands of clients, counted at the end of the session; result is ok or refused."},
	LostConnections: {"posthaste_smtpd_lost_connections", Counter, true, []string{"reason"}, "Sessions that ended otherwise than by QUIT."},
	Rejected:        {"posthaste_rejected", Counter, true, []string{"action", "stage", "class", "reason"}, "What restrictions, content checks and filters decided; class is 4 or 5 when a client was refused, reason one of a fixed set."},
	LimitsExceeded:  {"posthaste_smtpd_limits_exceeded", Counter, true, []string{"limit"}, "Times that a client went over one of the smtpd_client limits."},
	SASLFailures:    {"posthaste_smtpd_sasl_failures", Counter, true, []string{"method"}, "Attempts to log in that failed."},
	TLSSessions:     {"posthaste_tls_sessions", Counter, true, []string{"side", "protocol"}, "TLS handshakes that succeeded; side is server or client."},

	Deliveries:         {"posthaste_deliveries", Counter, true, []string{"status"}, "Outcomes of delivery attempts, one for each recipient; service is the transport."},
	DeliveryReplies:    {"posthaste_delivery_replies", Counter, true, []string{"class", "dsn"}, "The same by what was said: class is 2xx, 4xx or 5xx, dsn the status code (RFC 3463); codes outside the registry are other."},
	DeliveryFailures:   {"posthaste_delivery_failures", Counter, true, []string{"status", "class"}, "Those that failed, by the class that bounce_class_files gives them; none without that parameter."},
	DomainDeliveries:   {"posthaste_domain_deliveries", Counter, false, []string{"domain", "status"}, "The same by the recipient's domain: those with the most deliveries have a name, all others are other."},
	TenantDeliveries:   {"posthaste_tenant_deliveries", Counter, false, []string{"tenant", "status"}, "The same by the tenant, of mail that has one; names as for domains."},
	Feedback:           {"posthaste_feedback", Counter, false, []string{"tenant", "kind"}, "What came back of mail under the suppression list, by the tenant: bounce, expired, forwarded (an address behind the recipient has failed), complaint, unsubscribed; and suppressed, the recipients who are on the list for it. Mail without a tenant is (none); names as for domains."},
	DomainFeedback:     {"posthaste_domain_feedback", Counter, false, []string{"domain", "kind"}, "The same by the recipient's domain; over posthaste_domain_deliveries with status sent it is the rate of complaints of a domain."},
	ProviderDeliveries: {"posthaste_provider_deliveries", Counter, false, []string{"provider", "source", "status"}, "Deliveries by the provider that the recipient's domain is with (destination_provider_maps, shaping_files), else by the site of its MX hosts, if there are limits for it or destination_rollup makes it a destination, and by the source that they were sent from, (none) without one. Other mail is not counted. Names are those of provider and source together, as for domains."},
	SuppressRefused:    {"posthaste_suppress_refused", Counter, false, []string{"tenant"}, "Entries that tenants were not let add to the suppression list by HTTP, since they have as many as they may (suppress_tenant_limit); names as for domains."},
	ProviderFeedback:   {"posthaste_provider_feedback", Counter, false, []string{"provider", "source", "kind"}, "What came back of mail under the suppression list, by provider and source; over posthaste_provider_deliveries with status sent it is the rate of bounces or complaints at a provider. A complaint counts here if the mail left with a return path (return_path_domain)."},
	DeliveryDelay:      {"posthaste_delivery_delay_seconds", Histogram, true, []string{"status"}, "Age of the message when a recipient's attempt ended (delay= of the log)."},
	DeliveryStage:      {"posthaste_delivery_stage_seconds", Histogram, true, []string{"stage"}, "Where the time went (delays= of the log): before_queue, queue, connect, transmit."},
	ConnectFailures:    {"posthaste_connect_failures", Counter, true, nil, "Servers that could not be reached."},

	Activated:       {"posthaste_queue_activations", Counter, false, nil, "Messages that the queue manager took into the active queue; one for each round of attempts."},
	Removed:         {"posthaste_queue_removals", Counter, false, nil, "Messages that left the queue for good."},
	Expired:         {"posthaste_queue_expirations", Counter, false, nil, "Messages that were returned because they had been in the queue for too long."},
	Notifications:   {"posthaste_notifications", Counter, false, []string{"kind"}, "Delivery status notifications queued: bounce, delay, status, postmaster."},
	QueueMessages:   {"posthaste_queue_messages", Gauge, false, []string{"queue"}, "Messages in the queue: incoming, active, deferred, hold."},
	QueueRecipients: {"posthaste_queue_recipients_in_memory", Gauge, false, nil, "Recipients of active messages that are in the scheduler's memory."},
	QueueOldest:     {"posthaste_queue_oldest_seconds", Gauge, false, []string{"queue"}, "Age of the oldest message in a queue."},
	Decisions:       {"posthaste_scheduler_decisions", Counter, false, nil, "Delivery requests that the scheduler has chosen."},
	Preemptions:     {"posthaste_scheduler_preemptions", Counter, false, nil, "Times that the scheduler let a smaller message past a larger one."},
	DeliveriesBusy:  {"posthaste_scheduler_deliveries_busy", Gauge, false, nil, "Delivery requests under way."},
	Destinations:    {"posthaste_scheduler_destinations", Gauge, false, []string{"transport", "state"}, "Destinations that the scheduler knows at present: ready, dead, suspended (rate delay)."},

	DestinationWindow:    {"posthaste_destination_window", Gauge, false, []string{"transport", "destination"}, "Concurrency window of the busiest destinations."},
	DestinationBusy:      {"posthaste_destination_busy", Gauge, false, []string{"transport", "destination"}, "Delivery requests under way to the busiest destinations."},
	DestinationTodo:      {"posthaste_destination_todo", Gauge, false, []string{"transport", "destination"}, "Backlog: delivery requests and deferred messages that wait for a destination, whatever for: its window, its failure, their next attempt, a suspension. The twenty largest have a name, all others are other; unknown is mail that has not been looked at since the start."},
	DomainTodo:           {"posthaste_domain_todo", Gauge, false, []string{"domain"}, "Recipients with something left to do, in all queues, by domain. The twenty largest have a name, all others are other. Of mail that is on hold or not due soon in a deep queue messages are counted, as unknown."},
	DestinationDeadUntil: {"posthaste_destination_dead_until_timestamp_seconds", Gauge, false, []string{"transport", "destination"}, "When a dead destination is tried again; of the busiest destinations, those that are dead."},
	TenantMessages:       {"posthaste_tenant_messages", Gauge, false, []string{"tenant"}, "Messages in the queue manager's memory by tenant. The twenty with most have a name, all others are other; mail without a tenant is (none)."},
	TenantActive:         {"posthaste_tenant_active_messages", Gauge, false, []string{"tenant"}, "Those in the active queue."},
	TenantBusy:           {"posthaste_tenant_deliveries_busy", Gauge, false, []string{"tenant"}, "Delivery requests under way by tenant."},
	LimitBusy:            {"posthaste_limit_busy", Gauge, false, []string{"level", "name"}, "Delivery requests under way under a shared limit (destination_limit_maps, tenant_limit_maps): of a domain, a site, a provider or a tenant, of a tenant at one of these (tenant_destination_limit_maps), or the pace that a destination's answers have taught (default_destination_adaptive). The twenty with most to do."},
	LimitWaiting:         {"posthaste_limit_waiting", Gauge, false, []string{"level", "name"}, "Destinations that wait for a shared limit; of those twenty."},
	LimitParked:          {"posthaste_limit_parked", Gauge, false, []string{"level", "name"}, "Messages that wait outside the active queue for a shared limit; of those twenty."},
	WarmupRecipients:     {"posthaste_warmup_recipients", Gauge, false, []string{"source", "level", "name"}, "Recipients that a source which warms up (egress_source_maps) has had today at a provider, a site or a domain. The twenty with most."},
	WarmupLimit:          {"posthaste_warmup_limit", Gauge, false, []string{"source", "level", "name"}, "Recipients that it may have there today; of those twenty."},
	Suspensions:          {"posthaste_suspensions", Gauge, false, nil, "Suspensions in force (posthaste suspend). They last until they are resumed or their time is over, whether somebody remembers them or not."},
	SuspendedMessages:    {"posthaste_suspended_messages", Gauge, false, nil, "Deferred messages that wait for a suspension, as far as they have come up since it began."},
	Limits:               {"posthaste_limits", Gauge, false, nil, "Limits of destinations that operators have set for now (posthaste limit)."},
	Diversions:           {"posthaste_diversions", Gauge, false, nil, "Destinations whose mail operators have sent by another next hop for now (posthaste divert)."},

	SpoolMessages:           {"posthaste_spool_messages", Gauge, false, nil, "Messages in the spool."},
	SpoolLiveBytes:          {"posthaste_spool_live_bytes", Gauge, false, nil, "Octets of the spool that matter: records of live messages, and files of large ones."},
	SpoolDiskBytes:          {"posthaste_spool_disk_bytes", Gauge, false, nil, "Octets of the spool's segments and files on disk."},
	SpoolSegments:           {"posthaste_spool_segments", Gauge, false, []string{"state"}, "Segment files of the log: used, free."},
	SpoolBatches:            {"posthaste_spool_syncs", Counter, false, nil, "Batches written to the log, one write and one sync each."},
	SpoolCommits:            {"posthaste_spool_commits", Counter, false, nil, "Changes that became durable; commits over syncs is how many shared a sync."},
	SpoolWrittenBytes:       {"posthaste_spool_written_bytes", Counter, false, nil, "Octets written to the log, headers and padding included."},
	SpoolCopiedBytes:        {"posthaste_spool_copied_bytes", Counter, false, nil, "Octets that the cleaner copied to empty segments."},
	SpoolFull:               {"posthaste_spool_full", Gauge, false, nil, "1 while new mail is refused for want of space."},
	SpoolDirectoryUp:        {"posthaste_spool_directory_up", Gauge, false, []string{"directory"}, "1 while a directory of spool_directories can be written."},
	SpoolDirectoryMessages:  {"posthaste_spool_directory_messages", Gauge, false, []string{"directory"}, "Messages in a directory of spool_directories."},
	SpoolDirectoryDiskBytes: {"posthaste_spool_directory_disk_bytes", Gauge, false, []string{"directory"}, "Octets of the segments and files of a directory of spool_directories."},
	ScrubPasses:             {"posthaste_spool_scrub_passes", Counter, false, nil, "Times that all queued mail has been read and verified (spool_scrub_period)."},
	ScrubBytes:              {"posthaste_spool_scrub_bytes", Counter, false, nil, "Octets read for that."},
	ScrubFindings:           {"posthaste_spool_scrub_findings", Counter, false, nil, "Messages that were found to be damaged, or could not be read, by that."},
	ScrubLast:               {"posthaste_spool_scrub_last_pass_timestamp_seconds", Gauge, false, nil, "When all queued mail had last been read and verified."},
	SpoolDoubtful:           {"posthaste_spool_doubtful", Gauge, false, nil, "Entries of the list of what may have arrived twice that no operator has said to have seen (posthaste spool doubtful)."},
	EventsLost:              {"posthaste_events_lost", Counter, true, nil, "Events that are in no journal, since that did not answer or had no room, by the service that told of them."},
	EventsRefused:           {"posthaste_events_refused", Counter, false, nil, "Events that the journal has refused: the disk is full."},
	EventsSent:              {"posthaste_events_sent", Counter, false, []string{"sink"}, "Events that a sink has taken."},
	EventsDead:              {"posthaste_events_dead", Counter, false, []string{"sink"}, "Events that a sink has refused for good: they are in its file of dead letters."},
	EventsLag:               {"posthaste_events_lag", Gauge, false, []string{"sink"}, "Events that a sink has not got yet."},
	EventsJournal:           {"posthaste_events_journal_bytes", Gauge, false, nil, "Octets of the journal of events."},
	FlowTokens:              {"posthaste_flow_tokens", Gauge, false, nil, "Tokens in the pipe of in_flow_delay; at 0 reception is slowed down."},

	LogLines:      {"posthaste_log_lines", Counter, true, []string{"level"}, "Log lines by severity."},
	ProcessLimits: {"posthaste_process_limit_reached", Counter, true, nil, "Times that a service was found to serve as many clients as master.cf allows, as often as the log says so."},
	Processes:     {"posthaste_processes", Gauge, true, nil, "Processes of the service that answer."},
	CPUSeconds:    {"posthaste_process_cpu_seconds", Counter, true, []string{"mode"}, "Processor time that the service's processes have used: user, system."},
	ResidentBytes: {"posthaste_process_resident_bytes", Gauge, true, nil, "Resident memory of the service's processes."},
	Goroutines:    {"posthaste_process_goroutines", Gauge, true, nil, "Goroutines of the service's processes."},
	OpenFiles:     {"posthaste_process_open_files", Gauge, true, nil, "Open descriptors of the service's processes."},
}

// Bounds are the upper bounds of the buckets of all histograms, in seconds:
// from a local delivery to maximal_queue_lifetime.
func Bounds() []float64 { return slices.Clone(bounds[:]) }

var bounds = [...]float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600, 14400, 86400, 432000}
