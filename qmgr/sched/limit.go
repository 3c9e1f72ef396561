package sched

// Recipients are read into memory in batches. How many a message may have
// there is its limit: qmgr_message_recipient_minimum, and what its jobs were
// given out of their transports' pools. The oldest job of a transport that
// is not fully read has all that is left in the pool.
//
// Check verifies the bounds that follow.

// maxRead is the most recipients read at once, for the sake of latency.
const maxRead = 5000

// spare is how many more recipients of m may be read.
func (m *message) spare() int { return m.rcptLimit - m.rcptCount }

// grant gives j n slots of its transport's pool.
func (j *job) grant(n int) {
	j.rcptLimit += n
	j.msg.rcptLimit += n
	j.tport.rcptUnused -= n
}

// giveBack returns to the pool the slots that j and its message do not need
// for what is in memory or being read.
func (j *job) giveBack() {
	n := min(j.rcptLimit-j.rcptCount, j.msg.rcptLimit-j.msg.rcptCount-j.msg.reserved)
	if n > 0 {
		j.grant(-n)
	}
}

// moveLimits returns j's spare slots to the pool, and the pool to the oldest
// job that is not fully read.
func (s *Scheduler) moveLimits(j *job) {
	t := j.tport
	j.giveBack()
	if t.rcptUnused > 0 && t.unread.len() > 0 {
		next := t.unread.s[0].v
		next.grant(t.rcptUnused)
		s.refill(next.msg, t)
	}
}

// refill reads more recipients of m when there is room for many, or for some
// and the last time is long ago. t is the transport whose limits apply.
func (s *Scheduler) refill(m *message, t *transport) {
	n := m.spare()
	if m.unread == 0 || m.loading || m.refs == 0 || n <= 0 || m.cmd != cmdNone {
		return
	}
	due := m.readAt + micros(t.cfg.RefillDelay)
	if n >= t.cfg.RefillLimit || s.now >= due {
		s.read(m, n)
	} else if m.timer.pos == 0 {
		s.startTimer(&m.timer, due)
	}
}

// refillDue is the end of recipient_refill_delay.
func (s *Scheduler) refillDue(m *message) {
	if m.unread > 0 && !m.loading && m.refs > 0 && m.spare() > 0 && m.cmd == cmdNone {
		s.read(m, m.spare())
	}
}

// readForJob reads more recipients when j has nothing left to select.
func (s *Scheduler) readForJob(j *job) {
	m := j.msg
	if j.waiting == 0 && m.unread > 0 && !m.loading && m.refs > 0 && m.spare() > 0 && m.cmd == cmdNone {
		s.read(m, m.spare())
	}
}

// read asks for up to n more recipients of m.
func (s *Scheduler) read(m *message, n int) {
	n = min(n, maxRead, m.unread)
	m.loading = true
	m.reserved = n
	s.reserved += n
	s.stopTimer(&m.timer)
	s.emit(Effect{Kind: EffectLoad, ID: m.id, From: m.next, Max: n, First: m.origin != 0, Origin: m.origin,
		Attempts: int(s.record(m).attempts), Warned: s.record(m).flags&FlagWarned != 0})
	m.origin = 0
}
