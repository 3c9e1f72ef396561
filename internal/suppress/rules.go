package suppress

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/returnpath"
	"posthaste/internal/suppress/suppressclient"
)

// The reasons of entries that the service makes.
const (
	reasonBounce    = "bounce"
	reasonBounces   = "bounces" // several that pass
	reasonComplaint = "complaint"
)

// rules say for what an address is suppressed.
type rules struct {
	hard, soft []string // classes
	count      int      // days with soft failures
	softDays   int      // among so many
	lifetime   time.Duration
	most       int // entries of a tenant that adds some itself; 0: any number
}

func readRules(cfg *config.Config) rules {
	return rules{hard: cfg.List("suppress_hard_classes"), soft: cfg.List("suppress_soft_classes"), count: cfg.Int("suppress_soft_bounces"),
		softDays: int(cfg.Duration("suppress_soft_bounce_time") / (24 * time.Hour)), lifetime: cfg.Duration("suppress_bounce_lifetime"),
		most: cfg.Int("suppress_tenant_limit")}
}

// A weight is what a piece of news has.
type weight uint8

const (
	nothing weight = iota
	passing        // it counts, together with others
	final
)

// weigh says how much news of a class weighs. What is told of an address behind the recipient is never final: the
// recipient has an address that works, and leads to one that does not. Nor is what a server has put off until the
// message was too old.
func (r *rules) weigh(what, class string) weight {
	has := func(list []string) bool {
		return slices.ContainsFunc(list, func(c string) bool { return strings.EqualFold(c, class) })
	}
	switch {
	case what == proto.ToldComplaint || what == proto.ToldUnsubscribed:
		return final
	case class == "":
		return nothing
	case what == proto.ToldBounce && has(r.hard):
		return final
	case has(r.soft), what != proto.ToldBounce && has(r.hard):
		return passing
	}
	return nothing
}

// tell takes in what has become of mail.
func (s *server) tell(q *proto.SuppressTell) (*proto.SuppressTold, error) {
	address, err := s.checked(q.List, q.Address)
	if err != nil {
		return nil, err
	}
	now := s.now()
	var token returnpath.Token
	if q.Token != "" {
		if s.paths == nil {
			return nil, fmt.Errorf("return_path_domain is not set")
		}
		if token, err = s.paths.Parse(q.Token, now); err != nil {
			return nil, err
		}
		if !s.isFor(&token, q.Address) {
			return nil, fmt.Errorf("the return path was not made for %.100q", q.Address)
		}
		// It is only counted by these: what cannot be read is not known.
		if rec, err := s.recorded(&token); err == nil {
			q.Provider, q.Source = rec.Provider, rec.Source
		}
	}
	w := s.rules.weigh(q.What, q.Class)
	if w == nothing && q.Token == "" {
		s.count(q, address, &proto.SuppressTold{})
		return &proto.SuppressTold{}, nil
	}
	e := proto.Suppression{List: suppressclient.Home(q.List), Address: address, Origin: clean(q.Origin), Detail: clean(q.Detail), Time: now.Unix()}
	switch {
	case q.What == proto.ToldComplaint:
		e.Reason = reasonComplaint
	case q.What == proto.ToldUnsubscribed:
		e.Reason, e.List = suppressclient.Unsubscribed, q.List // of the one list, if the link was for one
	case s.rules.lifetime > 0:
		e.Until = now.Add(s.rules.lifetime).Unix()
	}
	var reply proto.SuppressTold
	err = s.store.update(func(c change) (err error) {
		reply = proto.SuppressTold{}
		if q.Token != "" {
			if reply.Again, err = c.seen(token.Day, token.Position, seenKind(q.What)); err != nil || reply.Again {
				return err
			}
		}
		return s.decide(c, w, &e, &reply)
	})
	if err == nil && reply.Added != "" {
		s.log.Log(maillog.Suppressed{ID: e.Origin, To: s.log.Address(e.Address), List: e.List, Reason: e.Reason, Detail: e.Detail})
	}
	if err == nil {
		s.count(q, address, &reply)
	}
	return &reply, err
}

// count counts a piece of news, unless it is no news, and what came of it.
func (s *server) count(q *proto.SuppressTell, address string, told *proto.SuppressTold) {
	if told.Again {
		return
	}
	tenant, _ := suppressclient.Parts(q.List)
	switch q.What {
	case proto.ToldBounce, proto.ToldExpired, proto.ToldForwarded, proto.ToldComplaint, proto.ToldUnsubscribed:
		s.metrics.AddFeedback(tenant, address, q.What)
		s.metrics.AddProviderFeedback(q.Provider, q.Source, q.What)
		s.back.count(s.now(), q)
	}
	if told.Added != "" {
		s.metrics.AddFeedback(tenant, address, "suppressed")
		s.metrics.AddProviderFeedback(q.Provider, q.Source, "suppressed")
	}
}

// seenKind is what one token may bring once: a bounce, of whatever weight, and a complaint.
func seenKind(what string) string {
	if what == proto.ToldComplaint {
		return "c"
	}
	return "b"
}

// decide makes an entry, if the news has the weight for it or is the last of several.
func (s *server) decide(c change, w weight, e *proto.Suppression, reply *proto.SuppressTold) error {
	switch w {
	case nothing:
		return nil
	case passing:
		day := int(e.Time / 86400)
		n, err := c.count(e.List, e.Address, day, day-s.rules.softDays+1)
		if err != nil || s.rules.count == 0 || n < s.rules.count {
			return err
		}
		e.Reason = reasonBounces
	case final:
		if e.Reason == "" {
			e.Reason = reasonBounce
		}
	}
	added, err := c.suppress(e)
	if err == nil && added {
		reply.Added = e.Reason
	}
	return err
}

// clean is a text as an entry may have it: one line, of printable characters.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) && r != ' ' {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "")
	}
	return text
}
