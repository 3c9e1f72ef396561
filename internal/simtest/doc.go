// Package simtest runs all services of one mail system in one process, in virtual time, and has
// everything go wrong that a seed says. Then it asks whether any mail was lost.
//
// A run is a seed. The seed draws letters, which SMTP clients or local programs send; next hops, and how they
// misbehave; the settings; and faults, each at a step or at a time. After half an hour of virtual
// time nothing goes wrong any more, the queue is flushed, and it must become empty. Then the
// books are checked.
//
// # What is real, and what is simulated
//
// smtpd, pickup, cleanup with its spool, qmgr, trivial-rewrite, smtp, local and bounce are the services as they are:
// their Specs, run by service.Simulate, and started, reloaded, stopped and killed by a master that is
// part of the simulation. They have a service.World around them:
//
//   - Sockets, between services and to the network, are pipes in memory. Each piece that is sent
//     arrives after a time that the seed draws. Virtual time advances only when every goroutine
//     waits (package testing/synctest), so it is the seed that says in what order things happen.
//   - The disk is vfs.Mem: what is not synced may be lost, torn or reordered by a power cut. Syncs take
//     time, and fail while the plan says so. The disk is full while the plan says so.
//   - Mailboxes are real maildirs of simulated accounts. What is not synced of them may be lost or torn by a
//     power cut, and they are full, or have no room now, while the plan says so. Aliases lead to them and
//     to other hosts.
//   - The maildrop is a real directory. What sendmail and postdrop do there is package maildrop. Without
//     power what was not synced may be lost or torn, and files that have been removed may be there again.
//   - Next hops are SMTP servers that are good, slow, or refuse connections, say nothing, answer
//     421, 450, 451 or 554 at a stage, answer a command twice, close the connection in the
//     middle of the content, or take a message and never say so.
//
// What qmgr keeps in data_directory, the handover and the suspensions, is in real files. The
// clock is set in runs of their own, where nothing else happens, while the mail system is down: back by the
// time that has passed, ahead by up to 400 days, or ahead and then right again. TLS and filters are not simulated, and tables only as what fails.
//
// # Faults
//
// At a step, which is counted over all that processes write to the disk or send: any process is killed
// (kill -9), or the power fails. At a time: a reload with other settings, a stop and a start, syncs that fail, a
// full disk, lookups in aliases, virtual aliases or transports that fail, a flush, a destination that is
// suspended, and a message that is held, released, queued again or deleted.
//
// Of a process that is killed nothing is carried out any more, its locks are free, and its connections
// end. Its goroutines get errors and end by themselves.
//
// # What must hold
//
//   - Each recipient of a message that was acknowledged has it, or the sender was told that it does not
//     get it, or an operator has deleted it. Nothing stays in the queue, nor in maildrop. When the clock was
//     set nothing waits for longer than maximal_backoff_time and a queue run, and nothing expires once it is right or
//     next hops are well.
//   - Nothing arrives that was not acknowledged, unless the client did not wait for the reply, or the log says that
//     it is in doubt. Nothing arrives for a recipient that was refused.
//   - What arrives is what was sent, octet for octet, behind the header fields that are added. In a maildir those are Return-Path,
//     X-Original-To and Delivered-To, each as it must be.
//   - Nothing arrives twice, and no sender is told twice of one recipient, unless the next hop has not
//     confirmed it, or the log says of the message that it is in doubt. Without spool_exact_doubt the log need not name
//     what was delivered just before the power failed, cleanup was killed, or a sync failed; nor what the queue
//     manager and an agent were both killed with, within moments; nor what agents had in hand when it was killed
//     during a stop. An agent tells of an order for several recipients when it is done with the last of them. What local
//     has forwarded for a list by then is a message of its own: its members elsewhere get one more for each, or its
//     sender one more notice. Accounts on a list have it again when the log says that the list is tried again.
//   - No destination has more transactions at a time than its concurrency limit; when a queue manager takes over
//     from another, than twice that.
//   - In runs of their own (NewTenantWorld) mail is that of two tenants, and one of them never has more transactions at
//     a time, at all next hops together, than its limit; with the same exception.
//   - There are never more tokens of in_flow_delay than may be made, and all of them when the queue is empty.
//   - In runs of their own (NewEventWorld) services tell of events, and the journal of events is on the disk: each
//     message that has left the queue was told of there, first that it came, and at the end what has become of it,
//     unless syncs failed or the disk was full.
//   - Where no process was killed, the audit (package audit) of the log adds up, and what processes have counted
//     for the metrics agrees with the log, with what clients were told, and with what was delivered.
//   - Nothing is returned but what a next hop or local refuses for good.
//   - The log has no panic, no fatal error and no corrupt message.
//
// # A hostile day
//
// TestHostileDay is another world around the same services: smtpd behind postscreen, cleanup, qmgr, trivial-rewrite,
// smtp and bounce, and no fault. For hours of virtual time clients come who want trouble: they send an octet every 290 seconds,
// never read, speak first, reset or half close the connection at a stage, flood, guess passwords and users, leave in
// the middle of TLS, lie about the size of chunks, never end a message, send bombs, loops, forged return paths and
// mail to a thousand recipients or to domains without end. Hosts that mail goes to reply without end, with NULs, with
// 421, with nothing, and never close; name servers answer nothing, nonsense, and 64 KB. Connections from and to the network
// hold no more octets than a kernel's, so that who writes to somebody who does not read waits. TLS is real. Clients
// of many addresses come, and more of them than the caches of names have room for.
//
// Some clients are honest. Their mail must be taken within 30 minutes, with what they try again after a temporary refusal,
// and delivered within 20 more. From time to time garbage is collected, and what is alive is counted: octets
// of the heap, without the simulated disk, which is in it; octets of the disk; goroutines; connections of the mail system;
// descriptors; messages in the queue and destinations. The median of the last quarter may be above that of the time
// from the eighth part to the third by a tenth and a small constant. When the clients have gone the queue must become
// empty, and connections end. TestHostileDayFindsLeak has something kept of each session for ever, and wants it found.
//
// Local delivery, filters, tables of databases and the services that read return paths and links of lists are not in it.
// postscreen's memory of clients, which has room for 200,000, is full at the beginning of a whole day. The short day has
// few addresses, so that what is remembered of them has its size early.
//
// # Running
//
//	go test ./internal/simtest                                  1000 seeds
//	go test ./internal/simtest -run Seeds -v -sim.first=1 -sim.n=100000
//	go test ./internal/simtest -run Seeds -v -sim.seed=39       one seed, with its log
//	go test ./internal/simtest -run Seeds -v -sim.seed=39 -sim.mask=5 -sim.trace
//
//	go test ./internal/simtest -run 'TestHostileDay$' -v        two hours of hostile clients
//	go test ./internal/simtest -run 'TestHostileDay$' -v -day.hours=24 -timeout 0
//
// -day.heap=DIRECTORY has heap profiles written, -day.log shows the log, -day.rate=N has more or fewer clients come.
// A seed that fails is shrunk: faults and letters are left out while it still fails. What is printed
// has the mask of what is left out, for -sim.mask. -sim.trace shows each step.
//
// # Bugs
//
// When one queue manager takes over from another, the deliveries that go on of a message that is not active there
// have no place in its concurrency windows. So there may be more than the limit.
//
// What goes up and down of metrics, and the queue in the middle of a run, are not checked.
//
// The order in which goroutines of one process run at one instant is that of Go's scheduler. With one
// processor and without garbage collection it is the same for the same seed, but for one run in a
// hundred (in thirty on a busy machine): a system call that takes long lets another goroutine go first.
// Timers that end at the same instant fire in an order that Go chooses at random. A select statement
// with several cases that are ready, and maps, are not in the hands of the seed. So a seed that has failed
// once, and does not fail when it is run again, is run a few times more: TestSame holds that the same run comes back.
package simtest
