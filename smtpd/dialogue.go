package smtpd

import (
	"bytes"
	"context"
	"strconv"

	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/proto"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
	"posthaste/internal/watch"
)

// The dialogue goes to the log for a client of debug_peer_list, and for all if master.cf has -v,
// with what restrictions, tables, the DNS, trivial-rewrite and cleanup are asked and say
// (table.Trace, from which sessions that nobody follows are kept free); the dialogue alone goes to
// whoever watches the client ("posthaste watch"). The content of messages, and what belongs to
// AUTH, goes nowhere.

// debugged says whether the dialogue with the client is to be logged.
func (s *session) debugged() bool {
	if s.srv.verbose > 0 {
		return true
	}
	if s.set.debugLevel <= 0 || s.set.debugPeers.Empty() {
		return false
	}
	found, err := s.set.debugPeers.MatchClient(s.ctx(), s.a.Name, s.a.AddrText)
	if err != nil {
		s.srv.log.Warning("debug_peer_list: %v", err)
	}
	return found
}

// trace has what is looked up for the client logged from now on, or no more.
func (s *session) trace(on bool) {
	s.debug, s.traced = on, nil
	if on {
		s.traced = table.WithTrace(s.untraced(), s.srv.log.Info)
	}
}

// followedDNS has sessions that are followed say what the DNS was asked; nil stays nil.
func followedDNS(r resolver.Resolver, names resolver.Names) resolver.Resolver {
	if r == nil {
		return nil
	}
	return resolver.Traced(r, names, func(ctx context.Context) func(string, ...any) { return table.TraceOf(ctx) })
}

// sayTo is where what is said to cleanup goes, nil where nobody follows the session or a filter
// gets the message.
func (s *session) sayTo() table.Trace {
	if !s.debug || s.srv.filter != nil {
		return nil
	}
	return table.TraceOf(s.ctx())
}

// toldCleanup logs what cleanup is about to be told of the message, and toldBy what it answered, of a
// session that is followed.
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

// cleanupFlags are Postfix's numbers for what cleanup is to do with a message.
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

// followed says whether the next line is wanted by the log or by a watcher.
func (s *session) followed() bool { return s.debug || !s.talk.Idle(s.srv.watch) }

// traceCommand is told each command line of the client.
func (s *session) traceCommand(line []byte) {
	if s.followed() {
		s.follow(false, notice.Redact(line))
	}
}

// traceReply is told each reply, which may be of several lines.
func (s *session) traceReply(text []byte) {
	if !s.followed() {
		return
	}
	for line := range bytes.Lines(text) {
		s.follow(true, bytes.TrimRight(line, "\r\n"))
	}
}

// follow passes on a line of the dialogue.
func (s *session) follow(sent bool, line []byte) {
	peer := s.a.NameAddr()
	if s.debug {
		s.srv.log.Log(maillog.Dialogue{Sent: sent, Peer: peer, Line: line})
	}
	arrow := "<"
	if sent {
		arrow = ">"
	}
	s.talk.Line(s.srv.watch, arrow, &watch.Peer{Names: []string{s.a.Name}, Addr: s.a.Addr, Shown: peer}, line)
}
