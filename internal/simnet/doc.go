// Package simnet is the internet as a sender meets it: hosts of mail providers that answer, refuse, stall
// and die, each in its own way. It is for simulations and tests.
//
// A [Host] is a state machine. It is told the time, starts nothing, and draws what is left to chance from
// its seed: the same calls get the same answers. The scheduler's simulation (qmgr/sched/simulate) and
// tests in virtual time ask it directly; [Serve] gives it a real socket, for tests with real processes.
//
// # Kinds
//
// A [Profile] says of which kind a host is. The first four are what providers do to senders they do not
// know:
//
//	crowded  takes so many sessions of a client at once; what is more gets a 421 for its greeting
//	metered  takes so many messages of a client in a span of time; whoever sends more is refused
//	         whatever it sends, until a penalty time is over
//	judged   counts complaints, which a share of the messages draws and which are forgotten with a
//	         half-life; the more there are, the more is deferred, and attempts that are refused count, too
//	grey     defers the first attempt of each client, sender and recipient, and takes what comes back
//	         after a time
//	good     takes everything
//	slow     takes everything, with a number of workers: what is more waits for one of them
//	dead     answers nothing; a client gives up when its own time limit is over
//
// # Replies
//
// What refusing hosts say is what known providers say ([Profiles]): their codes, their enhanced codes,
// their words, continued lines with their line breaks left out. Addresses in them are those of
// documentation. A reply tells sender and reader apart only by its text, as outside.
//
// # Time
//
// [Host.Connect], [Host.Hear] and [Host.Leave] are told the time, which must not go back. An [Answer] has how long the host takes to
// give it. A host never waits: who asks does, in virtual time or, as Serve, in real time.
//
// # Limits
//
// A host remembers each client, and a grey one each triplet, for ever: it is for runs that end. It knows
// no TLS, no authentication, and no extension but PIPELINING and 8BITMIME.
package simnet
