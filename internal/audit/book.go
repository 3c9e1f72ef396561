package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// book adds a message that has ended to the sums, and looks whether it adds up.
func (a *account) book(m *message) {
	h := a.queue[m.id]
	if h != nil {
		h.ended = true
	}
	rest, f := m.rest(), m.whole()
	switch {
	case m.fate == waiting && m.returns != waiting:
		m.fate, f = m.returns, m.returns
	case m.fate == waiting && len(m.rcpts) == 0 && m.nrcpt == 0: // only its end is in the log
		rest = 0
	case m.fate == waiting && rest > 0:
		m.fate = lost
		n, _ := m.final()
		a.problem(m, kindOutcome, fmt.Sprintf("it was removed, and %d of %d recipients have no outcome", rest, n+rest))
	}
	if h != nil && m.end < a.listed && !(h.other && a.alone()) && m.fate != corrupt && m.fate != requeued {
		a.problem(m, kindStays, "the log says that it has left the queue, and it is in the queue")
	}
	a.repeated(m)
	a.add(m, f, m.fate, rest, m.end)
}

// repeated looks for recipients that have the message twice. That the local agent expands an alias anew is not
// that; nor is it what the log names as doubtful.
func (a *account) repeated(m *message) {
	n := 0
	for i := range m.rcpts {
		if r := &m.rcpts[i]; r.again && !r.local {
			n++
		}
	}
	if n == 0 || !a.concerned(m) {
		return
	}
	a.report.Repeated += n
	if !m.doubt {
		a.problem(m, kindTwice, fmt.Sprintf("%d recipients have it twice, and the log does not say that it is in doubt", n))
	}
}

// concerned says whether some of a message's time lies within what is counted.
func (a *account) concerned(m *message) bool {
	return m.at < a.until && (m.end == 0 || m.end >= a.begin())
}

// begin is what is counted from: since, or the first line.
func (a *account) begin() int64 { return cmp.Or(a.since, a.first) }

// add counts a message: of the rest of its recipients, which have no outcome, left has become at end; 0: not yet.
func (a *account) add(m *message, whole, left fate, rest int, end int64) {
	if !a.concerned(m) {
		return
	}
	n, _ := m.final()
	begin, all := a.begin(), n+rest
	if all == 0 { // of what is discarded at once the log does not say how many recipients there are: one at least
		all, rest = 1, 1
		if left == waiting {
			left = whole
		}
	}
	b := &a.report.Balance
	if end >= a.until || end == 0 {
		whole, left = queued, queued
		if end == 0 && m.fate == lost {
			whole, left = lost, lost
		}
	}
	b.Fates[whole].Messages++
	before := 0
	for i := range m.rcpts {
		switch r := &m.rcpts[i]; {
		case r.fate == waiting:
		case r.at < begin:
			before++
		case r.at >= a.until:
			b.Fates[queued].Recipients++
		default:
			b.Fates[r.fate].Recipients++
		}
	}
	if left == waiting {
		left = delivered
	}
	b.Fates[left].Recipients += rest
	if m.at < begin {
		b.Before.Messages++
		b.Before.Recipients += all - before
	} else {
		b.Accepted.Messages++
		b.Accepted.Recipients += all - before
		if m.origin == unknown && a.alone() && born(m.id) > a.first {
			m.origin = taken
		}
		b.Origins[m.origin].Messages++
		b.Origins[m.origin].Recipients += all - before
	}
}

// finish books what is left, with what the queue knows, and closes the books.
func (a *account) finish() {
	a.finishClosed(1<<63 - 1)
	a.fromQueue()
	for _, e := range a.ended {
		a.short = append(a.short, e.s)
	}
	for _, s := range a.sessions { // they go on
		a.refuse(s)
	}
	for _, s := range a.short {
		a.missed(s)
		a.refuse(s)
	}
	left := make([]*message, 0, len(a.messages))
	for _, m := range a.messages {
		left = append(left, m)
	}
	slices.SortFunc(left, func(x, y *message) int { return cmp.Or(cmp.Compare(x.seen, y.seen), cmp.Compare(x.id, y.id)) })
	for _, m := range left {
		a.last(m)
	}
	a.report.close(a)
}

// fromQueue has the queue say which messages were accepted.
func (a *account) fromQueue() {
	for _, id := range slices.Sorted(maps.Keys(a.queue)) {
		h := a.queue[id]
		m := a.messages[id]
		if m == nil && (h.ended || h.other && a.alone()) {
			continue
		}
		if m == nil {
			m = newMessage(id, h.arrival)
			a.messages[id] = m
			if !h.seen && h.arrival > a.first+logTime && h.arrival < a.listed && h.arrival < a.until && a.first != 0 {
				m.accept(h.arrival)
				a.problem(m, kindSilent, "it is in the queue, and no line of the log is about it")
			}
		}
		m.accept(cmp.Or(min(h.arrival, m.seen), m.seen))
	}
}

// missed looks whether a session was told of more messages than are known.
func (a *account) missed(s *session) {
	n := s.data - s.accepted
	if !s.exact || n <= 0 || !a.looked || len(s.ids) == 0 {
		return
	}
	m := s.ids[len(s.ids)-1]
	if m.left >= a.listed-logTime || m.seen < a.begin() || m.seen >= a.until {
		return
	}
	text := fmt.Sprintf("%s was told that %d messages are queued, and %d are known", s.client, s.data, s.accepted)
	if len(s.ids) > 1 {
		text += fmt.Sprintf("; this is one of %d that are not", len(s.ids))
	}
	a.problem(m, kindVanished, text)
	for range n {
		a.report.Balance.Accepted.Messages++
		a.report.Balance.Accepted.Recipients++
		a.report.Balance.Origins[client].Messages++
		a.report.Balance.Origins[client].Recipients++
		a.report.Balance.Fates[lost].Messages++
		a.report.Balance.Fates[lost].Recipients++
	}
}

// last books a message that has not ended by the log.
func (a *account) last(m *message) {
	if m.at == 0 {
		if !m.marked {
			return // it was not accepted
		}
		m.accept(m.left)
		m.end, m.fate = m.left, discarded
		a.add(m, discarded, discarded, m.rest(), m.end)
		return
	}
	h, rest := a.queue[m.id], m.rest()
	_, done := m.final()
	switch {
	case h != nil && h.other && a.alone():
		a.handOver(m, rest)
		return
	case h != nil:
		if n, _ := m.final(); n+h.pending < m.nrcpt && m.at < a.listed {
			a.problem(m, kindOutcome, fmt.Sprintf("it has %d recipients: %d have an outcome, and %d are in the queue", m.nrcpt, n, h.pending))
		}
		if m.nrcpt == 0 {
			rest = max(rest, h.pending)
		}
	case m.complete(): // it has left, and the line that says so has not come, or not yet
		m.end = done
		a.repeated(m)
		f := m.whole()
		if m.returns != waiting {
			f = m.returns
		}
		a.add(m, f, waiting, 0, done)
		return
	case m.returns != waiting: // the same
		m.end = m.left
		a.add(m, m.returns, m.returns, rest, m.end)
		return
	case m.elsewhere && a.alone():
		a.handOver(m, rest)
		return
	case a.looked && m.at < a.listed:
		m.fate = lost
		a.problem(m, kindLost, lostText(m, rest))
	}
	a.repeated(m)
	a.add(m, queued, queued, rest, 0)
}

// handOver books a message that is another node's to account for.
func (a *account) handOver(m *message, rest int) {
	m.end = m.left
	a.repeated(m)
	a.add(m, handed, handed, rest, m.end)
}

func lostText(m *message, rest int) string {
	if n, _ := m.final(); m.nrcpt > 0 {
		return fmt.Sprintf("it is not in the queue, and %d of %d recipients have no outcome", rest, n+rest)
	}
	return "it is not in the queue, and the log does not say what became of it"
}
