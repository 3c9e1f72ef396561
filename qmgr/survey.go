// What qshape and the survey behind it need: numbers of messages by domain and age.

package qmgr

import (
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// What qshape asks for is counted from the book. Of mail that was queued
// before this process started it has no domains at first: cleanup's index does
// not, either. They are read little by little, beside deliveries; until then
// qshape is told where those messages lie, and reads them itself. So it is told of mail that is
// not in memory; where there is such mail nothing is read for this purpose, as it would be forgotten again.

// A survey reads the envelopes of messages whose domains are not known. It belongs to the
// loop; there is at most one reading task.
type survey struct {
	under bool  // one is under way
	next  int32 // in the book: where the next one begins
}

const (
	// surveyBatch is how many messages are read at a time.
	surveyBatch = 256
	// surveySlips is how many slips are looked at for that at most.
	surveySlips = 1 << 16
)

// lookAround begins a survey when there is something to be found out. It is called at the
// end of every turn, so it is quick when there is nothing to do. When part of the queue
// is not in memory it does nothing: what it would read would be forgotten again.
func (s *Server) lookAround() {
	if s.survey.under || s.book.unknown == 0 || !s.told || !s.sched.Whole() {
		return
	}
	var list []*message
	for n := 0; n < surveySlips && len(list) < surveyBatch; n++ {
		// A bounded part of the book at a time.
		if s.survey.next++; s.survey.next >= s.book.used {
			s.survey.next = 0
			break
		}
		if p := s.book.at(s.survey.next); p.num != 0 && p.sender == 0 && p.flags&slipLost == 0 {
			list = append(list, s.book.message(p))
		}
	}
	s.survey.under = true
	s.tasks.Go(func() {
		// Measured, so that a slow disk gets as long a rest.
		start := time.Now()
		found := make([]finding, len(list))
		for i, m := range list {
			if s.ctx.Err() != nil {
				return
			}
			found[i], _ = s.peruse(m)
		}
		// Half of one processor's time at most: deliveries come first.
		pause := time.NewTimer(time.Since(start))
		select {
		case <-pause.C:
		case <-s.ctx.Done():
			pause.Stop()
		}
		s.post(func() { s.surveyed(found) }, sched.Event{})
	})
}

// A finding is what was read of one message. Without domains, the message could not be
// read.
type finding struct {
	num      sched.MsgID
	sender   string
	campaign string
	aliased  bool
	domains  map[string]int
}

// surveyed puts findings into the book, unless the message has left or has been read
// otherwise meanwhile.
func (s *Server) surveyed(list []finding) {
	s.survey.under = false
	for i := range list {
		f := &list[i]
		p := s.book.find(f.num)
		switch {
		case p == nil || p.sender != 0: // gone or known meanwhile
		case f.domains == nil:
			s.book.setLost(p)
		default:
			s.book.setDomains(p, f.sender, f.domains)
			s.book.setAliased(p, f.aliased)
			s.book.setCampaign(f.num, f.campaign)
		}
	}
}

// peruse reads for whom a message is: its sender, its campaign, and the domains of its pending
// recipients with their numbers. It runs in a task.
func (s *Server) peruse(m *message) (finding, error) {
	f := finding{num: m.num}
	st, err := s.opt.Open(s.ctx, m.ref, m.id)
	if err != nil {
		return f, err
	}
	env, err := st.Envelope()
	if err != nil {
		return f, err
	}
	rcpts, err := st.Recipients(0, -1)
	if err != nil {
		return f, err
	}
	return finding{m.num, env.Sender, campaignOf(&env), anyAliased(rcpts), m.count(rcpts)}, nil
}

const (
	// censusTurn is how many things are counted in one turn of the loop for the metrics.
	censusTurn = 10000
	// censusPage is how many messages one answer may be about.
	censusPage = 200000
	// censusRows is how many domains it may name, those of the last turn aside.
	censusRows = 50000
)

// A census counts messages for qshape: those in some queues, by domain and age. One
// answer may take several pages, and qshape asks for further answers until the end of the
// queue.
type census struct {
	q      *proto.Shape
	at     uint64  // the message number with which the next page begins
	queues [5]bool // by sched.Queue
	edges  []int64 // µs
	seen   int
	// The answer so far, and where each domain's row is. byID counts as a use of each
	// name, so that a number is not given to another domain meanwhile.
	rows   []proto.ShapeRow
	byID   map[rowKey[nameID]]int // rows that hold a use of a name
	byText map[rowKey[string]]int
	byHop  map[rowKey[hop]]int
	// The same by tenant, by source and by campaign; without Split nothing is in them.
	byTenant, bySource, byCampaign map[rowKey[string]]int
	// Messages whose domains are not known. qshape reads these itself.
	unread []proto.Item
}

// A rowKey tells rows apart. With Split a domain has a row for each queue and side.
//
// Without Split all queues have one row, and the side is that of the question: both
// fields are zero then, whatever was counted.
type rowKey[N comparable] struct {
	name    N
	queue   sched.Queue
	senders bool
}

// newCensus prepares the count that q asks for. Names of queues that do not exist are
// ignored.
func newCensus(q *proto.Shape) *census {
	c := &census{q: q, byID: make(map[rowKey[nameID]]int), byText: make(map[rowKey[string]]int), byHop: make(map[rowKey[hop]]int),
		byTenant: make(map[rowKey[string]]int), bySource: make(map[rowKey[string]]int), byCampaign: make(map[rowKey[string]]int)}
	c.at, _ = fromCursor(q.Cursor)
	for _, name := range q.Queues {
		for i := range c.queues {
			c.queues[i] = c.queues[i] || sched.Queue(i).String() == name
		}
	}
	for _, t := range q.Edges {
		c.edges = append(c.edges, t.UnixMicro())
	}
	return c
}

// census asks for the next page.
func (s *Server) census(r *ipc.Request, c *census) {
	s.readPage(&proto.Page{Cursor: c.at}, func(reply *proto.PageReply) { s.takeCensus(r, c, reply) })
}

// takeCensus counts a page, and answers when there is enough for an answer or nothing is
// left.
func (s *Server) takeCensus(r *ipc.Request, c *census, reply *proto.PageReply) {
	for i := range reply.Entries {
		m, info, ok := s.view(&reply.Entries[i].Entry)
		c.seen++
		if !ok || !c.queues[info.Queue] {
			continue
		}
		if c.q.Split {
			transport, queue := s.sched.Bound(info.ID)
			c.bound(hop{transport, mail.Nexthop(queue)}, &info)
			// Tenants and sources are few, and most systems have none: they cost a comparison there.
			c.group(c.byTenant, reply.Entries[i].Entry.Tenant, &info, proto.ShapeRow{Tenants: true})
			if !isReason(transport) {
				c.group(c.bySource, sched.SourceOf(queue), &info, proto.ShapeRow{Sources: true})
			}
		}
		campaign := ""
		if p := s.book.find(info.ID); p != nil {
			c.slip(s.book, p, &info)
			campaign = s.book.campaign(info.ID)
		} else {
			sender, domains := m.domains()
			c.message(m, &info, sender, domains)
			campaign = m.campaign()
		}
		if c.q.Split {
			c.group(c.byCampaign, campaign, &info, proto.ShapeRow{Campaigns: true})
		}
	}
	if c.at = reply.Next; c.at != 0 && c.seen < censusPage && len(c.rows)+len(c.unread) < censusRows {
		s.census(r, c)
		return
	}
	for k := range c.byID {
		s.book.names.drop(k.name)
	}
	answer := &proto.ShapeReply{Next: cursorOf(c.at, heldToo), Rows: c.rows, Unread: c.unread}
	if c.q.Split && answer.Next == 0 {
		answer.Totals = s.seen.totals
	}
	r.Reply(answer)
}

// slip counts a message in the book.
func (c *census) slip(b *book, p *slip, info *sched.Info) {
	if p.sender == 0 {
		c.skip(info, p.id(), p.ref(), b.doneOf(p))
		return
	}
	if c.side(true) {
		c.known(b, p.sender, info, true, 1)
	}
	if c.side(false) {
		b.eachDomain(p, info.Pending, func(id nameID, n int) { c.known(b, id, info, false, n) })
	}
}

// isReason says that the destinations of a transport are reasons and no places: what a host has replied may be in them,
// with names, addresses and whatever else it liked to write.
func isReason(t mail.Transport) bool { return t == sched.RetryTransport || t == sched.ErrorTransport }

// bound counts a message for the destination that it waits for. The retry and error transports are
// left out: their destinations are reasons.
func (c *census) bound(h hop, info *sched.Info) {
	if h.transport == "" || isReason(h.transport) {
		return
	}
	k := rowKey[hop]{name: h, queue: info.Queue}
	row, ok := c.byHop[k]
	if !ok {
		// Mailboxes of a next hop may be destinations each, and qshape and the history add them up.
		row = len(c.rows)
		c.rows = append(c.rows, proto.ShapeRow{Domain: string(h.transport) + ":" + nexthopOf(string(h.nexthop)), Queue: info.Queue.String(), Hops: true, Counts: make([]int, len(c.edges)+1)})
		c.byHop[k] = row
	}
	c.count(row, info, 1)
}

// group counts a message for its tenant, or its source; kind is the row of such without its name. Nothing is
// counted for the empty name: what has no tenant is not in the table of tenants.
func (c *census) group(rows map[rowKey[string]]int, name string, info *sched.Info, kind proto.ShapeRow) {
	if name == "" {
		return
	}
	k := rowKey[string]{name: name, queue: info.Queue}
	row, ok := rows[k]
	if !ok {
		row = len(c.rows)
		kind.Domain, kind.Queue, kind.Counts = name, info.Queue.String(), make([]int, len(c.edges)+1)
		c.rows = append(c.rows, kind)
		rows[k] = row
	}
	c.count(row, info, 1)
}

// message counts a message that is worked on.
func (c *census) message(m *message, info *sched.Info, sender string, domains map[string]int) {
	if domains == nil {
		c.skip(info, m.id, m.ref, m.done)
		return
	}
	if c.side(true) {
		c.count(c.named(domainOf(sender), info, true), info, 1)
	}
	if c.side(false) {
		for d, n := range domains {
			c.count(c.named(d, info, false), info, n)
		}
	}
}

// side says whether senders, or recipients, are counted.
//
// Split counts both in one pass: the history of the queue wants both every minute, and
// to go over a long queue twice would cost twice.
func (c *census) side(senders bool) bool { return c.q.Split || c.q.Senders == senders }

// skip leaves it to qshape to read a message.
func (c *census) skip(info *sched.Info, id mail.QueueID, ref queue.Ref, done []byte) {
	c.unread = append(c.unread, proto.Item{ID: id, Queue: info.Queue.String(), Arrival: info.Created, Ref: ref,
		Done: append([]byte(nil), done...)})
}

// key is the row that a message counts in.
//
// It is no method: those have no type parameters of their own.
func key[N comparable](c *census, name N, info *sched.Info, senders bool) rowKey[N] {
	if !c.q.Split {
		return rowKey[N]{name: name}
	}
	return rowKey[N]{name, info.Queue, senders}
}

// known adds n to the row of a domain of the book.
func (c *census) known(b *book, id nameID, info *sched.Info, senders bool, n int) {
	k := key(c, id, info, senders)
	row, ok := c.byID[k]
	if !ok {
		row = c.row(b.names.list[id].text, info, senders)
		k.name = b.names.use(b.names.list[id].text)
		c.byID[k] = row
	}
	c.count(row, info, n)
}

// named is the row of a domain that may not be in the book.
func (c *census) named(domain string, info *sched.Info, senders bool) int {
	k := key(c, domain, info, senders)
	row, ok := c.byText[k]
	if !ok {
		row = c.row(domain, info, senders)
		c.byText[k] = row
	}
	return row
}

// row adds a row. A domain may have two, one by number and one by text: qshape adds them
// up.
func (c *census) row(domain string, info *sched.Info, senders bool) int {
	row := proto.ShapeRow{Domain: domain, Counts: make([]int, len(c.edges)+1)}
	if c.q.Split {
		row.Queue, row.Senders = info.Queue.String(), senders
	}
	c.rows = append(c.rows, row)
	return len(c.rows) - 1
}

// count adds n to the column of a message's age: the first whose edge it is not younger
// than.
func (c *census) count(row int, info *sched.Info, n int) {
	column := 0
	for created := info.Created.UnixMicro(); column < len(c.edges) && created <= c.edges[column]; column++ {
	}
	c.rows[row].Counts[column] += n
}
