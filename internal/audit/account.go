package audit

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"maps"
	"math"

	"posthaste/internal/logread"
	"posthaste/internal/reuse"
)

const (
	// settleTime is how long after a message has left the queue lines about it are expected, by the log's time:
	// processes write them on their own, and on a machine that is overloaded some are late.
	settleTime = 10e6
	// logTime is how much of that is usual. Where the log has only seconds, the order within one is not known.
	logTime = 2e6
	// nodesTime is settleTime where the log is that of several nodes: their clocks differ, and one that was cut off goes on for a
	// while with what another one has taken over.
	nodesTime = 60e6
	// underWay is how long a delivery that was under way when an operator deleted the message may go on.
	underWay = 3600e6
)

// A held is a message as the queue has it.
type held struct {
	arrival int64
	pending int  // recipients with something left to do
	other   bool // another node has it
	seen    bool // the log has something about it
	ended   bool // the log says that it has left the queue
}

// An account is the books. It takes the log line by line, in order. Of messages that have ended it keeps sums
// alone.
type account struct {
	instance     string // syslog_name; "": every one
	since, until int64  // what is counted: from since on, before until
	queue        map[string]*held
	looked       bool  // there is a queue
	listed       int64 // it is as it was then, or shortly before; not earlier lines are not judged by it
	shared       bool  // nodes share the queue
	nodes        map[string]bool
	node         string // whose line it is: the log's family and the host
	seed         maphash.Seed
	messages     map[string]*message
	sessions     map[string]*session
	closing      []*message // have ended, oldest first
	// deleted are messages that an operator has deleted, by the hash of the ID, with the time. An agent may
	// still speak of them.
	deleted     map[uint64]int64
	deletedRoom int        // above this many, those that are too old are left out
	ended       []ending   // sessions, oldest first
	short       []*session // that accepted more than is known
	shorts      int        // of them when they were looked at last
	key         []byte     // scratch
	first, now  int64      // times of lines
	report      Report
}

func newAccount(instance string, since, until int64) *account {
	return &account{instance: instance, since: since, until: until, listed: math.MaxInt64, nodes: make(map[string]bool), seed: maphash.MakeSeed(),
		deleted: make(map[uint64]int64), messages: make(map[string]*message), sessions: make(map[string]*session)}
}

// message finds or makes a message that a line is about.
func (a *account) message(id []byte, at int64) *message {
	m := a.messages[string(id)]
	if m == nil {
		name := string(id)
		m = newMessage(name, at)
		a.messages[name] = m
		if h := a.queue[name]; h != nil {
			h.seen = true
		}
	}
	m.left = at
	return m
}

// alone says whether the log is that of one node which shares its queue with others.
func (a *account) alone() bool { return a.shared && len(a.nodes) < 2 }

// settleTime is how long lines about a message that has left the queue are expected.
func (a *account) settleTime() int64 {
	if len(a.nodes) < 2 {
		return settleTime
	}
	return nodesTime
}

// from notes whose line it is.
func (a *account) from(family string, l *logread.Line) {
	a.key = append(append(append(reuse.Truncated(a.key), family...), ' '), l.Host...)
	if string(a.key) == a.node {
		return
	}
	a.node = string(a.key)
	a.nodes[a.node] = true
}

// line takes the next line, of a log of this family.
func (a *account) line(family string, l *logread.Line) {
	if a.instance != "" && string(l.Instance) != a.instance {
		return
	}
	a.report.Lines++
	a.from(family, l)
	at := l.Time
	if at == 0 {
		at = a.now
	}
	if a.first == 0 {
		a.first = at
	}
	if at > a.now {
		a.now = at
		a.settle(at)
		a.finishClosed(at - a.settleTime())
	}
	if len(l.ID) == 0 {
		a.noMessage(l, at)
		return
	}
	switch program := l.Program; string(program) {
	case "smtpd":
		a.smtpd(l, at)
	case "pickup":
		if bytes.HasPrefix(l.Text, []byte("uid=")) {
			a.message(l.ID, at).origin = local
		}
	case "inject":
		if bytes.HasPrefix(l.Text, []byte("client=")) {
			a.message(l.ID, at).origin = local
		}
	case "cleanup":
		m := a.message(l.ID, at)
		m.marked = m.marked || discards(l.Text)
		a.discard(m, at) // the end of the session may have been faster to be logged
		m.doubt = m.doubt || bytes.HasPrefix(l.Text, []byte("in doubt: "))
		if bytes.HasPrefix(l.Text, []byte("withdrawn: ")) {
			m.doubt = true
			m.accept(at)
			a.close(m, at, withdrawn)
			a.noteDeleted(l.ID, at)
		}
	case "qmgr":
		a.qmgr(l, at)
	case "bounce", "defer", "trace":
		if id, ok := l.Notice(); ok {
			m := a.message(l.ID, at)
			m.accept(at)
			m.told = m.told || bytes.HasPrefix(l.Text, []byte("sender delivery status "))
			a.begins(id, at, notice)
		}
	case "postsuper":
		a.operator(l, at)
	default:
		a.delivery(l, at)
	}
}

// noMessage takes a line that begins with no queue ID.
func (a *account) noMessage(l *logread.Line, at int64) {
	if string(l.Program) == "smtpd" {
		a.smtpd(l, at)
		return
	}
	if p, ok := bytes.CutPrefix(l.Text, []byte(`saving corrupt message "`)); ok && string(l.Program) == "qmgr" {
		if id, _, ok := bytes.Cut(p, []byte(`"`)); ok {
			m := a.message(id, at)
			m.accept(at)
			a.close(m, at, corrupt)
		}
	}
	if n, _, ok := bytes.Cut(l.Text, []byte(" log lines were lost: ")); ok {
		lines := 0
		fmt.Sscan(string(n), &lines)
		a.report.Missing += lines
	}
}

// begins notes a message that another one has given rise to.
func (a *account) begins(id []byte, at int64, o origin) {
	m := a.message(id, at)
	m.origin = o
	m.accept(at)
}

// qmgr takes a line of the queue manager about a message.
func (a *account) qmgr(l *logread.Line, at int64) {
	if string(l.Text) == "removed" {
		m := a.message(l.ID, at)
		m.accept(at)
		a.close(m, at, waiting)
		return
	}
	if active, ok := l.Active(); ok {
		m := a.message(l.ID, at)
		m.accept(at)
		m.nrcpt, m.null = max(m.nrcpt, active.NRcpt), len(active.From) == 0
		m.elsewhere = false
		return
	}
	if l.Elsewhere() {
		m := a.message(l.ID, at)
		m.accept(at)
		m.elsewhere, a.shared = true, true
		return
	}
	if forced, ok := l.Expired(); ok {
		m := a.message(l.ID, at)
		m.accept(at)
		if m.returns = expired; forced {
			m.returns = returned
		}
		return
	}
	if id, ok := l.Requeued(); ok {
		m := a.message(l.ID, at)
		m.accept(at)
		a.close(m, at, requeued)
		if id != nil {
			a.begins(id, at, further)
		}
		return
	}
	a.delivery(l, at)
}

// operator takes a line of postsuper about a message.
func (a *account) operator(l *logread.Line, at int64) {
	switch string(l.Text) {
	case "removed":
		m := a.message(l.ID, at)
		m.accept(at)
		a.close(m, at, deleted)
		a.noteDeleted(l.ID, at)
	case "placed on hold", "released from hold", "expired":
		a.message(l.ID, at).accept(at)
	}
}

// noteDeleted keeps the ID for as long as deliveries may go on.
func (a *account) noteDeleted(id []byte, at int64) {
	a.deleted[maphash.Bytes(a.seed, id)] = at
	if len(a.deleted) > a.deletedRoom {
		maps.DeleteFunc(a.deleted, func(_ uint64, when int64) bool { return at-when >= underWay })
		a.deletedRoom = 2*len(a.deleted) + 1024
	}
}

// delivery takes a line that says what came of a recipient, if it does.
func (a *account) delivery(l *logread.Line, at int64) {
	d, ok := l.Delivery()
	if !ok {
		return
	}
	if when, ok := a.deleted[maphash.Bytes(a.seed, l.ID)]; ok && a.messages[string(l.ID)] == nil && at-when < underWay {
		return
	}
	m := a.message(l.ID, at)
	m.accept(at)
	f := waiting
	switch string(d.Status) {
	case "sent":
		f = delivered
		if string(l.Program) == "discard" || string(l.Program) == "qmgr" { // what qmgr itself ends is a report that nobody wants
			f = discarded
		} else if id, ok := d.Forwarded(); ok {
			f = forwarded
			a.begins(id, at, further)
		}
	case "bounced":
		f = bounced
	case "deliverable", "undeliverable":
		f = probed
	case "deferred", "SOFTBOUNCE":
	default:
		return
	}
	m.outcome(a.seed, d.To, d.OrigTo, f, at, string(l.Program) == "local")
}

// close notes that a message has left the queue. The first word counts: what an operator has removed is not delivered by that.
func (a *account) close(m *message, at int64, f fate) {
	if m.end != 0 {
		return
	}
	m.end, m.fate = at, f
	a.closing = append(a.closing, m)
}

// finishClosed books the messages that have ended before a time.
func (a *account) finishClosed(before int64) {
	n := 0
	for n < len(a.closing) && a.closing[n].end < before {
		m := a.closing[n]
		a.closing[n] = nil
		n++
		delete(a.messages, m.id)
		a.book(m)
	}
	if n > 0 {
		a.closing = a.closing[n:]
		if cap(a.closing) > 1024 && len(a.closing) < cap(a.closing)/4 {
			a.closing = append([]*message(nil), a.closing...)
		}
	}
}
