// What goes on among nodes: the queue manager's shares of limits that hold over all of them, and the notes by which other
// services tell each other what they have counted. cleanup alone writes to what the nodes share.
//
// Why both go through cleanup: it has the queue open, and with it the account of the database. A service that faces the
// network, as smtpd does, is to know neither the password nor the tables; what it can say here is one note of its own, of
// bounded length, and what it hears is other nodes' notes, and no mail.
//
// Why a note is answered with the notes of others, and does not come back by itself: who publishes wants to hear, at the same
// time and as often. So there is nobody to be remembered here, and nothing to be told when a service or a node ends.
//
// Neither waits for mail, nor mail for them: the engine makes both over connections that it reads with, beside its writer.

package cleanup

import (
	"posthaste/internal/ipc"
	"posthaste/internal/nodeshare"
	"posthaste/internal/proto"
	"posthaste/internal/storage"
)

// amongNodes carries out such a request.
func (s *server) amongNodes(r *ipc.Request) {
	switch r.Kind {
	case proto.KindShares:
		s.shares(r)
	case proto.KindNotes:
		s.notes(r)
	default:
		s.ownedParts(r)
	}
}

// ownedParts says which parts of the queue are open here. The database names a node a part's owner before that node has read it:
// what was ordered of its messages must not be looked for by then, since they would seem to be gone.
func (s *server) ownedParts(r *ipc.Request) {
	var reply proto.OwnedReply
	if en, ok := s.opt.Engine.(storage.Owner); ok {
		for _, o := range en.Owned() {
			reply.Parts = append(reply.Parts, proto.OwnedPart{ID: o.Part, Epoch: o.Epoch})
		}
		// Of what has been taken over a listing shows what is here, and the rest as the database has it.
		reply.Reading = en.Reading()
	}
	r.Reply(&reply)
}

// notes publishes a note, and answers with those of others. Where there is one node only, nobody says anything. An error is
// for who asked to wait out: the next note has all of this one again.
func (s *server) notes(r *ipc.Request) {
	var q proto.Notes
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	// The log is one node's. Its services do not ask, but for a moment at a change of spool_type.
	en, ok := s.opt.Engine.(storage.Noter)
	if !ok {
		r.Reply(&proto.NotesReply{})
		return
	}
	s.wg.Go(func() { // it waits for the storage
		list, err := en.Notes(q.Topic, q.Note)
		if err != nil {
			r.Fail("%v", err)
			return
		}
		r.Reply(&proto.NotesReply{Notes: list})
	})
}

// shares exchanges what the queue manager claims of limits for what other nodes leave. The engine waits for its
// storage, and so it has a goroutine of its own. Where there is one node only, it is alone.
//
// An error is not told apart: whether the exchange was made is not known, and the queue manager goes on with what it had
// until that is over. The next exchange has all claims again, so that nothing is lost by it.
func (s *server) shares(r *ipc.Request) {
	var q proto.Shares
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	// A queue manager of another spool_type asks no such thing. At a change of that, the old one may be there
	// for a moment longer.
	en, ok := s.opt.Engine.(storage.Sharer)
	if !ok {
		r.Reply(&proto.SharesReply{Alone: true})
		return
	}
	s.wg.Go(func() {
		reply, err := en.Exchange(&nodeshare.Request{Alone: q.Alone, Claims: q.Claims, More: q.More, Fresh: q.Fresh})
		if err != nil {
			r.Fail("%v", err)
			return
		}
		r.Reply(&proto.SharesReply{Alone: reply.Alone, Grants: reply.Grants})
	})
}
