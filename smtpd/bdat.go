// BDAT: a message that comes in chunks of a known size, RFC 3030. A client may send
// chunks without waiting for replies, so that each chunk must be read even when it is
// refused; most of this file is about staying in step at a bounded cost.

package smtpd

import (
	"io"
	"math"
	"strconv"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/smtpwire"
)

// bdatState is a message that comes in chunks, RFC 3030. The engine has no part in
// it: it is told RSET when the last chunk is in. It lives from the first chunk to
// the last one, or to the end of the transaction.
type bdatState struct {
	msg  message // nil after abort
	sink sink    // of msg
	c    content // what all chunks are to be read as: lines, without dot-stuffing
	// rest is the beginning of a line that has not come to its end. It may wait for the
	// next chunk, and is at most bigBuf octets.
	rest []byte
	// failed is the reason why no more chunks are accepted; nil: they are. Only
	// RSET, or the last chunk, ends this state.
	failed *smtpwire.Reply
	told   bool // failed has been sent; later chunks get a shorter reply
}

// abort gives up the message. It may be called more than once.
func (b *bdatState) abort() {
	if b.msg != nil {
		b.msg.Abort()
		b.msg = nil
	}
}

// bdatCmd is BDAT, RFC 3030 section 2. The chunk follows the command even if that
// is refused. So it is read in any case, or else the session ends. last says that
// the transaction is over and that r is the reply to the message; r is nil where
// the session has ended.
func (s *session) bdatCmd() (r *smtpwire.Reply, last bool, err error) {
	if s.hiddenKeywords()["chunking"] {
		// After an ordinary refusal the chunk that follows would be taken for
		// commands. 521 ends the session.
		return smtpwire.R(521, dsn.S(5, 5, 1), "Error: command not implemented"), false, nil
	}
	size, last, ok := smtpwire.ParseBDAT(s.cmd.Args)
	if !ok {
		// What is content and what is commands cannot be told any more.
		s.logBDAT(maillog.BDATMalformed)
		return smtpwire.R(521, dsn.S(5, 5, 4), "Syntax: BDAT count [LAST]"), false, nil
	}
	if size == 0 && !last {
		return s.nullChunk(), false, nil
	}
	if r = s.bdatRefused(); r != nil {
		if s.tooMuch(size) {
			return s.breakOff(r), false, io.EOF
		}
		// Read and forgotten.
		if err = s.readChunk(size, func([]byte) {}); last {
			s.tx.skipped = 0
		}
		return r, false, err
	}
	b := s.tx.bdat
	// Judged by the announced size: the chunk need not be kept to know that it is
	// too much.
	if limit := s.set.messageLimit; b.failed == nil && limit > 0 && b.c.size+size > limit {
		s.logBDAT(maillog.BDATTooLarge)
		b.failed = smtpwire.R(552, dsn.S(5, 3, 4), "Chunk exceeds message size limit")
		b.abort()
	}
	if b.failed != nil && s.tooMuch(size) {
		return s.breakOff(b.refusal(size)), false, io.EOF
	}
	s.tx.inData, s.tx.received = true, b.c.size
	err = s.readChunk(size, b.addOctets)
	s.tx.received = b.c.size
	if err != nil {
		return nil, false, err
	}
	s.tx.inData = false
	switch {
	case b.failed != nil:
		if r = b.refusal(size); last {
			b.abort()
			s.tx.bdat = nil
			s.resetMail()
		}
		return r, last, nil
	case !last:
		return smtpwire.R(250, dsn.S(2, 0, 0), "Ok: "+strconv.FormatInt(size, 10)+" bytes"), false, nil
	}
	// A client may leave out the line end of the last line, which the stored
	// message must have.
	b.endLastLine()
	msg := b.msg
	s.tx.bdat = nil
	return s.finishMessage(msg, &b.c, "Ok: "+strconv.FormatInt(b.c.size, 10)+" bytes queued as "+string(s.a.QueueID)), true, nil
}

// logBDAT says in the log why a chunk is not taken.
func (s *session) logBDAT(problem maillog.BDATProblem) {
	e := maillog.BDATRefused{QueueID: string(s.a.QueueID), Problem: problem, Peer: s.a.NameAddr()}
	if problem == maillog.BDATMalformed { // the other lines do not show the command
		e.Line = s.cmd.Line
	}
	s.srv.log.LogWarning(e)
}

// nullChunk refuses a chunk without content that is not the last: a client may
// send any number of them without getting anywhere.
func (s *session) nullChunk() *smtpwire.Reply {
	s.logBDAT(maillog.BDATNull)
	r := smtpwire.R(551, dsn.S(5, 7, 1), "Null BDAT request")
	if s.tx.bdat == nil && len(s.tx.rcpts) > 0 {
		s.tx.bdat = refusedChunks(r)
	}
	if b := s.tx.bdat; b != nil {
		b.failed, b.told = r, true
		b.abort()
	}
	return r
}

// refusedChunks is a message of which no chunk is taken, until RSET. RFC 3030
// section 2 has the client stop after a refused chunk, but a client that pipelines
// has sent the next ones by then.
func refusedChunks(r *smtpwire.Reply) *bdatState {
	b := &bdatState{failed: r}
	b.c.w = discard{}
	return b
}

// refusal is the reply to a chunk of size octets of a message that has been
// refused: the reason once, and then that the chunk was discarded.
func (b *bdatState) refusal(size int64) *smtpwire.Reply {
	if b.told {
		return smtpwire.R(551, dsn.S(5, 0, 0), "Discarded "+strconv.FormatInt(size, 10)+" bytes after earlier error")
	}
	b.told = true
	return b.failed
}

// tooMuch counts a chunk of size octets that is not wanted. It says whether that
// goes too far: one and a half times the largest message is read, so that a client
// which has not looked at our replies yet stays in step. Reading more would cost
// the client more than a new connection.
func (s *session) tooMuch(size int64) bool {
	if s.tx.bdat != nil && s.tx.skipped == 0 {
		s.tx.skipped = s.tx.bdat.c.size
	}
	if limit := s.set.messageLimit; limit > 0 && float64(s.tx.skipped)+float64(size) > 1.5*float64(limit) {
		return true
	}
	s.tx.skipped += min(size, math.MaxInt64-s.tx.skipped)
	return false
}

// breakOff says r and ends the session: what the client sends next is not read. It
// returns nil, for bdatCmd to return.
func (s *session) breakOff(r *smtpwire.Reply) *smtpwire.Reply {
	s.logBDAT(maillog.BDATCutOff)
	s.replyAndCount(r)
	s.wire.flush()
	s.ended = true
	return nil
}

// bdatRefused judges a BDAT command by its place in the transaction, and begins the
// message with the first. A refusal by policy is kept in the state instead: the
// chunks that follow are refused too.
func (s *session) bdatRefused() *smtpwire.Reply {
	if s.tx.bdat != nil {
		return nil
	}
	if r := s.contentInOrder(); r != nil {
		return r
	}
	if r := s.judgeContent(); r != nil {
		s.tx.bdat = refusedChunks(r)
		return nil
	}
	b := &bdatState{msg: s.openMessage()}
	b.sink.msg = b.msg
	s.writeHead(&b.sink)
	b.c = content{w: &b.sink, whole: true, limit: s.set.messageLimit}
	s.tx.bdat = b
	return nil
}

// discard takes the content of a message that has been refused.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// addOctets takes a piece of a chunk. Lines may begin in one piece, or chunk, and
// end in another: what content does not use is kept.
func (b *bdatState) addOctets(p []byte) {
	if b.failed != nil {
		return
	}
	b.rest = append(b.rest, p...)
	used, _ := b.c.feed(b.rest)
	b.rest = b.rest[:copy(b.rest, b.rest[used:])]
	if len(b.rest) > bigBuf {
		used = b.c.overlong(b.rest)
		b.rest = b.rest[:copy(b.rest, b.rest[used:])]
	}
}

// endLastLine adds the line end that the last line may lack. It does not count as a
// bare newline sent by the client.
func (b *bdatState) endLastLine() {
	if len(b.rest) > 0 || b.c.cont {
		bare := b.c.bareLF
		b.c.feed(append(b.rest, '\r', '\n'))
		b.c.bareLF = bare
		b.rest = nil
	}
}

// readChunk reads the size octets of a chunk and gives them to use, in pieces that
// are good until use returns. An error is that of the connection, which is lost
// then.
func (s *session) readChunk(size int64, use func([]byte)) error {
	w := &s.wire
	if size > smallBuf {
		w.enlarge()
		defer w.shrink()
	}
	if size > middleBuf {
		w.grow()
	}
	start, from := time.Now(), w.received
	// Never more than size: behind the chunk there may be the next command already.
	for size > 0 {
		if w.buffered() == 0 {
			s.extendDeadline(start, w.received-from)
			w.r, w.w = 0, 0
			w.makeRoom(smallBuf)
			if err := w.fill(nil); err != nil {
				s.lost(err)
				return err
			}
		}
		n := min(int64(w.buffered()), size)
		use(w.buf[w.r : w.r+int(n)])
		w.r += int(n)
		size -= n
	}
	return nil
}
