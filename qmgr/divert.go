// Diversions: an operator sends mail by another next hop for now ("posthaste divert"). The
// store of overrides keeps them. A recipient's next hop is replaced when it is found out,
// behind what trivial-rewrite says, so that everything that follows (limits, suspensions of
// a next hop, listings) sees the next hop by which the mail really goes.

package qmgr

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/selection"
	"posthaste/qmgr/sched"
)

// elsewhere are the address classes whose mail can be diverted: that of other systems. Mail for
// this one is delivered here, whatever an operator says of "*".
const elsewhere = proto.ResolveRelay | proto.ResolveDefault

// reasonDiverted is recorded of mail that was about to be delivered by the old next hop.
const reasonDiverted = "the next hop has been changed by an operator: it is tried by the other one"

// diversionOf is the diversion of a recipient's mail, which would go by a transport to a next
// hop; nil: there is none. It may be called outside the loop.
func (s *Server) diversionOf(flags proto.ResolveFlags, transport mail.Transport, nexthop mail.Nexthop, addr string) *rule {
	// Whoever finds out where mail goes may do so beside the loop, and sees one set or the next.
	set := s.rules.diversions.Load()
	if set == nil || flags&elsewhere == 0 {
		return nil
	}
	return set.find(&selection.Mail{Transport: string(transport), Nexthop: string(nexthop), Domain: rfc5322.Domain(addr)}, time.Now())
}

// divert is where a recipient's mail goes instead of to a next hop: there, if it is not
// diverted. A diversion is not diverted again. It may be called outside the loop.
//
// It is called for each recipient that is loaded, and for each that is listed: without diversions
// it costs one look.
func (s *Server) divert(flags proto.ResolveFlags, transport mail.Transport, nexthop mail.Nexthop, addr string) (mail.Transport, mail.Nexthop) {
	r := s.diversionOf(flags, transport, nexthop, addr)
	if r == nil {
		return transport, nexthop
	}
	// Without one, the mail goes by the transport by which it would have gone, with its settings.
	if r.to.transport != "" {
		transport = r.to.transport
	}
	// A transport alone delivers to the recipient's domain, as in a transport table.
	if nexthop = r.to.nexthop; nexthop == "" {
		nexthop = mail.Nexthop(rfc5322.Domain(addr))
	}
	return transport, nexthop
}

// A hop is where mail is diverted to. One of the two may be empty: the transport stays, or the
// next hop is the recipient's domain. Both are never empty, since that would be no diversion.
type hop struct {
	transport mail.Transport // empty: that by which the mail would go
	nexthop   mail.Nexthop   // empty: the recipient's domain
}

// parseHop reads where mail is to be diverted to: nexthop, transport:nexthop or transport:.
func parseHop(text string) (hop, error) {
	t, err := selection.ParseNexthop(text)
	if err != nil {
		return hop{}, err
	}
	return hop{mail.Transport(t.Transport()), mail.Nexthop(t.Nexthop())}, nil
}

// judgeDiversion says what is wrong with a diversion. Whether the next hop can be reached is not
// found out: mail that cannot be delivered there waits, as it does anywhere.
func judgeDiversion(target selection.Target, e *override.Entry) error {
	to, err := parseHop(e.Nexthop)
	switch {
	case target.IsSender() || target.IsGroup() || target.Source() != "":
		return errors.New("a diversion is of destinations: a domain, .domain, [host]:port, transport:nexthop, transport: or *, domain= or nexthop=")
	case e.Nexthop == "":
		return errors.New("a diversion needs a next hop")
	case err != nil:
		return err
	case e.Nexthop != to.String():
		return fmt.Errorf("the next hop must be written as %s", to)
	case target.IsDestination() && target.String() == e.Nexthop:
		return fmt.Errorf("%s would be diverted to itself", target.Name())
	}
	return nil
}

// String is the text that parseHop reads, in its only form.
//
// Both sides of the wire use it: a diversion is listed, and compared, as it was written.
func (h hop) String() string {
	if h.transport == "" {
		return string(h.nexthop)
	}
	return string(h.transport) + ":" + string(h.nexthop)
}

// setDiversions replaces the diversions. What waits in the active queue and is to go another way
// from now on is taken out of it, and taken up again at once.
func (s *Server) setDiversions(list []*rule) {
	was := s.rules.diversions.Load()
	if len(list) == 0 && was == nil {
		return
	}
	// A next hop that is not understood was written by a later version, or by hand.
	list = slices.DeleteFunc(list, func(r *rule) bool {
		var err error
		if r.to, err = parseHop(r.order.Nexthop); err != nil {
			s.opt.Log.Warning("a diversion is not understood, and does not hold: %v", err)
		}
		return err != nil
	})
	// The narrowest counts. Of two that are as narrow, the one of recipients comes first.
	slices.SortFunc(list, func(a, b *rule) int { return a.target.Compare(b.target) })
	s.rules.diversions.Store(newRuleset(list))
	// The reason or the end may be another: that changes no mail's way.
	if slices.EqualFunc(was.all(), list, func(a, b *rule) bool { return a.target.String() == b.target.String() && a.to == b.to }) {
		return
	}
	s.rerouteActive()
}

// rerouteActive has the recipients that wait in the active queue, and would go by another next
// hop now, looked at again: they are parked for a pause that is over at once. What an agent has
// is let be.
func (s *Server) rerouteActive() {
	var events []sched.Event
	for num, m := range s.messages {
		// These go where they were told to, whoever the recipient is.
		if m.active == nil || m.active.env.Filter != "" || m.active.env.Redirect != "" {
			continue
		}
		var list []sched.Rcpt
		s.sched.Waiting(num, func(r sched.Rcpt) {
			if rc := m.active.rcpt(r.Index); rc != nil && (s.strays(&r, rc.resolved) || s.returnOf(&m.active.env, r.Transport, rc.resolved) != nil) {
				list = append(list, r)
			}
		})
		if len(list) > 0 {
			events = append(events, sched.Event{Kind: sched.EventPause, ID: num, Rcpts: list})
		}
	}
	if len(events) == 0 {
		return
	}
	// The three events come one after the other, with nothing between them. The scheduler makes
	// due what waits for the pause when the third says that there is none.
	s.rules.last++
	once := sched.Pause{ID: s.rules.last, Flush: true, Status: statusPaused, Reason: reasonDiverted}
	s.then(sched.Event{Kind: sched.EventPauses, Pauses: append(slices.Clone(s.rules.pauses), once)})
	for i := range events {
		for j := range events[i].Rcpts {
			events[i].Rcpts[j].Pause = once.ID
		}
		s.then(events[i])
	}
	s.then(sched.Event{Kind: sched.EventPauses, Pauses: s.rules.pauses})
}

// strays says whether a recipient that waits for its delivery would go another way now.
func (s *Server) strays(r *sched.Rcpt, addr string) bool {
	if r.Transport == sched.RetryTransport || r.Transport == sched.ErrorTransport {
		return false
	}
	ans, known := s.opt.Resolver.Known(addr)
	transport, nexthop := route(&ans)
	if !known {
		// Without an answer it is taken to be on the way that it would go by itself. Should that be
		// wrong, it is looked at once more for nothing.
		ans.Flags, transport, nexthop = elsewhere, r.Transport, r.Nexthop
	}
	transport, nexthop = s.divert(ans.Flags, transport, nexthop, addr)
	return hopName(transport, nexthop) != hopName(r.Transport, r.Nexthop)
}

// diversionFor is the diversion of a recipient's mail, for listings: nil when there is none, or
// when that could only be told by asking the resolver. It may be called outside the loop.
func (s *Server) diversionFor(env *mail.Envelope, addr string) *rule {
	if s.rules.diversions.Load() == nil || env.Redirect != "" || env.Filter != "" {
		return nil
	}
	ans, known := s.opt.Resolver.Known(addr)
	if !known {
		return nil
	}
	transport, nexthop := route(&ans)
	return s.diversionOf(ans.Flags, transport, nexthop, addr)
}

// diversionText is a diversion in words, for explain, with the way to end it. Operators wrote a
// part of it, so it is cleaned of control characters.
func (r *rule) diversionText() string {
	e := &r.order
	text := fmt.Sprintf("%s is diverted to %s by %s since %s", r.target.Subject(), e.Nexthop, e.By, e.Since.Local().Format(time.DateTime))
	if e.Until.IsZero() {
		text += ", until \"posthaste undivert " + r.target.Option() + "\""
	} else {
		text += " until " + e.Until.Local().Format(time.DateTime)
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return string(maillog.AppendClean(nil, []byte(text)))
}
