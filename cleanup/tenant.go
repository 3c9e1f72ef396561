// Whose mail it is: the tenant of a message, and the campaign.
//
// A tenant comes with the message, from who hands it in by HTTP and for mail that has been in
// the queue before; or from a header field (tenant_header) of clients that may say so; or from
// tenant_maps. A table is asked by what is known best first: the login, the client's address,
// the sender's address and its domain. Mail that this system makes itself has the tenant that
// it came with, or none. A tenant may have a pool of sources (tenant_egress_pool_maps).

package cleanup

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/egress"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/table"
	"posthaste/internal/tenancy"
)

// A tenants is how messages get their tenants. The zero value gives them none.
type tenants struct {
	// tenant_header and campaign_header, in any letter case; empty: none.
	header, campaign string
	// tenant_header_clients: whose fields count. An empty list is nobody.
	clients *table.List
	// tenant_maps, for mail whose fields do not say.
	maps *table.Maps
	// tenant_egress_pool_maps.
	pools *table.Maps
}

// initTenancy reads the parameters.
func (c *Core) initTenancy(cfg *config.Config, o table.Options) error {
	t := &c.tenancy
	t.header, t.campaign = cfg.String("tenant_header"), cfg.String("campaign_header")
	t.maps = tenancy.Open(cfg, o)
	t.pools = table.OpenMaps("tenant_egress_pool_maps", cfg.List("tenant_egress_pool_maps"), o)
	var errs []error
	for _, p := range [...]struct{ name, value string }{{"tenant_header", t.header}, {"campaign_header", t.campaign}} {
		// What has a meaning of its own must stay in the message.
		if p.value != "" && !rfc5322.FreeField(p.value) {
			errs = append(errs, errors.New(p.name+": "+p.value+": expected the name of a header field without a meaning of its own, such as X-Tenant"))
		}
	}
	clients, err := table.NewList("tenant_header_clients", cfg.List("tenant_header_clients"), table.ListOptions{Kind: table.Addresses, Table: o})
	t.clients = clients
	return errors.Join(append(errs, err)...)
}

// tenantField takes a header field that names the tenant or the campaign, and says whether it
// did: the field is then not part of the message any more.
func (m *Message) tenantField(ctx context.Context, f rfc5322.Field) bool {
	t := &m.c.tenancy
	// Mostly both are unset, and nothing is compared.
	switch name := f.Name(); {
	case t.header != "" && rfc5322.EqualName(name, t.header):
		return m.groupField(ctx, f, t.header, &m.header.tenant)
	case t.campaign != "" && rfc5322.EqualName(name, t.campaign):
		return m.groupField(ctx, f, t.campaign, &m.header.campaign)
	}
	return false
}

// groupField is tenantField for the field of a name. The first that has a good value counts.
func (m *Message) groupField(ctx context.Context, f rfc5322.Field, name string, to *string) bool {
	if m.own() || !m.trusted(ctx) {
		return false
	}
	value := string(f.Value())
	switch {
	case !mail.GroupName(value):
		m.addLine(logLine{Warning: true, Text: m.id + ": ignoring the " + name + " header, which names nobody: \"" + printable(value[:min(len(value), 100)]) + "\""})
	case *to == "":
		*to = value
	}
	return true
}

// own says whether the message is made by this system, or has been in its queue.
func (m *Message) own() bool {
	return m.flags&(proto.SubmitNoReceive|proto.SubmitRequeued) != 0
}

// trusted says whether the client may say whose mail it is (tenant_header_clients). Local
// submission has no address, and may not: any user could take another's tenant.
func (m *Message) trusted(ctx context.Context) bool {
	if !m.header.asked && m.env.Client.Addr != "" {
		ok, err := m.c.tenancy.clients.Match(ctx, m.env.Client.Addr)
		if err != nil {
			m.tableFailed("tenant_header_clients", err)
		}
		m.header.trusted = ok && err == nil
	}
	m.header.asked = true
	return m.header.trusted
}

// chooseTenant decides whose mail the message is, when its header has been read.
// It is called once for a message, or twice where a link to unsubscribe was to be made before its end.
func (m *Message) chooseTenant(ctx context.Context) {
	if m.header.chosen {
		return
	}
	m.header.chosen = true
	env := &m.env
	// What the token of the HTTP service says, or the message had before, is not overruled by its
	// content: nobody gets another's tenant by a field.
	if env.Tenant == "" && !m.own() {
		if env.Tenant = m.header.tenant; env.Tenant == "" && !m.c.tenancy.maps.Empty() {
			env.Tenant = m.lookupTenant(ctx)
		}
	}
	if env.Campaign == "" {
		env.Campaign = m.header.campaign
	}
	// A campaign is its tenant's. Two tenants may use one name for theirs.
	if env.Tenant == "" && env.Campaign != "" {
		m.addLine(logLine{Warning: true, Text: m.id + ": ignoring the campaign " + env.Campaign + " of mail without a tenant"})
		env.Campaign = ""
	}
	// Which tenant it is decides who must not get the message, besides the sender.
	list, err := m.c.lists.Of(ctx, env.Tenant, env.Sender)
	if err != nil {
		m.tableFailed("suppress_list_maps", err)
	}
	env.List = m.listOf(list)
	if env.Tenant != "" {
		m.log = append(m.log, logLine{Event: &maillog.Tenant{ID: m.id, Tenant: env.Tenant, Campaign: env.Campaign}})
		m.choosePool(ctx)
	}
}

// choosePool finds the pool of sources that the tenant's mail goes from, unless an action has
// named one for this very message. It is kept with the message: mail must not go from another
// address than was meant, whatever tables say later of its sender.
func (m *Message) choosePool(ctx context.Context) {
	maps := m.c.tenancy.pools
	if m.env.Pool != "" || maps.Empty() {
		return
	}
	value, found, err := maps.Lookup(ctx, m.env.Tenant, false)
	if !found && err == nil {
		value, found, err = maps.Lookup(ctx, "*", true)
	}
	switch {
	case err != nil:
	// Then the sender decides, where the mail is resolved, or main.cf.
	case !found || strings.EqualFold(value, "DUNNO"):
		return
	case !egress.ValidName(value):
		err = fmt.Errorf("%s: %.100q is no name of an egress pool", m.env.Tenant, value)
	}
	// Nobody knows what it was to go from: the client tries again.
	if err != nil {
		m.tableFailed("tenant_egress_pool_maps", err)
		return
	}
	m.env.Pool = value
}

// lookupTenant asks tenant_maps.
func (m *Message) lookupTenant(ctx context.Context) string {
	env := &m.env
	value, err := tenancy.Lookup(ctx, m.c.tenancy.maps, env.SASL.Username, env.Client.Addr, env.Sender)
	if bad, ok := errors.AsType[tenancy.NameError](err); ok {
		m.warnf("ignoring a bad tenant in tenant_maps: %.100q", string(bad))
		return ""
	}
	// Mail must not run on the wrong account because a database is away: the client tries again.
	if err != nil {
		m.tableFailed("tenant", err)
		return ""
	}
	return value
}
