package agent

import (
	"context"
	"testing"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

// TestSaidOfDestination: what a Deliverer says of the destination reaches the queue manager. Of several words about it a failure counts
// before a wish for less, and else the first; what is not said is not there.
func TestSaidOfDestination(t *testing.T) {
	t.Parallel()
	const first, second = "450 first", "421 second"
	failure := func(r *Request) { r.SiteFailure(dsn.S(4, 4, 1), first) }
	again := func(r *Request) { r.SiteFailure(dsn.S(4, 4, 2), second) }
	busy := func(r *Request) { r.SiteBusy(dsn.S(4, 7, 28), second) }
	for name, c := range map[string]struct {
		say  []func(*Request)
		want proto.DeliverReply
	}{
		"nothing":            {nil, proto.DeliverReply{}},
		"a failure":          {[]func(*Request){failure}, proto.DeliverReply{SiteStatus: dsn.S(4, 4, 1), SiteReason: first}},
		"two failures":       {[]func(*Request){failure, again}, proto.DeliverReply{SiteStatus: dsn.S(4, 4, 1), SiteReason: first}},
		"less":               {[]func(*Request){busy}, proto.DeliverReply{SiteStatus: dsn.S(4, 7, 28), SiteReason: second, SitePartly: true}},
		"less, then failure": {[]func(*Request){busy, failure}, proto.DeliverReply{SiteStatus: dsn.S(4, 4, 1), SiteReason: first}},
		"failure, then less": {[]func(*Request){failure, busy}, proto.DeliverReply{SiteStatus: dsn.S(4, 4, 1), SiteReason: first}},
		"a session": {[]func(*Request){(*Request).SessionKept, (*Request).ConnectionOpened, func(r *Request) { r.Secured("TLS 1.3") }},
			proto.DeliverReply{Kept: true, Opened: true, Security: "TLS 1.3"}},
		"a kept session": {[]func(*Request){(*Request).SessionKept}, proto.DeliverReply{Kept: true}},
	} {
		s := NewServer(Options{Deliverer: deliverer(func(_ context.Context, r *Request) {
			for _, say := range c.say {
				say(r)
			}
			r.Sent(0, dsn.S(2, 0, 0), "ok", Detail{})
		})})
		// The memory of a request is used again, and nothing of the one before is left in it.
		for _, say := range []bool{true, false} {
			if !say {
				c.say, c.want = nil, proto.DeliverReply{}
			}
			run := newRunning(nil)
			run.order = proto.Deliver{Index: []int{3}, Envelope: mail.Envelope{ID: "4jWn4F1YhnzSshsm4", Recipients: []mail.Recipient{{Address: "a@to.test"}}}}
			r, w := s.deliver(t.Context(), run), c.want
			if r.SiteStatus != w.SiteStatus || r.SiteReason != w.SiteReason || r.SitePartly != w.SitePartly || r.Kept != w.Kept || r.Opened != w.Opened || r.Security != w.Security || r.Stopped {
				t.Errorf("%s: %+v, want %+v", name, *r, w)
			}
			if len(r.Outcomes) != 1 || r.Outcomes[0].Rcpt != 3 || r.Outcomes[0].Action != dsn.Delivered {
				t.Errorf("%s: %+v", name, r.Outcomes)
			}
		}
		s.close()
	}
}
