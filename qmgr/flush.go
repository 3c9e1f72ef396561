// Flushes of one site: ETRN (RFC 1985) and "postqueue -s". The scheduler knows only some
// of the mail for a site; the rest is found here, from the book or by reading the spool.

package qmgr

import (
	"slices"
	"strings"
	"time"

	"posthaste/internal/proto"
	"posthaste/qmgr/sched"
)

// Mail for a site is asked for by ETRN, which strangers may send by the
// thousand, and finding it takes time in a deep queue. So sites are flushed one
// at a time, with a rest between, and one that waits for its turn is not
// noted twice: all that is asked for costs part of one processor.

// maxFlushes bounds how many sites wait for their turn.
const maxFlushes = 1000

// What is not in memory has to be read for that. All sites that wait then are looked for at
// once: the queue is gone through once for all of them.

// flushes are the sites whose mail is to be tried now. They belong to the loop.
type flushes struct {
	under bool     // some have their turn, or rest
	next  []string // those that wait, in lower case
}

// flushSite has the mail for a site tried, at its turn. It is false when too many sites
// wait already: the client is told to come back.
func (s *Server) flushSite(site string) bool {
	site = strings.ToLower(site)
	f := &s.sites
	if slices.Contains(f.next, site) {
		return true // what has come since is found at its turn
	}
	if len(f.next) >= maxFlushes {
		return false
	}
	f.next = append(f.next, site)
	s.nextFlush()
	return true
}

// nextFlush begins with the next site, or with all that wait, unless one has its turn.
func (s *Server) nextFlush() {
	f := &s.sites
	switch {
	case f.under || len(f.next) == 0:
	case s.away.deferred > 0:
		f.under = true
		s.flushAway(f.next, 0, time.Now())
		// They are all looked for in one pass through the queue.
		f.next = nil
	default:
		f.under = true
		site := f.next[0]
		f.next = slices.Delete(f.next, 0, 1)
		s.flushKnown(site)
	}
}

// flushAway goes through the deferred mail for sites, a page at a time from cursor on.
// began is when the work on this page began, so that the rest after it is as long: half
// of one processor's time is enough for this.
func (s *Server) flushAway(sites []string, cursor uint64, began time.Time) {
	// What the scheduler knows needs no search.
	if cursor == 0 {
		for _, site := range sites {
			s.then(sched.Event{Kind: sched.EventFlush, Scope: sched.ScopeSite, Site: site})
		}
	}
	s.readPage(&proto.Page{Cursor: cursor}, func(reply *proto.PageReply) {
		var list []*message
		for i := range reply.Entries {
			// A copy, since the task outlives the turn.
			if m, info, ok := s.view(&reply.Entries[i].Entry); ok && info.Queue == sched.QueueDeferred {
				list = append(list, &message{id: m.id, num: m.num, ref: m.ref, nrcpt: m.nrcpt, done: slices.Clone(m.done)})
			}
		}
		s.tasks.Go(func() {
			found := make(map[string][]sched.MsgID)
			for _, m := range list {
				if s.ctx.Err() != nil {
					return
				}
				read, err := s.peruse(m)
				for i := 0; err == nil && i < len(sites); i++ {
					if read.domains[sites[i]] > 0 {
						found[sites[i]] = append(found[sites[i]], m.num)
					}
				}
			}
			s.flushRest(began)
			s.post(func() {
				for _, site := range sites {
					if ids := found[site]; len(ids) > 0 {
						s.then(sched.Event{Kind: sched.EventFlush, Scope: sched.ScopeSite, Site: site, IDs: ids})
					}
				}
				if reply.Next != 0 {
					s.flushAway(sites, reply.Next, time.Now())
					return
				}
				s.sites.under = false
				s.nextFlush()
			}, sched.Event{})
		})
	})
}

// flushRest waits for as long as the work has taken since began.
func (s *Server) flushRest(began time.Time) {
	rest := time.NewTimer(time.Since(began))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-s.ctx.Done():
	}
}

// flushKnown has the mail for a site tried when all deferred mail is in memory. Only
// messages whose domains the book does not know are read.
func (s *Server) flushKnown(site string) {
	began := time.Now()
	s.then(sched.Event{Kind: sched.EventFlush, Scope: sched.ScopeSite, Site: site})
	found, unread := s.siteSearch(site)
	s.tasks.Go(func() {
		for _, m := range unread {
			if s.ctx.Err() != nil {
				return
			}
			if read, err := s.peruse(m); err == nil && read.domains[site] > 0 {
				found = append(found, m.num)
			}
		}
		var ev sched.Event
		if len(found) > 0 {
			ev = sched.Event{Kind: sched.EventFlush, Scope: sched.ScopeSite, Site: site, IDs: found}
		}
		s.post(nil, ev)
		s.flushRest(began)
		s.post(func() {
			s.sites.under = false
			s.nextFlush()
		}, sched.Event{})
	})
}

// siteSearch finds messages for a site in the book. The scheduler knows only those that
// it has deferred itself in this process's life. unread are those that the book does not
// know the domains of.
func (s *Server) siteSearch(site string) (found []sched.MsgID, unread []*message) {
	want := s.book.names.ids[site] // 0: no message whose domains are known is for it
	for i := int32(1); i < s.book.used; i++ {
		switch p := s.book.at(i); {
		case p.num == 0:
		case p.sender == 0:
			unread = append(unread, s.book.message(p))
		case want != 0:
			s.book.eachDomain(p, 1, func(id nameID, _ int) {
				if id == want {
					found = append(found, p.num)
				}
			})
		}
	}
	return found, unread
}
