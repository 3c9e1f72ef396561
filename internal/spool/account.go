package spool

// account adds (sign 1) or takes away (sign -1) what l occupies.
func (e *engine) account(l *live, sign int64) {
	if l.conLen > 0 {
		if s := e.segs[l.conSeg]; s != nil {
			s.live += sign * int64(l.conLen)
			s.ncontents += int(sign)
		}
		e.liveSum += sign * int64(l.conLen)
	}
	if s := e.segs[l.refSeg]; s != nil {
		if l.refSeg != l.conSeg || l.refOff != l.conOff || l.conLen == 0 {
			s.live += sign * int64(l.refLen)
			s.stateLive += sign * int64(l.refLen)
			e.stateSum += sign * int64(l.refLen)
			e.liveSum += sign * int64(l.refLen)
		}
		s.nstates += int(sign)
	}
	e.metaSum += sign * e.stateCost(l)
	e.byQueue[l.queue] += int(sign)
	if l.flags&msgBig != 0 {
		e.bigSum += sign * e.idx.big[l.number]
	}
}

// stateCost is about what a STATE of l takes.
func (e *engine) stateCost(l *live) int64 {
	m := int64(l.refMeta)
	if m > int64(e.lim.copyEnv) && l.refLen == l.conLen {
		m = 64
	}
	return headerLen + m + 32 + e.idx.handedLen(l.number)
}

// removeStates removes the messages whose newest record is in such segments.
func (e *engine) removeStates(old func(*segment) bool) {
	var room [leafLen]live
	for _, s := range sorted(e.segs) {
		for from := uint64(0); s.nstates > 0 && old(s); {
			list, next, more := e.idx.page(from, inStates(s.file), &room)
			if !more {
				break
			}
			for i := range list {
				e.account(&list[i], -1)
				e.idx.remove(list[i].number)
			}
			e.idx.tidy()
			from = next
		}
	}
}
