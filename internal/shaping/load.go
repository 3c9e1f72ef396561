package shaping

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"posthaste/internal/smallfile"
)

// Bounds of all files together: far more than the files of the field have, and few enough that the wrong
// file costs neither memory nor time.
const (
	maxFile     = 1 << 20 // octets
	maxSections = 10_000
	maxRules    = 5_000
	maxNames    = 1_000 // sources of a section, matches of a provider
	maxWarnings = 1_000
	maxName     = 255 // octets
)

// Load reads files, in order. An error names the file and the line, and nothing of any file counts then.
// What has no effect comes back as warnings, each key of a file once.
func Load(files []string) (*Rules, []Warning, error) {
	l := newLoader()
	for _, name := range files {
		text, err := smallfile.Read(name, maxFile)
		if path := new(fs.PathError); errors.As(err, &path) {
			err = path.Err
		}
		if err == nil {
			err = l.file(name, text)
		}
		if at := new(lineError); errors.As(err, &at) {
			return nil, nil, fmt.Errorf("%s:%d: %w", name, at.line, err)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	l.finish()
	return l.rules, l.warnings, nil
}

// A loader puts files on top of each other.
type loader struct {
	rules     *Rules
	providers map[string]*section
	warnings  []Warning
	name      string // of the file that is read
	// Where in warnings a key of this file has been named, by its name.
	said map[string]int
	n    int // rules
}

func newLoader() *loader {
	return &loader{rules: &Rules{domains: make(map[string]*section), alone: make(map[string]*section), byName: make(map[string]*section)}, providers: make(map[string]*section)}
}

// file takes in one file.
func (l *loader) file(name string, text []byte) error {
	parse := parseTOML
	if strings.HasSuffix(name, ".json") {
		parse = parseJSON
	}
	root, err := parse(text)
	if err != nil {
		return err
	}
	l.name, l.said = name, make(map[string]int)
	for _, k := range root.keys {
		n := root.kids[k]
		if n.kind != tableNode {
			return errorAt(n.line, "%s is %s where a section is expected", quoted(k), n.kind)
		}
		switch k {
		case "default":
			err = l.section(defaultSection, "default", n)
		case "provider":
			for _, p := range n.keys {
				if n.kids[p].kind != tableNode {
					return errorAt(n.kids[p].line, "provider %s is %s where a section is expected", quoted(p), n.kids[p].kind)
				}
				if err = l.section(providerSection, p, n.kids[p]); err != nil {
					return err
				}
			}
		default:
			err = l.section(domainSection, k, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// quoted is a name from a file, as errors have it.
func quoted(name string) string { return fmt.Sprintf("%.80q", name) }

// warn names what has no effect. A key is named once for each file.
func (l *loader) warn(line int, once, format string, args ...any) {
	if once != "" {
		if _, ok := l.said[once]; ok {
			return
		}
		l.said[once] = line
	}
	if len(l.warnings) < maxWarnings {
		l.warnings = append(l.warnings, Warning{Place{l.name, line}, fmt.Sprintf(format, args...)})
	}
}

// own says whether a section is KumoMTA's plumbing, and no destination.
func own(name string) bool {
	return name == "generator.kumomta.internal" || name == "deferred_smtp_inject.kumomta.internal" || strings.HasSuffix(name, ".tsa.kumomta")
}

// find finds a section, or makes it. What is said of a domain alone (rollup is false) is another section than what is said
// of all that have its MX hosts: one file may have the one, and another the other.
func (l *loader) find(kind sectionKind, name string, rollup bool) (s *section, first bool) {
	r := l.rules
	domains := r.domains
	if !rollup {
		domains = r.alone
	}
	switch kind {
	case defaultSection:
		s = r.standard
	case providerSection:
		s = l.providers[name]
	default:
		s = domains[name]
	}
	if s != nil {
		return s, false
	}
	s = &section{kind: kind, name: name, keys: make(scope), rollup: rollup}
	switch kind {
	case defaultSection:
		r.standard = s
	case providerSection:
		l.providers[name] = s
		r.providers = append(r.providers, s)
	default:
		domains[name] = s
		r.order = append(r.order, s)
	}
	r.byName[s.String()] = s
	return s, true
}

// section takes in a section of a file.
func (l *loader) section(kind sectionKind, name string, n *node) error {
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errorAt(n.line, "%s is no name of a section", quoted(name))
	}
	if kind == domainSection {
		if own(name) {
			return nil
		}
		if !strings.Contains(name, ".") {
			l.warn(n.line, "", "section %s is of a single DNS label: a domain's name stands between quotes", quoted(name))
		}
		name = strings.ToLower(strings.TrimSuffix(name, "."))
	}
	// It says what the same file says, wherever in the section it stands.
	b := n.kids["mx_rollup"]
	s, first := l.find(kind, name, kind != domainSection || b == nil || b.kind != boolNode || b.yes)
	if len(l.rules.byName) > maxSections {
		return errorAt(n.line, "there are more than %d sections", maxSections)
	}
	s.at = Place{l.name, n.line}
	if b := n.kids["replace_base"]; b != nil && b.yes {
		s.keys, s.from, s.rules, s.match = make(scope), nil, nil, nil
		s.bare = s.bare || first && kind != defaultSection && kind != providerSection
	}
	for _, k := range n.keys {
		if err := l.member(s, k, n.kids[k]); err != nil {
			return err
		}
	}
	return nil
}

// member takes in a key of a section.
func (l *loader) member(s *section, name string, n *node) error {
	switch {
	case name == "replace_base" || name == "mx_rollup" && s.kind == domainSection:
		if n.kind != boolNode {
			return errorAt(n.line, "%s is %s where true or false is expected", name, n.kind)
		}
		return nil
	case name == "automation":
		return l.automation(s, n)
	case name == "sources":
		return l.sources(s, n)
	case name == "match" && s.kind == providerSection:
		return l.matches(s, n)
	case name == "_treat_domain_name_as_site_name":
		return errorAt(n.line, "%s is for what KumoMTA writes itself", name)
	}
	return l.key(s, s.keys, "", name, n)
}

// key takes in a key of an egress path.
func (l *loader) key(s *section, into scope, source, name string, n *node) error {
	k := keyOf(name)
	if k == nil {
		l.rules.named++
		if n.kind == tableNode && s.kind == domainSection {
			// An unquoted name with a dot in it has made a table of tables.
			l.warn(n.line, name, "%s is not known: a domain's name stands between quotes", quoted(name))
			return nil
		}
		l.warn(n.line, name, "the key %s is not known, and has no effect", quoted(name))
		return nil
	}
	if k.provider && s.kind != providerSection {
		return errorAt(n.line, "%s is a key of providers, and this is %s", name, s)
	}
	v, err := k.parse(n)
	if err == nil && name == "smtp_port" && v.N > 65535 {
		err = errors.New("there is no such port")
	}
	if err != nil {
		return errorAt(n.line, "%s: %w", name, err)
	}
	switch k.effect {
	case inside:
		l.rules.ignored++
		l.warn(n.line, name, "the key %s steers KumoMTA's own insides, and has no effect here", name)
		return nil
	case without:
		l.rules.named++
		l.warn(n.line, name, "the key %s has no effect here: %s", name, k.why)
		return nil
	}
	l.rules.honoured++
	v.At, v.In = Place{l.name, n.line}, s.String()
	if source != "" {
		v.In += ", source " + source
	}
	into[name] = v
	return nil
}

// sources takes in what a section says of single sources.
func (l *loader) sources(s *section, n *node) error {
	if n.kind != tableNode {
		return errorAt(n.line, "sources is %s where a table is expected", n.kind)
	}
	for _, name := range n.keys {
		of := n.kids[name]
		if of.kind != tableNode || name == "" || len(name) > maxName {
			return errorAt(of.line, "source %s: a table is expected", quoted(name))
		}
		if s.from == nil {
			s.from = make(map[string]scope)
		}
		if s.from[name] == nil {
			s.from[name] = make(scope)
		}
		if len(s.from) > maxNames {
			return errorAt(of.line, "there are more than %d sources", maxNames)
		}
		for _, k := range of.keys {
			if err := l.key(s, s.from[name], name, k, of.kids[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

// matches takes in how a provider's domains are known. A later file adds to what earlier ones say.
func (l *loader) matches(s *section, n *node) error {
	if n.kind != listNode {
		return errorAt(n.line, "match is %s where a list is expected", n.kind)
	}
	list := s.match
	for _, m := range n.list {
		if m.kind != tableNode || len(m.keys) != 1 || m.kids[m.keys[0]].kind != stringNode {
			return errorAt(m.line, "match: {MXSuffix=\"x\"}, {DomainSuffix=\"x\"} or {HostName=\"x\"} is expected")
		}
		of := matcher{at: Place{l.name, m.line}, text: strings.ToLower(m.kids[m.keys[0]].text)}
		switch m.keys[0] {
		case "MXSuffix":
			of.by = mxSuffix
		case "DomainSuffix":
			of.by = domainSuffix
		case "HostName":
			of.by = hostName
		default:
			return errorAt(m.line, "match: there is no %s", quoted(m.keys[0]))
		}
		if of.text == "" || len(of.text) > maxName {
			return errorAt(m.line, "match: the text is empty, or longer than %d octets", maxName)
		}
		list = append(list, of)
	}
	if s.match = list; len(list) > maxNames {
		return errorAt(n.line, "match has more than %d", maxNames)
	}
	return nil
}

// finish sets the ranks of values, now that all is read, and looks for what can have no effect.
func (l *loader) finish() {
	set := func(of scope, r rank) {
		for k, v := range of {
			v.rank = r
			of[k] = v
		}
	}
	for _, s := range l.rules.sections() {
		r := fromShared
		switch {
		case s.kind == defaultSection:
			r = fromDefault
		case s.kind == domainSection && !s.rollup:
			r = fromDomain
		}
		set(s.keys, r)
		for _, of := range s.from {
			set(of, r)
		}
		for _, rule := range s.rules {
			rule.number = len(l.rules.filter.rules)
			l.rules.filter.add(rule)
		}
	}
}
