package inject

import (
	"context"
	"net/http"
	"time"

	"posthaste/internal/proto"
	"posthaste/internal/suppress/suppressclient"
)

// A suppressor knows who must not get mail of lists: the suppress service. It may be called concurrently.
type suppressor interface {
	Ask(ctx context.Context, q *proto.SuppressAsk) (proto.SuppressAnswer, error)
}

// scope is what mail is under that asks for a link of this system, and is under list otherwise. cleanup decides the
// same, and would let the mail go without a link.
func (u *unsubscribe) scope(list string) (string, *fault) {
	tenant, name := suppressclient.Parts(list)
	switch {
	case list == "":
		return "", asFault(in("list_unsubscribe", refuse("mail of the token's tenant and this sender is under no suppression list (suppress_tenants)")))
	case u.list == "" || u.list == name || u.list == "all":
		return list, nil
	case tenant == "":
		return "", asFault(in("list_unsubscribe", in("list", refuse("this sender's mail is of another list (suppress_list_maps)"))))
	}
	return suppressclient.Scope(tenant, u.list), nil
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
	if u := o.m.unsub; u != nil && u.ours {
		if list, x.fault = u.scope(list); x.fault != nil {
			return false
		}
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
