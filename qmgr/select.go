package qmgr

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
	"posthaste/internal/selection"
	"posthaste/qmgr/sched"
)

// What an operator selects is judged here, a page of the queue at a time: what
// the loop knows at once, what lies in the spool beside it, one page of one
// command at a time. Then the loop does what was ordered, to those messages
// that are still as they were judged; the others are judged again.

const (
	// selectPage is how many one request may look at.
	selectPage = 200000
	// selectDone is how many changes are enough for one answer, which waits until they are
	// on stable storage: once for many pages of which each has a few.
	selectDone = 10000
	// selectTogether is how many messages are read before they are judged.
	selectTogether = 32
	// selectRounds is how often a message that changes meanwhile is judged.
	selectRounds = 4
)

// A selecting is one request under way.
type selecting struct {
	q *proto.Select
	// The conditions; without any, every message meets them.
	where *selection.Selection
	r     *ipc.Request
	begun time.Time
	seen  int // messages looked at for this answer
	round int // how often the present page has been judged
	// The messages of the present page that may be meant, as far as memory tells, and those
	// of them that are, by what was read of them.
	page, chosen []listed
	items        int    // octets of reply.Items
	looked       bool   // the page has been looked for in memory
	at           uint64 // the message number with which the page begins
	held         held   // which of two lists it is
	reply        proto.SelectReply
	// Of the last messages in reply.IDs: what was set aside comes first, and is counted already (deleteCorrupt).
	sizes []int64
}

// fromSelector answers a request that selects messages, to list them or to do something
// to them. A request may end before the end of the queue: the tool goes on with the
// cursor that the answer has.
func (s *Server) fromSelector(r *ipc.Request, u proto.Unread) {
	q := new(proto.Select)
	if err := r.Decode(q); err != nil {
		r.Fail("%v", err)
		return
	}
	where := selection.New(time.Time{})
	if len(q.Where) > 0 {
		var err error
		if where, err = selection.Decode(q.Where); err != nil {
			r.Fail("%v", err)
			return
		}
	}
	// The tool may be of another version, or no tool of ours.
	if _, ok := eventKinds[q.Verb]; !ok && q.Verb != 0 || len(q.IDs) > proto.SelectIDs {
		r.Fail("qmgr: a selection that cannot be carried out")
		return
	}
	c := &selecting{q: q, where: where, r: r, reply: proto.SelectReply{Unread: u}}
	begin := func() { s.beginSelecting(c) }
	if c.deletesCorrupt() {
		s.tasks.Go(func() { s.deleteCorrupt(c, begin) })
		return
	}
	begin()
}

// beginSelecting asks for the first page when the queue is known.
func (s *Server) beginSelecting(c *selecting) {
	s.ask(c.r, func() {
		c.begun = s.now
		s.openList(c)
		// Conditions of the message alone are judged by what is in memory. A page that is not
		// the first waits for nothing: what was under way when the request began is recorded.
		if !c.where.NeedsRecipients() || c.q.Cursor != 0 {
			s.gather(c)
			return
		}
		// What came of an attempt that has just ended is in nobody's memory, and may
		// not be in the spool yet.
		s.log.after(func() { s.gather(c) })
	})
}

// gather asks for the next page of the queue.
func (s *Server) gather(c *selecting) {
	// cleanup takes any number: one that is no message's is behind the next that is.
	want := &proto.Page{Cursor: c.at}
	for _, id := range c.q.IDs {
		want.Numbers = append(want.Numbers, uint64(msgID(id)))
	}
	s.readPage(want, func(reply *proto.PageReply) { s.gathered(c, reply) })
}

// gathered takes the page in, and keeps the messages that may be meant by what is known
// without reading them. While there is room for others, it goes on with the next page at once.
func (s *Server) gathered(c *selecting, reply *proto.PageReply) {
	next := reply.Next
	for i := range reply.Entries {
		e := &reply.Entries[i]
		c.seen++
		m, info, ok := s.view(&e.Entry)
		if !ok || !c.lists(&info) || !c.where.OfTenant(e.Entry.Tenant) || !s.maybe(c.where, &info) || len(c.q.IDs) > 0 && !slices.Contains(c.q.IDs, m.id) {
			continue
		}
		// A full page ends the request here, unless messages were named: those are few, and
		// all of them are in this answer.
		l := s.listed(m, info, false)
		l.next = e.Next
		if c.page = append(c.page, l); len(c.page) == c.room() && len(c.q.IDs) == 0 && i < len(reply.Entries)-1 {
			next = l.next
			break
		}
	}
	// An answer that has looked at enough messages is sent, even if it has none: the tool shows that it goes on, and
	// may be stopped.
	if len(c.q.IDs) == 0 {
		c.goOn(next)
		if next != 0 && len(c.page) < c.room() && c.seen < selectPage && !s.longEnough(c) {
			if !s.lookFor(c) {
				s.gather(c)
			}
			return
		}
	}
	s.tasks.Go(func() { s.judgeAll(c) })
}

// maybe says whether a message can be meant, by what is in memory: queue, age, size, what it waits for, and
// domains and campaign where they are known. false is certain, true is not.
func (s *Server) maybe(where *selection.Selection, info *sched.Info) bool {
	if !where.Message(&selection.Message{Queue: info.Queue.String(), Created: info.Created, Size: info.Size}) || !s.waitsFor(where, info.ID) {
		return false
	}
	// The domains of a message are known once its envelope has been read, which qshape or a delivery does.
	p := s.book.find(info.ID)
	if p == nil || p.sender == 0 {
		return true
	}
	names := s.book.names.list
	return where.OfCampaign(s.book.campaign(info.ID)) && s.inDomains(p, where.ByOriginal(),
		func(id nameID) bool { return where.SenderIn(names[id].text) }, func(id nameID) bool { return where.RecipientIn(names[id].text) })
}

// waitsFor says whether a message waits for what is asked for, as the scheduler has it now.
func (s *Server) waitsFor(where *selection.Selection, num sched.MsgID) bool {
	// Most selections do not ask, and a search in the records is not free.
	if !where.NeedsScheduler() {
		return true
	}
	transport, queue := s.sched.Bound(num)
	return waitsAt(where, transport, queue)
}

// judgeAll reads the page's messages, decides which are meant, and has the loop carry out
// what was ordered. It is a task. judging lets one page be read at a time: selections
// must not take all of the disk from deliveries.
func (s *Server) judgeAll(c *selecting) {
	select {
	case s.judging <- struct{}{}:
		defer func() { <-s.judging }()
	case <-s.ctx.Done():
		return
	}
	c.chosen = reuse.Truncated(c.chosen)
	size := c.items
judging:
	for page := c.page; len(page) > 0; {
		part := page[:min(len(page), selectTogether)]
		page = page[len(part):]
		letters := s.letters(c, part)
		for i := range part {
			l := &part[i]
			if !s.meant(c, l, &letters[i]) {
				continue
			}
			c.chosen = append(c.chosen, *l)
			for _, rc := range l.item.Recipients {
				size += rc.Size()
			}
			if size > listOctets && l.next != 0 && len(c.q.IDs) == 0 { // the rest is for the next page
				c.goOn(l.next)
				break judging
			}
		}
	}
	c.items = size
	s.post(func() {
		ids := make([]sched.MsgID, 0, len(c.chosen))
		for i := range c.chosen {
			if c.q.Verb != 0 {
				ids = append(ids, msgID(c.chosen[i].item.ID))
			}
		}
		s.summon(ids, func() { s.carryOut(c) })
	}, sched.Event{})
}

// A letter is what the spool has of a message that is judged.
type letter struct {
	read     bool // there is something to judge
	env      mail.Envelope
	rcpts    []mail.Recipient
	outcomes []mail.Outcome
}

// letters reads what it takes to judge the messages, as far as it can be read. Where the
// resolver will be asked it hears of all messages first, since an answer takes some fifty
// times as long as a read.
func (s *Server) letters(c *selecting, part []listed) []letter {
	list := make([]letter, len(part))
	if !c.where.NeedsEnvelope() && !c.q.Items {
		return list
	}
	for i := range part {
		l, to := &part[i], &list[i]
		st, err := s.opt.Open(s.ctx, l.ref, l.item.ID)
		if err != nil {
			continue
		}
		if to.env, err = st.Envelope(); err != nil || !c.where.Sender(to.env.Sender) || !c.where.Group(to.env.Tenant, to.env.Campaign) {
			continue
		}
		if to.rcpts, err = st.Recipients(0, -1); err != nil {
			continue
		}
		if to.outcomes, err = st.Outcomes(); err != nil {
			continue
		}
		if to.read = true; c.where.NeedsRoute() {
			s.foreseeRoutes(l, to)
		}
	}
	return list
}

// foreseeRoutes tells the resolver which recipients of a message whereTo is going to ask
// about.
func (s *Server) foreseeRoutes(l *listed, to *letter) {
	if to.env.Redirect != "" || to.env.Filter != "" && !to.env.Trace.DontDeliver() {
		return
	}
	m := message{done: l.done}
	for i := range to.rcpts[:min(len(to.rcpts), maxForeseen)] {
		if !m.isDone(i) {
			s.opt.Resolver.ForeseeResolve(s.ctx, to.env.Sender, to.rcpts[i].Address)
		}
	}
}

// meant says whether a message is what was asked for, by its letter. One that cannot be
// read is not: nothing is done to what was not looked at.
func (s *Server) meant(c *selecting, l *listed, of *letter) bool {
	if !c.where.NeedsEnvelope() && !c.q.Items {
		return true
	}
	if !of.read || !c.where.Recipients(s.candidates(c.where, l, &of.env, of.rcpts, of.outcomes)) {
		return false
	}
	return !c.q.Items || s.complete(l, &of.env, of.rcpts, of.outcomes)
}

// candidates are a message's pending recipients in the form that a selection compares.
func (s *Server) candidates(where *selection.Selection, l *listed, env *mail.Envelope, rcpts []mail.Recipient, outcomes []mail.Outcome) []selection.Recipient {
	if !where.NeedsRecipients() {
		return nil
	}
	last := l.last(outcomes)
	m := message{done: l.done}
	list := make([]selection.Recipient, 0, len(rcpts))
	for i := range rcpts {
		if m.isDone(i) {
			continue
		}
		rc := selection.Recipient{Address: rcpts[i].Address, Original: rcpts[i].Original}
		if o := last[i]; o != nil {
			rc.Reply = o.Why()
		}
		if where.NeedsRoute() {
			t, n := s.whereTo(env, rcpts[i].Address)
			rc.Transport, rc.Nexthop = string(t), string(n)
		}
		list = append(list, rc)
	}
	return list
}

// whereTo is where mail for a recipient would go now. The configuration may have changed
// since the message was last tried. It may wait for the resolver, and so is never called
// by the loop.
func (s *Server) whereTo(env *mail.Envelope, addr string) (mail.Transport, mail.Nexthop) {
	return s.whereToWithin(env, addr, s.opt.ResolveTime)
}

// whereToWithin is whereTo for somebody who does not wait longer for the resolver than that.
func (s *Server) whereToWithin(env *mail.Envelope, addr string, patience time.Duration) (mail.Transport, mail.Nexthop) {
	transport, nexthop, addr, known := s.routeKnown(env, addr)
	if known {
		return transport, nexthop
	}
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	ans, err := s.opt.Resolver.Resolve(ctx, env.Sender, addr)
	if err != nil {
		return sched.RetryTransport, ""
	}
	transport, nexthop = route(&ans)
	return s.divert(ans.Flags, transport, nexthop, addr)
}

// routeKnown is whereTo as far as nobody needs to be asked; address is the one that
// decides.
func (s *Server) routeKnown(env *mail.Envelope, addr string) (transport mail.Transport, nexthop mail.Nexthop, address string, known bool) {
	if env.Redirect != "" {
		addr = env.Redirect
	} else if env.Filter != "" && !env.Trace.DontDeliver() {
		transport, nexthop, _ := strings.Cut(env.Filter, ":")
		return mail.Transport(transport), mail.Nexthop(cmp.Or(nexthop, s.opt.Settings.FilterNexthop, rfc5322.Domain(addr), s.opt.Settings.Myhostname)), addr, true
	}
	ans, known := s.opt.Resolver.Known(addr)
	if known {
		transport, nexthop = route(&ans)
		transport, nexthop = s.divert(ans.Flags, transport, nexthop, addr)
	}
	return transport, nexthop, addr, known
}

// route is the transport and next hop in a resolver's answer. What cannot be resolved
// would be deferred.
func route(ans *proto.ResolveReply) (mail.Transport, mail.Nexthop) {
	if ans.Flags&(proto.ResolveFail|proto.ResolveError) != 0 {
		return sched.RetryTransport, ""
	}
	return mail.Transport(ans.Transport), mail.Nexthop(ans.Nexthop)
}

// carryOut does what was ordered to the messages that were chosen, in the loop. Messages
// that have changed since they were judged are judged again: what an operator removes
// must be what it was when it was selected.
func (s *Server) carryOut(c *selecting) {
	c.page = reuse.Truncated(c.page)
	for i := range c.chosen {
		l := &c.chosen[i]
		id := l.item.ID
		info, ok := s.sched.Lookup(msgID(id))
		if !ok && (c.q.Verb != 0 || s.log.removing(id)) {
			continue // it has left
		}
		if !ok {
			info.Size = l.item.Size
		}
		if c.q.Verb != 0 && (changed(l, &info) || !s.waitsFor(c.where, info.ID)) {
			if m := s.message(info.ID); m != nil && s.maybe(c.where, &info) {
				c.page = append(c.page, s.listed(m, info, false))
			}
			continue
		}
		if c.q.Verb != 0 && !applies(c.q.Verb, info) {
			continue
		}
		if c.q.Verb != 0 {
			s.operate(sched.Event{Kind: eventKinds[c.q.Verb], ID: info.ID, Scope: sched.ScopeMessage,
				Now: c.q.Now && info.Queue != sched.QueueHold || c.q.Verb == proto.VerbFlush && len(c.q.IDs) > 0})
		}
		c.reply.IDs, c.sizes = append(c.reply.IDs, id), append(c.sizes, info.Size)
		c.reply.Octets += info.Size
		if c.q.Items {
			c.reply.Items = append(c.reply.Items, l.item)
		}
	}
	if len(c.page) > 0 {
		if c.round++; c.round < selectRounds {
			s.tasks.Go(func() { s.judgeAll(c) })
			return
		}
		// They change faster than they can be read: the operator is told how many.
		c.reply.Missed += len(c.page)
	}
	if c.more() {
		c.page, c.round = reuse.Truncated(c.page), 0
		s.post(func() { s.gather(c) }, sched.Event{})
		return
	}
	// A flush records nothing that could be waited for.
	if c.q.Verb == 0 || c.q.Verb == proto.VerbFlush {
		c.r.Reply(&c.reply)
		return
	}
	s.answerRecorded(c)
}

// answerRecorded sends the answer when the changes are durable. A message whose change
// was refused is named with the reason instead of being counted.
func (s *Server) answerRecorded(c *selecting) {
	s.log.after(func() {
		kept, counted := c.reply.IDs[:0], len(c.reply.IDs)-len(c.sizes)
		for i, id := range c.reply.IDs {
			if why, ok := s.log.refused[id]; ok {
				if i >= counted {
					c.reply.Octets -= c.sizes[i-counted]
				}
				c.reply.Failed = append(c.reply.Failed, string(id)+": a change is not recorded, and would not outlive a restart: "+why)
				continue
			}
			kept = append(kept, id)
		}
		c.reply.IDs = kept
		c.r.Reply(&c.reply)
	})
}

// more says whether the answer has room for what is found on the next page.
func (c *selecting) more() bool {
	return c.q.Verb != 0 && !c.q.Items && len(c.q.IDs) == 0 && c.reply.Next != 0 && c.seen < selectPage && len(c.reply.IDs) < selectDone
}

// changed says whether a message is not as it was when it was listed.
func changed(l *listed, info *sched.Info) bool {
	return l.item.Queue != info.Queue.String() || l.item.Attempts != info.Attempts || l.pending != info.Pending
}
