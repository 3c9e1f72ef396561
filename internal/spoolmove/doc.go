// Package spoolmove is the command "posthaste spool migrate", which moves the queue from one engine to the
// other: from the log on the local disk into a PostgreSQL database, or back.
//
//	posthaste spool migrate [-v] FROM
//
// FROM is the engine that has the mail, log or postgresql. It goes to the one that spool_type names. The mail system
// must be stopped on this machine; other nodes of a cluster may run. -v prints the queue IDs of each message, the former
// one and the new one.
//
// A message keeps all that the queue knows of it: envelope and recipients, content octet for octet, its queue, its
// next attempt, the number of attempts, whether the sender has been warned, what each recipient's last attempt came to,
// who has it already, and what was being delivered when the mail system ended without an end of its own: that is doubtful
// in the new queue as it would have been in the old one. It gets a new queue ID of the same age, since numbers are
// the engine's. The log has a line "requeued as" for each, as after postsuper -r, and -v prints both.
//
// From a database only this node's parts of the queue are moved, which are all when no other node runs. Stop or
// drain the others first for a whole queue.
//
// # How nothing is lost or doubled
//
// The mail moves in steps of some hundred messages. What a step moves is noted in the file "migration" in the spool's
// directory before it begins. Then:
//
//  1. the messages are put on hold in the old queue;
//  2. they are added to the new one, on hold, with their state;
//  3. they are removed from the old queue;
//  4. they are released from hold in the new one, to where they stood.
//
// Each of the four is durable before the next begins, and so nobody delivers a message that is in both queues: neither another
// node that takes over a part of the queue, nor a mail system that is started in between. A move that was
// interrupted is started again by the same command: messages of the noted step that are in both queues go on with 3,
// those in the new one alone with 4, and the others are released where they were, and begin anew. Until then a
// message of that step may stand on hold in either queue: do not release it by hand.
//
// When other nodes have taken over the part of the queue in the database meanwhile in which the step's messages are, they
// are on hold there, and nowhere else. The command says which these are, and they are released with postsuper -H at
// that node.
//
// A message whose record or content is damaged stays where it is. The command names it, and its exit status is 65.
//
// # Parameters
//
// cluster_node_name, mail_owner, queue_minfree, queue_directory, spool_content_directory, spool_exact_doubt,
// spool_inline_limit, spool_postgresql_password_file, spool_postgresql_url, spool_segment_size, spool_size_limit,
// spool_type.
//
// # Security
//
// It is for root and the mail owner, and reads and writes the queue as the mail owner.
//
// # Diagnostics
//
// Exit status 0; 64 wrong usage; 65 some messages are damaged and stay; 69 an engine cannot be opened, or the move was
// interrupted: start it again; 75 the mail system runs; 77 not permitted; 78 wrong configuration.
package spoolmove
