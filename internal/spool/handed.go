package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/queue"
	"posthaste/internal/reuse"
	"posthaste/internal/vfs"
)

// A handing is what the index keeps of a delivery that an agent has in hand. One that is there after
// a crash is in doubt. Its stored form is a field tagHanded of MSG, STATE and HANDED.
type handing = queue.Handing

// Handed records that an agent has these recipients in hand: the delivery may be made
// as soon as this is durable, and is in doubt after a crash until Done, or an
// Outcome in Update, says what came of it. Recipients that are done are left out. nexthop is for
// people, and may be empty.
func (b *Batch) Handed(id mail.QueueID, rcpts []int, nexthop string) int {
	o := b.op(opHanded, id)
	o.rcpts = slices.Clone(rcpts)
	slices.Sort(o.rcpts)
	o.rcpts = slices.Compact(o.rcpts)
	o.nexthop = nexthop[:min(len(nexthop), queue.MaxNexthop)]
	return len(b.ops) - 1
}

// Finish removes a message with which all is done. It is Remove but for what recovery
// says of it: that it was delivered.
func (b *Batch) Finish(id mail.QueueID) int {
	b.op(opFinish, id)
	return len(b.ops) - 1
}

func appendHandings(b []byte, list []handing) []byte {
	for i := range list {
		b = list[i].Append(b, tagHanded)
	}
	return b
}

// handingLen bounds what Handing.Append appends.
func handingLen(h *handing) int64 {
	return int64(3*(1+binary.MaxVarintLen32) + 1 + binary.MaxVarintLen64 + len(h.Nexthop) + binary.MaxVarintLen32*len(h.Rcpts))
}

// handedLen bounds what the handings of message number take in a STATE.
func (x *index) handedLen(number uint64) int64 {
	return handingsLen(x.handedOf(number))
}

func handingsLen(list []handing) (n int64) {
	for i := range list {
		n += handingLen(&list[i])
	}
	return n
}

// decodeHandings calls f for each handing in the fields b.
func decodeHandings(b []byte, f func(handing)) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() != tagHanded {
			continue
		}
		h, err := queue.DecodeHanding(r.Bytes())
		if err != nil {
			return err
		}
		f(h)
	}
	return r.Err()
}

// hand gives list with one more, of the recipients that are pending: what is known of
// these of before is over. The result is list when there are none.
func hand(list []handing, h handing, l *live, more []uint64) (_ []handing, some bool) {
	h.Rcpts = slices.DeleteFunc(h.Rcpts, func(i uint32) bool { return i >= l.nrcpt || isDone(l, more, uint64(i)) })
	if len(h.Rcpts) == 0 {
		return list, false
	}
	return queue.HandOut(list, h), true
}

// handedOf is what agents have in hand of a message.
func (x *index) handedOf(number uint64) []handing {
	if len(x.handed) == 0 {
		return nil
	}
	return x.handed[number]
}

// settleHanded takes back the handings of recipients of l that are done.
func (x *index) settleHanded(l *live) {
	if list := x.handedOf(l.number); len(list) > 0 {
		more := x.more[l.number]
		x.setHanded(l.number, queue.Settled(list, func(i uint32) bool { return isDone(l, more, uint64(i)) }))
	}
}

// setBeside keeps what of a staged message is beside its slot.
func (x *index) setBeside(st *staged) {
	if st.more != nil {
		x.more[st.number] = st.more
	}
	x.setHanded(st.number, st.handed)
}

// setHanded says what agents have in hand of a message.
func (x *index) setHanded(number uint64, list []handing) {
	switch {
	case len(list) > 0:
		x.handed[number] = list
	case len(x.handed) > 0:
		delete(x.handed, number)
	}
}

// checkHanded is checkOp for Handed.
func (e *engine) checkHanded(o *op) (cost int64, err error) {
	h := handing{Nexthop: o.nexthop, Rcpts: make([]uint32, len(o.rcpts))}
	cost = handingLen(&h)
	s, l := e.current(o.number)
	switch {
	case l == nil:
		return headerLen, nil
	case s != nil:
		cost += handingsLen(s.handed)
	default:
		cost += e.idx.handedLen(o.number)
	}
	if limit := e.lim.state / 4; cost > limit { // it goes into every STATE
		return 0, fmt.Errorf("%w: %d bytes for what agents have in hand of message %q, %d are possible", ErrTooLarge, cost, string(o.id), limit)
	}
	return headerLen + alignUp(cost, recAlign), e.checkRcpts(o)
}

// putHanded writes a HANDED record.
func (e *engine) putHanded(s *staged, o *op) {
	h := handing{At: e.now().UnixMicro(), Nexthop: o.nexthop, Rcpts: make([]uint32, 0, len(o.rcpts))}
	for _, i := range o.rcpts {
		h.Rcpts = append(h.Rcpts, uint32(i))
	}
	var some bool
	if s.handed, some = hand(s.handed, h, &s.live, s.more); !some {
		return
	}
	w := &e.w
	w.meta = s.handed[len(s.handed)-1].Append(reuse.Truncated(w.meta), tagHanded)
	w.record(recHANDED, 0, s.number, w.meta, nil)
}

// settleDone takes back the handings of recipients that are done now.
func (s *staged) settleDone() {
	if len(s.handed) > 0 {
		s.handed = queue.Settled(s.handed, func(i uint32) bool { return isDone(&s.live, s.more, uint64(i)) })
	}
}

// settleOutcomes takes back those of recipients of whom it is known what came of it.
func (s *staged) settleOutcomes(list []mail.Outcome) {
	s.handed = queue.Told(s.handed, list)
}

// loadHanded puts what a record says that agents have in hand into the index, in place
// of what is there. Between account -1 and 1.
func (r *recovery) loadHanded(rc *rec, l *live) {
	var list []handing
	if rc.h.typ == recHANDED {
		list = r.e.idx.handed[l.number]
	}
	err := decodeHandings(rc.handed, func(h handing) { list, _ = hand(list, h, l, r.e.idx.more[l.number]) })
	if err != nil {
		r.alarm("%s of message %s: %v", typeNames[rc.h.typ], l.id(), err)
	}
	r.e.idx.setHanded(l.number, list)
}

// applyHanded makes the index say what a HANDED record says.
func (r *recovery) applyHanded(rc *rec) {
	e := r.e
	if e.planted(plantNoHanded) {
		return
	}
	l := e.idx.edit(rc.h.number)
	if l == nil {
		return
	}
	e.account(l, -1)
	r.loadHanded(rc, l)
	e.account(l, 1)
}

// maxInDoubt bounds the messages in RecoveryReport.InDoubt, and in Unanswered.
const maxInDoubt = 1000

func (r *recovery) inDoubt(d Doubt) {
	if len(r.rep.InDoubt) == maxInDoubt {
		r.rep.MoreInDoubt++
		return
	}
	r.rep.InDoubt = append(r.rep.InDoubt, d)
}

// doubt lists the deliveries that may be made again. What agents had in hand is all
// of them when the last process has recorded that before each (Options.ExactDoubt).
// Otherwise there are more: what is sound in the batches that were dropped may say that
// one was made (it must not count, since a batch counts as a whole or not
// at all), and new mail may have been given out.
func (r *recovery) doubt() {
	e := r.e
	r.rep.Exact = r.exact
	seen := map[uint64]bool{}
	for _, n := range slices.Sorted(maps.Keys(e.idx.handed)) {
		l := e.idx.find(n, &e.w.found)
		seen[n] = true
		for i := range e.idx.handed[n] {
			h := &e.idx.handed[n][i]
			h.Reported = true
			r.inDoubt(h.Doubt(l.id()))
		}
	}
	if r.exact {
		return
	}
	r.doubtTorn(seen)
	if r.rep.Clean || e.byQueue[Incoming] == 0 {
		return
	}
	e.idx.each(func(l *live) {
		if l.queue == uint8(Incoming) && !seen[l.number] {
			r.inDoubt(Doubt{ID: l.id(), Kind: DoubtNew})
		}
	})
}

// doubtTorn lists the messages of which a torn batch says that they were delivered.
func (r *recovery) doubtTorn(seen map[uint64]bool) {
	e := r.e
	for _, b := range r.torn {
		for i := range b.recs {
			rc := &b.recs[i]
			l := e.idx.find(rc.h.number, &e.w.found)
			if l == nil || seen[l.number] || !saysMore(rc, l, e.idx.more[l.number]) {
				continue
			}
			seen[l.number] = true
			r.inDoubt(Doubt{ID: l.id(), Kind: DoubtTrace})
		}
	}
}

// InDoubt says, of a spool that is not open, what the next start would report as in
// doubt; more counts those over the bound of 1000. Nothing is written. Of a spool that is open it is what its process
// has in hand.
func InDoubt(fs vfs.FS, dir string) (list []Doubt, more int, err error) {
	e, r, err := view(fs, dir, false, func(string, ...any) {})
	if err != nil {
		return nil, 0, err
	}
	r.doubt()
	return r.rep.InDoubt, r.rep.MoreInDoubt, errors.Join(err, e.closeFiles())
}

// Hands calls yield for what agents have in hand, as is durable, until it returns false: what was
// recorded since the spool was opened. What was recorded before is in Recovery.
func (s *Spool) Hands(yield func(Doubt) bool) {
	for _, d := range s.hands() {
		if !yield(d) {
			return
		}
	}
}

// hands is a copy of what agents have in hand, so that yield does not hold up the writer.
func (s *Spool) hands() (list []Doubt) {
	e := s.e
	e.mu.RLock()
	defer e.mu.RUnlock()
	var found live
	for _, n := range slices.Sorted(maps.Keys(e.idx.handed)) {
		l := e.idx.find(n, &found)
		for i := range e.idx.handed[n] {
			if h := &e.idx.handed[n][i]; l != nil && !h.Reported {
				list = append(list, h.Doubt(l.id()))
			}
		}
	}
	return list
}

// InHand gives those of rcpts that an agent has in hand, as is durable.
func (s *Spool) InHand(id mail.QueueID, rcpts []int) (in []int) {
	e := s.e
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, h := range e.idx.handedOf(id.Number()) {
		for _, i := range rcpts {
			if _, is := slices.BinarySearch(h.Rcpts, uint32(i)); is && i >= 0 {
				in = append(in, i)
			}
		}
	}
	return in
}
