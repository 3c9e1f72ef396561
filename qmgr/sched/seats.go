package sched

// Tenants take turns by deficit round robin (Shreedhar and Varghese), wherever their mail meets: before
// the job lists of a transport, and before the mail of a destination. The unit is recipients. Who has the turn
// goes on until it has used up its quantum, which is its weight times the most recipients of a delivery; so
// every turn is good for one delivery at least, and no decision looks at more than a few seats. Who has no mail
// that could go takes no turn, and nobody waits for it.
//
// Who comes anew is served first, once, as flows with little to send are by Linux's fq_codel: its seat is in
// front of those that had a turn before. One that gets up keeps its seat until its turn comes, so that it
// cannot come anew in every round.
//
// There are seats only where a second tenant has mail.

// A seat is a tenant's place in one ring.
type seat struct {
	prv, nxt *seat
	in       *seatList // nil: it has no seat
	left     int       // recipients that its turn is still good for
	// What it is the seat of: one of them is set for good.
	lane   *lane
	claim  *claim
	tenant *tenant
}

// seatList is a first-in first-out list of seats.
type seatList struct{ first, last *seat }

// ring is all seats of one place: those that came anew, and the others.
type ring struct{ fresh, old seatList }

// wants says whether the tenant has mail that could go now, but for the others.
func (x *seat) wants() bool {
	switch {
	case x.lane != nil:
		return x.lane.hasWork()
	case x.tenant != nil:
		return x.tenant.waits()
	}
	return x.claim.peers.n > 0 && !x.claim.inLine()
}

// quantum is what one turn is good for.
func (x *seat) quantum() int {
	if x.tenant != nil {
		return x.tenant.weight // in messages
	}
	l := x.lane
	if l == nil {
		l = x.claim.lane
	}
	return l.weight * l.tport.cfg.batch()
}

// noBatch stands for BatchLimit where that is none.
const noBatch = 1000

// batch is the most recipients that a delivery counts for.
func (c *TransportConfig) batch() int {
	if c.BatchLimit > 0 {
		return c.BatchLimit
	}
	return noBatch
}

// use counts a delivery to so many recipients.
func (x *seat) use(rcpts int) {
	if x.in != nil {
		l := x.lane
		if l == nil {
			l = x.claim.lane
		}
		x.left -= min(rcpts, l.tport.cfg.batch())
	}
}

// sit gives a tenant that has come to want something a seat, unless it has kept its own.
func (r *ring) sit(x *seat) {
	if x.in == nil {
		x.left = x.quantum()
		r.fresh.append(x)
	}
	x.left = min(x.left, x.quantum()) // that may be less than it was
}

// stay gives a seat to the tenant that was alone until now: it does not come anew.
func (r *ring) stay(x *seat) {
	x.left = x.quantum()
	r.old.append(x)
}

// resume gives a seat to a tenant that could not use its turn, for a limit of its own. What was left
// of that turn it has now; then it is behind all others.
func (r *ring) resume(x *seat) {
	switch {
	case x.in != nil:
	case x.left > 0:
		x.left = min(x.left, x.quantum())
		r.fresh.append(x)
	default:
		x.left += x.quantum()
		r.old.append(x)
	}
}

// pass puts a seat behind all others. What is left of its turn, it keeps.
func (r *ring) pass(x *seat) {
	x.rise()
	r.old.append(x)
}

// next is the seat whose turn it is; nil: there are no seats. One that wants nothing any more loses its seat
// when its turn comes: then it is lost, and next is to be called again.
func (r *ring) next() (x, lost *seat) {
	for {
		x := r.fresh.first
		if x == nil {
			x = r.old.first
		}
		switch {
		case x == nil:
			return nil, nil
		case x.left <= 0:
			x.left += x.quantum()
			x.rise()
			r.old.append(x)
		case x.wants():
			return x, nil
		case x.in == &r.fresh && r.old.first != nil:
			x.rise()
			r.old.append(x)
		default:
			x.rise()
			return nil, x
		}
	}
}

func (l *seatList) append(x *seat) {
	x.in, x.prv, x.nxt = l, l.last, nil
	if l.last != nil {
		l.last.nxt = x
	} else {
		l.first = x
	}
	l.last = x
}

// rise takes x out of the list that it is in, if it is in one.
func (x *seat) rise() {
	l := x.in
	if l == nil {
		return
	}
	if x.prv != nil {
		x.prv.nxt = x.nxt
	} else {
		l.first = x.nxt
	}
	if x.nxt != nil {
		x.nxt.prv = x.prv
	} else {
		l.last = x.prv
	}
	x.in, x.prv, x.nxt = nil, nil, nil
}
