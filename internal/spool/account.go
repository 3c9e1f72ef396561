package spool

// account adds (sign 1) or takes away (sign -1) what l occupies.
func (e *engine) account(slot uint32, sign int64) {
	l := e.idx.at(slot)
	if l.conLen > 0 {
		if s := e.segs[l.conSeg]; s != nil {
			s.live += sign * int64(l.conLen)
			if sign > 0 {
				e.linkContent(s, slot)
			} else {
				e.unlinkContent(s, slot)
			}
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
		if sign > 0 {
			e.linkState(s, slot)
		} else {
			e.unlinkState(s, slot)
		}
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

func (e *engine) linkState(s *segment, slot uint32) {
	l := e.idx.at(slot)
	l.statePrev, l.stateNext = 0, s.states
	if s.states != 0 {
		e.idx.at(s.states - 1).statePrev = slot + 1
	}
	s.states = slot + 1
	s.nstates++
}

func (e *engine) unlinkState(s *segment, slot uint32) {
	l := e.idx.at(slot)
	if l.statePrev != 0 {
		e.idx.at(l.statePrev - 1).stateNext = l.stateNext
	} else {
		s.states = l.stateNext
	}
	if l.stateNext != 0 {
		e.idx.at(l.stateNext - 1).statePrev = l.statePrev
	}
	s.nstates--
}

func (e *engine) linkContent(s *segment, slot uint32) {
	l := e.idx.at(slot)
	l.contPrev, l.contNext = 0, s.contents
	if s.contents != 0 {
		e.idx.at(s.contents - 1).contPrev = slot + 1
	}
	s.contents = slot + 1
	s.ncontents++
}

func (e *engine) unlinkContent(s *segment, slot uint32) {
	l := e.idx.at(slot)
	if l.contPrev != 0 {
		e.idx.at(l.contPrev - 1).contNext = l.contNext
	} else {
		s.contents = l.contNext
	}
	if l.contNext != 0 {
		e.idx.at(l.contNext - 1).contPrev = l.contPrev
	}
	s.ncontents--
}
