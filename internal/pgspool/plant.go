package pgspool

// A plant is a fault that a test plants, to prove that another test would find it. In programs it is
// zero.
type plant struct {
	noEpoch bool // a transaction does not look whether the shard is still ours
	noSync  bool // a transaction is not durable when it is committed
	noLease bool // a delivery begins although the lease has run out
}
