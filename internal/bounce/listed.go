package bounce

import (
	"cmp"
	"context"

	"posthaste/internal/bounceclass"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

// A teller tells the suppress service.
type teller interface {
	Tell(ctx context.Context, q *proto.SuppressTell) (proto.SuppressTold, error)
}

// listed tells of mail under the suppression list that has waited too long. (What failed at an attempt has been told of by
// the agent that made it.) The nil listed tells nothing.
type listed struct {
	suppress teller
	classes  *bounceclass.Rules
	log      *maillog.Logger
}

// expired tells of the recipients of a notice. The notice does not wait for what comes of it.
func (l *listed) expired(ctx context.Context, kind proto.NoticeKind, env *mail.Envelope, list []Report) {
	if l == nil || env.List == "" || env.Sender == "" || kind != proto.NoticeExpired {
		return
	}
	for i := range list {
		o := &list[i].Outcome
		text := bounceclass.Local(false, o.Status.String(), o.Reason)
		if o.DiagType == "smtp" && o.DiagText != "" {
			text = bounceclass.Text(o.DiagText)
		}
		q := &proto.SuppressTell{What: proto.ToldExpired, List: env.List, Address: list[i].Recipient.Address, Class: l.classes.Class(text),
			Origin: string(env.ID), Detail: cmp.Or(o.DiagText, o.Reason)}
		if _, err := l.suppress.Tell(ctx, q); err != nil {
			l.log.Warning("%s: the suppression list does not know of the failure: %v", env.ID, err)
			return
		}
	}
}
