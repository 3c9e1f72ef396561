// Package simulate runs a description of mail and servers through the real
// scheduler in virtual time, and reports throughput, waits, deferrals and
// concurrency as text, CSV and SVG. It answers "what would this setting do",
// and reproduces the measurements of Postfix's scheduler document.
//
// # Workload
//
// A workload is text, one statement a line; # starts a comment. Settings are
// name=value.
//
//	title TEXT
//	seed NUMBER
//	qmgr qmgr_message_active_limit=20000 minimal_backoff_time=300s ...
//	transport smtp process_limit=100 destination_concurrency_limit=20 cache=yes ...
//	server NAME per_recipient=1s ...
//	tenant NAME limits=concurrency=5 weight=2
//	send class=bulk at=0s count=1 every=0s rcpts=2000 to=smtp:NAME spread=1
//	end first-pass | end at=2h
//
// Transport settings are the parameters' names without the transport's:
// destination_concurrency_limit, initial_destination_concurrency,
// destination_concurrency_positive_feedback, ..., delivery_slot_cost,
// scheduler (preemptive, fifo, thread), thread_order (age, random). With
// cache=yes agents keep their sessions when the scheduler says that it is
// worth it, until reuse=300s after they began to connect. feedback=plain takes
// the arithmetic of the document's pseudocode in place of today's.
//
// A server takes setup (0s) and then per_recipient (0s) for each recipient,
// with a variation of jitter (0%). processes (0: any number) serve at once;
// queue more connections wait to be accepted. What happens to a connection
// beyond that is full=: syn (the connection attempt is repeated at the times
// retry=3s,6s,... and fails after timeout=30s), or greeting (the client thinks
// that it is connected). Who is connected waits greeting=300s for the server's
// first words. With silent=yes the server answers nothing: each connection attempt fails after
// timeout=30s. A client_limit of n answers 421 to whatever is beyond n sessions. members=4 bad=1 is a load
// balancer with so many servers behind it, of which so many refuse; it chooses
// at random, or with balance=turns one after the other. defer=5%
// and bounce=1% of the recipients get such a reply. With provider=gmail a server answers as that provider of package
// simnet does, and other settings do not count, but for timeout. limits=concurrency=8,messages=100/min are what
// destination_limit_maps would say of each destination at the server. provider_limits=NAME:concurrency=15 and
// site_limits=NAME:messages=10/s hold for all destinations together at servers with that name.
//
// send gives each message rcpts recipients at the destinations listed in to=,
// in turn; with spread=n each server stands for n destinations, NAME.0 to
// NAME.n-1, that have a server of the kind each. sources=one*1/600,two*3 is a pool: each message goes from a source
// that the scheduler draws by these weights, and one takes 600 recipients of each destination in a day, what is over goes
// from others. tenant=NAME is whose mail it is; limits= and weight= of a tenant statement hold for all mail of it.
package simulate
