package smtpd

import (
	"bytes"
	"context"

	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
	"posthaste/internal/watch"
)

// The dialogue of a session for those who follow it. For a client of debug_peer_list,
// and for all if master.cf has -v, it goes to the log, with what restrictions, tables,
// the DNS, trivial-rewrite and cleanup were asked and have answered (table.Trace). For
// whoever watches the client ("posthaste watch") the dialogue alone is passed on. The
// content of messages, and what belongs to AUTH, goes nowhere. A session that nobody
// follows pays two comparisons for each line.

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

// trace turns on or off that what is looked up for the client is logged.
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

// followed says whether the next line is wanted by the log or by a watcher. A
// watcher may come in the middle of a session.
func (s *session) followed() bool { return s.debug || !s.talk.Idle(s.srv.watch) }

// traceCommand passes on a command line of the client's, without secrets. line is
// not kept.
func (s *session) traceCommand(line []byte) {
	if s.followed() {
		s.follow(false, notice.Redact(line))
	}
}

// traceReply passes on a reply, which may have several lines.
func (s *session) traceReply(text []byte) {
	if !s.followed() {
		return
	}
	for line := range bytes.Lines(text) {
		s.follow(true, bytes.TrimRight(line, "\r\n"))
	}
}

// follow passes on one line of the dialogue: sent says whether it is ours.
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
