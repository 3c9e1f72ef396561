package audit

import (
	"hash/maphash"

	"posthaste/internal/mail"
)

// A fate is what became of a message, or of a recipient.
type fate uint8

// The fates, in the order in which reports have them. Of a message it is the last of these that
// became of some recipient of it, but for those behind corrupt, which are the whole message's.
const (
	delivered fate = iota
	forwarded      // a new message carries it on
	discarded      // by a rule, a filter, or the discard transport
	probed         // it was only to find out whether an address is good
	bounced        // refused for good, which its sender is told
	expired        // its time was over, which its sender is told
	returned       // an operator had its time be over
	requeued       // by an operator: it goes on under a new queue ID
	deleted        // by an operator
	corrupt        // damaged, and set aside
	withdrawn      // its client waited, and was not told that it is queued
	handed         // another node has it, and the log is that of one node
	queued         // it is in the queue
	lost           // nobody knows
	numFates

	waiting fate = 255 // of a recipient: nothing has become of it
)

var fateNames = [numFates]string{"delivered", "forwarded", "discarded", "probed", "bounced", "expired", "returned", "requeued", "deleted", "corrupt", "withdrawn", "handed over", "queued", "lost"}

// An origin is where a message comes from.
type origin uint8

const (
	unknown origin = iota // its beginning is not in the log
	client                // a session
	local                 // a program on this machine
	notice                // a report that the mail system has made
	further               // what was forwarded, and what was queued again
	taken                 // another node has accepted it, and the log is that of one node
	numOrigins
)

var originNames = [numOrigins]string{"other", "clients", "local", "notices", "forwarded", "taken over"}

// A rcpt is a recipient, or what one was expanded to.
type rcpt struct {
	key, to, orig uint64 // hashes of the addresses: both, that of the line, the one before rewriting and aliases
	fate          fate
	again         bool // it has got the message more than once
	local         bool // it was expanded by the local agent, which does that anew with each attempt
	at            int64
}

// A message is what is known of one queue ID. Times are microseconds since 1970.
type message struct {
	id        string
	origin    origin
	seen      int64 // its first line
	at        int64 // it was accepted; 0: that is not known yet
	end       int64 // it left the queue; 0: it has not
	left      int64 // its last line
	nrcpt     int   // recipients when it was queued; 0: not known
	null      bool  // from the null sender
	told      bool  // its sender was told what has become of it
	doubt     bool  // the log says that some may get it twice
	marked    bool  // it is to be discarded, if it is accepted
	returns   fate  // expired or returned: what is left of it is that when it ends; else waiting
	fate      fate  // of what is left of it since end
	rcpts     []rcpt
	places    map[uint64]int // of many recipients in rcpts, by key
	elsewhere bool           // the node that had it last does not have it any more
	session   *session       // of an origin that is a client, while that is not settled
}

// many is how many recipients are searched one by one.
const many = 16

func newMessage(id string, seen int64) *message {
	return &message{id: id, seen: seen, returns: waiting, fate: waiting}
}

// born is the time that a long queue ID tells; 0: it is a short one.
func born(id string) int64 {
	t, _, err := mail.QueueID(id).Parse()
	if err != nil {
		return 0
	}
	return t.UnixMicro()
}

// accept notes that the message was accepted, not later than at.
func (m *message) accept(at int64) {
	if m.at != 0 {
		return
	}
	m.at = at
	if b := born(m.id); m.origin == unknown && b != 0 {
		m.at = min(m.at, b)
	}
	if s := m.session; s != nil {
		s.accepted++
		s.drop(m)
		m.session = nil
	}
}

// outcome notes what became of a recipient at a time. It is waiting when it is to be tried again.
func (m *message) outcome(seed maphash.Seed, to, orig []byte, f fate, at int64, byLocal bool) {
	r := m.rcpt(seed, to, orig)
	r.local = r.local || byLocal
	switch {
	case f == waiting:
	case r.fate == waiting:
		r.fate, r.at = f, at
	case r.fate == delivered && f == delivered:
		r.again = true
	case f == delivered: // soft_bounce was turned on and off, or the like
		r.fate, r.at = f, at
	}
}

// rcpt finds or makes a recipient.
func (m *message) rcpt(seed maphash.Seed, to, orig []byte) *rcpt {
	r := rcpt{to: maphash.Bytes(seed, to), fate: waiting}
	if r.orig = r.to; len(orig) > 0 {
		r.orig = maphash.Bytes(seed, orig)
	}
	r.key = r.to*31 + r.orig
	if m.places != nil {
		if i, ok := m.places[r.key]; ok {
			return &m.rcpts[i]
		}
		m.places[r.key] = len(m.rcpts)
	} else {
		for i := range m.rcpts {
			if m.rcpts[i].key == r.key {
				return &m.rcpts[i]
			}
		}
		if len(m.rcpts) == many {
			m.places = make(map[uint64]int)
			for i := range m.rcpts {
				m.places[m.rcpts[i].key] = i
			}
			m.places[r.key] = len(m.rcpts)
		}
	}
	m.rcpts = append(m.rcpts, r)
	return &m.rcpts[len(m.rcpts)-1]
}

// final is how many recipients have an outcome, and the time of the last one.
func (m *message) final() (n int, last int64) {
	for i := range m.rcpts {
		if m.rcpts[i].fate != waiting {
			n++
			last = max(last, m.rcpts[i].at)
		}
	}
	return n, last
}

// open is how many recipients were to be tried again, and were not. One that an alias was made of since
// has the outcomes of what it was made.
func (m *message) open() (n int) {
	var done map[uint64]bool
	for i := range m.rcpts {
		if m.rcpts[i].fate != waiting {
			continue
		}
		if done == nil {
			done = make(map[uint64]bool)
			for j := range m.rcpts {
				if m.rcpts[j].fate != waiting {
					done[m.rcpts[j].to], done[m.rcpts[j].orig] = true, true
				}
			}
		}
		if r := &m.rcpts[i]; !done[r.to] && !done[r.orig] {
			n++
		}
	}
	return n
}

// rest is how many recipients have no outcome. An alias of whose success the sender is told counts among the
// recipients of the message, though it was replaced when that came.
func (m *message) rest() int {
	n, _ := m.final()
	missing := m.nrcpt - n
	if missing > 0 && m.told {
		missing -= min(missing, m.aliases())
	}
	return max(missing, m.open(), 0)
}

// aliases is how many addresses were replaced by others.
func (m *message) aliases() int {
	origs := make(map[uint64]bool)
	for i := range m.rcpts {
		if r := &m.rcpts[i]; r.orig != r.to {
			origs[r.orig] = true
		}
	}
	return len(origs)
}

// complete says whether all recipients have an outcome.
func (m *message) complete() bool {
	n, _ := m.final()
	return n > 0 && m.rest() == 0
}

// whole is the message's own fate when it has ended.
func (m *message) whole() fate {
	if m.fate != waiting {
		return m.fate
	}
	f := delivered
	for i := range m.rcpts {
		if g := m.rcpts[i].fate; g != waiting && (i == 0 || g > f) {
			f = g
		}
	}
	return f
}
