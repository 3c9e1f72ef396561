// Restriction lists: how they are read, what is wrong with them, and how one is gone
// through. The restrictions themselves are in the tables simpleChecks (here) and
// argumentChecks (table.go), where a new one is added.

package access

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/table"
)

// A check is one restriction, ready to be asked. It may be asked by many sessions
// at once, each with a run of its own.
type check func(r *run, ctx context.Context) verdict

// A list is a restriction list: what a parameter, a class or a table entry says, in
// order. It does not change once it is compiled.
type list struct {
	param  string // where it is from, for warnings
	checks []named
}

// named is one element of a list.
type named struct {
	name string // as it is written
	arg  string // empty: it has none
	warn bool   // warn_if_reject stands before it
	// guards says that nothing gets past it to an outside destination: see
	// the relay test in New.
	guards  bool
	nested  *list  // a class, or what maps_rbl_domains stands for; else nil
	problem string // what is wrong with it; empty: nothing
	run     check  // of a broken one, a configuration error
}

// eval asks the restrictions in turn, until one permits or refuses. A permit ends
// this list only, as with Postfix: the lists behind it are asked all the same. The
// end of the list is dunno.
func (r *run) eval(ctx context.Context, l *list) verdict {
	if r.depth >= maxDepth {
		r.e.log.Warning("%s: restrictions nest more than %d deep", l.param, maxDepth)
		return r.misconfigured()
	}
	r.depth++
	defer func() { r.depth-- }()
	trace := table.TraceOf(ctx)
	if trace != nil {
		trace(">>> START %s RESTRICTIONS <<<", classText[r.cl])
		defer trace(">>> END %s RESTRICTIONS <<<", classText[r.cl])
	}
	outer := r.warn
	for i := range l.checks {
		c := &l.checks[i]
		// warn_if_reject before a class holds for all that is in it.
		r.warn = outer || c.warn
		v := c.traced(r, ctx, trace)
		r.warn = outer
		if v == ok && r.depth == 1 {
			r.logPermit(c)
		}
		// DISCARD says dunno, and must end the list too.
		if v != dunno || r.s.Effects.Discard {
			return v
		}
		// Whatever else the list says, a permit becomes a deferral and so does a
		// permanent refusal.
		if r.s.deferPermit != nil && r.s.deferReject != nil {
			return dunno // whatever comes, it will be put off
		}
	}
	return dunno
}

// traced asks one restriction, and tells trace, unless it is nil, what it said. The
// words are those of Postfix's verbose log.
func (c *named) traced(r *run, ctx context.Context, trace table.Trace) verdict {
	if trace == nil {
		return c.run(r, ctx)
	}
	if c.warn {
		trace("generic_checks: name=warn_if_reject")
	}
	trace("generic_checks: name=%s", c.name)
	v := c.run(r, ctx)
	trace("generic_checks: name=%s status=%d", c.name, v)
	return v
}

// logPermit logs what let the client through, where smtpd_log_access_permit_actions
// asks for it: to find out which of many restrictions is too wide.
func (r *run) logPermit(c *named) {
	for _, want := range r.e.logPermits {
		if !strings.EqualFold(c.name, want) && want != "static:all" {
			continue
		}
		// Log lines of Postfix say what was permitted: by default what the list is
		// about.
		what, who := classText[r.cl], r.name
		if aboutClient[strings.ToLower(c.name)] {
			what, who = classText[classClient], r.s.NameAddr()
		}
		r.log("permit", "action="+c.name+" for "+what+"="+who+" "+c.arg)
		return
	}
}

// aboutClient are the restrictions that let through for what the client is,
// in whatever list they are.
var aboutClient = map[string]bool{"permit_mynetworks": true, "permit_inet_interfaces": true, "permit_sasl_authenticated": true,
	"permit_tls_clientcerts": true, "permit_tls_all_clientcerts": true, "permit_dnswl_client": true, "permit_rhswl_client": true,
	"check_client_access": true}

// compile reads the elements of a list. Nothing is refused here but what
// cannot be a list at all: a restriction that is unknown, or lacks its
// argument, answers with a configuration error when it is reached, so that a
// mistake in one list does not stop the mail of those it is not about.
func (e *Evaluator) compile(param string, words []string, kind listKind) *list {
	l := &list{param: param}
	warn := false
	for i := 0; i < len(words); {
		w := words[i]
		i++
		// It stands before another element, and has no meaning of its own.
		if strings.EqualFold(w, "warn_if_reject") {
			warn = true
			continue
		}
		var n named
		n, i = e.compileOne(words, i-1, kind)
		n.warn = warn
		l.checks = append(l.checks, n)
		warn = false
	}
	return l
}

// listKind is what a bare table stands for in a list: check_client_access in one
// about the client, and so on.
type listKind uint8

const (
	kindClient listKind = iota
	kindHelo
	kindSender
	kindRcpt
	kindEtrn
	kindData
)

// defaultCheck is the restriction that a bare table stands for: nil at DATA, where
// there is none.
func defaultCheck(kind listKind) func(*run, context.Context, *table.Maps) verdict {
	switch kind {
	case kindClient:
		return (*run).clientAccess
	case kindHelo:
		return (*run).heloAccess
	case kindSender:
		return (*run).senderAccess
	case kindRcpt:
		return (*run).rcptAccess
	case kindEtrn:
		return (*run).etrnAccess
	}
	return nil
}

// bareTable is a table that stands by itself. In a class it means what the
// list wants that uses the class.
func (e *Evaluator) bareTable(spec string) named {
	m := e.accessTable(spec)
	return named{name: spec, run: func(r *run, ctx context.Context) verdict {
		ask := defaultCheck(r.kind)
		if ask == nil {
			return e.broken(spec, noDefault(spec)).run(r, ctx)
		}
		return ask(r, ctx, m)
	}}
}

// noDefault words the mistake of a bare table where it has no meaning.
func noDefault(spec string) string { return spec + ": a table cannot be used on its own here" }

// compileOne reads the element words[i] with its argument, if it has one, and
// returns it and where the next one begins.
func (e *Evaluator) compileOne(words []string, i int, kind listKind) (named, int) {
	w := words[i]
	name := strings.ToLower(w)
	// Names of restrictions go in any letter case, those of classes do not.
	if c, found := e.simple[name]; found {
		return named{name: w, run: c, guards: guards[name]}, i + 1
	}
	if newCheck, found := e.withArgument[name]; found {
		if i+1 >= len(words) {
			return e.broken(w, fmt.Sprintf("%s needs an argument", w)), i + 1
		}
		arg := words[i+1]
		c, err := newCheck(e, arg)
		if err != nil {
			return e.broken(w, err.Error()), i + 2
		}
		return named{name: w, arg: arg, run: c}, i + 2
	}
	if name == "reject_maps_rbl" {
		return e.mapsRBL(w), i + 1
	}
	if l, found := e.classes[w]; found {
		return named{name: w, run: func(r *run, ctx context.Context) verdict { return r.eval(ctx, l) }, nested: l}, i + 1
	}
	if table.IsSpec(w) {
		// At DATA there may be several recipients: a table of addresses would not
		// know which of them to look up.
		if kind == kindData {
			return e.broken(w, noDefault(w)), i + 1
		}
		return e.bareTable(w), i + 1
	}
	return e.broken(w, fmt.Sprintf("%s: %q", unknownRestriction, w)), i + 1
}

// nearest is the restriction or class that an unknown word likely stands for, or
// "". A restriction that is misspelt answers 451 to everybody, so that the hint is
// worth its cost.
func (e *Evaluator) nearest(word string) string {
	names := slices.Collect(maps.Keys(e.simple))
	names = slices.AppendSeq(names, maps.Keys(e.withArgument))
	names = slices.AppendSeq(names, maps.Keys(e.classes))
	slices.Sort(names)
	return config.Nearest(word, slices.Values(names))
}

// unknownRestriction begins the problem of a word that is no restriction.
const unknownRestriction = "unknown smtpd restriction"

// mapsRBL is what came before reject_rbl_client: it asks all lists of
// maps_rbl_domains.
func (e *Evaluator) mapsRBL(name string) named {
	var words []string
	for _, domain := range e.cfg.List("maps_rbl_domains") {
		words = append(words, "reject_rbl_client", domain)
	}
	l := e.compile("maps_rbl_domains", words, kindClient)
	var once sync.Once
	return named{name: name, nested: l, run: func(r *run, ctx context.Context) verdict {
		once.Do(func() {
			e.log.Warning("support for restriction %q will be removed from %s; use \"reject_rbl_client domain-name\" instead",
				name, e.cfg.String("mail_name"))
		})
		return r.eval(ctx, l)
	}}
}

// broken is a restriction that answers with a configuration error, and logs why
// each time.
func (e *Evaluator) broken(name, text string) named {
	return named{name: name, problem: text, run: func(r *run, _ context.Context) verdict {
		e.log.Warning("%s", text)
		return r.misconfigured()
	}}
}

// report says at the start what is wrong with a parameter's list, before
// mail is refused for it.
func (e *Evaluator) report(l *list) *list {
	for i := range l.checks {
		c := &l.checks[i]
		if meant := ""; c.problem != "" {
			if strings.HasPrefix(c.problem, unknownRestriction) {
				if meant = e.nearest(strings.ToLower(c.name)); meant != "" {
					meant = "; did you mean " + meant + "?"
				}
			}
			e.log.Warning("%s: %s%s", l.param, c.problem, meant)
		}
		// What follows is never asked. It is a warning since the list may be meant
		// so for a while.
		if strings.EqualFold(c.name, "permit") && !c.warn && i+1 < len(l.checks) {
			e.log.Warning("%s: restriction `%s' after `permit' is ignored", l.param, l.checks[i+1].name)
		}
	}
	return l
}

// protects says whether no mail to outside destinations gets past the list unless
// an earlier element has let it through on purpose. outer are the classes that it
// is within.
func (l *list) protects(outer ...*list) bool {
	if slices.Contains(outer, l) {
		return false // a class that uses itself
	}
	for i := range l.checks {
		c := &l.checks[i]
		// Everything is permitted from here on, whatever guards may follow.
		if strings.EqualFold(c.name, "permit") && !c.warn {
			return false
		}
		// Under warn_if_reject a guard only warns.
		if !c.warn && (c.guards || c.nested != nil && c.nested.protects(append(outer, l)...)) {
			return true
		}
	}
	return false
}

// guards are the restrictions of which one must be in the relay or recipient
// list.
var guards = map[string]bool{"reject_unauth_destination": true, "defer_unauth_destination": true,
	"reject": true, "defer": true, "defer_if_permit": true}

// simpleChecks are the restrictions without an argument.
func simpleChecks() map[string]check {
	return map[string]check{
		"permit":          func(*run, context.Context) verdict { return ok },
		"reject":          (*run).reject,
		"defer":           (*run).deferAll,
		"defer_if_permit": (*run).deferIfPermitAsked,
		"defer_if_reject": (*run).deferIfRejectAsked,
		"permit_mynetworks": func(r *run, ctx context.Context) verdict {
			return r.permitIf(r.e.clientIn(ctx, r.e.myNetworks, &r.s.Client))
		},
		"permit_inet_interfaces":                       (*run).permitInetInterfaces,
		"permit_sasl_authenticated":                    (*run).permitSASL,
		"permit_tls_clientcerts":                       (*run).permitClientCerts,
		"permit_tls_all_clientcerts":                   (*run).permitAllClientCerts,
		"reject_unauth_pipelining":                     (*run).rejectPipelining,
		"reject_plaintext_session":                     (*run).rejectPlaintext,
		"reject_sender_login_mismatch":                 loginCheck("reject_sender_login_mismatch", (*run).rejectLoginMismatch),
		"reject_authenticated_sender_login_mismatch":   loginCheck("reject_authenticated_sender_login_mismatch", (*run).rejectAuthMismatch),
		"reject_known_sender_login_mismatch":           loginCheck("reject_known_sender_login_mismatch", (*run).rejectKnownMismatch),
		"reject_unauthenticated_sender_login_mismatch": loginCheck("reject_unauthenticated_sender_login_mismatch", (*run).rejectUnauthMismatch),
		"reject_unverified_sender":                     (*run).rejectUnverifiedSender,
		"reject_unverified_recipient":                  (*run).rejectUnverifiedRcpt,
		"reject_multi_recipient_bounce":                (*run).rejectMultiBounce,

		"reject_unknown_client":                  (*run).rejectUnknownClient,
		"reject_unknown_client_hostname":         (*run).rejectUnknownClient,
		"reject_unknown_reverse_client_hostname": (*run).rejectUnknownReverse,

		"reject_invalid_hostname":       (*run).rejectInvalidHelo,
		"reject_invalid_helo_hostname":  (*run).rejectInvalidHelo,
		"reject_non_fqdn_hostname":      (*run).rejectNonFQDNHelo,
		"reject_non_fqdn_helo_hostname": (*run).rejectNonFQDNHelo,
		"reject_unknown_hostname":       (*run).rejectUnknownHelo,
		"reject_unknown_helo_hostname":  (*run).rejectUnknownHelo,

		"reject_unknown_sender_domain":    (*run).rejectUnknownSenderDomain,
		"reject_unknown_address":          (*run).rejectUnknownSenderDomain,
		"reject_unknown_recipient_domain": (*run).rejectUnknownRcptDomain,
		"reject_spf_fail":                 (*run).rejectSPF,
		"reject_non_fqdn_sender":          (*run).rejectNonFQDNSender,
		"reject_non_fqdn_recipient":       (*run).rejectNonFQDNRcpt,
		"reject_unlisted_sender":          (*run).rejectUnlistedSender,
		"reject_unlisted_recipient":       (*run).rejectUnlistedRcpt,
		"check_recipient_maps":            (*run).rejectUnlistedRcpt,
		"reject_suppressed_recipient":     (*run).rejectSuppressed,

		"permit_auth_destination":   (*run).permitAuthDestination,
		"reject_unauth_destination": (*run).rejectUnauthDestination,
		"defer_unauth_destination":  (*run).deferUnauthDestination,
		"permit_mx_backup":          (*run).permitMXBackup,
	}
}

// reject and the others below are the restrictions of that name. deferAll is
// "defer".
func (r *run) reject(context.Context) verdict {
	return r.refuseFor(r.name, r.cl, r.e.rejectCode, dsn.S(5, 7, 1), "Access denied")
}

func (r *run) deferAll(context.Context) verdict {
	return r.refuseFor(r.name, r.cl, r.e.deferCode, dsn.S(4, 3, 2), "Try again later")
}

func (r *run) deferIfPermitAsked(context.Context) verdict {
	return r.deferIfPermit("", 450, dsn.S(4, 7, 0), rejected(r.name, r.cl, "defer_if_permit requested"))
}

func (r *run) deferIfRejectAsked(context.Context) verdict {
	return r.deferIfReject(450, dsn.S(4, 7, 0), rejected(r.name, r.cl, "defer_if_reject requested"))
}

// permitIf is the verdict of a restriction that permits or says nothing. A list
// that cannot be asked is a configuration error: to go on could refuse what it
// permits.
func (r *run) permitIf(yes bool, err error) verdict {
	if err != nil {
		r.e.log.Warning("%v", err)
		return r.misconfigured()
	}
	if yes {
		return ok
	}
	return dunno
}

// sleepCheck is the restriction sleep: for tests, and to slow down unwanted clients.
func sleepCheck(_ *Evaluator, arg string) (check, error) {
	d, err := parseSeconds(arg)
	if err != nil {
		return nil, err
	}
	return func(_ *run, ctx context.Context) verdict {
		wait(ctx, d)
		return dunno
	}, nil
}

// parseSeconds reads a time as main.cf has it: a number, in seconds or with a unit.
func parseSeconds(s string) (time.Duration, error) {
	unit := time.Second
	digits := s
	if n := len(s); n > 0 {
		switch s[n-1] {
		case 's':
			digits = s[:n-1]
		case 'm':
			unit, digits = time.Minute, s[:n-1]
		case 'h':
			unit, digits = time.Hour, s[:n-1]
		case 'd':
			unit, digits = 24*time.Hour, s[:n-1]
		case 'w':
			unit, digits = 7*24*time.Hour, s[:n-1]
		}
	}
	n := 0
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' || n > 1<<24 {
			return 0, fmt.Errorf("%q: expected a time such as 5 or 10s", s)
		}
		n = n*10 + int(c-'0')
	}
	if digits == "" {
		return 0, fmt.Errorf("%q: expected a time such as 5 or 10s", s)
	}
	return time.Duration(n) * unit, nil
}
