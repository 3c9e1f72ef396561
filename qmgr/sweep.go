// Going over the whole book, for those who look for mail by its domains.

package qmgr

import (
	"slices"

	"posthaste/qmgr/sched"
)

const (
	// sweepSlips is how many slips are visited in one turn of the loop: under a millisecond's work.
	sweepSlips = 1 << 16
	// maxPassed bounds how many messages that move during a sweep are remembered.
	maxPassed = 1 << 16
)

// A sweep goes over the book, a part in each turn of the loop, and meets each message once. That needs care: a message
// that is tried meanwhile leaves its slip, and comes to another one afterwards, before or behind the place where the
// sweep is.
//
// Why not by the scheduler's records, which stay where they are: it would take a search in the book for each message,
// which costs ten times as much as to look at the slip that comes next in memory.
type sweep struct {
	b    *book
	next int32 // slips before this one have been visited
	// Messages that left such a slip since, or came to one; true: it was visited there.
	passed map[sched.MsgID]bool
	lost   bool // there were more than maxPassed: some of the further ones may be missed or met twice
}

// sweep begins one. Who begins it goes on until end: what moves is noted until then. Those that are
// under way at once are few, as each is somebody's question, and each costs a comparison for a message that moves.
func (b *book) sweep() *sweep {
	w := &sweep{b: b, next: 1, passed: make(map[sched.MsgID]bool)}
	b.sweeps = append(b.sweeps, w)
	return w
}

// step visits the next n slips of the book, or how many there are; more says that there are others. A slip is valid
// during its visit.
func (w *sweep) step(n int32, visit func(p *slip)) (more bool) {
	end := min(w.next+n, w.b.used)
	for ; w.next < end; w.next++ {
		p := w.b.at(w.next)
		if p.num == 0 {
			continue
		}
		// One that was met earlier, and has come here since, is not met again; one that came to an earlier slip in
		// between has been met now.
		if len(w.passed) > 0 {
			if visited, noted := w.passed[p.num]; visited {
				continue
			} else if noted {
				w.passed[p.num] = true
			}
		}
		visit(p)
	}
	return w.next < w.b.used
}

// end ends the sweep, after the last step and in the same turn. It calls others for the messages that have not been
// visited: those that are worked on, and those that were while the sweep passed. They come in no particular order.
func (w *sweep) end(worked map[sched.MsgID]*message, others func(num sched.MsgID)) {
	w.b.sweeps = slices.DeleteFunc(w.b.sweeps, func(o *sweep) bool { return o == w })
	// Most of these were in the book neither at the beginning nor at any time since.
	for num := range worked {
		if !w.passed[num] {
			others(num)
		}
	}
	for num, visited := range w.passed {
		if !visited && worked[num] == nil && w.b.find(num) != nil {
			others(num)
		}
	}
}

// moved notes that the message of slip i leaves it, or has just come to it.
func (b *book) moved(num sched.MsgID, i int32, leaves bool) {
	for _, w := range b.sweeps {
		if _, noted := w.passed[num]; noted || i >= w.next {
			continue
		}
		if len(w.passed) == maxPassed {
			w.lost = true
			continue
		}
		w.passed[num] = leaves
	}
}

// asked is a question about names that is asked once for each. The answers are remembered as long as no number begins
// to stand for another name: then one more answer costs a look into a table.
func (n *names) asked(question func(text string) bool) func(nameID) bool {
	const unknown, yes, no = 0, 1, 2
	var version uint64
	var known []uint8 // by nameID
	return func(id nameID) bool {
		if version != n.version || known == nil {
			version, known = n.version, make([]uint8, len(n.list))
		}
		if known[id] == unknown {
			if known[id] = no; question(n.list[id].text) {
				known[id] = yes
			}
		}
		return known[id] == yes
	}
}
