// Package quickio reads and writes sockets, and reads files that are in memory,
// without Go's scheduler.
//
// The runtime is told of each system call that packages net and os make, in case it should
// block: another thread may then go on in its place. A read or write of a socket that does not
// wait returns within microseconds, though. A process whose goroutines were all waiting pays
// for the announcement nevertheless, because it wakes the runtime's monitoring thread, which
// then checks every 20 microseconds whether a thread is stuck. Services that pass messages to
// each other are in that state thousands of times a second, and this was 6 % of their profile.
//
// A [Conn] makes the calls without announcing them, and waits like any connection, through the
// runtime's poller, when there is nothing to read or no room. A peer that never lets it wait
// could keep the processor from other goroutines; so, of calls without a wait between them in
// either direction, one in [inRow] is announced. A caller that waits for an answer leaves the
// processor to others anyway. [Conn.Ask] writes and reads over a connection that may have
// ended while nobody looked. [ReadAt] asks the kernel for what it has in memory, and in the
// usual way for the rest.
//
// # Limits
//
// It is for Linux only, like all of Posthaste. A connection that is not a socket of the system
// (TLS, [net.Pipe]) is left as it is. Two pipes of the system make a connection with
// [NewPipes].
//
// The runtime's monitoring thread is also the one that interrupts a goroutine that computes
// for a long time. It sleeps while a process does nothing but what this package does, until
// the next timer of the process.
package quickio
