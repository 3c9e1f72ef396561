package bounce

import (
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/notice"
	"posthaste/internal/proto"
)

// policy is what the configuration says of who gets notices.
type policy struct {
	doubleBounce string // full address
	onBounce     bool   // notify_classes has bounce
	on2Bounce    bool   // 2bounce, or bounce
	onDelay      bool   // delay
	cleared      bool   // confirm_delay_cleared: deliveries after a delay warning are told too
	bounceTo     string
	twoBounceTo  string
	delayTo      string
	verp         bool // VERP senders get a notice for each recipient
	redact       bool // content that must go over TLS only is not returned
}

func newPolicy(cfg *config.Config) policy {
	p := policy{
		doubleBounce: notice.Sender(cfg),
		bounceTo:     cfg.String("bounce_notice_recipient"),
		twoBounceTo:  cfg.String("2bounce_notice_recipient"),
		delayTo:      cfg.String("delay_notice_recipient"),
		cleared:      cfg.Bool("confirm_delay_cleared"),
		verp:         !cfg.Bool("disable_verp_bounces"),
		redact:       cfg.Bool("requiretls_redact_dsn"),
	}
	for _, class := range cfg.List("notify_classes") {
		switch strings.ToLower(class) {
		case "bounce":
			p.onBounce, p.on2Bounce = true, true
		case "2bounce":
			p.on2Bounce = true
		case "delay":
			p.onDelay = true
		}
	}
	return p
}

// A sending is one notice to be sent.
type sending struct {
	sender     string // envelope sender: null, or the double-bounce address
	to         string
	postmaster bool
	reports    []Report
	ret        dsn.Ret
	// vital: the request has failed when this cannot be submitted. Others are
	// a courtesy.
	vital bool
}

// A plan is what a request comes to: notices, or the knowledge that there is
// nobody to tell.
type plan struct {
	sendings []sending
	// discarded: the message was itself a postmaster notice, and is given up.
	discarded bool
}

// plan decides who is told what. It is pure. The vital notices come first, and
// between them have each report once at most.
func (p *policy) plan(kind proto.NoticeKind, env *mail.Envelope, reports []Report) plan {
	out := p.notices(kind, env, reports)
	if p.redact && env.RequireTLS {
		for i := range out.sendings {
			out.sendings[i].ret = dsn.RetHeaders // RFC 8689 section 5
		}
	}
	return out
}

func (p *policy) notices(kind proto.NoticeKind, env *mail.Envelope, reports []Report) plan {
	switch {
	case strings.EqualFold(env.Sender, p.doubleBounce):
		return plan{discarded: kind == proto.NoticeFailure || kind == proto.NoticeExpired}
	case len(reports) == 0:
		return plan{}
	}
	null := env.Sender == ""
	switch kind {
	case proto.NoticeFailure, proto.NoticeExpired:
		rest, out := p.owners(reports)
		switch {
		case len(rest) == 0:
		case null:
			out.sendings = append(out.sendings, p.doubleFailure(rest).sendings...)
		default:
			out.sendings = append(out.sendings, p.failure(env, rest).sendings...)
		}
		if p.onBounce && !(null && len(rest) == len(reports)) {
			out.sendings = append(out.sendings, p.copyFor(p.bounceTo, reports, false))
		}
		return out
	case proto.NoticeDelay:
		if null {
			return plan{}
		}
		out := toSender(env.Sender, wanting(reports, dsn.Notify.Delay), dsn.RetHeaders)
		if p.onDelay {
			out.sendings = append(out.sendings, p.copyFor(p.delayTo, reports, false))
		}
		return out
	case proto.NoticeSuccess:
		if !null {
			return toSender(env.Sender, wanting(reports, p.success), dsn.RetHeaders)
		}
	case proto.NoticeTrace:
		if !null {
			return toSender(env.Sender, reports, dsn.RetHeaders)
		}
	}
	return plan{}
}

// success says whether the sender is to hear of a delivery. Whether he was
// warned of a delay before is known to the queue manager, which asks for no
// notice otherwise.
func (p *policy) success(n dsn.Notify) bool { return n.Success() || p.cleared && n.Delay() }

// owners takes the failures of lists out of reports: their owners are told,
// each of his list's, and not who wrote to it. What the sender has asked for
// does not hold there (RFC 3461 section 5.2.7.4).
func (p *policy) owners(reports []Report) (rest []Report, out plan) {
	for i := range reports {
		if to := reports[i].Outcome.Owner; to != "" {
			out.sendings = append(out.sendings, sending{to: to, reports: reports[i : i+1], ret: dsn.RetFull, vital: true})
		} else {
			rest = append(rest, reports[i])
		}
	}
	return rest, out
}

// failure is for mail with a sender, who is told.
func (p *policy) failure(env *mail.Envelope, reports []Report) plan {
	ret := env.Ret
	if ret == dsn.RetUnset {
		ret = dsn.RetFull
	}
	wanted := wanting(reports, dsn.Notify.Failure)
	var out plan
	if p.verp && len(env.VERP) == 2 {
		for i := range wanted {
			to := verpAddress(env.Sender, wanted[i].Recipient.Orig(), env.VERP)
			out.sendings = append(out.sendings, sending{to: to, reports: wanted[i : i+1], ret: ret, vital: true})
		}
	} else {
		out = toSender(env.Sender, wanted, ret)
	}
	return out
}

// doubleFailure is for mail that is itself a notice: postmaster is told, if
// anybody is. It is the last that will be heard of the message, so all of it
// goes along.
func (p *policy) doubleFailure(reports []Report) plan {
	if !p.on2Bounce {
		return plan{}
	}
	s := p.copyFor(p.twoBounceTo, reports, true)
	s.ret = dsn.RetFull
	return plan{sendings: []sending{s}}
}

func (p *policy) copyFor(to string, reports []Report, vital bool) sending {
	return sending{sender: p.doubleBounce, to: to, postmaster: true, reports: reports, ret: dsn.RetHeaders, vital: vital}
}

func toSender(sender string, reports []Report, ret dsn.Ret) plan {
	if len(reports) == 0 {
		return plan{}
	}
	return plan{sendings: []sending{{to: sender, reports: reports, ret: ret, vital: true}}}
}

// wanting are the reports on recipients whose NOTIFY asks for them.
func wanting(reports []Report, wants func(dsn.Notify) bool) []Report {
	for i := range reports {
		if !wants(reports[i].Recipient.Notify) {
			out := append([]Report(nil), reports[:i]...)
			for _, r := range reports[i+1:] {
				if wants(r.Recipient.Notify) {
					out = append(out, r)
				}
			}
			return out
		}
	}
	return reports
}

// verpAddress is sender with the recipient encoded in it by two delimiters:
// list@a.org and joe@b.org with += make list+joe=b.org@a.org.
func verpAddress(sender, recipient, delimiters string) string {
	local, domain := cutAddress(sender)
	user, host := cutAddress(recipient)
	out := local + delimiters[:1] + user
	if host != "" {
		out += delimiters[1:2] + host
	}
	if domain != "" {
		out += "@" + domain
	}
	return out
}

func cutAddress(addr string) (local, domain string) {
	if i := strings.LastIndexByte(addr, '@'); i >= 0 {
		return addr[:i], addr[i+1:]
	}
	return addr, ""
}
