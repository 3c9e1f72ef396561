// Package nodesim runs several nodes that share a queue in one process, in virtual time, and has everything go wrong between
// them that a seed says: to nodes, to their database, and to the network. Then it asks whether a promise was broken.
//
// A run is a seed. The seed draws how many nodes and shards there are, letters, next hops with their limits, the delays of
// network and disks, and faults. After some 20 seconds of virtual time nothing goes wrong any more, and the queue must become
// empty.
//
// The same seed is the same run. Whatever the world does to a program happens at an instant of its own, so that what runs at one
// instant is what one event has caused; those that it wakes together go on one after the other, each a little later, as the seed
// says (run.turn). So it does not matter that Go gives timers of one instant a random order, and so maps, and cases of a
// select that are ready. On a busy machine Go's scheduler may still have goroutines of one event change places, in one run of
// some hundreds (TestSame).
//
// # What is real, and what is simulated
//
// The engine is package pgspool as it is, with all that it decides: who owns which shard with which epoch, leases and their
// margins, takeovers, in which a shard is read in parts of a few rows, the shard that new mail goes to, balance, drain, what is in
// doubt, when the queue is opened again, what nodes ask of each other (node_call), leave for each other
// (node_order) and tell each other (node_note). So is package nodeshare, with its exchange in the database. They speak to their database with pgx, over connections in memory, in PostgreSQL's protocol.
// Two things differ: values are sent as text, and the rows of COPY beside the statement (see pgspool.Simulate).
//
// The database is a model: it knows the statements that pgspool sends, and no others. A new one in pgspool has to be added to
// statements.go; a run says so. It has transactions at READ COMMITTED, in which a statement sees what was committed before
// it, and its own transaction's changes; locks of rows, shared and alone, with lock_timeout and deadlocks; row conditions that are
// looked at again after a wait; sessions that are ended from outside, or because they are idle in a transaction;
// requests to cancel; a disk that is full. Tables of a later version may be missing. NOTIFY, which only saves a wait, is not
// modelled. A commit takes its time to the host's disk and to that of the standby, is seen by nobody meanwhile, and
// may go on when its client is gone. When the primary dies, its disk has what was on its way to the standby, and the
// standby has not. The standby's clock is another.
//
// The network is a pipe for each direction, which delivers in order, after a time, and keeps what is sent while the way is
// cut, in one direction or both, until it is mended: so a COMMIT may arrive long after its node has given up. Connections to a
// host that is gone end after ten seconds at most, as pgspool has the system end them.
//
// Around the engine is the least that cleanup and the queue manager do: open the queue whenever it is not, name what is
// in doubt, begin deliveries within the node's shares when they have leave, and record outcomes (proc.go); orders and notes
// (order.go); limits of a day, and rates (limit.go). What a node has spent of those is on its disk; after a kill some of it is missing
// there, or all. Services as they are run in package simtest, on one node.
//
// # Faults
//
// A node's processes are killed, with their machine or without, or all nodes' at once; they are stopped, for longer than
// a lease as well, and in the middle of a transaction, and go on; a node is cut off from the database, to it, from it, or both, or
// one of its connections hangs; connections end at COMMIT, before it or before its answer; a node's clock is set forth or
// back by hours, and set back; it is reloaded, or drained. The primary dies and comes back, or the standby is promoted; the standby
// does not follow for seconds; somebody keeps the rows of the leases locked; the primary's disk is full; its clock is set
// by seconds, and set back; a node dies that is taking over what another has left. In some runs there is a
// midnight, or all nodes begin with an older version, and are upgraded one after the other. What stopped processes do is stopped
// where they send, receive or begin a delivery. The monotonic clock of a node does not stop.
//
// # What must hold
//
//   - Each delivery of acknowledged mail has been made in the end.
//   - What arrives more than once was found to be doubtful so often, less one, and nothing is doubtful that no agent asked for.
//     A node itself names what its agents had in hand when they were killed while, after a stop in order, nobody had the queue.
//   - When an agent gets leave to deliver, and when it begins, up to 0.9 s later, unless its node was stopped meanwhile, the shard
//     is its node's, and the lease has not run out by the primary's clock.
//   - What becomes part of a segment was written by the shard's owner, with the shard's epoch.
//   - Of a next hop no more deliveries are under way than its limit, but for those that were begun before their
//     node's shares were last not good.
//   - No more deliveries begin of a day, as their nodes count days, than its limit, whatever happens.
//   - In the time of a rate no more deliveries begin than it says, and two for each node.
//   - An order is carried out at most once; and if whoever gave it was told that it is, or that it is not and will not be, that is so.
//   - An order that was left for a node that does not answer, or for a shard's owner, is carried out in the end; not again when it
//     is forgotten, and not after a later one for the same. One that was said not to be left never is.
//   - Nobody is told a note of its own, and who has had the queue open for long, while nothing was wrong, has the others' last notes.
//   - Five seconds after a node's death others have its shards, open, if nothing else is wrong.
//   - While a node is drained, and there is a shard for each node, a letter finds a node that takes it.
//
// For ten seconds after the database's clock has been set, leases may have run out by it that are good for their nodes. Then what
// is said of leave, of deliveries at a time and of rates does not hold; all else does.
//
// Eight faults can be planted in the engine: the epoch is not looked at, nor the lease; the lease is used without its margin; it is
// not recorded that a delivery is about to be made; commits are not synchronous; shares are given to others while their holder
// still uses them; a call is taken twice; mail of a dead node is given out before what is
// doubtful of it is listed. TestPlanted holds that seeds find each.
package nodesim
