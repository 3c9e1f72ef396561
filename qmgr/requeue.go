package qmgr

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/spool"
	"posthaste/internal/submit"
	"posthaste/qmgr/sched"
)

// requeueTimeout bounds the copying of one message through cleanup.
const requeueTimeout = 10 * time.Minute

// requeue sends a message through cleanup again, under a new ID, so that
// changed tables apply to it; the old one goes in the same commit. On failure
// the message stays as it was.
func (s *Server) requeue(m *message) {
	ref, id, done := m.ref, m.id, slices.Clone(m.done)
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, requeueTimeout)
		defer cancel()
		newID, err := s.resubmit(ctx, ref, id, done)
		s.post(func() { s.requeued(id, newID, err) }, sched.Event{})
	})
}

func (s *Server) requeued(id, newID mail.QueueID, err error) {
	m := s.messages[msgID(id)]
	if m == nil {
		return
	}
	if err != nil {
		s.opt.Log.Warning("%s: not requeued: %v", id, err)
		s.moveTo(m, spool.Deferred, s.now)
		delete(s.messages, msgID(id))
		m.active = nil
		s.arrive(&proto.Entry{Entry: spool.Entry{ID: id, Ref: m.ref, Queue: spool.Deferred, NRcpt: int(m.nrcpt),
			NPending: int(m.nrcpt), Null: m.null, Done: m.done, Attempts: 1}})
		return
	}
	s.opt.Log.Info("%s: requeued as %s", id, newID)
	s.log.remove(m)
	delete(s.messages, msgID(id))
}

func (s *Server) resubmit(ctx context.Context, ref spool.Ref, id mail.QueueID, done []byte) (mail.QueueID, error) {
	st, err := s.opt.Open(ctx, ref, id)
	if err != nil {
		return "", err
	}
	st.Overlay(done)
	env, err := st.Envelope()
	if err != nil {
		return "", err
	}
	all, err := st.Recipients(0, -1)
	if err != nil {
		return "", err
	}
	settle := &proto.Settle{ID: id}
	for i := range all {
		if st.Pending(i) {
			r := all[i]
			if r.Original != "" { // aliases are expanded anew
				r.Address, r.Original = r.Original, ""
			}
			env.Recipients = append(env.Recipients, r)
			settle.Rcpts = append(settle.Rcpts, i)
		}
	}
	content, err := st.Content()
	if err != nil {
		return "", err
	}
	defer content.Close()
	if env.ID, err = s.opt.Submit.NewID(ctx, time.Now()); err != nil {
		return "", err
	}
	msg := s.opt.Submit.Open(&env, submit.Options{Flags: proto.SubmitMap | proto.SubmitFilter | proto.SubmitBounce, Settles: settle})
	if _, err := io.Copy(msg, content); err != nil {
		msg.Abort()
		return "", err
	}
	reply, err := msg.Commit(ctx)
	if err != nil {
		return "", err
	}
	if reply.Code != 250 {
		return "", fmt.Errorf("%d %s %s", reply.Code, reply.Status, reply.Text)
	}
	return env.ID, nil
}
