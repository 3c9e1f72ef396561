package sched

// peerList orders peers by a key. Almost always a peer comes with the
// greatest key so far, and almost always the first one leaves: that is a
// linked list, and costs the same whatever its length. What comes out of
// order goes into a heap beside it, and the first peer is the lesser of the
// two firsts.
type peerList struct {
	which      int // which of a peer's links it uses
	head, tail *peer
	n          int
	odd        heap[*peer]
}

// Orders that a peer can be in.
const (
	inQueue = iota // queue.peers, by place in the job list
	inTurn         // job.turns, by turn
	inClass        // class.peers, by age
)

// links is a peer's place in one order.
type links struct {
	k        key
	prv, nxt *peer
	at       int32 // position + 1 in the heap; 0: in the list
	in       bool
}

func (p *peer) place(which int, at int32) { p.links[which].at = at }

// push adds p, which must not be in the list. A key equal to the last one does not count
// as greater, and goes to the heap.
func (l *peerList) push(k key, p *peer) {
	x := &p.links[l.which]
	x.k, x.in = k, true
	l.n++
	switch {
	case l.tail == nil:
		l.head, l.tail = p, p
	case l.tail.links[l.which].k.less(k):
		x.prv = l.tail
		l.tail.links[l.which].nxt = p
		l.tail = p
	case k.less(l.head.links[l.which].k):
		x.nxt = l.head
		l.head.links[l.which].prv = p
		l.head = p
	default:
		l.odd.which = l.which
		l.odd.push(k, p)
	}
}

// remove takes p out, which must be in the list.
func (l *peerList) remove(p *peer) {
	x := &p.links[l.which]
	x.in = false
	l.n--
	if x.at != 0 {
		l.odd.remove(x.at)
		return
	}
	if x.prv != nil {
		x.prv.links[l.which].nxt = x.nxt
	} else {
		l.head = x.nxt
	}
	if x.nxt != nil {
		x.nxt.links[l.which].prv = x.prv
	} else {
		l.tail = x.prv
	}
	x.prv, x.nxt = nil, nil
}

// top is the first peer; there must be one.
func (l *peerList) top() *peer {
	if l.odd.len() == 0 {
		return l.head
	}
	if p := l.odd.s[0].v; l.head == nil || l.odd.s[0].k.less(l.head.links[l.which].k) {
		return p
	}
	return l.head
}

// topKey is its key.
func (l *peerList) topKey() key { return l.top().links[l.which].k }

// each visits every peer, in no particular order.
func (l *peerList) each(f func(p *peer)) {
	for p := l.head; p != nil; {
		next := p.links[l.which].nxt
		f(p)
		p = next
	}
	for i := range l.odd.s {
		f(l.odd.s[i].v)
	}
}

// rekey gives every peer a new key; their order must stay what it is.
func (l *peerList) rekey(f func(p *peer) key) {
	for p := l.head; p != nil; p = p.links[l.which].nxt {
		p.links[l.which].k = f(p)
	}
	for i := range l.odd.s {
		l.odd.s[i].k = f(l.odd.s[i].v)
		l.odd.s[i].v.links[l.which].k = l.odd.s[i].k
	}
}
