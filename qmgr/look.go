// How a listing finds few messages among very many.

package qmgr

import (
	"slices"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/selection"
	"posthaste/qmgr/sched"
)

// Who lists mail of one domain, or from one source, waits for a page of it. A selection goes through the queue in
// cleanup's pages, which is quick where much of the queue is meant. Where little is, it would take a second for a
// million messages, most of them described by cleanup only to be passed over. So after some thousand messages the
// rest is looked for in memory alone: in the book by domains, or in the scheduler's records by what mail waits for,
// by its queue, age, size and tenant. What is found there is asked of cleanup and judged like any other page, and the
// cursor means the same: numbers of messages in their order.
//
// Acts on all that is meant, and counts, go on through the pages: these see to it that nothing is left out.

const (
	// lookAfter is how many messages a listing goes through page by page before it looks for the rest.
	//
	// In these there is a page of what is one message in twenty, so that only what is rarer is
	// looked for, and a look finds few. They take some milliseconds.
	lookAfter = 1 << 11
	// lookUnread is how many messages may be in the book that nobody has read yet: a look has to
	// pass each of them on to be read.
	lookUnread = 1 << 12
	// lookRecords is how many records are looked at in one turn of the loop: some milliseconds' work
	// where each has to be described.
	lookRecords = 1 << 15
	// lookTime is how long a listing goes on before it tells what it has found.
	//
	// Somebody looks at it. The tools and the console ask for more by themselves.
	lookTime = 50 * time.Millisecond
)

// lookSizes are how much is done before a look, and in one turn of it. Tests have few messages,
// and want small numbers.
type lookSizes struct {
	after   int   // lookAfter
	slips   int32 // sweepSlips
	records int   // lookRecords
}

// A look is one search in memory. It belongs to the loop.
type look struct {
	c    *selecting
	from sched.MsgID // no number before
	room int         // how many messages the page has room for
	// The numbers found so far; from time to time only the lowest are kept, one more than there is room for.
	nums           []sched.MsgID
	senders, rcpts func(nameID) bool
	sweep          *sweep // of the book; nil: of the records
	cursor         int    // of the scheduler, for records
}

// listing says that c lists messages and does nothing to them.
func (c *selecting) listing() bool { return c.q.Items && c.q.Verb == 0 && len(c.q.IDs) == 0 }

// room is how many messages one page of c has. Where most of them will turn out not to be meant, there are as many as can be judged
// together.
func (c *selecting) room() int {
	if c.listing() && c.q.Most > 0 && c.where.Told() {
		return min(c.q.Most, listPage)
	}
	return listPage
}

// longEnough says that c has looked for long enough to say what it has found.
func (s *Server) longEnough(c *selecting) bool { return c.listing() && s.now.Sub(c.begun) > lookTime }

// held says which messages a listing has now. Mail on hold is not in memory, and most of the queue is not on hold: so
// what is in memory is listed first where that can be looked for, and what is on hold after it, by the pages. The
// cursor says which of them it is in.
type held uint8

const (
	heldToo   held = iota // all in one list
	heldLater             // those that are not on hold
	heldOnly              // those that are
)

// openList decides on the list that c has, or goes on with that of its cursor.
func (s *Server) openList(c *selecting) {
	c.at, c.held = fromCursor(c.q.Cursor)
	// What is done to mail is done in one list.
	if !c.listing() {
		c.held = heldToo
		return
	}
	hold := sched.QueueHold.String()
	if c.q.Cursor == 0 && s.away.hold > 0 && c.where.Queue(hold) && !(c.where.NamesQueue(hold) && c.where.NamesOneQueue()) && s.searchable(c) {
		c.held = heldLater
	}
}

// lists says whether a message is in the list that c has.
func (c *selecting) lists(info *sched.Info) bool {
	return c.held == heldToo || (info.Queue == sched.QueueHold) == (c.held == heldOnly)
}

// goOn notes where c goes on; 0: at the end of its list.
func (c *selecting) goOn(next uint64) {
	c.at = next
	switch {
	case next != 0:
		c.reply.Next = cursorOf(next, c.held)
	case c.held == heldLater:
		c.reply.Next = cursorOf(0, heldOnly)
	default:
		c.reply.Next = 0
	}
}

// searchable says whether what c lists, but for mail on hold, can be looked for in memory: whether it is all there, and
// something is known that leaves most of it out.
func (s *Server) searchable(c *selecting) bool {
	switch where := c.where; {
	// Of mail that is not in memory it is not known what it waits for, and so none is meant.
	case where.NeedsScheduler():
		return true
	case !s.sched.Whole():
		return false
	// Those that nobody has read yet would all have to be read here.
	case where.Narrow():
		return s.book.unknown < lookUnread
	default:
		return !where.NeedsEnvelope() || where.NamesTenants()
	}
}

// lookFor has the rest of c's page found in memory, if that is worth while and possible; false: it is not.
func (s *Server) lookFor(c *selecting) bool {
	switch {
	case !c.listing() || c.looked || c.seen < s.looks.after || c.held == heldOnly || !s.searchable(c):
		return false
	case c.held == heldToo && s.away.hold > 0 && c.where.Queue(sched.QueueHold.String()) && !c.where.NeedsScheduler():
		return false // there was nothing on hold when the list began
	}
	l := &look{c: c, from: sched.MsgID(c.at), room: c.room() - len(c.page),
		senders: s.book.names.asked(c.where.SenderIn), rcpts: s.book.names.asked(c.where.RecipientIn)}
	if c.where.Narrow() && !c.where.NeedsScheduler() {
		l.sweep = s.book.sweep()
	}
	c.looked = true
	s.goOnLooking(l)
	return true
}

// goOnLooking looks at the next part of the book, or of the records, and at the end asks for what was found.
func (s *Server) goOnLooking(l *look) {
	more := false
	switch where := l.c.where; {
	case l.sweep != nil:
		// Messages that are tried meanwhile are met at the end.
		if more = l.sweep.step(s.looks.slips, func(p *slip) { s.lookAt(l, p) }); more {
			break
		}
		l.sweep.end(s.messages, func(num sched.MsgID) {
			if info, ok := s.sched.Lookup(num); ok && num >= l.from && l.c.lists(&info) && s.maybe(where, &info) {
				l.add(num)
			}
		})
		if l.sweep.lost { // by the pages, then
			s.gather(l.c)
			return
		}
	default:
		sought := sched.Sought{Queue: func(q sched.Queue) bool { return where.Queue(q.String()) }}
		if where.NeedsScheduler() {
			sought.Waits = func(t mail.Transport, queue string) bool { return waitsAt(where, t, queue) }
		}
		if where.NamesTenants() {
			sought.Tenant = where.OfTenant
		}
		l.cursor = s.sched.Sweep(l.cursor, s.looks.records, sought, func(info sched.Info) {
			if info.ID >= l.from && l.c.lists(&info) && s.maybe(where, &info) {
				l.add(info.ID)
			}
		})
		more = l.cursor != 0
	}
	if more {
		s.post(func() { s.goOnLooking(l) }, sched.Event{})
		return
	}
	s.askFound(l)
}

// lookAt looks at a message in the book. Its domains and its age leave nearly all out, and the scheduler is asked
// about the others.
func (s *Server) lookAt(l *look, p *slip) {
	// In the order of what they cost.
	if p.num < l.from || !s.inDomains(p, l.c.where.ByOriginal(), l.senders, l.rcpts) || !l.c.where.Aged(time.UnixMicro(p.created)) {
		return
	}
	info, ok := s.sched.Lookup(p.num)
	if ok && l.c.lists(&info) && l.c.where.Message(&selection.Message{Queue: info.Queue.String(), Created: info.Created, Size: info.Size}) &&
		(p.sender == 0 || l.c.where.OfCampaign(s.book.campaign(p.num))) {
		l.add(p.num)
	}
}

// inDomains says whether a message in the book can be meant by the domains of its sender and of its recipients. false
// is certain, true is not: where the domains are not known, or a recipient's was another one before aliases and that
// one may be meant.
func (s *Server) inDomains(p *slip, original bool, senders, rcpts func(nameID) bool) bool {
	if p.sender == 0 {
		return true
	}
	if !senders(p.sender) {
		return false
	}
	if original && p.flags&slipOrig != 0 {
		return true
	}
	found := false
	s.book.eachDomain(p, 1, func(id nameID, _ int) { found = found || rcpts(id) })
	return found
}

// add keeps a number, as long as it is among the lowest.
func (l *look) add(num sched.MsgID) {
	if l.nums = append(l.nums, num); len(l.nums) >= 16*listPage {
		l.trim()
	}
}

func (l *look) trim() {
	slices.Sort(l.nums)
	l.nums = l.nums[:min(len(l.nums), l.room+1)]
}

// askFound asks cleanup for what was found, and has it judged.
//
// Cleanup is asked although the book and the scheduler know most of it: a message that has left
// meanwhile is not in its answer, and all lists are made in one way.
func (s *Server) askFound(l *look) {
	l.trim()
	next := uint64(0)
	if len(l.nums) > l.room {
		next = uint64(l.nums[l.room])
		l.nums = l.nums[:l.room]
	}
	c := l.c
	c.goOn(next)
	// Without numbers the question would be for a page. What the page has from before is judged all the same.
	if len(l.nums) == 0 {
		s.tasks.Go(func() { s.judgeAll(c) })
		return
	}
	want := &proto.Page{}
	for _, num := range l.nums {
		want.Numbers = append(want.Numbers, uint64(num))
	}
	s.readPage(want, func(reply *proto.PageReply) {
		for i := range reply.Entries {
			e := &reply.Entries[i].Entry
			if m, info, ok := s.view(e); ok && c.lists(&info) && s.maybe(c.where, &info) {
				found := s.listed(m, info, false)
				found.next = uint64(info.ID) + 1
				c.page = append(c.page, found)
			}
		}
		s.tasks.Go(func() { s.judgeAll(c) })
	})
}

// waitsAt says whether mail is meant that waits for a queue of the scheduler's.
func waitsAt(where *selection.Selection, transport mail.Transport, queue string) bool {
	// What another host has replied must not say which mail is deleted.
	if isReason(transport) {
		queue = ""
	}
	return where.Waits(string(transport), nexthopOf(queue), sched.SourceOf(queue))
}
