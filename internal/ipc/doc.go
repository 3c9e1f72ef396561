// Package ipc carries the messages between services, over framed, multiplexed connections on
// unix-domain sockets. Many requests may be under way on one connection, and replies come in
// any order. What is written during a system call goes out with the next one, so that under
// load one write carries many messages.
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
// A client whose preface has flag 1 prefers pipes to the socket. If the server trusts it and
// can make two pipes, the server sends the client's ends with its own preface, which then has
// the flag as well, and frames travel over the pipes in both directions. The client sends
// nothing before it has that preface. Fewer threads are then woken in vain, for the reason
// that package quickio gives: relaying one message at a time takes 0.84 of the processor time,
// or 0.97 if each comes over a connection of its own; with a hundred at a time there is no
// difference. The socket stays open and identifies the peer.
//
// # When a connection is lost
//
// A call whose request was never written reports ErrUnsent and may simply be tried again:
// Client does so by itself. A call that was written and not answered reports ErrLost: it is
// not known whether the request was carried out, and only the caller can tell whether it is
// safe to repeat it.
//
// # Security
//
// Sockets are in directories that only the mail system may enter (private), or also the
// set-gid group (public). For a socket in public, each service says which requests that group
// may make (Server.Public); all others are reserved for root and mail_owner, whom the kernel
// identifies. Only these get pipes, because descriptors are scarce. The server makes the
// pipes, and each end belongs to one side alone, so that a client cannot make a server's reads
// block. Even so, the peer is not trusted with memory. Frames are bounded, and so are the
// unanswered requests of a connection, in number and in octets; a peer that exceeds a bound is
// disconnected. Memory for a frame is allocated as the frame arrives. A peer that sends
// something other than a frame is disconnected, and whoever waits for its reply is told what
// it sent. A peer that does not read is disconnected when the data kept for it passes a bound,
// or when somebody has waited for it for Patience. For a reply, the caller waits as long as it
// has said, or for Patience.
package ipc
