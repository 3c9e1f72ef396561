// Package pgspool keeps the queue in a PostgreSQL database that several nodes share: one node at a time owns a
// part of the queue, and another takes it over when that node dies. What is promised of the queue is what
// package storage says of every engine; this page says how.
//
// # Tables
//
// "posthaste cluster init" makes the tables, in the schema "posthaste" unless the URL sets search_path.
//
//	version         of these tables
//	node            the nodes, by cluster_node_name, and when each was last seen
//	shard           the parts of the queue: the node that owns each, and its epoch
//	lease           until when it does, by the database's clock
//	segment         which segments there are
//	seg_S_N         segment N of shard S
//	doubtful        deliveries that may have been made and may be repeated, as takeovers found them, for 30 days
//	closed          the epochs that ended in order: what agents had in hand then they still have
//	node_share      the nodes that use limits, and until when they may; limit_share: how much of which limit (package nodeshare)
//	node_note       what nodes tell each other for seconds: what smtpd has counted of clients
//	node_setting    digests of what each node's main.cf sets, but for secrets
//	node_call       what nodes ask of each other, and the answers: a few rows, for minutes
//	node_version    which nodes share the limits that destinations have in common, and until when they say so
//	node_order      what was ordered of nodes that did not answer, until it is carried out; 30 days at most
//	unreadable      shards of which the database does not give all, and why; damaged_index: tables that were read without their index
//	message_number  numbers for queue IDs, which no two nodes share
//
// A segment is a log: rows are added with COPY, and never changed nor removed. A row has a position, a kind, the number
// of its message, a head that says what the index wants to know, a rest that it does not, and a body:
//
//	1 MSG     a message: its state; envelope and recipients; its content if that is at most spool_inline_limit
//	2 STATE   its state again, with an envelope of up to 4 KiB, and what former attempts said
//	3 DONE    recipients with nothing more to be done
//	4 GONE    the message has left the queue
//	5 HANDED  recipients that an agent has in hand
//	6 PART    256 KiB of content that is longer
//
// Head and rest are fields of package pack; record.go has their tags. Head, rest, body and each part have a
// CRC-32C, which the kind, the message's number and the number of the part go into.
//
// # Ownership
//
// A node takes a shard by a transaction that gives the shard the next epoch; it may when the shard is nobody's, or its own,
// or when the lease has run out. Every transaction that writes locks the shard's row with FOR SHARE, and goes on only if
// the node and the epoch are the engine's. A takeover updates that row: so it waits for transactions of the
// former owner, and those that come later find another epoch, and write nothing. Whatever a node believes, it
// can record nothing in a shard that is not its own any more.
//
// The lease lasts 3 seconds (cluster_lease_time) and is renewed each second. It only says when a node stops trying. Before each
// delivery that an agent is about to make, it is recorded that it is: after a takeover, those without a record
// of what came of it are the doubtful ones, and no other mail can arrive twice. An agent is told that it may deliver
// only while the lease, counted from before the renewal by the node's monotonic clock, has a second left.
// The clocks of nodes are compared with nothing.
//
// Each node that is alive may have as many shards as there are, divided by the nodes, those that stand by
// among them, and rounded up. It looks once a second, and takes what is free up to that. New mail goes to the shards of a node in turn,
// to the next one whenever a segment is full: so what a dead node leaves is spread over the others.
//
// The queue is open while a shard is read that was another node's, and what has been read is taken in part by part, and delivered. It is
// read backwards, the newest segment first: so what is recorded of a message after its state is known before the state is, and with it
// whether it is in doubt. That is in the table before the message is given out. While a shard is being read nothing is cleaned in it, and
// its owner does not say that it can change it as a whole (storage.Owner). If the engine ends before that is over, the next one reads
// it from the beginning, and what was in hand is in doubt. A shard that was this node's before, as at a reload, is read before
// the queue is open: agents speak of its mail at once.
//
// Before a segment is read by its index that is compared with the table, since it may lack rows without anybody's knowledge; which segments there are is read without an
// index. Rows that the database does not give are looked for without the index, then left out, and their table is kept. What a lost row may have been about
// is doubtful: its message, or all whose state is older. A shard of which a table cannot be read at all waits: the
// queue is open without the rest of it, new mail goes to others, and it is tried again, each minute in the end.
//
// A node with more than its share for five
// seconds hands some over, and one that is drained hands over all: it gives no leave to deliver any more, waits up
// to 30 seconds for the deliveries under way, gives the shards up, and is opened again with what it keeps. A node that keeps
// something takes new mail until then.
//
// # Writing
//
// One goroutine writes. All that waits when a transaction ends goes into the next, so that under load many messages
// share a commit. synchronous_commit is on in each transaction, whatever the server's setting is: when there is a
// synchronous standby, a message is on it before anybody is told that it is queued. When the answer to
// COMMIT does not come, nobody knows: the engine ends, is opened again, and reads what there is.
//
// # Looking and asking
//
// Any node can look at the parts of all of them, and read their mail, whether the nodes that own them are alive or
// not; it owns nothing by that, and locks nothing for longer than one segment is read. What is to be changed goes to the owner: a
// node writes what it asks for into the table node_call, the other one takes it, carries it out as if it had been asked there, and
// writes the answer. Each call is carried out at most once. One that is not taken within 3 seconds, or 20 while the node says that it
// lives, is deleted again, and is then not carried out. The table has 16 calls of each node at most; a call has up to 256 KiB and the answer
// up to 12 MiB, and no row lives longer than some minutes.
//
// What a node that does not answer was asked to change becomes an order, in node_order: for the node itself, or for a shard, and
// then whoever has the shard carries it out. Orders are carried out in the order in which they were given, each with its row locked,
// and the row is deleted then. If that does not come about, since the session was ended, the order is carried out again; nothing
// that was ordered later comes between. What an order says of messages it says of their queue IDs, so that a second time changes nothing.
// What a command means of a shard that is still being read becomes an order for the shard, too.
//
// # Cleaning
//
// A segment of which less than a quarter is alive is emptied: what is alive is written again at the head, by
// the database itself as far as it is content, and the table is dropped. Fuller ones follow when all segments have more than
// twice what is alive, and eight segments. So rows are never deleted, and there is nothing to vacuum.
//
// The end of a message must not be forgotten before the message: before a segment with GONE records is
// dropped, those of messages that have records in older segments are written again.
//
// # Parameters
//
// cluster_lease_time, cluster_node_name, spool_commit_delay, spool_inline_limit, spool_postgresql_password_file,
// spool_postgresql_url, spool_segment_size, spool_type.
//
// # Diagnostics
//
// "standing by, mail is refused: ...": another node owns the queue. It is no error.
//
// "another node has taken it over": this node's lease had run out, because the node, or the way to the
// database, had stopped for longer than cluster_lease_time.
//
// "N of M shards have been handed over to other nodes": the node had more than its share, or is drained.
//
// "the end of a transaction is not known": the connection was lost. The queue is opened again as soon as the database
// answers.
//
// # Security
//
// Who can write to the tables can forge mail, and who can read them can read it: the account is for the
// mail system alone. Use TLS with sslmode=verify-full unless the database is on this machine. Neither the password
// nor the URL goes into the log.
//
// # Bugs
//
// The index of what is alive is in cleanup's memory, some 100 octets for a message. A reload reads all records of the
// node's shards before it takes mail, so it takes longer the more is queued.
package pgspool
