package qmgr

import (
	"slices"
	"strings"
	"time"

	"posthaste/qmgr/sched"
)

// Mail for a site is asked for by ETRN, which strangers may send by the
// thousand, and finding it takes time in a deep queue. So sites are flushed one
// at a time, with a rest between, and one that waits for its turn is not
// noted twice: all that is asked for costs part of one processor.

// maxFlushes bounds how many sites wait for their turn.
const maxFlushes = 1000

// flushes are the sites whose mail is to be tried now.
type flushes struct {
	under bool     // one has its turn, or rests
	next  []string // those that wait, in lower case
}

// flushSite has the mail for a site tried, at its turn. It is false when too
// many wait already.
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

// nextFlush begins with the next site, unless one has its turn.
func (s *Server) nextFlush() {
	f := &s.sites
	if f.under || len(f.next) == 0 {
		return
	}
	site := f.next[0]
	f.next = slices.Delete(f.next, 0, 1)
	f.under = true
	began := time.Now()
	s.then(sched.Event{Kind: sched.EventFlush, Scope: sched.ScopeSite, Site: site})
	found, unread := s.siteSearch(site)
	s.tasks.Go(func() {
		for _, m := range unread {
			if s.ctx.Err() != nil {
				return
			}
			if _, domains, err := s.peruse(m); err == nil && domains[site] > 0 {
				found = append(found, m.num)
			}
		}
		var ev sched.Event
		if len(found) > 0 {
			ev = sched.Event{Kind: sched.EventFlush, Scope: sched.ScopeSite, Site: site, IDs: found}
		}
		s.post(nil, ev)
		rest := time.NewTimer(time.Since(began))
		defer rest.Stop()
		select {
		case <-rest.C:
		case <-s.ctx.Done():
		}
		s.post(func() {
			s.sites.under = false
			s.nextFlush()
		}, sched.Event{})
	})
}

// siteSearch finds messages for a site that the scheduler cannot know of,
// since it has not read their recipients in this process's life. Those that
// the book does not know either are to be read beside the loop.
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
