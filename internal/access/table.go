// Access tables: the restrictions that ask one, under which keys, and what an answer
// means.

package access

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/egress"
	"posthaste/internal/proto"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
)

// argumentChecks are the restrictions that have an argument.
func argumentChecks() map[string]func(e *Evaluator, arg string) (check, error) {
	return map[string]func(e *Evaluator, arg string) (check, error){
		"sleep":                                sleepCheck,
		"check_client_access":                  tableCheck((*run).clientAccess),
		"check_reverse_client_hostname_access": tableCheck((*run).reverseClientAccess),
		"check_helo_access":                    tableCheck((*run).heloAccess),
		"check_sender_access":                  tableCheck((*run).senderAccess),
		"check_recipient_access":               tableCheck((*run).rcptAccess),
		"check_etrn_access":                    tableCheck((*run).etrnAccess),
		"check_sasl_access":                    tableCheck((*run).saslAccess),
		"check_ccert_access":                   ccertCheck,
		"check_policy_service":                 policyCheck,

		"check_client_a_access":                   serverCheck(serverA, ofClient),
		"check_client_mx_access":                  serverCheck(serverMX, ofClient),
		"check_client_ns_access":                  serverCheck(serverNS, ofClient),
		"check_reverse_client_hostname_a_access":  serverCheck(serverA, ofReverse),
		"check_reverse_client_hostname_mx_access": serverCheck(serverMX, ofReverse),
		"check_reverse_client_hostname_ns_access": serverCheck(serverNS, ofReverse),
		"check_helo_a_access":                     serverCheck(serverA, ofHelo),
		"check_helo_mx_access":                    serverCheck(serverMX, ofHelo),
		"check_helo_ns_access":                    serverCheck(serverNS, ofHelo),
		"check_sender_a_access":                   serverCheck(serverA, ofSender),
		"check_sender_mx_access":                  serverCheck(serverMX, ofSender),
		"check_sender_ns_access":                  serverCheck(serverNS, ofSender),
		"check_recipient_a_access":                serverCheck(serverA, ofRcpt),
		"check_recipient_mx_access":               serverCheck(serverMX, ofRcpt),
		"check_recipient_ns_access":               serverCheck(serverNS, ofRcpt),

		"reject_rbl_client":           dnsCheck(false, askClientAddr),
		"permit_dnswl_client":         dnsCheck(true, askClientAddr),
		"reject_rhsbl_client":         dnsCheck(false, askClientName),
		"permit_rhswl_client":         dnsCheck(true, askClientName),
		"reject_rhsbl_reverse_client": dnsCheck(false, askReverseName),
		"reject_rhsbl_helo":           dnsCheck(false, askHelo),
		"reject_rhsbl_sender":         dnsCheck(false, askSender),
		"reject_rhsbl_recipient":      dnsCheck(false, askRcpt),
	}
}

// tableCheck makes the restriction that asks a table. ask looks at what it is
// about.
func tableCheck(ask func(*run, context.Context, *table.Maps) verdict) func(*Evaluator, string) (check, error) {
	return func(e *Evaluator, spec string) (check, error) {
		if !table.IsSpec(spec) {
			return nil, errors.New("expected type:table, got " + spec)
		}
		m := e.accessTable(spec)
		return func(r *run, ctx context.Context) verdict { return ask(r, ctx, m) }, nil
	}
}

// titlePrefix stands in warnings before the table, or the server, that an action comes from.
const titlePrefix = "access table "

// accessTable opens a table, once for all that ask it. Only New calls it, and what
// entries compile.
func (e *Evaluator) accessTable(spec string) *table.Maps {
	m := e.accessTables[spec]
	if m == nil {
		// mayRefuse: see there for what happens to rules that cannot be read.
		o := e.tables
		o.Stops = mayRefuse
		m = table.OpenMaps(titlePrefix+spec, []string{spec}, o)
		e.accessTables[spec] = m
	}
	return m
}

// mayRefuse says whether a rule that cannot be read may have been there to keep
// somebody out. Mail that comes to it must wait for the rule to be corrected: to
// pass over a rule that lets somebody in makes access narrower only.
func mayRefuse(result string) bool {
	word := strings.ToUpper(strings.Join(strings.Fields(result), " "))
	if _, is := replyAction(result); is {
		return true
	}
	return word != "OK" && word != "RELAY" && word != "PERMIT" && !(word != "" && allDigits(word))
}

// tableFailed is what the client hears when an access table cannot be asked
// about name.
func (r *run) tableFailed(err error, name string, cl class) verdict {
	r.e.log.Warning("%v", err)
	return r.refuseFor(name, cl, 451, dsn.S(4, 3, 5), "Server configuration error")
}

// found is what follows from one lookup: its error is pronounced, and its answer
// carried out. done is false when the table has nothing, and the next key is to be
// tried.
func (r *run) found(ctx context.Context, m *table.Maps, value string, found bool, err error, name string, cl class) (verdict, bool) {
	if err != nil {
		return r.tableFailed(err, name, cl), true
	}
	if !found {
		return dunno, false
	}
	return r.act(ctx, m.Title(), value, name, cl), true
}

// domainAccess looks up a domain and those above it. name and cl are for texts.
func (r *run) domainAccess(ctx context.Context, m *table.Maps, domain, name string, cl class) (verdict, bool) {
	if _, err := netip.ParseAddr(domain); err == nil { // it has no parents
		value, found, err := m.Lookup(ctx, domain, false)
		return r.found(ctx, m, value, found, err, name, cl)
	}
	value, found, err := m.LookupDomain(ctx, strings.TrimSuffix(domain, "."), !r.e.accessParents)
	return r.found(ctx, m, value, found, err, name, cl)
}

// clientAccess is check_client_access: the verified name, then the address.
func (r *run) clientAccess(ctx context.Context, m *table.Maps) verdict {
	return r.nameAddrAccess(ctx, m, r.s.Name, r.s.NameAddr(), classClient)
}

// nameAddrAccess looks up a name of the client's and, if nothing is said of
// that, its address.
func (r *run) nameAddrAccess(ctx context.Context, m *table.Maps, host, name string, cl class) verdict {
	if host != "" {
		if v, done := r.domainAccess(ctx, m, host, name, cl); done {
			return v
		}
	}
	value, found, err := m.LookupClientAddr(ctx, r.s.AddrText)
	v, _ := r.found(ctx, m, value, found, err, name, cl)
	return v
}

// reverseClientAccess is check_reverse_client_hostname_access. The name is not
// verified.
func (r *run) reverseClientAccess(ctx context.Context, m *table.Maps) verdict {
	v := r.nameAddrAccess(ctx, m, r.s.ReverseName, r.s.ReverseName, classReverse)
	if v == ok {
		return r.mustNotPermit(m.Title(), r.s.ReverseName)
	}
	return v
}

// mustNotPermit refuses an OK that rests on what the client's own name
// servers say: anybody could have it.
func (r *run) mustNotPermit(title, name string) verdict {
	r.e.log.Warning("%s: access result OK is not allowed for this restriction (%s): "+
		"use DUNNO, or the client could choose to be let through", title, name)
	return r.misconfigured()
}

// heloAccess is check_helo_access.
func (r *run) heloAccess(ctx context.Context, m *table.Maps) verdict {
	if r.s.Helo == "" {
		return dunno
	}
	v, _ := r.domainAccess(ctx, m, r.s.Helo, r.s.Helo, classHelo)
	return v
}

// etrnAccess is check_etrn_access.
func (r *run) etrnAccess(ctx context.Context, m *table.Maps) verdict {
	if r.cl != classEtrn {
		return dunno
	}
	v, _ := r.domainAccess(ctx, m, r.name, r.name, classEtrn)
	return v
}

// saslAccess is check_sasl_access.
func (r *run) saslAccess(ctx context.Context, m *table.Maps) verdict {
	user := r.s.SASL.Username
	if user == "" {
		return dunno
	}
	value, found, err := m.Lookup(ctx, user, false)
	v, _ := r.found(ctx, m, value, found, err, user, classSASL)
	return v
}

// senderAccess is check_sender_access. The null sender is looked up as
// smtpd_null_access_lookup_key.
func (r *run) senderAccess(ctx context.Context, m *table.Maps) verdict {
	if !r.s.HasSender {
		return dunno
	}
	if r.s.Sender == "" {
		if r.e.nullKey == "" {
			return dunno
		}
		value, found, err := m.Lookup(ctx, r.e.nullKey, false)
		v, _ := r.found(ctx, m, value, found, err, r.s.Sender, classSender)
		return v
	}
	return r.addressAccess(ctx, m, r.s.Sender, classSender)
}

// rcptAccess is check_recipient_access.
func (r *run) rcptAccess(ctx context.Context, m *table.Maps) verdict {
	if !r.s.HasRcpt {
		return dunno
	}
	v := r.addressAccess(ctx, m, r.s.Recipient, classRcpt)
	if v == ok {
		// An address with routing in it goes elsewhere than it says.
		a, rv := r.resolvedOr(ctx, r.s.Recipient)
		if rv == refused {
			return rv
		}
		if a.Flags&proto.ResolveRouted != 0 && !r.e.untrustedRouting {
			return dunno
		}
	}
	return v
}

// addressAccess looks up an address, in the form that mail for it would have: with
// its extension and without, its domain and those above it, and user@.
func (r *run) addressAccess(ctx context.Context, m *table.Maps, addr string, cl class) verdict {
	a, v := r.resolvedOr(ctx, addr)
	if v == refused {
		return v
	}
	// KeyLocalpartAt is user@, which means that user in any domain.
	keys := table.KeyFull | table.KeyBare | table.KeyDomain | table.KeyLocalpartAt
	if r.e.accessParents {
		keys |= table.KeyParents
	} else {
		keys |= table.KeyDotParents
	}
	value, _, found, err := m.LookupAddress(ctx, &r.e.search, a.Recipient, keys)
	v, _ = r.found(ctx, m, value, found, err, addr, cl)
	return v
}

// act carries out what an access table or a policy server says. title says who said
// it, name and cl whom it is about. Words in any letter case; what is none of them
// is a reply, a number, or restrictions.
func (r *run) act(ctx context.Context, title, value, name string, cl class) verdict {
	value = strings.TrimSpace(value)
	if trace := table.TraceOf(ctx); trace != nil {
		trace("check_table_result: %s %s %s", strings.TrimPrefix(title, titlePrefix), value, name)
	}
	// A blank or a tab ends the first word, which says what the action is.
	word, rest, _ := strings.Cut(value, " ")
	if i := strings.IndexByte(word, '\t'); i >= 0 {
		word, rest = value[:i], value[i+1:]
	}
	rest = strings.TrimSpace(rest)
	switch upper := strings.ToUpper(word); upper {
	case "":
		r.e.log.Warning("%s: an entry for %s without a value means OK", title, name)
		return ok
	case "OK", "RELAY":
		return ok
	case "DUNNO":
		return dunno
	case "REJECT":
		// REJECT may have an enhanced status, and a text.
		status, text := statusAndText(rest, dsn.S(5, 7, 1), "Access denied")
		return r.refuseFor(name, cl, r.e.cfg.Int("access_map_reject_code"), r.fixStatus(status, cl), text)
	case "DEFER":
		status, text := statusAndText(rest, dsn.S(4, 7, 1), "Access denied")
		return r.refuseFor(name, cl, r.e.cfg.Int("access_map_defer_code"), r.fixStatus(status, cl), text)
	case "DEFER_IF_REJECT":
		status, text := statusAndText(rest, dsn.S(4, 7, 1), "Service unavailable")
		return r.deferIfReject(r.e.cfg.Int("access_map_defer_code"), r.fixStatus(status, cl), rejected(name, cl, text))
	case "DEFER_IF_PERMIT":
		status, text := statusAndText(rest, dsn.S(4, 7, 1), "Service unavailable")
		return r.deferIfPermit("", r.e.cfg.Int("access_map_defer_code"), r.fixStatus(status, cl), rejected(name, cl, text))
	case "INFO", "WARN":
		r.log(strings.ToLower(upper), rest)
		return dunno
	case "HOLD", "DISCARD", "FILTER", "POOL", "REDIRECT", "BCC", "PREPEND":
		return r.effect(title, upper, rest, name, cl)
	case "HANGUP":
		r.log("hangup", "<"+name+">: "+classText[cl]+" triggers HANGUP action")
		r.reply = Hangup
		return refused
	}
	if reply, is := replyAction(value); is {
		return r.refuseFor(name, cl, reply.Code, r.fixStatus(reply.Status, cl), reply.Text)
	}
	if allDigits(value) {
		return ok
	}
	return r.nested(ctx, title, value)
}

// Hangup is the refusal that is not to be sent: the connection is closed. It is
// known by its address.
var Hangup = &smtpwire.Reply{Code: 521, Status: dsn.S(5, 7, 1), Text: "Access denied"}

// statusAndText takes an enhanced status off the start of s; status and text are
// for what s does not have.
func statusAndText(s string, status dsn.Status, text string) (dsn.Status, string) {
	if st, rest, found := dsn.CutStatus(s); found {
		status, s = st, rest
	}
	if s = printable(s); s != "" {
		text = s
	}
	return status, text
}

// replyAction reads 4NN text and 5NN text; a code alone is a number, and
// numbers mean OK.
func replyAction(value string) (smtpwire.Reply, bool) {
	reply, is := smtpwire.ParseReply(value)
	if !is || reply.Code < 400 || reply.Text == "" && reply.Status.IsZero() {
		return reply, false
	}
	if reply.Status.IsZero() {
		reply.Status = dsn.S(uint8(reply.Code/100), 7, 1)
	}
	if reply.Text = printable(reply.Text); reply.Text == "" {
		reply.Text = "Access denied"
	}
	return reply, true
}

// allDigits says whether s is a number: in an access table such an answer means OK,
// since old ones were made from lists of numbers.
func allDigits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// effect records an action that is about a message. It needs a transaction to be
// recorded in, and with a filter before the queue there is nobody to carry out most
// of them. It says dunno: the client goes on being judged.
func (r *run) effect(title, action, arg, name string, cl class) verdict {
	s := r.s
	why := ""
	switch {
	case r.e.proxyFilter && action != "PREPEND":
		why = "with smtpd_proxy_filter specified, action %s is unavailable"
	case s.Stage == "ETRN":
		why = "action %s is unavailable in smtpd_etrn_restrictions"
	case s.Stage == "VRFY":
		why = "action %s is unavailable for VRFY"
	case !s.HasSender:
		why = "with smtpd_delay_reject=no, action %s is always skipped in Client host or Helo command restrictions"
	}
	if why != "" {
		r.e.log.Warning("%s: "+why, title, action)
		return dunno
	}
	triggers := "<" + name + ">: " + classText[cl] + " triggers " + action
	logEffect := func(text string) {
		r.log(strings.ToLower(action), text)
	}
	switch action {
	case "HOLD", "DISCARD":
		text := triggers + " action"
		if arg != "" {
			text = "<" + name + ">: " + classText[cl] + " " + printable(arg)
		}
		logEffect(text)
		if action == "HOLD" {
			s.Effects.Hold = true
		} else {
			s.Effects.Discard = true
		}
		return dunno
	case "FILTER":
		if !strings.Contains(arg, ":") {
			r.e.log.Warning("%s entry %q requires transport:destination", title, name)
			return dunno
		}
		logEffect(triggers + " " + arg)
		s.Effects.Filter = arg
	case "POOL":
		if !egress.ValidName(arg) {
			r.e.log.Warning("%s entry %q requires the name of an egress pool", title, name)
			return dunno
		}
		logEffect(triggers + " " + arg)
		s.Effects.Pool = arg
	case "REDIRECT", "BCC":
		if !strings.Contains(arg, "@") {
			r.e.log.Warning("%s entry %q requires user@domain target", title, name)
			return dunno
		}
		logEffect(triggers + " " + arg)
		if action == "REDIRECT" {
			s.Effects.Redirect = arg
		} else {
			s.Effects.BCC = append(s.Effects.BCC, arg)
		}
	case "PREPEND":
		switch {
		case r.cl == classEOD:
			r.e.log.Warning("%s: action PREPEND must be used before smtpd_end_of_data_restrictions", title)
		case !smtpwire.LooksLikeHeader(arg):
			r.e.log.Warning("%s entry %q requires header: text", title, name)
		default:
			s.Effects.Prepend = append(s.Effects.Prepend, printable(arg))
		}
	}
	return dunno
}

// nested goes through the restrictions that an entry holds. They may not ask tables
// in turn, or a loop would be a matter of time. They are compiled for each answer,
// which is rare.
func (r *run) nested(ctx context.Context, title, value string) verdict {
	words := table.SplitList(value)
	for _, w := range words {
		if table.IsSpec(w) {
			r.e.log.Warning("%s has entry with lookup table: %s; define a restriction class and specify its name instead", title, value)
			return r.misconfigured()
		}
	}
	return r.eval(ctx, r.e.compile(title, words, r.kind))
}
