package spool

// fault is an error planted in the engine by the tests, which must find it:
// a proof that finds nothing has to be shown to be able to. It is 0, and
// nothing sets it, outside the tests.
type fault uint8

const (
	_                      fault = iota
	plantAckEarly                // acknowledge before the sync
	plantNoSegno                 // take records of a segment's former life
	plantNoChecksum              // do not look at the checksum of content
	plantAppendOld               // append to a segment of the process before
	plantRecycleLive             // recycle a segment in which something lives
	plantFreeEarly               // free before the sync that makes it free
	plantNoRewrite               // do not write the tail again after recovery
	plantRetrySync               // retry after a failed sync
	plantNoDirSyncCreate         // no directory sync when a segment is made
	plantNoDirSyncStart          // no directory sync at start
	plantNotAtomic               // take the sound half of a torn batch
	plantForgetDone              // a STATE forgets who was delivered
	plantStopAtBad               // recovery stops at the first bad batch
	plantCopyNoSync              // copy forward without sync before the old segment goes
	plantNoFirst                 // no mark for the first record of a batch
	plantNoVoid                  // BOOT does not void the tail before it
	plantSameID                  // start numbers again at every start
	plantNoSalt                  // salt 0 at every use
	plantRecyclePromised         // recycle what the recovery point has not passed
	plantRecycleUnpromised       // at start, go by what is not durable
	plantBootTwoBatches          // BOOT and the tail in two batches
	plantNoDirSyncBig            // no directory sync for a content file
	plantSpendEarly              // use a content file again before the sync that ends its message
	numFaults
)

var faultNames = [numFaults]string{
	plantAckEarly: "ack before sync", plantNoSegno: "no segment number check", plantNoChecksum: "no content checksum",
	plantAppendOld: "append to an old segment", plantRecycleLive: "recycle a live segment",
	plantFreeEarly: "free before sync", plantNoRewrite: "no tail rewrite", plantRetrySync: "retry after failed sync",
	plantNoDirSyncCreate: "no directory sync at creation", plantNoDirSyncStart: "no directory sync at start",
	plantNotAtomic: "batch not atomic", plantForgetDone: "state forgets done", plantStopAtBad: "stop at the first bad batch",
	plantCopyNoSync: "copy without sync", plantNoFirst: "no first mark", plantNoVoid: "no void", plantSameID: "same id twice",
	plantNoSalt: "no salt", plantRecyclePromised: "recycle inside the window", plantRecycleUnpromised: "recycle on an unpromised word",
	plantBootTwoBatches: "boot in two batches", plantNoDirSyncBig: "no directory sync for a big file",
	plantSpendEarly: "spend before sync",
}

func (f fault) String() string { return faultNames[f] }
