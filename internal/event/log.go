package event

import (
	"net"
	"strings"
	"time"

	"posthaste/internal/maillog"
)

// Of makes the event that a line of the log tells of. ok is false when it tells of none. now is when
// the line was logged.
func Of(now time.Time, line maillog.Event) (e Event, ok bool) {
	switch l := line.(type) {
	case *maillog.Delivery:
		e, ok = ofDelivery(l)
	case maillog.Delivery:
		e, ok = ofDelivery(&l)
	case *maillog.Reject:
		e, ok = ofReject(l)
	case maillog.Reject:
		e, ok = ofReject(&l)
	case *maillog.ContentCheck:
		e, ok = ofReject(&l.Reject)
	case maillog.ContentCheck:
		e, ok = ofReject(&l.Reject)
	case maillog.ScreenReject:
		e, ok = Event{Kind: Rejected, Sender: l.From, FromMessage: true, Recipient: l.To, ClientAddr: l.Client.Addr, Helo: l.Helo, Protocol: l.Proto,
			Stage: "RCPT", Reply: l.Reply}, true
	case maillog.BounceNotice:
		e, ok = Event{Kind: Returned, QueueID: l.ID, NewID: l.NewID, Notice: string(l.Kind)}, true
	case maillog.Suspended:
		e, ok = Event{Kind: Suspended, Target: l.Target, By: l.By, Reply: l.Reason, Until: l.Until}, true
	case maillog.Resumed:
		e, ok = Event{Kind: Resumed, Target: l.Target, By: l.By}, true
	}
	e.Time = now
	return e, ok
}

// ofDelivery is one attempt's outcome for one recipient. Probes, which deliver nothing, are no events.
func ofDelivery(l *maillog.Delivery) (e Event, ok bool) {
	switch l.Status {
	case "sent":
		e.Kind = Delivered
	case "deferred", "SOFTBOUNCE":
		e.Kind = Deferred
	case "bounced":
		e.Kind = Bounced
	default: // deliverable, undeliverable
		return e, false
	}
	delays := l.Delays
	e.QueueID, e.MessageID, e.EnvID, e.Sender, e.FromMessage = l.ID, l.MessageID, l.EnvID, l.From, true
	e.Recipient, e.DSN, e.Reply, e.BounceClass = l.To, l.DSN.String(), l.Text, l.Class
	if !strings.EqualFold(l.OrigTo, l.To) {
		e.Original = l.OrigTo
	}
	e.NextHop, e.Size, e.Attempt, e.TLS = l.Nexthop, l.Size, l.Attempt, l.Session
	e.Tenant, e.Campaign = l.Tenant, l.Campaign
	e.Delay, e.Delays = l.Delay, &delays
	e.Relay, e.RelayAddr, e.RelayPort = splitRelay(l.Relay)
	return e, true
}

// splitRelay takes apart what the log has as relay=: host[address]:port, host[path], or a word.
func splitRelay(relay string) (host, addr, port string) {
	if relay == "none" {
		return "", "", ""
	}
	host, rest, ok := strings.Cut(relay, "[")
	if !ok {
		return relay, "", ""
	}
	end := strings.LastIndexByte(rest, ']')
	if end < 0 {
		return relay, "", ""
	}
	addr, port = rest[:end], strings.TrimPrefix(rest[end+1:], ":")
	if strings.HasPrefix(addr, "/") || net.ParseIP(addr) == nil && host == "" {
		return strings.TrimSpace(host + addr), "", port // a socket's path
	}
	return host, addr, port
}

// ofReject is what was decided of a message, or of one recipient, before it was queued.
func ofReject(l *maillog.Reject) (e Event, ok bool) {
	switch l.Action {
	case "reject", "milter-reject", "proxy-reject", "hangup":
		e.Kind = Rejected
	case "discard", "milter-discard":
		e.Kind = Discarded
	default: // it goes on
		return e, false
	}
	e.QueueID, e.Sender, e.FromMessage, e.Recipient = l.QueueID, l.From, l.HasFrom, l.To
	e.ClientName, e.ClientAddr, e.Helo, e.Protocol, e.SASLUser = l.Name, l.Addr, l.Helo, l.Proto, l.SASLUsername
	e.Stage, e.Reply = l.Stage, l.Text
	return e, true
}
