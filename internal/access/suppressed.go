// reject_suppressed_recipient: mail under the suppression list, which suppress_list_maps says of the sender, and suppress_tenants of the tenant.

package access

import (
	"context"
	"errors"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/proto"
	"posthaste/internal/tenancy"
)

// A Suppressor knows who must not get mail of lists: the suppress service. It is called by many sessions at a
// time, and bounds its own time.
type Suppressor interface {
	Ask(ctx context.Context, q *proto.SuppressAsk) (proto.SuppressAnswer, error)
}

// rejectSuppressed refuses a recipient who is on the suppression list that the sender's mail is under. Mail that is under
// none is nobody's business here, whoever it is for.
func (r *run) rejectSuppressed(ctx context.Context) verdict {
	if !r.s.HasRcpt || r.s.Sender == "" {
		return dunno
	}
	// What a header field will say of the tenant is not known yet: such mail is refused before its delivery.
	tenant, err := r.tenant(ctx)
	var list string
	if err == nil {
		list, err = r.e.lists.Of(ctx, tenant, r.s.Sender)
	}
	if err != nil {
		r.e.log.Warning("%v", err)
		return r.lookupFailed(r.s.Sender)
	}
	if list == "" {
		return dunno
	}
	if r.e.suppress == nil {
		r.e.log.Warning("reject_suppressed_recipient: there is no suppress service")
		return r.misconfigured()
	}
	a, err := r.e.suppress.Ask(ctx, &proto.SuppressAsk{List: list, Address: r.s.Recipient})
	if err != nil {
		r.e.log.Warning("%v", err)
		return r.lookupFailed(r.s.Recipient)
	}
	if !a.Suppressed {
		return dunno
	}
	text := "on the suppression list"
	// Anybody can write a list's sender into MAIL FROM: that a person has complained, and when, is for the list's own
	// client. What another server has said is for the operator alone.
	if r.trusted(ctx) {
		text += " since " + time.Unix(a.Entry.Time, 0).UTC().Format(time.DateOnly) + ": " + a.Entry.Reason
	}
	return r.refuseFor(r.s.Recipient, classRcpt, 550, dsn.S(5, 7, 1), text)
}

// tenant is whose mail it is, as far as that matters and tenant_maps says.
func (r *run) tenant(ctx context.Context) (string, error) {
	if r.e.tenants == nil {
		return "", nil
	}
	addr := ""
	if r.s.Client.Addr.IsValid() {
		addr = r.s.Client.Addr.String()
	}
	tenant, err := tenancy.Lookup(ctx, r.e.tenants, r.s.SASL.Username, addr, r.s.Sender)
	if errors.As(err, new(tenancy.NameError)) {
		return "", nil // cleanup says so, and takes the mail for nobody's
	}
	return tenant, err
}

// trusted says whether the client is one of ours: it has logged in, or is in mynetworks.
func (r *run) trusted(ctx context.Context) bool {
	if r.s.SASL.Username != "" && !strings.EqualFold(r.s.SASL.Method, "anonymous") {
		return true
	}
	yes, err := r.e.clientIn(ctx, r.e.myNetworks, &r.s.Client)
	return yes && err == nil
}
