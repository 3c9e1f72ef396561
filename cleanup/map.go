// Addresses: standard form, canonical and virtual alias maps, masquerading, automatic BCC
// recipients, and the recognition of recipients that occur twice. The order in which they
// apply is Postfix's (ADDRESS_REWRITING_README), as each sees what those before it made.

package cleanup

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
	"posthaste/internal/table"
)

// mapNesting bounds how often a canonical map is applied to its own result: Postfix's
// number, which only a loop reaches.
const mapNesting = 10

// rewrite puts an address into standard form. trivial-rewrite is not asked about
// addresses that have it, as nearly all do. If it cannot be asked, the message is refused
// for now: an address stored as it came might mean somebody else.
func (m *Message) rewrite(ctx context.Context, rewriteContext, addr string) string {
	// Saves a request to another process for almost every address.
	if isStandard(addr) {
		return addr
	}
	out, err := m.c.rewriter.Rewrite(ctx, rewriteContext, addr)
	if err != nil {
		m.warnf("address rewriting problem for %s -- message not accepted, try again later: %v", m.c.logForm.Of(addr), err)
		m.failed(statWrite, fmt.Sprintf("address rewriting: %v", err))
		return addr
	}
	return out
}

// isStandard says whether addr is in standard form whatever the parameters say: it has
// one "@", and a domain with a dot inside that does not end in one.
func isStandard(addr string) bool {
	at := strings.IndexByte(addr, '@')
	if at <= 0 {
		return addr == ""
	}
	domain := addr[at+1:]
	dot := strings.IndexByte(domain, '.')
	return dot > 0 && domain[len(domain)-1] != '.' && strings.IndexByte(domain, '@') < 0
}

// envelopeSender maps the envelope sender and looks for its BCC. MAILER-DAEMON of this
// system becomes the null sender, as in Postfix, so that a bounce written by a local
// program is known for one.
func (m *Message) envelopeSender(ctx context.Context) {
	addr := m.env.Sender
	if addr != "" {
		addr = m.rewrite(ctx, "local", addr)
		if len(addr) > len(mailerDaemon) && addr[len(mailerDaemon)] == '@' && strings.EqualFold(addr[:len(mailerDaemon)], mailerDaemon) &&
			strings.EqualFold(addr, m.rewrite(ctx, "local", mailerDaemon)) {
			addr = ""
		}
	}
	if m.flags&proto.SubmitMap != 0 && addr != "" {
		addr = m.canonical(ctx, addr, classEnvelopeSender)
	}
	// After mapping: a canonical map may take an address out of UTF-8, or into it.
	m.noteUTF8(addr)
	m.env.Sender = addr
	// As mapped: the sender that the mail leaves with decides which list it is under (chooseTenant).
	// After mapping, since the tables have addresses as users know them.
	if m.flags&proto.SubmitBCC != 0 && addr != "" {
		m.lookupBCC(ctx, m.c.senderBCC, addr)
	}
}

// mailerDaemon is the local part that stands for the null sender in local mail.
const mailerDaemon = "MAILER-DAEMON"

// envelopeRecipient maps one recipient, adds what it expands to, and looks for its BCC.
func (m *Message) envelopeRecipient(ctx context.Context, r mail.Recipient) {
	// As the client gave it: delivered mail shows it in X-Original-To.
	if r.Original == "" {
		r.Original = r.Address
	}
	if r.Address == "" {
		r.Address = m.c.emptyRecipient
	}
	m.mapRecipient(ctx, &r)
	// RFC 3461 section 4.2: reports name the recipient as the sender knew it. RFC 6533
	// has the form for addresses beyond ASCII.
	if r.ORCPT == "" && r.Address != "" {
		r.ORCPT = "rfc822;" + r.Address
		if m.env.Body&mail.BodySMTPUTF8 != 0 && !ascii(r.Address) {
			r.ORCPT = "utf-8;" + r.Address
		}
	}
	m.expand(ctx, r)
	// Even if it expands to nothing new: the message had a recipient.
	m.anyRcpt = true
	m.lastRcpt = r.Address
	if m.flags&proto.SubmitBCC != 0 && r.Address != "" {
		m.lookupBCC(ctx, m.c.rcptBCC, r.Address)
	}
}

// mapRecipient is the part of the mapping that gives one address for one. Mail to a
// rewritten sender (SRS) is for that sender, whatever the tables say of the address that was
// made. One that is not valid stays as it is, and is as unknown as any other.
func (m *Message) mapRecipient(ctx context.Context, r *mail.Recipient) {
	if m.flags&proto.SubmitMap != 0 {
		if sender, err := m.c.srs.Reverse(r.Address, m.env.Arrival); err == nil {
			r.Address = sender
		}
	}
	r.Address = m.rewrite(ctx, "local", r.Address)
	if m.flags&proto.SubmitMap != 0 {
		r.Address = m.canonical(ctx, r.Address, classEnvelopeRecipient)
	}
	m.noteUTF8(r.Address)
}

// noteUTF8 notes an envelope address beyond ASCII. Such a message needs SMTPUTF8 (RFC
// 6531); locally submitted mail need not have said so.
func (m *Message) noteUTF8(addr string) {
	if ascii(addr) {
		return
	}
	m.env.Body |= mail.BodyUTF8Addr
	if m.flags&proto.SubmitAutoUTF8 != 0 && m.c.utf8 {
		m.env.Body |= mail.BodySMTPUTF8
	}
}

// ascii says whether s has no octet over 127.
func ascii(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] > 127 {
			return false
		}
	}
	return true
}

// bcc adds an automatic recipient. The sender is never told of it, neither by a bounce
// nor by a report. A recipient in noBCC had the message before it was requeued.
func (m *Message) bcc(ctx context.Context, addr string) {
	r := mail.Recipient{Address: addr, Notify: dsn.NotifyNever}
	m.mapRecipient(ctx, &r)
	if slices.ContainsFunc(m.noBCC, func(a string) bool { return table.Fold(a) == table.Fold(r.Address) }) {
		return
	}
	r.Original = r.Address
	m.expand(ctx, r)
}

// lookupBCC looks for a BCC recipient of addr. A table that fails refuses the message for
// now: BCC maps often serve archives that must be complete.
func (m *Message) lookupBCC(ctx context.Context, maps *table.Maps, addr string) {
	value, _, found, err := maps.LookupAddress(ctx, m.c.search, addr, table.KeysDefault)
	switch {
	case err != nil:
		m.tableFailed(maps.Title(), err)
	case found:
		m.bcc(ctx, rfc5322.Unquote(value))
	}
}

// extraRecipients adds the recipients that come at the end: always_bcc, and BCC actions
// of the checks. A message without recipients gets none, as it is refused.
func (m *Message) extraRecipients(ctx context.Context) {
	if m.flags&proto.SubmitBCC != 0 && m.anyRcpt && m.c.alwaysBCC != "" {
		m.bcc(ctx, m.c.alwaysBCC)
	}
	if m.ok() && m.anyRcpt {
		for _, addr := range m.contentBCC {
			m.bcc(ctx, addr)
		}
	}
}

// expand applies virtual_alias_maps to r and adds the recipients that result.
func (m *Message) expand(ctx context.Context, r mail.Recipient) {
	if m.flags&proto.SubmitMap == 0 || m.c.virtual.Empty() {
		m.addRecipient(r)
		return
	}
	list := m.expandAlias(ctx, r.Address)
	aliased := len(list) > 1 || list[0] != r.Address
	if len(list) > 1 && m.env.Trace&mail.TraceProbe != 0 {
		// A probe asks about one address: that it is an alias is the answer.
		m.notice(r, dsn.Deliverable, "aliased to multiple recipients")
		return
	}
	if aliased && r.Notify.Success() {
		// RFC 3461 section 5.2.7.3: the sender is told of the expansion, and
		// not of the success of each address that came of it.
		m.notice(r, dsn.Expanded, "alias expanded")
		// No value at all would mean the default, which is to report failures.
		if r.Notify &^= dsn.NotifySuccess; r.Notify == 0 {
			r.Notify = dsn.NotifyNever
		}
	}
	for _, addr := range list {
		// Original, ORCPT and NOTIFY are those of the alias: reports are about it.
		next := r
		next.Address = addr
		m.addRecipient(next)
	}
}

// notice notes what the sender is to be told of a recipient that is not in the final
// envelope.
func (m *Message) notice(r mail.Recipient, action dsn.Action, text string) {
	m.notices = append(m.notices, noticed{Recipient: r, Outcome: mail.Outcome{
		Rcpt: -1, Action: action, Status: dsn.S(2, 0, 0), Reason: text, Relay: "none", When: m.env.Arrival,
	}})
}

// addRecipient adds r unless it is there already. Original is only stored if it says
// something that Address does not.
func (m *Message) addRecipient(r mail.Recipient) {
	if m.dups.seen(&r, m.c.originalRecipient) {
		return
	}
	if r.Original == r.Address {
		r.Original = ""
	}
	m.env.Recipients = append(m.env.Recipients, r)
}

// duplicates recognizes recipients that occur twice, among the first limit of them
// (duplicate_filter_limit; 0: all). While originals are kept, recipients that differ in
// original address or notification are different: they look different to whoever gets the
// mail or the report.
type duplicates struct {
	limit int
	known map[recipientKey]struct{}
	first mail.Recipient // the only one, before a map is worth having
	some  bool           // there is a first one
}

// seen says whether r is there already, and remembers it.
func (d *duplicates) seen(r *mail.Recipient, original bool) bool {
	// Most messages have one recipient, which needs no map.
	if !d.some {
		d.first, d.some = *r, true
		return false
	}
	if d.known == nil {
		d.known = map[recipientKey]struct{}{}
	}
	if len(d.known) == 0 {
		d.known[keyOf(&d.first, original)] = struct{}{}
	}
	key := keyOf(r, original)
	if _, dup := d.known[key]; dup {
		return true
	}
	// A message with more recipients than that may deliver twice; it must not use memory
	// without bound.
	if d.limit <= 0 || len(d.known) < d.limit {
		d.known[key] = struct{}{}
	}
	return false
}

// reset empties d, and keeps the map unless it is unusually large.
func (d *duplicates) reset() {
	if len(d.known) > reuse.Most {
		d.known = nil
	}
	clear(d.known)
	*d = duplicates{known: d.known}
}

// recipientKey is what distinguishes recipients; letter case does not.
type recipientKey struct {
	address, original, orcpt string
	notify                   dsn.Notify
}

// keyOf is r's key; original says whether originals are kept (enable_original_recipient).
func keyOf(r *mail.Recipient, original bool) recipientKey {
	if !original {
		return recipientKey{address: table.Fold(r.Address)}
	}
	return recipientKey{table.Fold(r.Address), table.Fold(r.Original), table.Fold(r.ORCPT), r.Notify}
}

// canonical applies the canonical maps and masquerading to an address of one class: first
// the maps for senders or recipients, then canonical_maps, then masquerade_domains.
func (m *Message) canonical(ctx context.Context, addr string, class classes) string {
	c := m.c
	special, specialFor := c.senderCanonical, c.senderCanonicalFor
	if class&(classEnvelopeRecipient|classHeaderRecipient) != 0 {
		special, specialFor = c.rcptCanonical, c.rcptCanonicalFor
	}
	if specialFor&class != 0 && !special.Empty() {
		addr = m.mapOne(ctx, special, addr)
	}
	if c.canonicalFor&class != 0 && !c.canonical.Empty() {
		addr = m.mapOne(ctx, c.canonical, addr)
	}
	if c.masq&class != 0 && len(c.masqueradeDomains) > 0 {
		addr = m.masquerade(ctx, addr)
	}
	return addr
}

// mapOne applies a one-to-one map again and again until it does not change the address.
func (m *Message) mapOne(ctx context.Context, maps *table.Maps, addr string) string {
	first := addr
	for range mapNesting {
		list, found, err := m.lookupAddresses(ctx, maps, addr, m.c.propagateCanonical)
		if err != nil {
			m.tableFailed(maps.Title(), err)
			return addr
		}
		if !found {
			return addr
		}
		if len(list) > 1 {
			// The first one is taken, as in Postfix.
			m.warnf("multi-valued %s entry for %s", maps.Title(), m.c.logForm.Of(addr))
		}
		// A table may map an address to itself to end the search.
		same := strings.EqualFold(addr, list[0])
		if addr = list[0]; same {
			return addr
		}
	}
	// Postfix says here that the message is not accepted, and accepts it too.
	m.warnf("unreasonable %s map nesting for %s -- message accepted with %s", maps.Title(), m.c.logForm.Of(first), m.c.logForm.Of(addr))
	return addr
}

// lookupAddresses looks addr up and puts the addresses in the answer into standard form.
// propagate says whether an extension that the table does not know is carried over.
func (m *Message) lookupAddresses(ctx context.Context, maps *table.Maps, addr string, propagate bool) ([]string, bool, error) {
	return maps.MapAddress(ctx, m.c.search, addr, propagate, func(a string) string { return m.rewrite(ctx, "local", a) })
}

// expandAlias applies virtual_alias_maps to addr and to what comes of it, until nothing
// changes. An address that expands to itself, perhaps among others, stays. The result has
// at least one address. Loops and explosions end at the limits, and the message is
// refused for now: mail must not be lost because a table has a mistake.
func (m *Message) expandAlias(ctx context.Context, addr string) []string {
	maps := m.c.virtual
	list := []string{addr}
	var done map[string]struct{} // in lower case: addresses that need no further look
	fail := func(format string, args ...any) []string {
		m.warnf(format+" -- message not accepted, try again later", args...)
		m.reason = "4.6.0 Alias expansion error"
		m.failed(statDefer, fmt.Sprintf(format, args...))
		return []string{addr}
	}
	for i := 0; i < len(list); i++ {
		if len(list) > m.c.expansionLimit {
			return fail("unreasonable %s map expansion size for %s", maps.Title(), m.c.logForm.Of(addr))
		}
		// list[i] is replaced by the first address of each answer; the others are
		// appended, and have their turn later.
		for depth := 0; ; depth++ {
			from := list[i]
			if _, ok := done[table.Fold(from)]; ok {
				break
			}
			if depth >= m.c.recursionLimit {
				return fail("unreasonable %s map nesting for %s", maps.Title(), m.c.logForm.Of(addr))
			}
			to, found, err := m.lookupAddresses(ctx, maps, from, m.c.propagateVirtual)
			if err != nil {
				m.tableFailed(maps.Title(), err)
				return []string{addr}
			}
			if !found {
				break
			}
			for j, next := range to {
				// An extension that is propagated may grow with each round.
				if len(next) > m.c.addressLimit {
					return fail("unreasonable %s result %.300s...", maps.Title(), next)
				}
				if j == 0 {
					list[i] = next
				} else {
					list = append(list, next)
				}
				if strings.EqualFold(from, next) {
					if done == nil {
						done = make(map[string]struct{})
					}
					done[table.Fold(from)] = struct{}{}
				}
			}
		}
	}
	return list
}

// masqueradeDomain is an element of masquerade_domains, in lower case; replace is false
// for one with "!".
type masqueradeDomain struct {
	name    string
	replace bool
}

// masquerade strips addr's domain down to the first of masquerade_domains that is a
// parent of it. User names in masquerade_exceptions keep theirs, root for example. A
// domain with "!" that comes first ends the search.
func (m *Message) masquerade(ctx context.Context, addr string) string {
	local, domain, at := rfc5322.Split(addr)
	if !at {
		return addr
	}
	excluded, err := m.c.masqueradeExceptions.Match(ctx, local)
	if err != nil {
		m.tableFailed("masquerade_exceptions", err)
	}
	if excluded || err != nil {
		return addr
	}
	domain = table.Fold(domain)
	for _, d := range m.c.masqueradeDomains {
		if domain == d.name {
			break
		}
		n := len(domain) - len(d.name)
		if n > 0 && domain[n-1] == '.' && domain[n:] == d.name {
			if d.replace {
				return local + "@" + d.name
			}
			break
		}
	}
	return addr
}
