package event

import (
	"net"
	"strings"
	"time"

	"posthaste/internal/maillog"
	"posthaste/internal/standing"
)

// Of makes the event that a line of the log tells of. ok is false when it tells of none. now is when
// the line was logged.
func Of(now time.Time, line maillog.Event) (e Event, ok bool) {
	kind, ok := kindOf(line)
	if !ok {
		return e, false
	}
	switch l := line.(type) {
	case *maillog.Delivery:
		e = ofDelivery(l)
	case maillog.Delivery:
		e = ofDelivery(&l)
	case *maillog.Reject:
		e = ofReject(l)
	case maillog.Reject:
		e = ofReject(&l)
	case *maillog.ContentCheck:
		e = ofReject(&l.Reject)
	case maillog.ContentCheck:
		e = ofReject(&l.Reject)
	case maillog.ScreenReject:
		e = Event{Sender: l.From, FromMessage: true, Recipient: l.To, ClientAddr: l.Client.Addr, Helo: l.Helo, Protocol: l.Proto,
			Stage: "RCPT", Reply: l.Reply}
	case maillog.BounceNotice:
		e = Event{QueueID: l.ID, NewID: l.NewID, Notice: string(l.Kind)}
	case maillog.Suspended:
		e = Event{Target: l.Target, By: l.By, Reply: l.Reason, Until: l.Until}
	case maillog.Resumed:
		e = Event{Target: l.Target, By: l.By}
	}
	e.Kind, e.Time = kind, now
	return e, true
}

// kindOf is the kind of the event that a line tells of; ok is false when it tells of none.
func kindOf(line maillog.Event) (k Kind, ok bool) {
	switch l := line.(type) {
	case *maillog.Delivery:
		return kindOfStatus(l.Status)
	case maillog.Delivery:
		return kindOfStatus(l.Status)
	case *maillog.Reject:
		return kindOfAction(l.Action)
	case maillog.Reject:
		return kindOfAction(l.Action)
	case *maillog.ContentCheck:
		return kindOfAction(l.Action)
	case maillog.ContentCheck:
		return kindOfAction(l.Action)
	case maillog.ScreenReject:
		return Rejected, true
	case maillog.BounceNotice:
		return Returned, true
	case maillog.Suspended:
		return Suspended, true
	case maillog.Resumed:
		return Resumed, true
	}
	return "", false
}

// kindOfStatus is what a delivery's status means. Probes, which deliver nothing, are no events.
func kindOfStatus(status string) (k Kind, ok bool) {
	switch status {
	case "sent":
		return Delivered, true
	case "deferred", "SOFTBOUNCE":
		return Deferred, true
	case "bounced":
		return Bounced, true
	}
	return "", false // deliverable, undeliverable
}

// kindOfAction is what a decision means that was made before a message was queued.
func kindOfAction(action string) (k Kind, ok bool) {
	switch action {
	case "reject", "milter-reject", "proxy-reject", "hangup":
		return Rejected, true
	case "discard", "milter-discard":
		return Discarded, true
	}
	return "", false // it goes on
}

// ofDelivery is one attempt's outcome for one recipient.
func ofDelivery(l *maillog.Delivery) (e Event) {
	delays := l.Delays
	e.QueueID, e.MessageID, e.EnvID, e.Sender, e.FromMessage = l.ID, l.MessageID, l.EnvID, l.From, true
	e.Recipient, e.DSN, e.Reply, e.BounceClass = l.To, l.DSN.String(), l.Text, l.Class
	if !strings.EqualFold(l.OrigTo, l.To) {
		e.Original = l.OrigTo
	}
	e.NextHop, e.Size, e.Attempt, e.TLS = l.Nexthop, l.Size, l.Attempt, l.Session
	e.Tenant, e.Campaign, e.Source, e.Provider = l.Tenant, l.Campaign, l.Source, standing.Site(l.Provider)
	e.Delay, e.Delays = l.Delay, &delays
	e.Relay, e.RelayAddr, e.RelayPort = splitRelay(l.Relay)
	return e
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
func ofReject(l *maillog.Reject) (e Event) {
	e.QueueID, e.Sender, e.FromMessage, e.Recipient = l.QueueID, l.From, l.HasFrom, l.To
	e.ClientName, e.ClientAddr, e.Helo, e.Protocol, e.SASLUser = l.Name, l.Addr, l.Helo, l.Proto, l.SASLUsername
	e.Stage, e.Reply = l.Stage, l.Text
	return e
}
