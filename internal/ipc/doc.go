// Package ipc is how the services talk to one another: framed, multiplexed
// connections over unix-domain sockets. Many requests are in flight on one
// connection, replies come in any order, and what is written while a system
// call is under way goes out with the next one, so that under load one write
// carries many messages.
//
// A connection is symmetrical: either end may call the other, or send it
// something that wants no reply. What the messages are is declared in package
// proto; here they are a kind and bytes.
//
// # Wire format
//
// Each end begins with eight bytes: NUL, "PH", the protocol version as one
// byte, one of flags, and three zero bytes. The NUL tells a peer that speaks ipc from one
// that sends a trigger (a few letters such as "W", as Postfix's master and
// postkick do); a listener hands triggers to its OnTrigger. Then frames:
//
//	0  payload length, u32 little endian, at most MaxPayload
//	4  kind, u16
//	6  what: 0 one-way, 1 request, 2 reply, 3 go-away, 4 error reply
//	7  zero
//	8  request number, u32; zero for one-way and go-away
//	12 payload
//
// Go-away says that the sender takes no new requests on this connection;
// those under way are still answered, and what is open there (Conn.Keep) may be
// brought to its end. A service that drains sends it, and
// its clients dial again: the new connection waits in the listening socket's
// backlog, which master keeps open, until the successor accepts it.
//
// # Pipes
//
// A client whose preface has flag 1 would rather have pipes than the socket. A
// server that trusts it, and can make two, sends the client's ends with its own
// preface, which then has that flag, too; frames go over these in both directions.
// The client says nothing before it has that answer. Fewer threads are woken in vain
// then (package quickio says why): one message at a time is relayed for 0.84 of the
// processor time, and 0.97 when each comes over a connection of its own; with a hundred
// at a time it makes no difference. The socket stays open and names the peer.
//
// # When a connection is lost
//
// A call whose request was never written reports ErrUnsent and may simply be
// tried again: Client does so by itself. A call that was written and not
// answered reports ErrLost: nobody knows whether it was carried out, and only
// the caller knows whether asking again does harm.
//
// # Security
//
// Sockets lie in directories that only the mail system may enter (private) or
// that the set-gid group may (public). Of those in public each service says
// what is for that group (Server.Public); the rest is for root and mail_owner,
// whom the kernel names. No others get pipes: descriptors are dear. Each end of a pipe
// is one side's alone, and made by the server, so that a client cannot have a server's
// reads block. The peer is still not trusted with our
// memory: frames are bounded, and so are the unanswered requests of a
// connection, in number and in octets: a peer that asks for more is
// disconnected. Memory for a frame is taken as it comes. A peer that sends what is no frame is
// disconnected; whoever waits for its answer is told what it sent. A peer that does not read is disconnected when what is kept for it
// passes a bound, or when somebody has waited for it for Patience; one that does not answer
// is waited for as long as the caller says, or for Patience.
package ipc
