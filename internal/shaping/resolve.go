package shaping

import (
	"maps"
	"slices"
	"strings"
)

// A Query is what the files are asked about: mail for a domain, from a source.
type Query struct {
	Domain string   // the next hop, in lower case
	Hosts  []string // all its MX hosts, in lower case, without a final dot; none: they are not known
	// Domains of [Rules.Rollups] that have the same MX hosts as Domain, in the order of the files. Domain
	// itself need not be among them.
	Peers  []string
	Source string // "": it goes from no source that has a name
}

// Settings are what the files say of a destination.
type Settings struct {
	Values map[string]Value // by key
	// Alone says that a part of it holds for the domain because of its name, and not for the others that
	// have the same MX hosts.
	Alone bool
	// Provider is the last provider that is behind the domain; "": none is. Limited is the last that has a
	// provider_connection_limit or a provider_max_message_rate, whose values are in Values.
	Provider, Limited string
	// Sections are those that hold here and have rules of automation, by name.
	Sections []string
}

// Keys are the keys that have values, sorted.
func (s *Settings) Keys() []string { return slices.Sorted(maps.Keys(s.Values)) }

// Resolve says what holds.
func (r *Rules) Resolve(q *Query) *Settings {
	s := &Settings{Values: make(map[string]Value)}
	if r == nil {
		return s
	}
	x := resolution{q: q, to: s}
	// What is said of the site, the domain's own section last, and what is said of the domain alone.
	d, alone := r.domains[q.Domain], r.alone[q.Domain]
	var site []*section
	for _, name := range q.Peers {
		if p := r.domains[name]; p != nil && p != d {
			site = append(site, p)
		}
	}
	if d != nil {
		site = append(site, d)
	}
	x.base(r, bare(alone) || slices.ContainsFunc(site, bare))
	if bare(alone) {
		site = nil // what it has replaced is all that its name leads to
	}
	for _, p := range site {
		x.add(p.keys, fromShared)
	}
	if alone != nil {
		s.Alone = true
		x.add(alone.keys, fromDomain)
	}
	for _, p := range site {
		x.source(p, fromShared)
		x.has(p)
	}
	if alone != nil {
		x.source(alone, fromDomain)
		x.has(alone)
	}
	return s
}

func bare(s *section) bool { return s != nil && s.bare }

// A resolution is one call of Resolve.
type resolution struct {
	q  *Query
	to *Settings
}

// base is what the default section and providers say. What they do holds also where what they say is
// replaced.
func (x *resolution) base(r *Rules, replaced bool) {
	if d := r.standard; d != nil {
		if !replaced {
			x.add(d.keys, fromDefault)
		}
		x.has(d)
	}
	type provider struct {
		*section
		rank rank
	}
	var list []provider
	for _, p := range r.providers {
		yes, byHosts := p.serves(x.q.Domain, x.q.Hosts)
		if !yes {
			continue
		}
		rank := fromShared
		if x.has(p); !byHosts {
			rank, x.to.Alone = fromDomain, true
		}
		x.to.Provider = p.name
		list = append(list, provider{p, rank})
	}
	if replaced {
		return
	}
	for _, p := range list {
		x.add(p.keys, p.rank)
		x.limit(p.section, p.keys)
	}
	if d := r.standard; d != nil {
		x.source(d, fromDefault)
	}
	for _, p := range list {
		x.source(p.section, p.rank)
		if x.q.Source != "" {
			x.limit(p.section, p.from[x.q.Source])
		}
	}
}

// limit notes whose the limits of a provider are. Of another's nothing is left then: one domain is
// under the limits of one provider.
func (x *resolution) limit(p *section, of scope) {
	limits := []string{"provider_connection_limit", "provider_max_message_rate"}
	if !slices.ContainsFunc(limits, func(k string) bool { _, ok := of[k]; return ok }) || x.to.Limited == p.name {
		return
	}
	if x.to.Limited != "" {
		for _, k := range limits {
			if v, ok := x.to.Values[k]; ok && strings.HasPrefix(v.In+",", "provider "+x.to.Limited+",") {
				delete(x.to.Values, k)
			}
		}
	}
	x.to.Limited = p.name
}

func (x *resolution) add(of scope, r rank) {
	for k, v := range of {
		v.rank = r
		x.to.Values[k] = v
	}
}

func (x *resolution) source(s *section, r rank) {
	if x.q.Source != "" {
		x.add(s.from[x.q.Source], r)
	}
}

func (x *resolution) has(s *section) {
	if len(s.rules) > 0 {
		x.to.Sections = append(x.to.Sections, s.String())
	}
}
