// Package proto declares every message that our processes exchange. The
// numbers and tags are what a running system agrees on; ipc.Version is raised
// when a change would be misunderstood.
//
//	who asks          whom       what
//	smtpd pickup ...  cleanup    Lease, Submit, Chunk, Abort: queue a message
//	qmgr              cleanup    Attach, Record, Locate: the queue and its log
//	cleanup           qmgr       Entries: what is in the queue (pushed)
//	qmgr              smtp ...   Deliver; the agent pushes Inventory first
//	qmgr              bounce     Notify: tell the sender
//	anyone            rewrite    Rewrite, Resolve; rewrite pushes Stale
//	tools             qmgr       List, Command, Explain, Shape, Select, Override, Nodes
//
// Every message has the stored form of package pack. A reader passes over
// tags that it does not know.
package proto
