package agent

import (
	"fmt"
	"slices"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
)

const (
	// toldSpan and toldSize bound what is kept, and forgotten, together.
	toldSpan = time.Second
	toldSize = 64 << 10
)

// told are the outcomes that have been reported of late, or could not be, by
// time. A busy agent has tens of thousands of them, so they are kept packed:
// a fraction of the memory, nothing in it for the garbage collector to look at,
// and forgotten by the thousand.
type told struct {
	parts []toldPart
	n     int    // outcomes in all
	spare []byte // the memory of a part that was forgotten, for the next
}

// A toldPart is what was told over one connection within a short time.
type toldPart struct {
	conn        *ipc.Conn // nil: nobody has heard it
	first, last time.Time
	n           int
	packed      []byte // the proto.Finished as a proto.Inventory has them, one after another
}

// add remembers an outcome.
func (t *told) add(now time.Time, conn *ipc.Conn, fin *proto.Finished) {
	k := len(t.parts) - 1
	if k < 0 || t.parts[k].conn != conn || now.Sub(t.parts[k].first) > toldSpan || len(t.parts[k].packed) > toldSize {
		t.parts = append(t.parts, toldPart{conn: conn, first: now, packed: t.room()})
		k++
	}
	p := &t.parts[k]
	p.packed = (&proto.Inventory{Finished: []proto.Finished{*fin}}).Append(p.packed)
	p.last = now
	p.n++
	t.n++
}

// room is memory for one more part: that of a forgotten one, else a little
// more than the latest has come to need.
func (t *told) room() []byte {
	if b := t.spare; b != nil {
		t.spare = nil
		return reuse.Truncated(b)
	}
	if k := len(t.parts) - 1; k >= 0 {
		n := min(len(t.parts[k].packed), toldSize)
		return make([]byte, 0, n+n/8)
	}
	return nil
}

// appendShort appends what is to be remembered of the outcomes of an order: of a
// delivery that nobody wants a report of, that it was. That is most of them,
// and what the next host said most of what they take.
func appendShort(short []mail.Outcome, d *proto.Deliver, list []mail.Outcome) []mail.Outcome {
	if d.Envelope.Trace != 0 {
		return append(short, list...)
	}
	for k := range list {
		o := &list[k]
		i := k // where the order has the recipient
		if i >= len(d.Index) || d.Index[i] != o.Rcpt {
			i = slices.Index(d.Index, o.Rcpt)
		}
		if i < 0 || i >= len(d.Envelope.Recipients) || d.Envelope.Recipients[i].Notify.Success() ||
			o.Action != dsn.Delivered && o.Action != dsn.Relayed || len(o.Parts) > 0 {
			short = append(short, *o)
			continue
		}
		short = append(short, mail.Outcome{Rcpt: o.Rcpt, Action: o.Action, Status: o.Status, When: o.When})
	}
	return short
}

// prune forgets outcomes that were told long ago.
func (t *told) prune(now time.Time) {
	k := 0
	for k < len(t.parts) && (t.parts[k].conn != nil && now.Sub(t.parts[k].last) > remembered || t.n > maxUnreported) {
		t.n -= t.parts[k].n
		if b := t.parts[k].packed; cap(b) <= 2*toldSize {
			t.spare = b
		}
		k++
	}
	if k > 0 {
		t.parts = slices.Delete(t.parts, 0, k)
	}
}

// lose notes that conn has ended: what was told over it of late has not been heard, perhaps.
func (t *told) lose(now time.Time, conn *ipc.Conn) {
	t.prune(now)
	for i := range t.parts {
		if t.parts[i].conn == conn {
			t.parts[i].conn = nil
		}
	}
}

// retell appends what has not been told over conn, which takes note of it.
func (t *told) retell(now time.Time, conn *ipc.Conn, list []proto.Finished) []proto.Finished {
	for i := range t.parts {
		p := &t.parts[i]
		if p.conn == conn {
			continue
		}
		list = append(list, p.list()...)
		p.conn, p.last = conn, now
	}
	return list
}

func (p *toldPart) list() []proto.Finished {
	var inv proto.Inventory
	if err := inv.Decode(p.packed); err != nil {
		panic(fmt.Sprintf("agent: outcomes packed by ourselves: %v", err))
	}
	return inv.Finished
}

// untold says whether there are outcomes that nobody has heard.
func (t *told) untold() bool {
	return slices.ContainsFunc(t.parts, func(p toldPart) bool { return p.conn == nil })
}

// maxTaken bounds what is taken at a time: it goes into one request.
const maxTaken = 4 << 20

// take removes outcomes that nobody has heard: all, or as many as go together.
func (t *told) take() (taken []toldPart) {
	size := 0
	t.parts = slices.DeleteFunc(t.parts, func(p toldPart) bool {
		if p.conn != nil || size > maxTaken {
			return false
		}
		size += len(p.packed)
		t.n -= p.n
		taken = append(taken, p)
		return true
	})
	return taken
}

// giveBack is the end of take when nobody has heard them after all.
func (t *told) giveBack(parts []toldPart) {
	for i := range parts {
		t.n += parts[i].n
	}
	t.parts = slices.Concat(parts, t.parts)
}
