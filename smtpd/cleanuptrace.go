// What a followed session says and hears about cleanup, in the attributes of Postfix's
// verbose log, which those who read such logs know.

package smtpd

import (
	"strconv"

	"posthaste/internal/proto"
	"posthaste/internal/table"
)

// sayTo is where the exchange with cleanup is logged; nil where nobody follows the
// session, or where a filter gets the message and cleanup is not involved.
func (s *session) sayTo() table.Trace {
	if !s.debug || s.srv.filter != nil {
		return nil
	}
	return table.TraceOf(s.ctx())
}

// toldCleanup logs what cleanup is about to be told of the message, and toldBy what
// it answered, of a session that is followed.
func (s *session) toldCleanup() {
	if trace := s.sayTo(); trace != nil {
		trace.Received("queue_id", string(s.a.QueueID))
		trace.Sent("flags", strconv.Itoa(cleanupFlags(s.options().Flags)))
	}
}

// toldBy is toldCleanup's other half. Where the message was refused status is the SMTP code.
func (s *session) toldBy(reply *proto.SubmitReply) {
	trace := s.sayTo()
	switch {
	case trace == nil:
	case reply.Code == 250:
		trace.Received("status", "0", "reason", "")
	default:
		trace.Received("status", strconv.Itoa(reply.Code), "reason", reply.Status.String()+" "+reply.Text)
	}
}

// cleanupFlags are the numbers that Postfix has for what cleanup is to do with a
// message. They are for the log only.
func cleanupFlags(f proto.SubmitFlags) int {
	n := 128 // it answers in the words of SMTP
	for _, flag := range []struct {
		ours   proto.SubmitFlags
		number int
	}{{proto.SubmitBounce, 1}, {proto.SubmitFilter, 2}, {proto.SubmitHold, 4}, {proto.SubmitDiscard, 8}, {proto.SubmitBCC, 16},
		{proto.SubmitMap, 32}, {proto.SubmitMilter, 64}, {proto.SubmitAutoUTF8, 512}} {
		if f&flag.ours != 0 {
			n += flag.number
		}
	}
	return n
}
