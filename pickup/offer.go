package pickup

import (
	"context"
	"net"
	"time"

	"posthaste/internal/maildrop"
)

// offered takes a message that user uid offers on c. Once it is with cleanup
// its fate is waited for even when ctx ends.
func (p *Picker) offered(ctx context.Context, c net.Conn, uid int) {
	if p.opt.Slow || ctx.Err() != nil {
		return
	}
	c.SetDeadline(time.Now().Add(maildrop.OfferTime))
	maildrop.TakeOffer(c, func(m *maildrop.Reader) bool {
		if !p.admit(m, uid) || p.submit(context.WithoutCancel(ctx), m) != nil {
			return false
		}
		c.SetDeadline(time.Now().Add(maildrop.OfferTime))
		return true
	})
}
