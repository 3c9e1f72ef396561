// Links by which recipients unsubscribe: List-Unsubscribe and List-Unsubscribe-Post (RFC 2369, RFC 8058).
//
// A message asks for them with a field (unsubscribe_header), which is removed. Its value is a list of the tenant, or
// "all" for all of the tenant's mail. The field counts from clients that have logged in, and from those in
// tenant_header_clients. Since a link is for one recipient, the message must have one; and since it does
// nothing but put the recipient on the suppression list, the message must be under that.

package cleanup

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/milter"
	"posthaste/internal/optout"
	"posthaste/internal/rfc5322"
	"posthaste/internal/suppress/suppressclient"
)

// unsubscribeAll stands for all mail of the tenant, or of the list that the sender is under.
const unsubscribeAll = "all"

// maxLink bounds a link in octets: a line of a message has 998 (RFC 5322 section 2.1.1), and the field's name is in it.
const maxLink = 900

// An unsubscriber is how messages get links. The zero value gives them none.
type unsubscriber struct {
	field string // unsubscribe_header, in any letter case
	links *optout.Coder
}

// initUnsubscribe reads the parameters, and the secret, which as a rule only root may read.
func (c *Core) initUnsubscribe(cfg *config.Config) (err error) {
	u := &c.unsub
	if u.links, err = suppressclient.ReadLinks(cfg); err != nil || u.links == nil {
		return err
	}
	u.field = cfg.String("unsubscribe_header")
	// What has a meaning of its own must stay in the message.
	if !rfc5322.FreeField(u.field) {
		return errors.New("unsubscribe_header: " + u.field + ": expected the name of a header field without a meaning of its own, such as X-Unsubscribe")
	}
	return nil
}

// unsubscribeField takes the field that asks for a link, and says whether it did: it is then not part of the message
// any more.
func (m *Message) unsubscribeField(ctx context.Context, f rfc5322.Field) bool {
	u := &m.c.unsub
	// Mostly there are no links, and nothing is compared.
	if u.links == nil {
		return false
	}
	h, name := &m.header, f.Name()
	if rfc5322.EqualName(name, "List-Unsubscribe") || rfc5322.EqualName(name, "List-Unsubscribe-Post") {
		h.unsubscribes = true
		return false
	}
	// A stranger's field has nothing to ask for, and stays.
	if !rfc5322.EqualName(name, u.field) || m.own() || !m.loggedIn() && !m.trusted(ctx) {
		return false
	}
	value := string(f.Value())
	switch {
	case !suppressclient.ValidList(value):
		m.addLine(logLine{Warning: true, Text: m.id + ": ignoring the " + u.field + " header, which names no list: \"" + printable(value[:min(len(value), 100)]) + "\""})
	case h.unsubscribe == "":
		h.unsubscribe = value
	}
	return true
}

// loggedIn says whether the client has proved who it is, by SASL or with a token.
func (m *Message) loggedIn() bool {
	return m.env.SASL.Username != "" && !strings.EqualFold(m.env.SASL.Method, "anonymous")
}

// listOf is the suppression list that the message is under, where senders and tenants would have it under another:
// a list of the tenant may be named by the message itself, or have been before it was queued again.
func (m *Message) listOf(list string) string {
	tenant, _ := suppressclient.Parts(list)
	if tenant == "" {
		return list
	}
	was, before := suppressclient.Parts(m.env.List)
	switch named := m.header.unsubscribe; {
	case named != "" && named != unsubscribeAll:
		return suppressclient.Scope(tenant, named)
	case was == tenant && before != "":
		return m.env.List
	}
	return list
}

// appendUnsubscribe appends the fields, or says in the log why the message does not get any. Both are covered by the
// signatures that are made here (RFC 8058 section 4): see newSigner.
func (m *Message) appendUnsubscribe(ctx context.Context, b []byte) []byte {
	m.chooseTenant(ctx)
	h, scope := &m.header, m.env.List
	_, list := suppressclient.Parts(scope)
	if h.unsubscribe == unsubscribeAll {
		scope = suppressclient.Home(scope)
	}
	to, ok := m.onlyRecipient()
	why := ""
	switch {
	case h.unsubscribes:
		why = "the message has a List-Unsubscribe header"
	case scope == "":
		why = "the message is under no suppression list"
	case h.unsubscribe != unsubscribeAll && h.unsubscribe != list:
		why = "its list is another one"
	case !ok:
		why = "the message has more than one recipient"
	}
	link := ""
	if why == "" {
		link = m.c.unsub.links.Link(optout.Token{Day: optout.Day(m.env.Arrival), QueueID: m.id, Recipient: to, Scope: scope, Tenant: m.env.Tenant, Campaign: m.env.Campaign})
		if len(link) > maxLink {
			why = "the link would be too long"
		}
	}
	if why != "" {
		m.addLine(logLine{Warning: true, Text: m.id + ": ignoring the " + m.c.unsub.field + " header: " + why})
		return b
	}
	h.link, h.linked = link, to
	b = rfc5322.AppendList(b, "List-Unsubscribe", []string{"<" + link + ">"})
	return append(b, "List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"...)
}

// unlink takes the link out of a message that filters send to others than the one whom it is for: whoever follows it
// would unsubscribe somebody else. Its recipients were counted when its header was written, before filters see it.
func (m *Message) unlink(c *milter.Content) {
	h := &m.header
	if to, ok := m.onlyRecipient(); h.link == "" || ok && to == h.linked {
		return
	}
	ours := slices.IndexFunc(c.Fields, func(f milter.Field) bool {
		return rfc5322.EqualName([]byte(f.Name), "List-Unsubscribe") && bytes.Contains(f.Raw, []byte("<"+h.link+">"))
	})
	if ours < 0 { // a filter has been there before
		return
	}
	// Without the link, that it takes one click says nothing; and nothing may be left of ours behind another's.
	c.Fields = slices.Delete(c.Fields, ours, ours+1)
	c.Fields = slices.DeleteFunc(c.Fields, func(f milter.Field) bool { return rfc5322.EqualName([]byte(f.Name), "List-Unsubscribe-Post") })
	c.HeaderChanged = true
	m.warnf("ignoring the %s header: a milter has changed the recipients", m.c.unsub.field)
}

// onlyRecipient is the address of the message's recipient, as it will be asked for before the delivery; not ok if there are
// several. Who gets a copy that nobody is to know of does not count.
func (m *Message) onlyRecipient() (address string, ok bool) {
	var first, seen string
	n, copies := 0, 0
	for i := range m.env.Recipients {
		r := &m.env.Recipients[i]
		if r.Notify == dsn.NotifyNever {
			copies, seen = copies+1, cmp.Or(seen, r.Address)
			continue
		}
		n, first = n+1, cmp.Or(first, r.Address)
	}
	if n == 0 { // a client may want no notices
		n, first = copies, seen
	}
	return first, n == 1
}
