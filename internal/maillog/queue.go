package maillog

import (
	"strconv"
	"time"
)

// MessageID is a message's Message-ID: header, which cleanup logs.
type MessageID struct {
	ID     string // queue ID
	Resent bool   // the header was Resent-Message-ID:
	Value  string // as it stands in the header, with its angle brackets
}

// Append implements Event.
func (e MessageID) Append(b []byte) []byte {
	b = appendID(b, e.ID)
	if e.Resent {
		b = append(b, "resent-"...)
	}
	return append(append(b, "message-id="...), e.Value...)
}

// AppendFields implements Fielder.
func (e MessageID) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "message-id"), "queue_id", e.ID)
	if e.Resent {
		return appendAlways(b, "resent_message_id", e.Value)
	}
	return appendAlways(b, "message_id", e.Value)
}

// Tenant says whose mail a message is, which cleanup logs where there is a tenant.
type Tenant struct {
	ID               string // queue ID
	Tenant, Campaign string // Campaign may be empty
}

// Append implements Event.
func (e Tenant) Append(b []byte) []byte {
	return appendAttr(append(append(appendID(b, e.ID), "tenant="...), e.Tenant...), ", campaign=", e.Campaign)
}

// AppendFields implements Fielder.
func (e Tenant) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "tenant"), "queue_id", e.ID)
	return appendString(appendString(b, "tenant", e.Tenant), "campaign", e.Campaign)
}

// ContentCheck is what a header or body check, or a milter, made of a
// message while cleanup received it.
type ContentCheck struct {
	Reject        // QueueID, Action, client, From, To, Proto, Helo, Text (5.7.1 no bad mail; may be empty)
	Part   string // header, body, mime-header, nested-header
	Line   string // the line that was matched
}

// Append implements Event.
func (e ContentCheck) Append(b []byte) []byte {
	b = append(append(appendID(b, e.QueueID), e.Action...), ": "...)
	b = append(append(b, e.Part...), ' ')
	b = append(append(b, e.Line...), " from "...)
	if e.Addr == "" {
		b = append(b, "local;"...) // submitted by a user of this machine
	} else {
		b = append(appendClient(b, e.Name, e.Addr), ';')
	}
	b = e.appendSession(b)
	return appendAttr(b, ": ", e.Text)
}

// AppendFields implements Fielder.
func (e ContentCheck) AppendFields(b []byte) []byte {
	b = e.Reject.AppendFields(b)
	return appendString(appendString(b, "part", e.Part), "line", e.Line)
}

// PickupUID says who submitted a message with the sendmail program.
type PickupUID struct {
	ID     string
	UID    int
	From   string
	OrigID string // of a message that postsuper -r requeued
}

// Append implements Event.
func (e PickupUID) Append(b []byte) []byte {
	b = strconv.AppendInt(append(appendID(b, e.ID), "uid="...), int64(e.UID), 10)
	b = append(append(append(b, " from=<"...), e.From...), '>')
	return appendAttr(b, " orig_id=", e.OrigID)
}

// AppendFields implements Fielder.
func (e PickupUID) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "pickup"), "queue_id", e.ID)
	b = appendNumber(b, "uid", int64(e.UID))
	return appendString(appendAlways(b, "from", e.From), "orig_queue_id", e.OrigID)
}

// QueueActive says that the queue manager has taken a message up.
type QueueActive struct {
	ID    string
	From  string
	Size  int64
	NRcpt int
}

// Append implements Event.
func (e QueueActive) Append(b []byte) []byte {
	b = append(append(appendID(b, e.ID), "from=<"...), e.From...)
	b = strconv.AppendInt(append(b, ">, size="...), e.Size, 10)
	b = strconv.AppendInt(append(b, ", nrcpt="...), int64(e.NRcpt), 10)
	return append(b, " (queue active)"...)
}

// AppendFields implements Fielder.
func (e QueueActive) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "queue active"), "queue_id", e.ID)
	b = appendNumber(appendAlways(b, "from", e.From), "size", e.Size)
	return appendNumber(b, "nrcpt", int64(e.NRcpt))
}

// Removed says that a message has left the queue for good.
type Removed struct{ ID string }

// Append implements Event.
func (e Removed) Append(b []byte) []byte { return append(appendID(b, e.ID), "removed"...) }

// AppendFields implements Fielder.
func (e Removed) AppendFields(b []byte) []byte {
	return appendString(appendEvent(b, "removed"), "queue_id", e.ID)
}

// Elsewhere says that a message is not in the part of a shared queue any more that the node has: another node
// delivers it, or has done so.
type Elsewhere struct{ ID string }

// Append implements Event.
func (e Elsewhere) Append(b []byte) []byte {
	return append(appendID(b, e.ID), "no longer in this node's part of the queue"...)
}

// AppendFields implements Fielder.
func (e Elsewhere) AppendFields(b []byte) []byte {
	return appendString(appendEvent(b, "elsewhere"), "queue_id", e.ID)
}

// Expired says that a message has been in the queue for too long.
type Expired struct {
	ID     string
	From   string
	Forced bool // by postsuper -e
}

// Append implements Event.
func (e Expired) Append(b []byte) []byte {
	b = append(append(appendID(b, e.ID), "from=<"...), e.From...)
	b = append(b, ">, status="...)
	if e.Forced {
		b = append(b, "force-"...)
	}
	return append(b, "expired, returned to sender"...)
}

// AppendFields implements Fielder.
func (e Expired) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "expired"), "queue_id", e.ID)
	b = appendAlways(b, "from", e.From)
	if e.Forced {
		b = append(b, `,"forced":true`...)
	}
	return b
}

// QueueAction is what an operator did to a message: removed, requeued,
// placed on hold, released from hold, expired.
type QueueAction struct{ ID, Action string }

// Append implements Event.
func (e QueueAction) Append(b []byte) []byte { return append(appendID(b, e.ID), e.Action...) }

// AppendFields implements Fielder.
func (e QueueAction) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "queue action"), "queue_id", e.ID)
	return appendString(b, "action", e.Action)
}

// Suspended says that some mail is not tried for now.
type Suspended struct {
	Target  string    // which: a target of package selection
	Subject string    // the same in words: "delivery to example.com", "mail from ann@example.com"
	By      string    // who has ordered it
	Reason  string    // in words; may be empty
	Until   time.Time // zero: until it is taken back
}

// Append implements Event.
func (e Suspended) Append(b []byte) []byte {
	b = append(append(b, e.Subject...), " suspended by "...)
	b = append(b, e.By...)
	if !e.Until.IsZero() {
		b = e.Until.AppendFormat(append(b, " until "...), time.DateTime)
	}
	return appendAttr(b, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e Suspended) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "suspended"), "target", e.Target)
	b = appendString(b, "by", e.By)
	if !e.Until.IsZero() {
		b = appendString(b, "until", e.Until.Format(time.RFC3339))
	}
	return appendString(b, "reason", e.Reason)
}

// Returning says that some mail is returned to its senders for now, without an attempt.
type Returning struct {
	Target, Subject string // as in Suspended
	By              string // what has ordered it
	Reason          string
	Until           time.Time
}

// Append implements Event.
func (e Returning) Append(b []byte) []byte {
	b = append(append(b, e.Subject...), " returned to its senders by "...)
	b = e.Until.AppendFormat(append(append(b, e.By...), " until "...), time.DateTime)
	return appendAttr(b, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e Returning) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "returning"), "target", e.Target)
	b = appendString(appendString(b, "by", e.By), "until", e.Until.Format(time.RFC3339))
	return appendString(b, "reason", e.Reason)
}

// ReturningOver says that this was taken back, or that its time is over.
type ReturningOver struct {
	Target, Subject string
	By              string // empty: its time is over
}

// Append implements Event.
func (e ReturningOver) Append(b []byte) []byte {
	b = append(append(b, e.Subject...), " not returned any more: "...)
	if e.By == "" {
		return append(b, "its time is over"...)
	}
	return append(append(b, "taken back by "...), e.By...)
}

// AppendFields implements Fielder.
func (e ReturningOver) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "returning_over"), "target", e.Target), "by", e.By)
}

// Resumed says that a suspension was taken back, or that its time is over.
type Resumed struct {
	Target, Subject string // as in Suspended
	By              string // empty: its time is over
}

// Append implements Event.
func (e Resumed) Append(b []byte) []byte {
	b = append(b, e.Subject...)
	if e.By == "" {
		return append(b, " resumed: the time of its suspension is over"...)
	}
	return append(append(b, " resumed by "...), e.By...)
}

// AppendFields implements Fielder.
func (e Resumed) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "resumed"), "target", e.Target)
	return appendString(b, "by", e.By)
}

// Limited says that deliveries to a destination have a limit for now.
type Limited struct {
	Target  string    // which: a destination of package selection
	Subject string    // the same in words: "delivery to example.com"
	Most    int       // deliveries at once
	Raises  bool      // also where main.cf allows less
	By      string    // who has ordered it
	Reason  string    // in words; may be empty
	Until   time.Time // zero: until it is taken back
}

// Append implements Event.
func (e Limited) Append(b []byte) []byte {
	b = strconv.AppendInt(append(append(b, e.Subject...), " limited to "...), int64(e.Most), 10)
	b = append(b, " at a time"...)
	if e.Raises {
		b = append(b, ", whatever main.cf allows,"...)
	}
	b = append(append(b, " by "...), e.By...)
	if !e.Until.IsZero() {
		b = e.Until.AppendFormat(append(b, " until "...), time.DateTime)
	}
	return appendAttr(b, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e Limited) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "limited"), "target", e.Target)
	b = appendNumber(b, "concurrency_limit", int64(e.Most))
	if e.Raises {
		b = append(b, `,"raises":true`...)
	}
	b = appendString(b, "by", e.By)
	if !e.Until.IsZero() {
		b = appendString(b, "until", e.Until.Format(time.RFC3339))
	}
	return appendString(b, "reason", e.Reason)
}

// Unlimited says that a limit was taken back, or that its time is over.
type Unlimited struct {
	Target, Subject string // as in Limited
	By              string // empty: its time is over
}

// Append implements Event.
func (e Unlimited) Append(b []byte) []byte {
	b = append(append(append(b, "limit of "...), e.Subject...), " lifted"...)
	if e.By == "" {
		return append(b, ": its time is over"...)
	}
	return append(append(b, " by "...), e.By...)
}

// AppendFields implements Fielder.
func (e Unlimited) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "limit lifted"), "target", e.Target)
	return appendString(b, "by", e.By)
}

// Diverted says that mail for a destination goes by another next hop for now.
type Diverted struct {
	Target  string    // which: a target of package selection
	Subject string    // the same in words: "delivery to example.com"
	Nexthop string    // where it goes instead: nexthop, transport:nexthop or transport:
	By      string    // who has ordered it
	Reason  string    // in words; may be empty
	Until   time.Time // zero: until it is taken back
}

// Append implements Event.
func (e Diverted) Append(b []byte) []byte {
	b = append(append(append(b, e.Subject...), " diverted to "...), e.Nexthop...)
	b = append(append(b, " by "...), e.By...)
	if !e.Until.IsZero() {
		b = e.Until.AppendFormat(append(b, " until "...), time.DateTime)
	}
	return appendAttr(b, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e Diverted) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "diverted"), "target", e.Target)
	b = appendString(appendString(b, "nexthop", e.Nexthop), "by", e.By)
	if !e.Until.IsZero() {
		b = appendString(b, "until", e.Until.Format(time.RFC3339))
	}
	return appendString(b, "reason", e.Reason)
}

// Undiverted says that a diversion was taken back, or that its time is over.
type Undiverted struct {
	Target, Subject string // as in Diverted
	By              string // empty: its time is over
}

// Append implements Event.
func (e Undiverted) Append(b []byte) []byte {
	b = append(append(append(b, "diversion of "...), e.Subject...), " ended"...)
	if e.By == "" {
		return append(b, ": its time is over"...)
	}
	return append(append(b, " by "...), e.By...)
}

// AppendFields implements Fielder.
func (e Undiverted) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "diversion ended"), "target", e.Target)
	return appendString(b, "by", e.By)
}

// ConsoleAct is what a user of the console does, logged before it is done, and what has failed. Logging in is one.
type ConsoleAct struct {
	User   string
	Client string // an address, or "local"
	Act    string // login, suspend, resume, limit, unlimit, divert, undivert, flush, hold, release, retry, requeue, return, delete, read, read-header
	What   string // queue ID, destination or target of a suspension; empty for a login
	Reason string // in words: of the user, or why it failed; may be empty
	Failed bool
}

// Append implements Event.
func (e ConsoleAct) Append(b []byte) []byte {
	b = append(append(append(b, "user="...), e.User...), " client="...)
	b = append(append(append(b, e.Client...), ": "...), e.Act...)
	if e.What != "" {
		b = append(append(b, ' '), e.What...)
	}
	if e.Failed {
		b = append(b, " failed"...)
	}
	return appendAttr(b, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e ConsoleAct) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "console"), "user", e.User)
	b = appendString(appendString(b, "client_address", e.Client), "action", e.Act)
	b = appendString(b, "target", e.What)
	if e.Failed {
		b = appendString(b, "status", "failed")
	}
	return appendString(b, "reason", e.Reason)
}

// QueueActions is how many messages an operator's command did something to.
type QueueActions struct {
	What string // Deleted, Requeued, Placed on hold, Released from hold, Force-expired
	N    int
}

// Append implements Event.
func (e QueueActions) Append(b []byte) []byte {
	b = strconv.AppendInt(append(append(b, e.What...), ": "...), int64(e.N), 10)
	b = append(b, " message"...)
	if e.N != 1 {
		b = append(b, 's')
	}
	return b
}

// AppendFields implements Fielder.
func (e QueueActions) AppendFields(b []byte) []byte {
	return appendNumber(appendString(appendEvent(b, "queue actions"), "action", e.What), "count", int64(e.N))
}

// A Notice is a kind of delivery status notification.
type Notice string

// The notices of bounce, defer and trace.
const (
	SenderBounce     Notice = "sender non-delivery notification"
	SenderDelay      Notice = "sender delay notification"
	SenderStatus     Notice = "sender delivery status notification"
	PostmasterBounce Notice = "postmaster non-delivery notification"
	PostmasterDelay  Notice = "postmaster delay notification"
)

// BounceNotice says that a notification has been queued.
type BounceNotice struct {
	ID    string // of the message that it is about
	Kind  Notice
	NewID string // of the notification
}

// Append implements Event.
func (e BounceNotice) Append(b []byte) []byte {
	b = append(append(appendID(b, e.ID), e.Kind...), ": "...)
	return append(b, e.NewID...)
}

// AppendFields implements Fielder.
func (e BounceNotice) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "notification"), "queue_id", e.ID)
	return appendString(appendString(b, "kind", string(e.Kind)), "notification_id", e.NewID)
}

// Set says that a rule of automation has given a key of shaping_files another value for now.
type Set struct {
	Target, Subject string // a target of package selection, and the same in words
	Name, Value     string // the key, and its value
	By              string // who has decided
	Reason          string // the rule's place, and the reply
	Until           time.Time
}

// Append implements Event.
func (e Set) Append(b []byte) []byte {
	b = append(append(append(append(b, e.Subject...), ": "...), e.Name...), " set to "...)
	b = append(append(append(b, e.Value...), " by "...), e.By...)
	return appendAttr(e.Until.AppendFormat(append(b, " until "...), time.DateTime), ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e Set) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "set"), "target", e.Target)
	b = appendString(appendString(b, "parameter", e.Name), "value", e.Value)
	b = appendString(appendString(b, "by", e.By), "until", e.Until.Format(time.RFC3339))
	return appendString(b, "reason", e.Reason)
}

// Unset says that it has its former value again: it was taken back, or its time is over.
type Unset struct {
	Target, Subject string // as in Set
	Name            string // empty: all keys of the target
	By              string // empty: its time is over
}

// Append implements Event.
func (e Unset) Append(b []byte) []byte {
	b = append(append(b, e.Subject...), ": "...)
	if e.Name == "" {
		b = append(b, "all keys"...)
	}
	b = append(append(b, e.Name...), " set back"...)
	if e.By == "" {
		return append(b, ": the time is over"...)
	}
	return append(append(b, " by "...), e.By...)
}

// AppendFields implements Fielder.
func (e Unset) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "unset"), "target", e.Target)
	return appendString(appendString(b, "parameter", e.Name), "by", e.By)
}

// Allowed says that rules of automation may act again at a target, where an operator had taken back what they had done.
type Allowed struct {
	Target, Subject string // as in Set
	By              string
}

// Append implements Event.
func (e Allowed) Append(b []byte) []byte {
	b = append(append(b, e.Subject...), ": rules may act again, by "...)
	return append(b, e.By...)
}

// AppendFields implements Fielder.
func (e Allowed) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "allowed"), "target", e.Target)
	return appendString(b, "by", e.By)
}

// Suppressed says that a recipient was put on the suppression list.
type Suppressed struct {
	ID     string // of the message that has led to it; empty: none
	To     string
	List   string // whose mail the recipient gets no more
	Reason string // bounce, bounces, complaint
	Detail string // in words; may be empty
}

// Append implements Event.
func (e Suppressed) Append(b []byte) []byte {
	if e.ID != "" {
		b = appendID(b, e.ID)
	}
	b = join(b, "to=<", e.To, ">, list=", e.List, ", suppressed=", e.Reason)
	if e.Detail != "" {
		b = join(b, " (", e.Detail, ")")
	}
	return b
}

// AppendFields implements Fielder.
func (e Suppressed) AppendFields(b []byte) []byte {
	b = appendString(appendString(appendEvent(b, "suppressed"), "queue_id", e.ID), "to", e.To)
	return appendString(appendString(appendString(b, "list", e.List), "reason", e.Reason), "text", e.Detail)
}

// Withdrawn says that the mail system had a message for delivery while its client waited, and does not have it any more:
// the client was not told that it is queued.
type Withdrawn struct{ ID string }

// Append implements Event.
func (e Withdrawn) Append(b []byte) []byte {
	return append(appendID(b, e.ID), "withdrawn: its client was never told 250, and may send it again"...)
}

// AppendFields implements Fielder.
func (e Withdrawn) AppendFields(b []byte) []byte {
	return appendString(appendEvent(b, "withdrawn"), "queue_id", e.ID)
}

// WaitRefused says that a message was refused to the client that waited for its delivery, since all recipients have
// failed for good.
type WaitRefused struct {
	ID    string
	Reply string // the client's: code, status and text
}

// Append implements Event.
func (e WaitRefused) Append(b []byte) []byte {
	return append(append(appendID(b, e.ID), "refused, as no recipient can have it: "...), e.Reply...)
}

// AppendFields implements Fielder.
func (e WaitRefused) AppendFields(b []byte) []byte {
	return appendAlways(appendString(appendEvent(b, "refused"), "queue_id", e.ID), "reply", e.Reply)
}
