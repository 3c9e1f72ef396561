package smtp

import (
	"bytes"
	"context"

	"posthaste/internal/table"
)

// tracer logs a dialogue, for servers on debug_peer_list.
type tracer struct {
	peers *table.List
	level int
}

// traced says whether the dialogue with a server is to be logged.
func (a *Agent) traced(t *target) bool {
	if a.trace.level <= 0 || a.trace.peers.Empty() {
		return false
	}
	found, err := a.trace.peers.MatchClient(context.Background(), t.host, t.address())
	if err != nil {
		a.log.Warning("debug_peer_list: %v", err)
	}
	return found
}

// traceLines logs what goes one way. What follows AUTH is somebody's secret.
func (a *Agent) traceLines(arrow, peer string, text []byte) {
	for line := range bytes.Lines(text) {
		line = bytes.TrimRight(line, "\r\n")
		if len(line) > 5 && bytes.EqualFold(line[:5], []byte("AUTH ")) {
			line = append(line[:5:5], "..."...)
		}
		a.log.Info("%s %s: %s", arrow, peer, printable(line))
	}
}
