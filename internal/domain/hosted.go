package domain

import (
	"context"
	"slices"

	"posthaste/internal/config"
	"posthaste/internal/table"
	"posthaste/internal/tlspolicy/mtasts"
)

// hosted is what the policyhost service tells the world about domains. It is nil if master.cf does not have it.
type hosted struct {
	// domains is nil where policyhost_domains is not set: then it is all domains that have a class.
	domains *table.List
	policy  *mtasts.Policy // nil: none
	clients bool           // mail programs are told of the servers
}

// readHosted reads what main.cf says of the service.
func readHosted(cfg *config.Config, services []config.Service, o table.Options) (*hosted, error) {
	if !slices.ContainsFunc(services, func(s config.Service) bool { return s.Command == "policyhost" }) {
		return nil, nil
	}
	h := &hosted{clients: len(cfg.List("policyhost_servers")) > 0}
	var err error
	if set, _, _ := cfg.IsSet("policyhost_domains"); !set {
		// That has a domain that is just being added.
	} else if h.domains, err = table.NewList("policyhost_domains", cfg.List("policyhost_domains"), table.ListOptions{Kind: table.Strings, Table: o}); err != nil {
		return nil, err
	}
	h.policy, err = mtasts.Own(cfg)
	return h, err
}

// has says whether the service answers for a domain that has a class.
func (h *hosted) has(ctx context.Context, domain string) (bool, error) {
	if h == nil {
		return false, nil
	}
	if h.domains == nil {
		return true, nil
	}
	return h.domains.Match(ctx, domain)
}

// names are those by which the world calls the service for a domain.
func (h *hosted) names(domain string) (list []string) {
	if h.policy != nil {
		list = append(list, "mta-sts."+domain)
	}
	if h.clients {
		list = append(list, "autoconfig."+domain, "autodiscover."+domain)
	}
	return list
}

// records lead the world to the service. host is where it runs.
func (h *hosted) records(ctx context.Context, domain, host string) (list []Record, err error) {
	if ok, err := h.has(ctx, domain); err != nil || !ok {
		return nil, err
	}
	alias := func(name, why string) {
		if name != host {
			list = append(list, Record{name, "CNAME", host + ".", why})
		}
	}
	if h.policy != nil {
		alias("mta-sts."+domain, "MTA-STS: where the policy is; the certificate must have the name (RFC 8461)")
		list = append(list, hostedRecord(domain, h.policy))
	}
	if h.clients {
		const why = "where mail programs ask for the servers; the certificate must have the name"
		alias("autoconfig."+domain, why)
		alias("autodiscover."+domain, why)
	}
	return list, nil
}

// hostedRecord announces the policy that the service serves.
func hostedRecord(domain string, p *mtasts.Policy) Record {
	return Record{"_mta-sts." + domain, "TXT", "v=STSv1; id=" + p.ID(), "MTA-STS: there is a policy (RFC 8461); the id is made of it"}
}
