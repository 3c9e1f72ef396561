package pickup

import (
	"context"
	"errors"
	"net"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/maillog"
	"posthaste/internal/submit"
)

// offered takes a message that user uid offers on c. Once it is with cleanup
// its fate is waited for even when ctx ends. The sendmail program makes a file of
// what it does not hear to be queued. That may be a second copy, and the log says so.
func (p *Picker) offered(ctx context.Context, c net.Conn, uid int) {
	if p.opt.Slow || ctx.Err() != nil {
		return
	}
	c.SetDeadline(time.Now().Add(maildrop.OfferTime))
	var id mail.QueueID
	err := maildrop.TakeOffer(c, func(m *maildrop.Reader) bool {
		if !p.checkSubmitter(m, uid) {
			return false
		}
		var err error
		if id, err = p.submit(context.WithoutCancel(ctx), m); err != nil {
			if errors.Is(err, submit.ErrInDoubt) {
				p.opt.Log.LogWarning(maillog.PickupInDoubt{ID: string(id), Unknown: true, Reason: err.Error()})
			}
			return false
		}
		c.SetDeadline(time.Now().Add(maildrop.OfferTime))
		return true
	})
	if err != nil {
		p.opt.Log.LogWarning(maillog.PickupInDoubt{ID: string(id), Reason: err.Error()})
	}
}
