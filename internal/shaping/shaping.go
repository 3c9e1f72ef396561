// Package shaping reads files that say how much mail each provider takes, and what to do when a
// provider complains. They are KumoMTA's shaping files, which are read unchanged.
//
// # Files
//
// A file is TOML, or JSON where its name ends in ".json". It has the sections
//
//	["default"]                 what holds for all destinations
//	[provider."P"]              what holds where its match says
//	["DOMAIN"]                  what holds for a domain, and for those with the same MX hosts; with
//	                            mx_rollup = false for the domain alone, which is a section of its own
//	["DOMAIN".sources."S"]      and for what goes there from a source alone
//	[[SECTION.automation]]      what is done when a server answers this ([Rule])
//
// Files are layers: what a later one says of a key counts. A section of a later file with
// replace_base drops what the earlier ones have said in it; if it is the first of its name, what
// the default and providers say does not count there either.
//
// [Load] reads all files into [Rules]. [Rules.Resolve] says what holds for a destination: of a key
// that several sections have, the last of default, providers in their order, their sources, the
// domain whose MX hosts are the same, the domain itself, and the sources of these counts.
//
// # What is not honoured
//
// A key that has no effect here is warned of by [Load], with its line, and so is one that is not known:
// files may be written for newer programs than this one. A value that is not understood is an error.
//
// # Security
//
// The files are the administrator's. Their size, the number of sections and rules and the length of
// expressions are bounded all the same: a wrong file is named sooner or later. Replies, which
// [Watcher] sees, come from strangers: see there.
package shaping

import (
	"fmt"
	"sort"
)

// A Place is a line of a file.
type Place struct {
	File string
	Line int // from 1; 0: not known
}

// String is file:line.
func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// A Warning is about something in a file that has no effect, or not the one that its writer meant.
type Warning struct {
	At   Place
	Text string
}

// String is the warning as it is logged.
func (w Warning) String() string { return w.At.String() + ": " + w.Text }

// A scope is a part of a section: what holds there, or what holds there for one source.
type scope map[string]Value

// A section is one section, of all files together.
type section struct {
	kind  sectionKind
	name  string // of the provider or the domain, in lower case if it is a domain
	at    Place  // where it began, in the file that said it last
	keys  scope
	from  map[string]scope // by source
	rules []*Rule
	// Of a provider: what must be so for a domain to be its.
	match []matcher
	// Of a domain: mx_rollup, which is true where nothing is said.
	rollup bool
	// Its first occurrence had replace_base: default and providers do not hold here.
	bare bool
}

type sectionKind uint8

const (
	defaultSection sectionKind = iota
	providerSection
	domainSection
)

// String is the section as people say it.
func (s *section) String() string {
	switch s.kind {
	case providerSection:
		return "provider " + s.name
	case domainSection:
		if !s.rollup {
			return "domain " + s.name + " alone"
		}
		return "domain " + s.name
	}
	return "default"
}

// Rules are the sections of all files. They do not change, and may be used concurrently. The nil
// Rules have no sections.
type Rules struct {
	standard  *section
	providers []*section          // in the order in which they came first
	domains   map[string]*section // by name, those with mx_rollup
	alone     map[string]*section // and those without it: a domain may have both, in two files
	order     []*section          // the domains in the order in which they came first
	byName    map[string]*section // all, by String
	filter    filter              // of the expressions of all rules
	honoured  int                 // keys of files that have an effect
	named     int                 // and those that have none, or are not known
	ignored   int                 // and those that steer KumoMTA's own insides
}

// Rollups are the domains whose sections hold for all domains that have the same MX hosts, in the
// order of the files. The caller finds out which those are ([Query.Peers]).
func (r *Rules) Rollups() (names []string) {
	if r == nil {
		return nil
	}
	for _, s := range r.order {
		if s.rollup && s.concerns() {
			names = append(names, s.name)
		}
	}
	return names
}

// concerns says whether a section says anything.
func (s *section) concerns() bool {
	return len(s.keys) > 0 || len(s.from) > 0 || len(s.rules) > 0 || s.bare
}

// Section finds the rules of automation of a section by its name, as [Settings.Sections] has it.
func (r *Rules) Section(name string) []*Rule {
	if r == nil || r.byName[name] == nil {
		return nil
	}
	return r.byName[name].rules
}

// Automation are all rules of automation, in the order of sections.
func (r *Rules) Automation() (list []*Rule) {
	if r == nil {
		return nil
	}
	for _, s := range r.sections() {
		list = append(list, s.rules...)
	}
	return list
}

// Count says how many keys of the files have an effect, how many have none or are not known and were
// warned of, and how many steer the insides of KumoMTA and are passed over.
func (r *Rules) Count() (honoured, named, ignored int) { return r.honoured, r.named, r.ignored }

// Sources are the names of sources that the files know, sorted.
func (r *Rules) Sources() (names []string) {
	seen := make(map[string]bool)
	for _, s := range r.sections() {
		for name := range s.from {
			if !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	sort.Strings(names)
	return names
}

// sections are all sections in order.
func (r *Rules) sections() (list []*section) {
	if r.standard != nil {
		list = append(list, r.standard)
	}
	return append(append(list, r.providers...), r.order...)
}
