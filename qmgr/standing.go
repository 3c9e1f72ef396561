// How mail providers have taken our mail in the last day, for those who look (package
// standing): what deliveries have come to is counted here, what came back of them by the
// suppress service, and the answer has both. The counts are left to the next queue
// manager, since complaints come a day after the mail, and a rate of a few minutes says
// nothing.

package qmgr

import (
	"context"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/standing"
	"posthaste/qmgr/sched"
)

const (
	// standingName is the file in the service's directory of state.
	standingName = "standing"
	// standingTime is how often it is written while something is counted. What a crash can
	// lose is that much.
	standingTime = time.Minute
	// backTime is how long the suppress service may take to say what came back.
	backTime = 5 * time.Second
)

// standings are the counts, and the state of their file. They belong to the loop.
type standings struct {
	book    standing.Book
	changed bool      // the file does not have all
	at      time.Time // when it is written next
	writing bool      // a task is about it
}

// standingOf is what a provider has had to do with an outcome. What never came to a host
// of its own is no refusal of the provider's: a recipient may be on the suppression list.
func standingOf(o *mail.Outcome) (k standing.Kind, ok bool) {
	switch o.Action {
	case dsn.Delivered, dsn.Relayed:
		return standing.Sent, true
	case dsn.Deferred:
		return standing.Deferred, true
	case dsn.Failed:
		return standing.Bounced, o.DiagType == "smtp"
	}
	return 0, false // a probe
}

// countStanding counts what came of a delivery, for each of its recipients. Mail that stays in this system, in a
// mailbox or with a command, has no provider. A recipient that is deferred ten times counts ten times: what is shown
// is how the provider answers, not how many messages there are.
func (s *Server) countStanding(d *delivery, reply *proto.DeliverReply) {
	if d.provider == "" {
		return
	}
	for i := range reply.Outcomes {
		if k, ok := standingOf(&reply.Outcomes[i]); ok {
			s.standings.book.Count(s.now, d.provider, d.source, k)
			s.standings.changed = true
		}
	}
}

// restoreStanding begins with what was counted before. It runs before the loop.
func (s *Server) restoreStanding() {
	if s.opt.State == nil {
		return
	}
	text, err := s.opt.State.ReadIfThere(standingName)
	var book *standing.Book
	if err == nil {
		book, err = standing.Decode(text)
	}
	if err != nil {
		s.opt.Log.Warning("how providers have taken mail is counted anew: %s: %v", standingName, err)
		return
	}
	s.standings.book = *book
}

// keepStanding writes the file in a task when it is time. One task is about it at a time, so that an older text does not
// replace a newer one on a slow disk. A text that could not be written is written again when something has been counted.
func (s *Server) keepStanding() {
	st := &s.standings
	if s.opt.State == nil || !st.changed || st.writing || s.now.Before(st.at) {
		return
	}
	st.changed, st.writing, st.at = false, true, s.now.Add(standingTime)
	text := st.book.Encode()
	s.tasks.Go(func() {
		err := s.opt.State.Replace(standingName, text)
		s.post(func() { s.standings.writing = false }, sched.Event{})
		s.warnStanding(err)
	})
}

// leaveStanding writes the file for the last time, when nothing is counted any more.
func (s *Server) leaveStanding() {
	if s.opt.State != nil && s.standings.changed {
		s.warnStanding(s.opt.State.Replace(standingName, s.standings.book.Encode()))
	}
}

// warnStanding says that the next queue manager will not know the counts. No mail depends on them.
func (s *Server) warnStanding(err error) {
	if err != nil {
		s.opt.Log.Warning("how providers have taken mail is not kept: %v", err)
	}
}

// merged is what two services have counted, as one.
func merged(now time.Time, ours, theirs []byte) ([]byte, error) {
	book, err := standing.Decode(ours)
	if err != nil {
		return ours, err
	}
	back, err := standing.Decode(theirs)
	if err != nil {
		return ours, err
	}
	book.Merge(now, back)
	return book.Encode(), nil
}

// describeStanding answers with what was counted, and what came back. It runs in the loop, which does not wait for the
// suppress service: without that service's answer the caller gets what is known here, and why there is no more.
func (s *Server) describeStanding(r *ipc.Request) {
	reply := &proto.StandingReply{Book: s.standings.book.Encode()}
	if s.suppress == nil {
		r.Reply(reply)
		return
	}
	now := s.now
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, backTime)
		defer cancel()
		var back proto.StandingReply
		err := s.suppress.CallAgain(ctx, &proto.Standing{}, &back)
		if err == nil {
			reply.Book, err = merged(now, reply.Book, back.Book)
		}
		if err != nil {
			reply.Problem = "what came back is not known: " + err.Error()
		}
		r.Reply(reply)
	})
}
