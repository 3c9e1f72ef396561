// Mail that is returned for now: by rules of shaping_files (Bounce, BounceTenant and BounceCampaign), and by operators
// ("posthaste bounce"). The store of overrides keeps for how long (override.Return). A recipient who is meant goes to the error transport when the message comes up, so that
// it is logged, recorded and reported to the sender as any other failure; what waits in the active queue is looked at
// again at once, and what an agent has is let be.
//
// What a rule returns is narrower than what it suspends: the recipient's domain, not all domains of its site. A
// suspension ends by itself, and a notice cannot be called back. Mail that goes to its domain by way of a relay is not
// meant by what the relay says, unless it is for the relay's own domain.
//
// The notice of what a rule returns does not have the reply that has caused it: that was about another recipient, and may
// name people. The log has it, and "posthaste explain". What an operator gives for a reason is written for the sender.

package qmgr

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/override"
	"posthaste/internal/rfc5322"
	"posthaste/internal/selection"
	"posthaste/qmgr/sched"
)

// statusReturned is RFC 3463's "delivery not authorized, message refused", as KumoMTA has it.
var statusReturned = dsn.S(5, 7, 1)

// setReturns puts other rules in force. What waits in the active queue and is meant is taken up again.
func (s *Server) setReturns(list []*rule) {
	if len(list) == 0 && s.rules.returns.Load() == nil {
		return
	}
	was := len(s.rules.returns.Load().all())
	s.rules.returns.Store(newRuleset(list))
	// One that has ended changes no mail's way: what it was for has gone.
	if len(list) > 0 || was > 0 {
		s.rerouteActive()
	}
}

// returnOf is the rule by which a recipient's mail is returned; nil: there is none. It may be called by any goroutine.
func (s *Server) returnOf(env *mail.Envelope, transport mail.Transport, addr string) *rule {
	set := s.rules.returns.Load()
	// What these transports say is final, or about the recipient alone.
	if set == nil || transport == sched.RetryTransport || transport == sched.ErrorTransport {
		return nil
	}
	m := mailOf(env, transport, "", addr)
	// A tenant's mail to a site is that to a domain here.
	m.Site = strings.ToLower(rfc5322.Domain(addr))
	return set.find(&m, time.Now())
}

// judgeReturn says what is wrong with an operator's order to return mail. The next hop is not asked about: who gets the
// mail back has addressed it to a domain.
func judgeReturn(target selection.Target, e *override.Entry) error {
	by, value := target.Condition()
	switch {
	case by != "domain" && !target.IsSender() && !target.IsGroup() || value == "*":
		return errors.New("what is returned is mail to a domain, from a sender, of a tenant or of a campaign")
	// Rules have an end as well. An order that is forgotten would return mail for ever.
	case e.Until.IsZero():
		return errors.New("mail is returned for a time: it needs an end")
	}
	return nil
}

// giveBack sends a recipient whose mail is returned to the error transport.
func (s *Server) giveBack(env *mail.Envelope, r *loadedRcpt) {
	if rule := s.returnOf(env, r.Transport, r.rcpt.resolved); rule != nil {
		r.Transport, r.Terms, r.Pool = sched.ErrorTransport, nil, nil
		r.Nexthop = mail.Nexthop(statusReturned.String() + " " + rule.returnNotice())
	}
}

// returnNotice is what the sender is told.
func (r *rule) returnNotice() string {
	e, text := &r.order, r.target.Mail()+" is not accepted for now"
	switch {
	case e.Rule != "":
		return text + ", by a rule of this mail system"
	case e.Reason == "":
		return text + ", by order of an operator of this mail system"
	}
	return string(maillog.AppendClean(nil, []byte(text+": "+e.Reason)))
}

// returnText is the rule in words, for explain, with the way to end it.
func (r *rule) returnText() string {
	e := &r.order
	text := fmt.Sprintf("%s is returned by %s since %s until %s", r.target.Mail(), e.By, e.Since.Local().Format(time.DateTime), e.Until.Local().Format(time.DateTime))
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	if e.Rule != "" {
		text += "; \"posthaste shaping lift '" + e.Target + "'\" ends it"
	} else {
		text += "; \"posthaste unbounce " + r.target.Option() + "\" ends it"
	}
	return string(maillog.AppendClean(nil, []byte(text)))
}
