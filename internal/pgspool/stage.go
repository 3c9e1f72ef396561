package pgspool

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"posthaste/internal/pack"
	"posthaste/internal/queue"
)

const (
	// copyEnvelope is the longest envelope, with recipients, that is written again with each state.
	// Longer ones stay with the MSG record.
	copyEnvelope = 4 << 10
	// maxOutcomes bounds what is kept of former attempts in one state, in octets.
	maxOutcomes = 4 << 20
	// maxHanded bounds what agents have in hand of one message, in octets: it goes into each state.
	maxHanded = 256 << 10
)

// A group is what goes into one transaction. It belongs to the committer, and is used again and again.
type group struct {
	e       *engine
	staged  map[uint64]*staged
	heads   map[uint32]*writing // by shard
	home    *shard              // of new mail; nil: there is none yet
	rests   map[uint64][]byte   // of the newest records of messages that are updated, as they were before; nil: cannot be read
	moves   []move
	done    []*batch
	upkept  int64 // octets that cleaning has copied
	written uint64
	spare   []byte // memory for rows
	err     error  // of the database: nothing of the group can be written
}

// A staged is a message as it will be after the transaction.
type staged struct {
	live
	shard  *shard
	more   []uint64
	handed []handing
	big    *place
	gone   bool
	rest   []byte // of its newest record; nil: that is not in this group
}

// A writing is the part of a group that goes to one shard.
type writing struct {
	shard *shard
	seg   *segment
	rows  rows
	bytes int64 // that move adds
}

// begin empties the group.
func (g *group) begin(e *engine) {
	spare := g.spare
	// One of the buffers is used again: most nodes own one shard.
	for _, w := range g.heads {
		if cap(w.rows.buf) > cap(spare) && cap(w.rows.buf) <= 2*groupLimit {
			spare = w.rows.buf
		}
	}
	*g = group{e: e, spare: spare, staged: make(map[uint64]*staged), heads: make(map[uint32]*writing), rests: make(map[uint64][]byte)}
}

// shardList is the shards that are written to.
func (g *group) shardList() (list []*shard) {
	for _, w := range g.heads {
		list = append(list, w.shard)
	}
	slices.SortFunc(list, byID)
	return list
}

// to returns the part for a shard, or nil when the database refuses it a segment: then g.err says so.
func (g *group) to(ctx context.Context, sh *shard) *writing {
	if w := g.heads[sh.id]; w != nil {
		return w
	}
	seg, err := g.e.head(ctx, sh, g.e.conn)
	if err != nil {
		g.err = err
		return nil
	}
	w := &writing{shard: sh, seg: seg, rows: rows{buf: g.spare[:0]}}
	g.spare = nil
	g.heads[sh.id] = w
	return w
}

// unpin ends that the segments are kept that are written to.
func (g *group) unpin() {
	for _, w := range g.heads {
		g.e.unpin(w.shard, w.seg.segno)
	}
}

// row adds a row of a message, and returns its position and octets; 0 octets: see to.
func (g *group) row(ctx context.Context, s *staged, kind uint8, head, rest, body []byte) (seg, pos uint32, n int) {
	w := g.to(ctx, s.shard)
	if w == nil {
		return 0, 0, 0
	}
	g.e.mu.Lock()
	pos = w.seg.reserve(1)
	g.e.mu.Unlock()
	s.last = w.seg.segno
	return w.seg.segno, pos, w.rows.add(pos, kind, s.number, sealHead(nil, head, kind, s.number), rest, body)
}

// current is how a message stands, with what is staged; nil: it is not there.
func (g *group) current(number uint64, created int64) *staged {
	if s := g.staged[number]; s != nil {
		if s.gone || s.created != created {
			return nil
		}
		return s
	}
	e := g.e
	l := e.idx.find(number) // only the committer changes the index
	if l == nil || l.created != created {
		return nil
	}
	s := &staged{live: *l, shard: e.shards[l.shard], more: append([]uint64(nil), e.idx.more[number]...), handed: e.idx.handed[number]}
	if p, ok := e.idx.big[number]; ok {
		s.big = &p
	}
	return s
}

// stage is current for who changes it.
func (g *group) stage(o *op) *staged {
	s := g.current(o.number, o.created)
	if s != nil {
		g.staged[o.number] = s
	}
	return s
}

// put stages a batch. The error is the batch's alone; see also group.err.
func (g *group) put(ctx context.Context, b *batch) error {
	switch {
	case b.err != nil:
		return b.err
	case b.cost > batchLimit:
		return fmt.Errorf("%w: %d octets in one batch, %d are possible", queue.ErrTooLarge, b.cost, batchLimit)
	case b.apart && b.adds > 0:
		return fmt.Errorf("%w: messages are added by changes that stand apart", queue.ErrInvalid)
	}
	b.refused = nil
	if !b.apart {
		if err := g.checkAll(b); err != nil {
			return err
		}
	}
	for i := range b.ops {
		o := &b.ops[i]
		if b.apart {
			if err := g.check(o); err != nil {
				b.refuse(i, err)
				continue
			}
		}
		g.putOp(ctx, o)
	}
	g.done = append(g.done, b)
	return nil
}

// checkAll refuses a batch of which one change contradicts the queue.
func (g *group) checkAll(b *batch) error {
	added := make(map[uint64]bool, b.adds)
	for i := range b.ops {
		o := &b.ops[i]
		if err := g.check(o); err != nil {
			return err
		}
		if b.adds > 0 && o.kind == opDone && !added[o.number] {
			if err := g.checkSettled(o); err != nil {
				return err
			}
		}
		if o.kind == opAdd {
			if added[o.number] {
				return fmt.Errorf("%w: message %q twice", queue.ErrInvalid, string(o.id))
			}
			added[o.number] = true
		}
	}
	return nil
}

// checkSettled refuses mail that takes the place of recipients of whom another node may have dealt with since: a
// sender would be told twice.
func (g *group) checkSettled(o *op) error {
	s := g.current(o.number, o.created)
	if s == nil {
		return fmt.Errorf("%w: message %q, which this is about, is not in the queue, or not in this node's", queue.ErrInvalid, string(o.id))
	}
	for _, i := range o.rcpts {
		if isDone(&s.live, s.more, uint64(i)) {
			return fmt.Errorf("%w: there is nothing to do any more for recipient %d of message %q, which this is about", queue.ErrInvalid, i, string(o.id))
		}
	}
	return nil
}

// check refuses a change that contradicts the queue. One of a message that is not there has no effect,
// except that it must not be delivered.
func (g *group) check(o *op) error {
	s := g.current(o.number, o.created)
	switch {
	case o.kind == opAdd && (s != nil || g.e.idx.find(o.number) != nil):
		return fmt.Errorf("%w: message %q is there already", queue.ErrInvalid, string(o.id))
	case o.kind == opHanded:
		return g.checkHanded(o, s)
	case s == nil || o.kind == opAdd:
		return nil
	}
	for _, i := range o.rcpts {
		if i < 0 || i >= int(s.nrcpt) {
			return fmt.Errorf("%w: recipient %d of message %q, which has %d", queue.ErrInvalid, i, string(o.id), s.nrcpt)
		}
	}
	if o.kind == opUpdate && o.change.Set&queue.SetQueue != 0 && o.change.Queue >= queue.Names {
		return fmt.Errorf("%w: message %q into %v", queue.ErrInvalid, string(o.id), o.change.Queue)
	}
	return nil
}

// checkHanded refuses leave to deliver what another node may have delivered since the agent was told to:
// the message has left the queue, or this node's part of it, or a recipient is done.
func (g *group) checkHanded(o *op, s *staged) error {
	if s == nil {
		return fmt.Errorf("%w: message %q is not in the queue, or not in this node's", queue.ErrInvalid, string(o.id))
	}
	for _, i := range o.rcpts {
		if i < 0 || i >= int(s.nrcpt) || isDone(&s.live, s.more, uint64(i)) {
			return fmt.Errorf("%w: there is nothing to do any more for recipient %d of message %q", queue.ErrInvalid, i, string(o.id))
		}
	}
	h := handing{Nexthop: o.nexthop, Rcpts: make([]uint32, len(o.rcpts))}
	size := len(h.Append(nil, tagHanded)) + 5*len(o.rcpts)
	for i := range s.handed {
		size += len(s.handed[i].Append(nil, tagHanded))
	}
	if size > maxHanded {
		return fmt.Errorf("%w: %d octets for what agents have in hand of message %q, %d are possible", queue.ErrTooLarge, size, string(o.id), maxHanded)
	}
	return nil
}

func (g *group) putOp(ctx context.Context, o *op) {
	if o.kind == opAdd {
		g.putAdd(ctx, o)
		return
	}
	s := g.stage(o)
	if s == nil {
		return
	}
	switch o.kind {
	case opRemove:
		g.putGone(ctx, s)
	case opDone:
		g.putDone(ctx, s, o.rcpts)
	case opUpdate:
		g.putUpdate(ctx, s, o)
	case opHanded:
		g.putHanded(ctx, s, o)
	}
}

func (g *group) putAdd(ctx context.Context, o *op) {
	if g.home == nil {
		g.home = g.e.turn()
	}
	s := &staged{live: o.msg, shard: cmp.Or(o.home, g.home), big: o.big}
	s.live.shard = s.shard.id
	g.staged[o.number] = s
	m := &o.add
	r := rest{envelope: m.Envelope, recipients: m.Recipients, hasEnv: true}
	s.rest = r.append(make([]byte, 0, len(m.Envelope)+len(m.Recipients)+16))
	st := state{live: s.live, bodySum: o.bodySum, bodyLen: int64(len(m.Content))}
	body := m.Content
	if o.big != nil {
		st.big, st.bodyLen, st.bodySum, body = *o.big, o.big.size, 0, nil
	} else if body == nil {
		body = []byte{}
	}
	g.putMSG(ctx, s, &st, body)
}

// putMSG writes the MSG record of s: st has how s stands, and says where the content is.
func (g *group) putMSG(ctx context.Context, s *staged, st *state, body []byte) {
	w := g.to(ctx, s.shard)
	if w == nil {
		return
	}
	if s.first == 0 {
		s.first = w.seg.segno
	}
	st.first = s.first
	st.restSum = sum(s.rest, rowMSG, s.number, 0)
	var n int
	s.refSeg, s.refPos, n = g.row(ctx, s, rowMSG, appendState(nil, st, true), s.rest, body)
	s.refLen, s.msgSeg, s.msgPos, s.msgLen = uint32(n), s.refSeg, s.refPos, uint32(n)
}

func (g *group) putGone(ctx context.Context, s *staged) {
	s.gone = true
	g.row(ctx, s, rowGONE, pack.Uint(nil, tagFirst, s.first), nil, nil)
}

func (g *group) putDone(ctx context.Context, s *staged, rcpts []int) {
	before := s.npending
	for _, i := range rcpts {
		s.more = setDone(&s.live, s.more, uint64(i))
	}
	s.handed = pending(s.handed, &s.live, s.more)
	switch s.npending {
	case before: // nothing new
	case 0:
		g.putGone(ctx, s)
	default:
		g.row(ctx, s, rowDONE, queue.AppendRcpts(nil, tagRcpts, rcpts), nil, nil)
	}
}

func (g *group) putHanded(ctx context.Context, s *staged, o *op) {
	if len(o.rcpts) == 0 {
		return
	}
	h := handing{At: g.e.store.now().UnixMicro(), Nexthop: o.nexthop, Rcpts: make([]uint32, 0, len(o.rcpts))}
	for _, i := range o.rcpts {
		h.Rcpts = append(h.Rcpts, uint32(i))
	}
	s.handed = queue.HandOut(s.handed, h)
	g.row(ctx, s, rowHANDED, h.Append(nil, tagHanded), nil, nil)
}

func (g *group) putUpdate(ctx context.Context, s *staged, o *op) {
	c := &o.change
	for _, i := range o.rcpts {
		s.more = setDone(&s.live, s.more, uint64(i))
	}
	if s.npending == 0 {
		g.putGone(ctx, s)
		return
	}
	s.handed = queue.Told(pending(s.handed, &s.live, s.more), c.Outcomes)
	if c.Set&queue.SetQueue != 0 {
		s.queue = uint8(c.Queue)
	}
	if c.Set&queue.SetNextAttempt != 0 {
		s.next = queue.Micros(c.NextAttempt)
	}
	if c.Set&queue.SetAttempts != 0 {
		s.attempts = uint32(max(c.Attempts, 0))
	}
	if c.Set&queue.SetWarned != 0 {
		s.set(msgWarned, c.Warned)
	}
	if c.Set&queue.SetExpire != 0 {
		s.set(msgExpire, c.Expire)
	}
	r := g.restOf(s)
	r.outcomes = mergeOutcomes(r.outcomes, c.Outcomes, func(i uint64) bool { return isDone(&s.live, s.more, i) }, maxOutcomes)
	g.putState(ctx, s, &r)
}

// restOf is what the newest record of s has beside its state. Of one that cannot be read, the envelope is
// still in the MSG record, if that is another, and what former attempts said is left out.
func (g *group) restOf(s *staged) rest {
	b := s.rest
	if b == nil {
		b = g.rests[s.number]
	}
	r, err := decodeRest(b)
	if b == nil || err != nil {
		g.e.opt.Warn("spool: message %s: its last state cannot be read: what former attempts said is left out of the new one", s.id())
		return rest{}
	}
	return r
}

// putState writes how s stands, with r.
func (g *group) putState(ctx context.Context, s *staged, r *rest) {
	if len(r.envelope)+len(r.recipients) > copyEnvelope {
		r.envelope, r.recipients, r.hasEnv = nil, nil, false // they stay with the MSG record
	}
	s.rest = r.append([]byte{})
	st := state{live: s.live, done: doneBitmap(&s.live, s.more), handed: s.handed, restSum: sum(s.rest, rowSTATE, s.number, 0)}
	var n int
	s.refSeg, s.refPos, n = g.row(ctx, s, rowSTATE, appendState(nil, &st, false), s.rest, nil)
	s.refLen = uint32(n)
}

// flush writes the rows, within the transaction.
func (g *group) flush(ctx context.Context) error {
	for _, sh := range g.shardList() {
		if w := g.heads[sh.id]; w.rows.n > 0 {
			g.written += uint64(len(w.rows.buf))
			if err := w.rows.copyTo(ctx, g.e.store, g.e.conn, w.shard.id, w.seg.segno); err != nil {
				return err
			}
		}
	}
	return g.flushMoves(ctx)
}

// install has the index say what is durable now, and the batches too.
func (g *group) install() {
	e := g.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range g.heads {
		w.seg.bytes += int64(len(w.rows.buf)) + w.bytes
	}
	for number, s := range g.staged {
		if l := e.idx.find(number); l != nil {
			e.shards[l.shard].count(l, e.idx.bigOf(number), -1)
		}
		if s.gone {
			s.shard.forget(s)
			e.idx.remove(number)
			e.cache.drop(number)
			delete(e.named, number)
			continue
		}
		e.idx.put(&s.live)
		e.idx.setBeside(number, s.more, s.big, s.handed)
		s.shard.count(&s.live, s.big, 1)
		if s.rest != nil {
			e.cache.put(number, s.rest)
		}
	}
	for _, b := range g.done {
		b.entries = b.entries[:0]
		for i := range b.ops {
			var en queue.Entry
			if o := &b.ops[i]; o.kind == opAdd || o.kind == opUpdate {
				if l := e.idx.find(o.number); l != nil && l.created == o.created {
					en = l.entry(e.idx.more[o.number])
				}
			}
			b.entries = append(b.entries, en)
		}
		e.stats.commits++
	}
	if len(g.heads) > 0 {
		e.stats.transactions++
	}
	e.stats.written += g.written
	e.stats.copied += uint64(g.upkept)
}
