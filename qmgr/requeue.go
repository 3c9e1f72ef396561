// "postsuper -r": a message goes through cleanup again, under a new ID. It is in a file
// of its own because it is the one place where the queue manager submits mail.

package qmgr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/event"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/submit"
	"posthaste/qmgr/sched"
)

// requeueTimeout bounds the copying of one message through cleanup. It is ample for the
// largest message, and finite, since the message is in no queue meanwhile.
const requeueTimeout = 10 * time.Minute

// requeue sends a message through cleanup again, under a new ID, so that
// changed tables apply to it; the old one goes in the same commit. On failure
// the message stays as it was.
//
// Today's configuration holds for it: what it goes through is what pickup would
// have it go through, but for the filters (milters) that saw it when it came; a
// FILTER or REDIRECT of former checks is gone. Automatic BCC recipients are added
// as for new mail, unless they were recipients before.
//
// It starts over, with its age, attempts and warnings, for the original
// addresses of all recipients that are not done. Two things are kept. Who has
// the message, and is not done only because his sender is to be told so, does
// not get it once more, and his sender is not told, as with Postfix. And of the
// members of an alias that its sender has been told of he is not told again,
// while the alias is still what the original address comes to.
func (s *Server) requeue(m *message, held bool) {
	s.work(m)               // it is not in the queue any more, and not gone
	if m.provision != nil { // cleanup must have it, so that the copy can take its place
		s.onceKept(m, func() { s.requeue(m, held) }, func() { s.forget(m) })
		return
	}
	if s.log.unsure(m.id) { // first it must be known who has been told of what
		s.log.after(func() { s.resubmitAside(m, held) })
		return
	}
	s.resubmitAside(m, held)
}

// resubmitAside has the message copied in a task.
func (s *Server) resubmitAside(m *message, held bool) {
	num, ref, id, nrcpt, done := m.num, m.ref, m.id, m.nrcpt, slices.Clone(m.done)
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, requeueTimeout)
		defer cancel()
		newID, err := s.resubmit(ctx, ref, id, done)
		// The connection may have broken when the copy was queued and the old message
		// removed with it: cleanup is asked which of the two it has.
		var old proto.LocateReply
		if err != nil && s.cleanup.CallAgain(ctx, &proto.Locate{ID: id}, &old) != nil {
			old.Found, old.Entry.NPending, old.Entry.Attempts = true, int(nrcpt), 1 // what can be said without cleanup
		}
		s.post(func() { s.requeued(num, newID, &old, held, err) }, sched.Event{})
	})
}

// requeued takes in what came of it. A message that could not go through cleanup is what
// it was before: on hold, or to be tried again. If only the answer was lost, cleanup does
// not have the old message any more.
func (s *Server) requeued(num sched.MsgID, newID mail.QueueID, old *proto.LocateReply, held bool, err error) {
	m := s.messages[num]
	switch {
	case m == nil:
	case err == nil:
		s.opt.Log.Info("%s: requeued as %s", m.id, newID)
		s.opt.Events.Tell(&event.Event{Kind: event.Requeued, Time: s.now, QueueID: string(m.id), NewID: string(newID)})
		s.log.remove(m)
		s.forget(m)
	case !old.Found:
		s.opt.Log.Info("%s: requeued", m.id)
		s.forget(m)
	default:
		s.opt.Log.Warning("%s: not requeued: %v", m.id, err)
		e := &old.Entry
		e.ID, e.Ref, e.Queue, e.NextAttempt = m.id, m.ref, queue.Deferred, s.now
		if held {
			e.Queue = queue.Hold
		}
		s.moveTo(m, e.Queue, e.NextAttempt)
		s.forget(m)
		e.NRcpt, e.Null, e.Done = int(m.nrcpt), m.null, m.done
		s.arrive(&proto.Entry{Entry: *e}, s.log.conn, nil)
	}
}

// resubmit copies a message through cleanup and returns its new ID. done are the
// recipients that need nothing more. The commit removes the old message and queues the
// new one in one record (Settles), so there are never two and never none.
func (s *Server) resubmit(ctx context.Context, ref queue.Ref, id mail.QueueID, done []byte) (mail.QueueID, error) {
	st, err := s.opt.Open(ctx, ref, id)
	if err != nil {
		return "", err
	}
	// What has been decided here and may not be recorded yet.
	st.Overlay(done)
	env, err := st.Envelope()
	if err != nil {
		return "", err
	}
	opt, err := startOver(st, &env)
	if err != nil {
		return "", err
	}
	opt.Flags = s.opt.Settings.RequeueFlags
	if len(opt.NoBCC) == 0 {
		opt.Flags &^= proto.SubmitBCC // they are too many to be told
	}
	// What access tables and content checks asked for then is asked for anew, or not.
	env.Filter, env.Redirect = s.opt.Settings.RequeueFilter, ""
	opt.Settles.ID = id
	content, err := queueread.ContentOf(ctx, s.opt.Open, st, id)
	if err != nil {
		return "", err
	}
	defer content.Close()
	if env.ID, err = s.opt.Submit.NewID(ctx, time.Now()); err != nil {
		return "", err
	}
	msg := s.opt.Submit.Open(&env, opt)
	if _, err := io.Copy(msg, content); err != nil {
		msg.Abort()
		return "", err
	}
	reply, err := msg.Commit(ctx)
	if err != nil {
		return "", err
	}
	// cleanup's header checks or a mapping may refuse it now; the reason is logged.
	if reply.Code != 250 {
		return "", fmt.Errorf("%d %s %s", reply.Code, reply.Status, reply.Text)
	}
	return env.ID, nil
}

// startOver gives env the recipients that a message is queued again for, and returns what
// cleanup must know: which recipients of the old message are settled by this, and what
// their sender has been told.
func startOver(st queueread.Stored, env *mail.Envelope) (opt submit.Options, err error) {
	opt = submit.Options{Settles: new(proto.Settle)}
	all, err := st.Recipients(0, -1)
	if err != nil {
		return opt, err
	}
	outcomes, err := st.Outcomes()
	if err != nil {
		return opt, err
	}
	last := make(map[int]mail.Outcome, len(outcomes))
	for _, o := range outcomes {
		last[o.Rcpt] = o
	}
	state, room := new(queue.Change), proto.ListSize // what goes beyond a request is told again
	opt.NoBCC = known(all)
	for i, r := range all {
		if !st.Pending(i) {
			continue
		}
		opt.Settles.Rcpts = append(opt.Settles.Rcpts, i)
		o := last[i]
		// It has the message. Only the report was missing, and is given up.
		if o.Action.Final() && o.Action != dsn.Failed {
			continue
		}
		o.Parts = slices.DeleteFunc(o.Parts, func(p mail.Part) bool { return !p.Told })
		if size := outcomeOctets(&o) + len(r.Address) + len(r.Original) + len(r.ORCPT); len(o.Parts) > 0 && size <= room {
			room -= size
			o.Rcpt, o.Action, o.Status.Class = len(opt.Was), dsn.Deferred, 4 // no verdict: it is tried
			state.Outcomes, opt.Was, opt.State = append(state.Outcomes, o), append(opt.Was, r), state
		}
		// Aliases are expanded anew: those that cleanup has expanded. What local has forwarded would
		// come back there, and be a loop.
		if r.Original != "" && !env.Forwarded {
			r.Address, r.Original = r.Original, ""
		}
		env.Recipients = append(env.Recipients, r)
	}
	if len(env.Recipients) == 0 {
		return opt, errors.New("all recipients have it; that is to be told to the sender")
	}
	return opt, nil
}

// known are the addresses of all recipients, so that an automatic BCC is not added a
// second time; nil when they would not fit into a request.
func known(all []mail.Recipient) []string {
	list, room := make([]string, 0, len(all)), proto.ListSize
	for i := range all {
		if room -= len(all[i].Address) + 8; room < 0 {
			return nil
		}
		list = append(list, all[i].Address)
	}
	return list
}
