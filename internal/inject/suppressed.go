package inject

import (
	"context"
	"net/http"
	"time"

	"posthaste/internal/proto"
)

// A suppressor knows who must not get mail of lists: the suppress service. It may be called concurrently.
type suppressor interface {
	Ask(ctx context.Context, q *proto.SuppressAsk) (proto.SuppressAnswer, error)
}

// sift takes the recipients off a draft who are on the suppression list that the sender's mail is under; that is said of
// each of them. It is false if nothing of the draft is to be queued.
func (d *door) sift(who *caller, o *order, x *draft) bool {
	list, err := d.lists.Of(context.Background(), who.token.Tenant, o.m.sender)
	if err != nil {
		d.log.Warning("%v", err)
		x.fault = later(retryTime, "4.3.0 Error: the sender cannot be looked up")
		return false
	}
	if list == "" {
		return true
	}
	kept, removed := make([]*recipient, 0, len(x.rcpts)), 0
	for _, r := range x.rcpts {
		a, err := d.suppress.Ask(context.Background(), &proto.SuppressAsk{List: list, Address: r.recipient().Address})
		if err != nil {
			d.log.Warning("%v", err)
			x.fault = later(retryTime, "4.3.0 Error: the suppression list cannot be asked")
			return false
		}
		if !a.Suppressed {
			kept = append(kept, r)
			continue
		}
		removed++
		x.refused = append(x.refused, Refused{Recipient: r.said, Status: http.StatusUnprocessableEntity,
			Detail: "on the suppression list since " + time.Unix(a.Entry.Time, 0).UTC().Format(time.DateOnly) + ": " + a.Entry.Reason})
	}
	d.quota.give(who.token, removed)
	x.rcpts = kept
	return len(kept) > 0
}
