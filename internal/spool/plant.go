package spool

// fault is an error planted in the engine by the tests, which must find it: a proof
// that finds nothing has to be shown to be able to. Only a build with the tag
// spoolplant can have one (plant_on.go). In every other, planted is false wherever it
// is called, and the compiler leaves out what depends on it (plant_off.go).
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
	plantNoLinkSync              // no sync of a content file after it has its name
	plantNoChunkSum              // no look at the checksums of a content file's chunks
	plantWriteOn                 // go on writing after a failure
	plantSweepStops              // a sweep leaves all that is left for starts
	plantBootIdle                // BOOT writes no states again when not all fit
	plantOneSize                 // all segments have the present size
	plantFreeHeadless            // a segment without a readable header is free
	plantUnreadFree              // what a start cannot read is empty
	plantHasty                   // an update does without the state that cannot be read for a moment
	plantNoList                  // what a batch has is in no other
	plantNoHanded                // a start passes over what agents had in hand
	plantAnyPlace                // any place for content files is the right one
	plantNewSize                 // the size of segments is the new one, whether or not there is room for them
	plantOtherSize               // a segment of another size is taken for one whose making was not finished
	plantNewIdentity             // without an identity a new one is drawn, whatever is there
	plantNoPatience              // what a start cannot read of a segment is zeros, at once
	plantReusedUnsynced          // no sync of content in a file that is used again
	plantReaderHeader            // a reader wants the header of a segment
	plantUnnamed                 // what is lost is not named
	plantNoReserve               // new mail leaves no segments for the states of all mail
	plantUnreadDamage            // a reader takes what cannot be read for damaged
	plantAnyRecord               // a reader takes the record of any segment's use and any message
	plantForgetHanded            // a STATE forgets what agents have in hand
	numFaults
)
