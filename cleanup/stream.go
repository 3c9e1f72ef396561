// Messages that come in parts, because they are longer than a frame or because the client
// is still sending. Each has a goroutine, which takes the parts in order; the
// connection's reading goroutine only hands them on, so that one slow message does not
// hold up the others on the connection.

package cleanup

import (
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

// A stream is a message that comes in parts. It is in server.streams from the first part
// until the last, an abort, or the end of its connection, which closes parts.
type stream struct {
	// capacity: the window that submitters keep (proto.MaxUnanswered), and one for an
	// abort
	parts chan part
}

// streamKey names a stream: the parts of a message come over one connection.
type streamKey struct {
	conn *ipc.Conn
	id   mail.QueueID
}

// part is one request that belongs to a stream.
type part struct {
	// The request, which is answered when the part has been worked through. That is the
	// submitter's flow control.
	r *ipc.Request
	// Recipients that did not fit into the first part. They all come before any content.
	rcpts   []mail.Recipient
	listing bool // the next part has recipients, too
	data    []byte
	only    bool // content is all that there is in the request
	last    bool
	abort   bool
}

// free gives the frame of a part back. A frame with recipients is left to the garbage
// collector, since the envelope may still point into it.
func (p *part) free() {
	if p.only {
		p.r.Free()
	}
}

// openStream begins a stream with the first part of a message.
func (s *server) openStream(c *ipc.Conn, r *ipc.Request, in *incoming) {
	key := streamKey{c, in.q.Envelope.ID}
	st := &stream{parts: make(chan part, proto.MaxUnanswered+1)}
	s.mu.Lock()
	_, twice := s.streams[key]
	if !twice {
		s.streams[key] = st
	}
	s.mu.Unlock()
	if twice {
		// Two submitters, or one that has lost count: the second is refused.
		in.release()
		r.Fail("cleanup: message %s is on its way already", key.id)
		return
	}
	// Room for this one is certain: the channel is new.
	st.parts <- part{r: r, listing: in.q.Listing, data: in.q.Content}
	s.wg.Go(func() { s.receive(key, st, in) })
}

// maxListed bounds the parts that list recipients of one message. It allows more than the
// spool can record as one.
const maxListed = 64 << 20 / proto.ListSize

// receive works through the parts of one message until it is committed or given up. The
// message begins when all recipients are there, because the envelope is mapped before the
// content is checked.
func (s *server) receive(key streamKey, st *stream, in *incoming) {
	q, begun := &in.q, false
	for listed := 0; ; listed++ {
		p, ok := <-st.parts
		if !ok || p.abort { // the connection is gone, or the message given up
			break
		}
		// A submitter of ours does none of this; the check keeps one that is broken from
		// using up memory.
		if !begun && listed > maxListed || p.last && p.listing || begun && len(p.rcpts) > 0 {
			p.r.Fail("cleanup: message %s has too many recipients, or has them in the wrong place", key.id)
			break
		}
		q.Envelope.Recipients = append(q.Envelope.Recipients, p.rcpts...)
		if !begun && !p.listing {
			in.begin()
			begun = true
		}
		if begun {
			in.write(p.data)
		}
		if p.last {
			// Before the commit, which may take long: the submitter may not send more of
			// this message.
			s.forget(key)
			in.answer(p.r)
			p.free()
			return
		}
		p.r.Reply(&proto.ChunkReply{})
		p.free()
	}
	s.forget(key)
	in.abort()
}

// forget ends a stream. Whoever waits for a quiet moment looks again.
func (s *server) forget(key streamKey) {
	s.mu.Lock()
	delete(s.streams, key)
	s.mu.Unlock()
	s.hush()
}

// chunk takes a further part.
func (s *server) chunk(c *ipc.Conn, r *ipc.Request) {
	var q proto.Chunk
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	s.pass(c, r, q.ID, part{r: r, rcpts: q.Recipients, listing: q.Listing, data: q.Data, only: len(q.Recipients) == 0, last: !q.More})
}

// abort gives up a message of which parts have come.
func (s *server) abort(c *ipc.Conn, r *ipc.Request) {
	var q proto.Abort
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	s.pass(c, r, q.ID, part{r: r, abort: true})
}

// pass hands a part to its stream, on the connection's reading goroutine, which must not
// wait. A submitter that sends more than the window allows is disconnected.
func (s *server) pass(c *ipc.Conn, r *ipc.Request, id mail.QueueID, p part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.streams[streamKey{c, id}]
	if st == nil {
		r.Fail("cleanup: message %s is not on its way", id)
		return
	}
	select {
	case st.parts <- p:
	// Waiting here would hold up every other message on the connection.
	default:
		s.opt.Log.Warning("%s: the submitter sends more than it may; disconnecting it", id)
		c.Close()
	}
}
