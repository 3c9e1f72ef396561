package cleanup

import (
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

// A stream is a long message that arrives in parts. One goroutine works on it;
// the window that submitters keep (proto.MaxUnanswered) bounds what waits.
type stream struct {
	parts chan part
}

// streamKey names a stream: the parts of a message come over one connection.
type streamKey struct {
	conn *ipc.Conn
	id   mail.QueueID
}

type part struct {
	r       *ipc.Request
	rcpts   []mail.Recipient
	listing bool // the next part has recipients, too
	data    []byte
	only    bool // content is all that there is in the request
	last    bool
	abort   bool
}

// free gives the memory of a part that has been worked through back. What an
// envelope came with may still be pointed to.
func (p *part) free() {
	if p.only {
		p.r.Free()
	}
}

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
		in.release()
		r.Fail("cleanup: message %s is on its way already", key.id)
		return
	}
	st.parts <- part{r: r, listing: in.q.Listing, data: in.q.Content}
	s.wg.Go(func() { s.receive(key, st, in) })
}

// maxListed bounds the parts that list the recipients of one message: more
// than the spool can record as one.
const maxListed = 64 << 20 / proto.ListSize

// receive works through the parts of one message. Its work begins when all
// recipients are there.
func (s *server) receive(key streamKey, st *stream, in *incoming) {
	q, begun := &in.q, false
	for listed := 0; ; listed++ {
		p, ok := <-st.parts
		if !ok || p.abort { // the connection is gone, or the message given up
			break
		}
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
			s.forget(key)
			p.r.Reply(in.commit())
			p.free()
			return
		}
		p.r.Reply(&proto.ChunkReply{})
		p.free()
	}
	s.forget(key)
	in.abort()
}

func (s *server) forget(key streamKey) {
	s.mu.Lock()
	delete(s.streams, key)
	s.mu.Unlock()
	s.hush()
}

func (s *server) chunk(c *ipc.Conn, r *ipc.Request) {
	var q proto.Chunk
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	s.pass(c, r, q.ID, part{r: r, rcpts: q.Recipients, listing: q.Listing, data: q.Data, only: len(q.Recipients) == 0, last: !q.More})
}

func (s *server) abort(c *ipc.Conn, r *ipc.Request) {
	var q proto.Abort
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	s.pass(c, r, q.ID, part{r: r, abort: true})
}

// pass hands a part to its stream. A submitter that does not keep to the
// window is disconnected: nothing else may wait here.
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
	default:
		s.opt.Log.Warning("%s: the submitter sends more than is agreed; disconnecting it", id)
		c.Close()
	}
}
