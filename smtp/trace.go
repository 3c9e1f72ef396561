package smtp

import (
	"bytes"
	"context"

	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/table"
	"posthaste/internal/watch"
)

// tracer says whose dialogues are logged, and who watches them.
type tracer struct {
	peers *table.List
	level int
	all   bool       // master.cf has -v
	hub   *watch.Hub // nil: nobody watches
}

// traced says whether the dialogue with a server is to be logged.
func (a *Agent) traced(t *target) bool {
	if a.trace.all {
		return true
	}
	if a.trace.level <= 0 || a.trace.peers.Empty() {
		return false
	}
	found, err := a.trace.peers.MatchClient(context.Background(), t.host, t.address())
	if err != nil {
		a.log.Warning("debug_peer_list: %v", err)
	}
	return found
}

// traceTo has the dialogues of a session go to the log, if they are to, and to who watches the
// server or the destination. The session calls trace once for each line or packet.
func (d *delivery) traceTo(s *session, t *target) {
	a, debug, asked := d.a, d.a.traced(t), ""
	if d.hop != nil {
		asked = d.hop.host
	}
	if !debug && a.trace.hub == nil {
		return
	}
	var talk watch.Talk
	var by *delivery // for which talk is right
	s.trace = func(arrow string, text []byte) {
		if s.by != by {
			by, talk = s.by, watch.Talk{} // the session goes on with another destination's mail
			if by != nil && by.hop != nil {
				asked = by.hop.host
			}
		}
		if !debug && talk.Idle(a.trace.hub) {
			return
		}
		peer := watch.Peer{Names: []string{t.host, t.asked, asked}, Addr: t.ip, Shown: s.relay}
		if t.path != "" {
			peer.Names = append(peer.Names, t.path)
		}
		for line := range bytes.Lines(text) {
			line = notice.Redact(bytes.TrimRight(line, "\r\n"))
			if debug {
				a.log.Log(maillog.Dialogue{Sent: arrow == ">", Peer: s.relay, Line: line})
			}
			talk.Line(a.trace.hub, arrow, &peer, line)
		}
	}
}

// Start lets others watch the dialogues. It is called when the process has given up its
// privileges.
func (a *Agent) Start() {
	if a.trace.hub == nil {
		return
	}
	if err := a.trace.hub.Serve(); err != nil {
		a.log.Warning("dialogues cannot be watched: %v", err)
	}
}
