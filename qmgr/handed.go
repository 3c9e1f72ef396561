// What is recorded of deliveries under way without spool_exact_doubt, so that after a
// crash the log can say which messages may have been delivered. It must cost next to
// nothing, as every delivery passes through here.

package qmgr

import (
	"slices"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
)

// A handOut is a delivery that an agent has been ordered to make. That it goes on is recorded with
// the next changes that go to cleanup, if it is not over by then: so the report of a crash names what may
// have been delivered, at next to no cost. Of new mail nothing need be recorded for that: it is
// given out as soon as it is there. It is not exact; spool_exact_doubt is.
type handOut struct {
	id mail.QueueID
	d  *delivery
}

// maxHandOuts bounds the recipients that go with one request, and the deliveries that
// wait for one. What is beyond is missing in the report of a crash.
const maxHandOuts = 1000

// handOut notes a delivery that begins.
func (r *recorder) handOut(id mail.QueueID, d *delivery) {
	if len(r.handed) < maxHandOuts && len(d.index) <= maxHandOuts {
		r.handed = append(r.handed, handOut{id, d})
	}
}

// handedOut puts the deliveries that still go on before the changes that are about to be
// sent. It must be called just before these are, since the positions in r.at are wrong
// afterwards.
func (r *recorder) handedOut() {
	var ops []proto.Op
	for i := range r.handed {
		h := &r.handed[i]
		if h.d.sent && r.s.entries[h.d.entry] == h.d {
			ops = append(ops, proto.Op{ID: h.id, Handed: slices.Clone(h.d.index), Nexthop: h.d.nexthop})
		}
	}
	clear(r.handed)
	r.handed = reuse.Truncated(r.handed)
	if len(ops) > 0 {
		r.ops = slices.Insert(r.ops, 0, ops...)
	}
}

// lost records that a delivery may have been made, of which nobody will say any more what
// came.
func (r *recorder) lost(d *delivery) {
	m := r.s.message(d.num)
	if m == nil {
		return
	}
	if len(r.ops) == 0 {
		r.since = r.s.now
	}
	r.ops = append(r.ops, proto.Op{ID: m.id, Handed: slices.Clone(d.index), Nexthop: d.nexthop, Lost: true})
}
