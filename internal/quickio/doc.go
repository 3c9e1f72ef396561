// Package quickio reads and writes sockets, and reads files that are in memory,
// without Go's scheduler.
//
// The runtime is told of each system call that packages net and os make, in case
// it should block: another thread may then go on in its place. A read or write of
// a socket that does not wait returns within microseconds, though. A process whose
// goroutines had all been waiting pays for the announcement nevertheless: it
// wakes the runtime's watching thread, which then looks every 20 microseconds
// whether somebody is stuck. Services that hand messages on to each other are in that
// state thousands of times a second, and this was 6 % of what a profile of them showed.
//
// A [Conn] makes the calls without announcing them, and waits like any connection,
// through the runtime's poller, when there is nothing to read or no room. So
// that a peer who never lets it wait cannot keep the processor from other
// goroutines, one call in [inRow] is announced when there was no wait between them, in either
// direction: who waits for an answer leaves the processor to others anyway.
// [Conn.Ask] writes and reads over a connection that may have ended while nobody looked.
// [ReadAt] asks the kernel for what it has in memory, and in the usual way for the rest.
//
// # Limits
//
// Linux only, as all of Posthaste. What is not a socket of the system (TLS, [net.Pipe])
// is left as it is. Two pipes of the system make a connection with [NewPipes].
//
// The runtime's watching thread is also the one that interrupts a goroutine which
// computes for long. It sleeps while a process does nothing but what this package does,
// until the next timer of the process.
package quickio
