// Requests of tools: postqueue, postsuper, mailq, qshape, "posthaste queue" and
// "posthaste explain". Each is answered by the loop from what it knows, and completed by
// a task that reads the spool. Requests that come before the queue is known wait.

package qmgr

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/qmgr/sched"
)

const (
	// listPage bounds how many messages one page of a listing has.
	listPage = 500
	// listRcpts bounds how many recipients of a message a listing names.
	listRcpts = 10000
	// listOctets is what a page has of addresses and reasons, at most, the
	// last message's aside: a reply must go into one frame.
	listOctets = 2 << 20
	// toolDrain is how long tools that are connected may hold up a stop.
	toolDrain = time.Second
)

// IPC is the server for the service's sockets. A connection that closes may be one over
// which the outcome of a delivery was expected.
func (s *Server) IPC() *ipc.Server {
	return &ipc.Server{Handler: s.fromTool, OnTrigger: s.trigger, Public: public,
		OnClose: func(c *ipc.Conn) { s.post(func() { s.silent(c) }, sched.Event{}) }}
}

// public says what members of the set-gid group may ask for: listings, and that mail be
// tried now. postqueue has looked at authorized_mailq_users and authorized_flush_users;
// everything else is for root and mail_owner. A request that does not decode is not
// public.
func public(r *ipc.Request) bool {
	switch r.Kind {
	case proto.KindList, proto.KindNodes:
		return true
	case proto.KindCommand:
		var q proto.Command
		return r.Decode(&q) == nil && q.Verb == proto.VerbFlush
	case proto.KindSelect:
		var q proto.Select
		return r.Decode(&q) == nil && (q.Verb == 0 || q.Verb == proto.VerbFlush)
	case proto.KindForward: // to another node, of what is public here
		var q proto.Forward
		return r.Decode(&q) == nil && proto.Forwards(q.Asked) && public(&ipc.Request{Kind: q.Asked, Payload: q.Payload})
	}
	return false
}

// trigger heeds the letters that master, postkick and Postfix's tools send. Only F and A
// (forget what is dead, ignore retry times) mean something here. The others ask for a
// queue scan, which this queue manager does not need: cleanup tells of new mail.
func (s *Server) trigger(letters []byte) {
	if strings.ContainsAny(string(letters), "FA") {
		s.ask(nil, func() { s.then(sched.Event{Kind: sched.EventFlush, Scope: sched.ScopeAll}) })
	}
}

// fromTool takes a request, on the goroutine that reads the connection, and hands it to
// the loop, behind what was ordered before.
func (s *Server) fromTool(c *ipc.Conn, r *ipc.Request) {
	s.afterOrders(r, byHere, func(u proto.Unread) { s.obey(c, r, u) })
}

// obey carries out a request, or answers it. u is what the answer says of mail that has
// not been read yet.
func (s *Server) obey(c *ipc.Conn, r *ipc.Request, u proto.Unread) {
	switch r.Kind {
	// From an agent that has a successor: see fromAgent.
	case proto.KindInventory:
		s.fromAgent(c, r)
	case proto.KindList:
		s.fromLister(r)
	// Who else shares the queue, and what is for one of them: others.go and forward.go.
	case proto.KindNodes:
		s.nodesReply(r)
	case proto.KindForward:
		s.forward(r)
	case proto.KindGather, proto.KindReturnPath, proto.KindSuppressTell:
		s.fromService(r)
	case proto.KindCarry:
		s.carried(c, r)
	// One message, by its queue ID. All that fulfil conditions are a selection, which goes on from
	// answer to answer, since a turn of the loop must not last as long as a large queue.
	case proto.KindCommand:
		var q proto.Command
		if err := r.Decode(&q); err != nil {
			r.Fail("%v", err)
			return
		}
		s.ask(r, func() { s.command(r, &q, u) })
	case proto.KindSelect:
		s.fromSelector(r, u)
	case proto.KindOverride:
		s.fromOperator(r)
	// A count of the whole queue: it, too, goes on over many turns.
	case proto.KindShape:
		q := new(proto.Shape)
		if err := r.Decode(q); err != nil {
			r.Fail("%v", err)
			return
		}
		c := newCensus(q)
		s.ask(r, func() { s.census(r, c) })
	// A copy of the queue for a forecast, as sums by destination.
	case proto.KindBacklog:
		var q proto.Backlog
		if err := r.Decode(&q); err != nil {
			r.Fail("%v", err)
			return
		}
		b := &backlog{rows: make(map[backlogKey]int), dests: make(map[hop]bool), tenants: make(map[string]bool)}
		b.cursor, _ = fromCursor(q.Cursor)
		s.ask(r, func() { s.backlog(r, b) })
	// What is in memory, and bounded: one turn of the loop has all of it.
	case proto.KindSources, proto.KindStanding:
		s.ask(r, func() { s.describe(r) })
	case proto.KindExplain:
		var q proto.Explain
		if err := r.Decode(&q); err != nil {
			r.Fail("%v", err)
			return
		}
		// Without a queue ID it is about a destination, which may have mail in memory or none.
		if q.ID == "" {
			s.explainDestination(r, &q)
			return
		}
		s.ask(r, func() { s.summon(numbers(q.ID), func() { s.explain(r, q.ID) }) })
	default:
		r.Fail("qmgr: unknown request %d", r.Kind)
	}
}

// A question is a request that came before the queue was known.
type question struct {
	r      *ipc.Request // nil: nobody waits for the answer
	answer func()
}

// askPatience is how long a tool waits while cleanup says nothing: it may have failed to
// start, and the log says why. Recovering a million messages takes about a second.
const askPatience = 20 * time.Second

// ask has the loop answer a tool when the incoming queue is known. Just after a start it
// would otherwise answer for a part of the queue as if that were all.
func (s *Server) ask(r *ipc.Request, answer func()) {
	s.post(func() {
		if s.told {
			answer()
			return
		}
		q := &question{r, answer}
		s.asked = append(s.asked, q)
		s.waitFor(q)
	}, sched.Event{})
}

// waitFor has late called when q has waited for Options.Patience.
func (s *Server) waitFor(q *question) {
	s.tasks.Go(func() {
		t := time.NewTimer(s.opt.Patience)
		defer t.Stop()
		select {
		case <-t.C:
			s.post(func() { s.late(q) }, sched.Event{})
		case <-s.ctx.Done():
		}
	})
}

// late refuses q if cleanup has been silent; while it goes on telling, q waits on.
func (s *Server) late(q *question) {
	i := slices.Index(s.asked, q)
	switch {
	case i < 0: // it has been answered
	case q.r == nil || s.now.Sub(s.heard) < s.opt.Patience:
		s.waitFor(q)
	default:
		s.asked = slices.Delete(s.asked, i, i+1)
		q.r.Fail("the queue is not known: the cleanup service does not answer, the log may say why")
	}
}

// queueTold answers the tools that have waited, behind the arrivals that are still to be
// taken in.
func (s *Server) queueTold() {
	if s.orders != nil && !s.told {
		close(s.orders.known)
	}
	s.told = true
	for _, q := range s.asked {
		s.queue = append(s.queue, input{learn: q.answer})
	}
	s.asked = nil
}

// listed is what the loop knows of a message that is to be listed, as a copy for use
// outside the loop.
type listed struct {
	item    proto.Item
	ref     queue.Ref
	done    []byte
	now     map[int]mail.Outcome // failures of this stay in the active queue
	next    uint64               // the number behind it, with which a page may begin
	pending int                  // recipients without a final outcome
	waits   map[int]string       // recipients that wait for a shared limit, and what for; nil: there are none
	rules   *ruleset             // by which mail is not tried; nil: there are none, or the message is on hold
	limits  *ruleset             // of destinations; nil likewise
	at      time.Time            // when this was so
}

// list answers with one page of the queue, in cleanup's order. Messages in memory are
// shown as they are here.
func (s *Server) list(r *ipc.Request, q *proto.List) {
	at, _ := fromCursor(q.Cursor)
	want := &proto.Page{Cursor: at}
	if q.ID != "" {
		want = &proto.Page{Numbers: []uint64{uint64(msgID(q.ID))}}
	}
	s.readPage(want, func(reply *proto.PageReply) { s.listing(r, q, reply) })
}

// listing takes the page in and answers. A brief listing needs nothing from the spool;
// the tool reads what it wants itself.
func (s *Server) listing(r *ipc.Request, q *proto.List, reply *proto.PageReply) {
	var page []listed
	next := reply.Next
	for i := range reply.Entries {
		e := &reply.Entries[i]
		m, info, ok := s.view(&e.Entry)
		if !ok || q.ID != "" && m.id != q.ID {
			continue
		}
		l := s.listed(m, info, q.Brief)
		l.next = e.Next
		if page = append(page, l); len(page) == min(max(q.N, 1), listPage) && i < len(reply.Entries)-1 {
			next = l.next
			break
		}
	}
	if q.Brief {
		reply := &proto.ListReply{Next: cursorOf(next, heldToo), Items: make([]proto.Item, len(page))}
		for i := range page {
			reply.Items[i] = page[i].item
		}
		r.Reply(reply)
		return
	}
	s.tasks.Go(func() { r.Reply(s.fillPage(page, next)) })
}

// fillPage reads the page's messages, as many as go into one reply. The next page begins
// with the first that does not.
func (s *Server) fillPage(page []listed, next uint64) *proto.ListReply {
	reply := &proto.ListReply{Next: cursorOf(next, heldToo), Items: make([]proto.Item, 0, len(page))}
	size := 0
	for i := range page {
		l := &page[i]
		if !s.fill(l) {
			continue
		}
		reply.Items = append(reply.Items, l.item)
		for _, rc := range l.item.Recipients {
			size += rc.Size()
		}
		if size > listOctets && l.next != 0 {
			reply.Next = cursorOf(l.next, heldToo)
			break
		}
	}
	return reply
}

// listed copies what is known of m.
func (s *Server) listed(m *message, info sched.Info, brief bool) listed {
	if brief {
		return listed{item: proto.Item{ID: m.id, Queue: info.Queue.String(), Arrival: info.Created, Next: info.Next,
			Size: info.Size, Attempts: info.Attempts, ForcedExpire: info.Flags&sched.FlagExpire != 0, Ref: m.ref, Done: m.done, Node: s.opt.Settings.Node}}
	}
	l := listed{ref: m.ref, pending: info.Pending, done: append([]byte(nil), m.done...), item: proto.Item{ID: m.id, Queue: info.Queue.String(),
		Arrival: info.Created, Next: info.Next, Size: info.Size, Attempts: info.Attempts,
		ForcedExpire: info.Flags&sched.FlagExpire != 0, Node: s.opt.Settings.Node}}
	if m.active != nil {
		l.now = maps.Clone(m.active.outcomes)
		s.sched.Shut(m.num, l.shut)
	}
	if info.Queue != sched.QueueHold {
		l.rules, l.limits, l.at = s.rules.set, s.rules.limits, s.now
	}
	return l
}

// shut notes that recipients wait for a shared limit.
func (l *listed) shut(rcpts []int, gate string, until time.Time) {
	if l.waits == nil {
		l.waits = make(map[int]string)
	}
	text := "waits for the limit of " + gate
	if !until.IsZero() {
		text += " until " + until.Format(time.DateTime)
	}
	for _, i := range rcpts {
		l.waits[i] = text
	}
}

// fill reads the rest of a listed message. It returns false when the message has left
// meanwhile or cannot be read; mailq then shows the others.
func (s *Server) fill(l *listed) bool {
	return s.fillFrom(l, func(ctx context.Context) (queueread.Stored, error) { return s.opt.Open(ctx, l.ref, l.item.ID) })
}

// fillFrom is fill with a way to open the message.
func (s *Server) fillFrom(l *listed, open func(context.Context) (queueread.Stored, error)) bool {
	st, err := open(s.ctx)
	if err != nil {
		return false
	}
	env, err := st.Envelope()
	if err != nil {
		return false
	}
	rcpts, err := st.Recipients(0, listRcpts)
	if err != nil {
		return false
	}
	outcomes, err := st.Outcomes()
	if err != nil {
		return false
	}
	return s.complete(l, &env, rcpts, outcomes)
}

// complete adds to a listed message what was read of it, and what suspends or limits its
// recipients. It returns false when no recipient is left. It runs outside the loop.
func (s *Server) complete(l *listed, env *mail.Envelope, rcpts []mail.Recipient, outcomes []mail.Outcome) bool {
	l.item.Describe(env)
	last := l.last(outcomes)
	m, none := message{done: l.done}, mail.Outcome{}
	size := 0
	for i, rc := range rcpts[:min(len(rcpts), listRcpts)] {
		// One message must fit into a reply, whatever remote systems have said about its
		// recipients.
		if size > 4*listOctets {
			break
		}
		if !m.isDone(i) {
			o := cmp.Or(last[i], &none)
			to := proto.ItemRcpt{Address: rc.Address, Orig: rc.Original, Reason: o.Why(), Status: o.Status, Waits: l.waits[i]}
			if r := s.ruleFor(l.rules, env, rc.Address, l.at); r != nil && !r.queueOnly {
				to.Suspended = r.target.String()
				if text := r.reason(); text != to.Reason {
					to.Waits = text
				}
			}
			if r := s.limitFor(l.limits, env, rc.Address); r != nil {
				to.Limited = r.target.String()
				// A reply says more about mail that has been tried.
				if to.Suspended == "" && to.Reason == "" {
					to.Waits = r.limitReason()
				}
			}
			// It is no reason to wait, and so mailq does not name it.
			if r := s.diversionFor(env, rc.Address); r != nil {
				to.Diverted = r.target.String()
			}
			if l.item.Attempts == 0 && env.SendAt.After(time.Now()) {
				to.Waits = startsText(env.SendAt)
			}
			size += to.Size()
			l.item.Recipients = append(l.item.Recipients, to)
		}
	}
	return len(l.item.Recipients) > 0
}

// startsText says that a message is to be tried later, for operators.
func startsText(at time.Time) string {
	return "to be tried first at " + at.Format(time.DateTime) + ", as its sender has asked"
}

// last is the latest outcome of each recipient: from this stay in the active queue, or as
// recorded.
func (l *listed) last(recorded []mail.Outcome) map[int]*mail.Outcome {
	last := make(map[int]*mail.Outcome, len(recorded)+len(l.now))
	for i := range recorded {
		last[recorded[i].Rcpt] = &recorded[i]
	}
	for i, o := range l.now {
		last[i] = &o
	}
	return last
}

// eventKinds maps the verbs of tools to the scheduler's events.
var eventKinds = map[proto.Verb]sched.EventKind{proto.VerbFlush: sched.EventFlush, proto.VerbHold: sched.EventHold,
	proto.VerbRelease: sched.EventRelease, proto.VerbDelete: sched.EventRemove,
	proto.VerbRequeue: sched.EventRequeue, proto.VerbExpire: sched.EventExpire}

// command carries out an operator's command on one message, or a flush.
func (s *Server) command(r *ipc.Request, q *proto.Command, u proto.Unread) {
	kind, ok := eventKinds[q.Verb]
	if !ok {
		r.Fail("qmgr: unknown command %d", q.Verb)
		return
	}
	if q.Verb == proto.VerbFlush {
		s.flushCommand(r, q, u)
		return
	}
	s.summon(numbers(q.ID), func() { s.commandOne(r, q, kind, u) })
}

// commandOne carries out a command on a message, which exists if it is in memory now.
func (s *Server) commandOne(r *ipc.Request, q *proto.Command, kind sched.EventKind, u proto.Unread) {
	reply := proto.CommandReply{Unread: u}
	num := msgID(q.ID)
	info, ok := s.sched.Lookup(num)
	if ok && applies(q.Verb, info) && (q.Queue == "" || info.Queue.String() == q.Queue) {
		reply.IDs = append(reply.IDs, q.ID)
		s.operate(sched.Event{Kind: kind, ID: num, Scope: sched.ScopeMessage, Now: q.Now})
	}
	// What the operator is told has happened must have been recorded: the
	// answer goes out behind the changes.
	s.log.after(func() {
		if why, ok := s.log.refused[q.ID]; ok {
			r.Fail("%s: a change is not recorded, and would not outlive a restart: %s", q.ID, why)
			return
		}
		r.Reply(&reply)
	})
}

// operate passes an operator's command on to the scheduler. A message that is to be queued
// again waits for deliveries that a former queue manager ordered, as it does for ours:
// nobody can call them back, and the new message would be delivered beside them.
//
// A hold and a removal take effect when the deliveries under way end, which may be hours. On
// record the message is on hold from now on: a restart must not undo what the operator was
// told, and it cannot be removed while agents read it.
func (s *Server) operate(ev sched.Event) {
	switch list, m := s.formers[ev.ID], s.messages[ev.ID]; {
	case ev.Kind == sched.EventRequeue && len(list) > 0:
		list[0].after = append(list[0].after, ev)
		return
	case m == nil || m.active == nil:
	case ev.Kind == sched.EventHold, ev.Kind == sched.EventRemove:
		m.active.aside = true
		s.log.update(m, proto.Op{Change: queue.Change{Set: queue.SetQueue, Queue: queue.Hold}})
	}
	s.then(ev)
}

// applies says whether a command has something to do with a message, counted as postsuper
// counts: a message on hold is not put on hold again.
func applies(v proto.Verb, info sched.Info) bool {
	switch v {
	case proto.VerbHold:
		return info.Queue != sched.QueueHold
	case proto.VerbRelease:
		return info.Queue == sched.QueueHold
	case proto.VerbExpire:
		return info.Flags&sched.FlagExpire == 0
	}
	return true
}

// noSuchMessage is the answer to a flush of a message that is not there.
const noSuchMessage = "no such message in the queue"

// flushCommand carries out a flush of one message, one site or everything. It is answered
// at once: that mail is delivered takes its time, and a flush has no outcome to wait for.
func (s *Server) flushCommand(r *ipc.Request, q *proto.Command, u proto.Unread) {
	ev := sched.Event{Kind: sched.EventFlush, Scope: sched.ScopeAll}
	switch {
	case q.ID != "":
		ev.Scope, ev.ID, ev.Now = sched.ScopeMessage, msgID(q.ID), true
		s.summon(numbers(q.ID), func() {
			if !s.knows(ev.ID) && u.Ordered == "" {
				r.Reply(&proto.CommandReply{Denied: noSuchMessage, Unread: u})
				return
			}
			s.then(ev)
			r.Reply(&proto.CommandReply{Unread: u})
		})
		return
	case q.Site != "":
		if !s.opt.Settings.FlushDomain(q.Site) {
			r.Reply(&proto.CommandReply{Denied: "the site is not configured for fast flush (fast_flush_domains)"})
			return
		}
		if !s.flushSite(q.Site) {
			r.Fail("too many sites wait to be flushed")
			return
		}
		r.Reply(&proto.CommandReply{Unread: u})
		return
	}
	s.then(ev)
	r.Reply(&proto.CommandReply{Unread: u})
}
