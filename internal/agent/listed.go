// Mail under the suppression list (suppress_list_maps, suppress_tenants): it is asked for before a delivery, and told of one
// that has failed. Other mail costs a comparison.

package agent

import (
	"cmp"
	"context"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

// A Suppressor knows who must not get mail of lists: the suppress service. It may be called concurrently.
type Suppressor interface {
	Ask(ctx context.Context, q *proto.SuppressAsk) (proto.SuppressAnswer, error)
	Tell(ctx context.Context, q *proto.SuppressTell) (proto.SuppressTold, error)
}

// listed is what an agent does about such mail. The nil listed does nothing.
type listed struct {
	suppress       Suppressor
	leaves, before bool
	log            *maillog.Logger
}

func newListed(o *Options) *listed {
	if o.Suppress == nil {
		return nil
	}
	return &listed{o.Suppress, o.Leaves, o.Before, o.Log}
}

// has says whether a request is for one recipient of such mail, as the queue manager orders it.
func (l *listed) has(r *Request) bool {
	return l != nil && r.Envelope.List != "" && len(r.Envelope.Recipients) == 1 && !r.Envelope.Trace.DontDeliver()
}

// permits asks whether the mail may be delivered, and with which sender. If not, it has been reported why.
func (l *listed) permits(ctx context.Context, r *Request) bool {
	if !l.has(r) || !l.leaves && !l.before {
		return true
	}
	env := r.Envelope
	q := &proto.SuppressAsk{List: env.List, Address: env.Recipients[0].Address, Provider: r.Provider, Source: r.Source}
	// What goes to a content filter comes back, with the sender that it was given: it is to be its own then, so that
	// the mail is under the list still, and a failure behind the filter is returned to who has sent it.
	if l.leaves && env.Filter == "" {
		q.QueueID, q.Sender, q.MessageID, q.EnvID = string(env.ID), env.Sender, env.MessageID, env.EnvID
		q.Tenant, q.Campaign = env.Tenant, env.Campaign
	}
	a, err := l.suppress.Ask(ctx, q)
	switch {
	case err != nil:
		l.log.Warning("%s: %v", env.ID, err)
		r.Defer(0, dsn.S(4, 3, 0), "the suppression list cannot be asked", Detail{})
		return false
	case a.Suppressed && l.before:
		text := "recipient is on the suppression list: " + a.Entry.Reason
		if a.Entry.Detail != "" {
			text += " (" + a.Entry.Detail + ")"
		}
		r.suppressed = true
		r.Bounce(0, dsn.S(5, 7, 1), text, Detail{})
		return false
	case a.Path != "":
		r.LeaveAs(a.Path)
	}
	return true
}

// OwnSender is the envelope sender that the message has here. That of the Envelope is another one if it leaves
// with a return path: it is for the next system, and this one is for what depends on whose mail it is, such as a password.
func (r *Request) OwnSender() string { return cmp.Or(r.sender, r.Envelope.Sender) }

// LeaveAs has the message leave with another sender.
func (r *Request) LeaveAs(sender string) { r.sender, r.Envelope.Sender = r.Envelope.Sender, sender }

// failed notes that a recipient will not get the message, of what kind that failure is, and who has said so.
func (l *listed) failed(r *Request, i int, to string, action dsn.Action, d *Detail, e *maillog.Delivery) {
	if !l.has(r) || action != dsn.Failed || r.suppressed || i != 0 || to != r.Envelope.Recipients[0].Address {
		return
	}
	r.failure = &proto.SuppressTell{What: proto.ToldBounce, List: r.Envelope.List, Address: to, Class: e.Class,
		Origin: e.ID, Detail: cmp.Or(d.DiagText, e.Text), Provider: r.Provider, Source: r.Source}
}

// tell tells of a recipient who will not get the message. Mail does not wait for it, and the next message to the
// recipient tells again.
func (l *listed) tell(ctx context.Context, r *Request) {
	if l == nil || r.failure == nil {
		return
	}
	if _, err := l.suppress.Tell(ctx, r.failure); err != nil {
		l.log.Warning("%s: the suppression list does not know of the failure: %v", r.Envelope.ID, err)
	}
}
