package pgspool

// A plant is a fault that a test plants, to prove that another test would find it. In programs it is
// zero.
type plant struct {
	noEpoch bool // a transaction does not look whether the shard is still ours
	noSync  bool // a transaction is not durable when it is committed
	noLease bool // a delivery begins although the lease has run out
	// Those of the simulation of nodes alone:
	noMargin bool // a delivery begins until the moment at which the lease has run out
	noRecord bool // it is not recorded that a delivery is about to be made
	noWait   bool // others may use this node's shares two seconds before it has stopped to
	twice    bool // a call that has been taken is there to be taken again
	late     bool // what is in doubt of a shard is noted when all of it has been read, and its mail is given out before
}
