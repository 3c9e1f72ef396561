//go:build spoolplant

package spool

// planter says which fault is planted, 0 for none.
type planter struct{ fault }

func plantOf(f fault) planter { return planter{f} }

func (p planter) planted(f fault) bool { return p.fault == f }

var faultNames = [numFaults]string{
	plantAckEarly: "ack before sync", plantNoSegno: "no segment number check", plantNoChecksum: "no content checksum",
	plantAppendOld: "append to an old segment", plantRecycleLive: "recycle a live segment",
	plantFreeEarly: "free before sync", plantNoRewrite: "no tail rewrite", plantRetrySync: "retry after failed sync",
	plantNoDirSyncCreate: "no directory sync at creation", plantNoDirSyncStart: "no directory sync at start",
	plantNotAtomic: "batch not atomic", plantForgetDone: "state forgets done", plantStopAtBad: "stop at the first bad batch",
	plantCopyNoSync: "copy without sync", plantNoFirst: "no first mark", plantNoVoid: "no void", plantSameID: "same id twice",
	plantNoSalt: "no salt", plantRecyclePromised: "recycle inside the window", plantRecycleUnpromised: "recycle on an unpromised word",
	plantBootTwoBatches: "boot in two batches", plantNoDirSyncBig: "no directory sync for a big file",
	plantSpendEarly: "spend before sync", plantNoLinkSync: "no sync after link",
	plantNoChunkSum: "no checksum of chunks", plantWriteOn: "write on after a failure",
	plantSweepStops: "sweep stops early", plantBootIdle: "boot moves no states",
	plantOneSize: "one size", plantFreeHeadless: "no header, no mail", plantUnreadFree: "unread is empty",
	plantHasty: "no wait for a state", plantNoList: "no list",
	plantNoHanded: "nothing was in hand", plantAnyPlace: "any place", plantNewSize: "no room for the new size",
	plantOtherSize: "another size is unfinished", plantNewIdentity: "new identity", plantNoPatience: "unread is zeros at once",
	plantReusedUnsynced: "no sync of a file used again", plantReaderHeader: "a reader wants the header",
	plantUnnamed: "lost without a name", plantNoReserve: "nothing kept for states",
	plantUnreadDamage: "unread is damaged", plantAnyRecord: "any record", plantForgetHanded: "state forgets what is in hand",
}

func (f fault) String() string { return faultNames[f] }

// plantFreeEarly has segments free before it is durable that they are.
func (e *engine) plantFreeEarly() {
	for i := range e.w.list {
		if st := &e.w.list[i]; st.gone && !st.added {
			l := e.idx.find(st.number, &e.w.found)
			e.account(l, -1)
			for _, s := range e.segs {
				e.reap(s)
			}
			e.account(l, 1)
		}
	}
}

// plantAppendOld goes on in the last segment of the process before.
func (e *engine) plantAppendOld() {
	var top *segment
	for _, s := range e.segs {
		if s.segno != 0 && (top == nil || s.segno > top.segno) {
			top = s
		}
	}
	if top == nil || top.state != segClosed {
		return
	}
	var end int64 = headRoom
	sc := scanner{w: window{f: top.f, size: top.size}, s: top, key: e.key}
	sc.scan(func(b *logBatch) bool {
		if !b.bad {
			last := &b.recs[len(b.recs)-1]
			end = max(end, alignUp(int64(last.off)+last.h.span(), blockSize))
		}
		return true
	})
	top.state, top.off = segOpen, end
	e.head = top
}
