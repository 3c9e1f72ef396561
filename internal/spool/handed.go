package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/reuse"
	"posthaste/internal/vfs"
)

// A handing is a delivery that an agent has in hand: the message may arrive, or have
// arrived, and nothing is recorded yet of what came of it. One that is in the index
// after a crash is in doubt.
type handing struct {
	at      int64    // µs: when it was recorded
	nexthop string   // where to, for people; "": not known
	rcpts   []uint32 // ascending, all pending; not changed once it is in the index
	// It was recorded before this process opened the spool, whose RecoveryReport names it.
	reported bool
}

// maxNexthop bounds Handed's nexthop, in octets.
const maxNexthop = 255

// Tags of one handing, which is a field tagHanded of MSG, STATE and HANDED.
const (
	tagHandedAt   = 'a' // µs
	tagHandedTo   = 'h'
	tagHandedRcpt = 'r' // recipients' indexes: a varint for the difference to the one before
)

// Handed records that an agent has these recipients in hand: the delivery may be made
// as soon as this is durable, and is in doubt after a crash until Done, or an
// Outcome in Update, says what came of it. Recipients that are done are left out. nexthop is for
// people, and may be empty.
func (b *Batch) Handed(id mail.QueueID, rcpts []int, nexthop string) int {
	o := b.op(opHanded, id)
	o.rcpts = slices.Clone(rcpts)
	slices.Sort(o.rcpts)
	o.rcpts = slices.Compact(o.rcpts)
	o.nexthop = nexthop[:min(len(nexthop), maxNexthop)]
	return len(b.ops) - 1
}

// Finish removes a message with which all is done. It is Remove but for what recovery
// says of it: that it was delivered.
func (b *Batch) Finish(id mail.QueueID) int {
	b.op(opFinish, id)
	return len(b.ops) - 1
}

func appendHanding(b []byte, h *handing) []byte {
	return pack.Nested(b, tagHanded, func(b []byte) []byte {
		b = pack.Int(b, tagHandedAt, h.at)
		b = pack.String(b, tagHandedTo, h.nexthop)
		return pack.Nested(b, tagHandedRcpt, func(b []byte) []byte {
			prev := uint32(0)
			for _, i := range h.rcpts {
				b = binary.AppendUvarint(b, uint64(i-prev))
				prev = i
			}
			return b
		})
	})
}

func appendHandings(b []byte, list []handing) []byte {
	for i := range list {
		b = appendHanding(b, &list[i])
	}
	return b
}

// handingLen bounds what appendHanding appends.
func handingLen(h *handing) int64 {
	return int64(3*(1+binary.MaxVarintLen32) + 1 + binary.MaxVarintLen64 + len(h.nexthop) + binary.MaxVarintLen32*len(h.rcpts))
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
		h, err := decodeHanding(r.Bytes())
		if err != nil {
			return err
		}
		f(h)
	}
	return r.Err()
}

func decodeHanding(b []byte) (h handing, err error) {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case tagHandedAt:
			h.at = r.Int()
		case tagHandedTo:
			h.nexthop = r.String()
		case tagHandedRcpt:
			i := uint64(0)
			for v := r.Bytes(); len(v) > 0; {
				d, n := binary.Uvarint(v)
				if n <= 0 || d > maxRcpts || i+d >= maxRcpts {
					return h, pack.ErrMalformed
				}
				i, v = i+d, v[n:]
				h.rcpts = append(h.rcpts, uint32(i))
			}
		}
	}
	return h, r.Err()
}

// without is list without the recipients for which settled is true. list is not changed.
func without(list []handing, settled func(uint32) bool) []handing {
	var out []handing
	for i, h := range list {
		if !slices.ContainsFunc(h.rcpts, settled) {
			if out != nil {
				out = append(out, h)
			}
			continue
		}
		if out == nil {
			out = append(make([]handing, 0, len(list)), list[:i]...)
		}
		if h.rcpts = slices.DeleteFunc(slices.Clone(h.rcpts), settled); len(h.rcpts) > 0 {
			out = append(out, h)
		}
	}
	if out == nil {
		return list
	}
	return out
}

// hand gives list with one more, of the recipients that are pending: what is known of
// these of before is over. The result is list when there are none.
func hand(list []handing, h handing, l *live, more []uint64) (_ []handing, some bool) {
	h.rcpts = slices.DeleteFunc(h.rcpts, func(i uint32) bool { return i >= l.nrcpt || isDone(l, more, uint64(i)) })
	if len(h.rcpts) == 0 {
		return list, false
	}
	list = without(list, func(i uint32) bool { _, is := slices.BinarySearch(h.rcpts, i); return is })
	return append(list[:len(list):len(list)], h), true
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
		x.setHanded(l.number, without(list, func(i uint32) bool { return isDone(l, more, uint64(i)) }))
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
	h := handing{nexthop: o.nexthop, rcpts: make([]uint32, len(o.rcpts))}
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
	h := handing{at: e.now().UnixMicro(), nexthop: o.nexthop, rcpts: make([]uint32, 0, len(o.rcpts))}
	for _, i := range o.rcpts {
		h.rcpts = append(h.rcpts, uint32(i))
	}
	var some bool
	if s.handed, some = hand(s.handed, h, &s.live, s.more); !some {
		return
	}
	w := &e.w
	w.meta = appendHanding(reuse.Truncated(w.meta), &s.handed[len(s.handed)-1])
	w.record(recHANDED, 0, s.number, w.meta, nil)
}

// settleDone takes back the handings of recipients that are done now.
func (s *staged) settleDone() {
	if len(s.handed) > 0 {
		s.handed = without(s.handed, func(i uint32) bool { return isDone(&s.live, s.more, uint64(i)) })
	}
}

// settleOutcomes takes back those of recipients of whom it is known what came of it.
func (s *staged) settleOutcomes(list []mail.Outcome) {
	if len(s.handed) > 0 && len(list) > 0 {
		s.handed = without(s.handed, func(i uint32) bool {
			return slices.ContainsFunc(list, func(o mail.Outcome) bool { return o.Rcpt == int(i) })
		})
	}
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
			h.reported = true
			r.inDoubt(h.doubt(l))
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
			if h := &e.idx.handed[n][i]; l != nil && !h.reported {
				list = append(list, h.doubt(l))
			}
		}
	}
	return list
}

// doubt is h in the words of those who look from outside.
func (h *handing) doubt(l *live) Doubt {
	d := Doubt{ID: l.id(), Nexthop: h.nexthop, At: time.UnixMicro(h.at), Rcpts: make([]int, len(h.rcpts))}
	for i, r := range h.rcpts {
		d.Rcpts[i] = int(r)
	}
	return d
}

// InHand gives those of rcpts that an agent has in hand, as is durable.
func (s *Spool) InHand(id mail.QueueID, rcpts []int) (in []int) {
	e := s.e
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, h := range e.idx.handedOf(id.Number()) {
		for _, i := range rcpts {
			if _, is := slices.BinarySearch(h.rcpts, uint32(i)); is && i >= 0 {
				in = append(in, i)
			}
		}
	}
	return in
}
