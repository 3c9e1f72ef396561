// Offers: messages that the sendmail program hands over on the service's socket, without
// making a file. A refusal says nothing: the program then makes a file, and what is wrong
// with the message is found when the file is picked up.

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

// offered takes a message that user uid offers on c; uid comes from the kernel. Once the
// message is with cleanup its fate is waited for, even when ctx ends. If sendmail does
// not hear that it was queued it makes a file, which may be a second copy; the log then
// says so.
func (p *Picker) offered(ctx context.Context, c net.Conn, uid int) {
	if p.opt.Slow || ctx.Err() != nil {
		return
	}
	// Anybody may connect, and must not hold one of the few places for ever.
	c.SetDeadline(time.Now().Add(maildrop.OfferTime))
	var id mail.QueueID
	err := maildrop.TakeOffer(c, func(m *maildrop.Reader) bool {
		if !p.checkSubmitter(m, uid) {
			return false
		}
		var err error
		// Stopping in the middle would leave nobody who knows whether it was queued.
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
