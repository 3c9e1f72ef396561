package selection

import (
	"cmp"
	"fmt"
	"strings"
)

// A Target says which mail a suspension is for: a condition of the grammar with
// one value, of which a destination is the usual one and stands alone.
//
//	DESTINATION      mail that goes there, or to recipients there, as at [Destination]
//	domain=DOMAIN    mail to recipients in DOMAIN, whatever its next hop is; .DOMAIN: in its subdomains
//	nexthop=NEXTHOP  mail whose next hop this is, whatever the recipient's domain is
//	sender=ADDRESS   mail from this envelope sender: an address, @DOMAIN, @.DOMAIN, <> or /REGEXP/
//	tenant=NAME      mail of this tenant, wherever to
//	campaign=TENANT/NAME  mail of this campaign of the tenant
//	tenant=NAME->SITE  the same to one site, and so for a campaign
//	source=NAME      what goes from this source of egress_source_maps, wherever to
//	source=NAME->SITE  the same to one site: the names of its MX hosts between commas, or a domain
//	site=SITE        mail for a site, as shaping_files has them
//
// Two targets are the same if their texts are. A Target may be used concurrently.
type Target struct {
	by     string // destination, domain, nexthop, sender, tenant, campaign or source
	value  string // in its only form
	dest   Destination
	sender func(addr string) bool // of a sender; nil: dest counts
}

// Mail is what a Target looks at: one recipient of a message, and where mail for it goes.
type Mail struct {
	Sender    string // envelope sender, without <>
	Transport string // empty: not known
	Nexthop   string // empty: not known
	Domain    string // the recipient's
	Tenant    string // empty: none
	Campaign  string // of the tenant; empty: none
	Site      string // that its limits are for, with shaping_files; empty: not known
}

// ParseTarget reads a target's text. Errors are for the operator.
func ParseTarget(text string) (Target, error) {
	for _, by := range [...]string{"domain", "nexthop", "sender", "tenant", "campaign", "source", "site"} {
		if value, ok := strings.CutPrefix(text, by+"="); ok {
			return NewTarget(by, value)
		}
	}
	return NewTarget("destination", text)
}

// NewTarget makes a target of a condition: destination, domain, nexthop, transport, sender, tenant, campaign or source. Errors are
// for the operator.
func NewTarget(by, value string) (t Target, err error) {
	t = Target{by: by, value: value}
	switch by {
	case "sender":
		return t, t.setSender()
	case "source":
		name, site, part := strings.Cut(value, toSite)
		if name == "" || len(name) > maxSource || strings.ContainsFunc(name, func(r rune) bool { return !validSource(r) }) || part && !validSite(site) {
			err = fmt.Errorf("%q is not the name of a source", value)
		}
		return t, err
	case "tenant", "campaign":
		name, site, part := strings.Cut(value, toSite)
		if part && !validSite(site) {
			return t, fmt.Errorf("%q is not the name of a site", site)
		}
		if part {
			t.value = name + toSite + strings.ToLower(site)
		}
		if by == "tenant" {
			return t, parseTenant(name)
		}
		return t, parseCampaign(name)
	case "site":
		if t.value = strings.ToLower(value); !validSite(t.value) {
			err = fmt.Errorf("%q is not the name of a site", value)
		}
		return t, err
	case "transport":
		t.by = "destination"
		if t.dest, err = ParseDestination(value + ":"); err == nil && (t.dest.transport != value || value == "") {
			err = fmt.Errorf("%q is not the name of a transport", value)
		}
	case "destination", "nexthop":
		t.dest, err = ParseDestination(value)
	case "domain":
		t.dest, err = parseDomain(value)
	default:
		err = fmt.Errorf("there is no target %q", by)
	}
	t.value = t.dest.String()
	return t, err
}

// validSource says whether the name of a source may have r, as egress.ValidName does.
func validSource(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
}

// Source is the source that the target is; empty: it is something else. Which source mail goes
// from is drawn when it is to be delivered, so that no mail matches one.
func (t Target) Source() string {
	if t.by == "source" {
		name, _, _ := strings.Cut(t.value, toSite)
		return name
	}
	return ""
}

// IsGroup says whether the target is a tenant or a campaign, so that it means mail for whatever destination.
func (t Target) IsGroup() bool { return t.by == "tenant" || t.by == "campaign" }

// OfTenant says whether the target is mail of this tenant or of a campaign of it, to whatever site.
func (t Target) OfTenant(name string) bool {
	tenant, _, _ := strings.Cut(t.group(), "/")
	return t.IsGroup() && tenant == name
}

// group is the tenant or the campaign of a target that is one, without a site.
func (t Target) group() string {
	name, _, _ := strings.Cut(t.value, toSite)
	return name
}

// toSite stands between the name of a source, a tenant or a campaign and that of the site that it is meant for.
const toSite = "->"

// Site is the site that the target names, with or without a source, a tenant or a campaign; empty: none.
func (t Target) Site() string {
	switch t.by {
	case "site":
		return t.value
	case "source", "tenant", "campaign":
		_, site, _ := strings.Cut(t.value, toSite)
		return site
	}
	return ""
}

// GroupTarget is the target that means the mail of a tenant, or of a campaign of it if one is named, for a site.
func GroupTarget(tenant, campaign, site string) (Target, error) {
	if campaign == "" {
		return NewTarget("tenant", tenant+toSite+site)
	}
	return NewTarget("campaign", tenant+"/"+campaign+toSite+site)
}

// SiteTarget is the target that means a site, and what goes there from a source if one is named.
func SiteTarget(source, site string) (Target, error) {
	if source == "" {
		return NewTarget("site", site)
	}
	return NewTarget("source", source+toSite+strings.ToLower(site))
}

// validSite says whether a site may be called so.
func validSite(name string) bool {
	return name != "" && len(name) <= 255 && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '>' || r == '=' })
}

// setSender reads the value as a sender, in lower case unless it is a regular expression.
func (t *Target) setSender() (err error) {
	if t.value == "" || len(t.value) > maxDestination || strings.ContainsFunc(t.value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("a sender has 1 to %d octets, and no control characters; the null sender is <>", maxDestination)
	}
	m, err := parseAddress(t.value)
	if t.sender = m.means; err != nil || t.pattern() {
		return err
	}
	t.value = strings.ToLower(t.value)
	if t.sender("") {
		t.value = "<>"
		return nil
	}
	t.value = strings.TrimSuffix(strings.TrimPrefix(t.value, "<"), ">")
	if at := strings.LastIndexByte(t.value, '@'); at < 0 || at == len(t.value)-1 || t.value == "@." {
		return fmt.Errorf("%q is not a sender: give an address, @DOMAIN, @.DOMAIN for subdomains, <> or /REGEXP/", t.value)
	}
	return nil
}

// pattern says whether the value is a regular expression.
func (t Target) pattern() bool {
	return t.sender != nil && len(t.value) > 1 && t.value[0] == '/' && t.value[len(t.value)-1] == '/'
}

// String is the text that ParseTarget reads, in its only form.
func (t Target) String() string {
	if t.by == "destination" {
		return t.value
	}
	return t.by + "=" + t.value
}

// Condition is the condition of a [Selection] that is fulfilled by the mail that is meant.
func (t Target) Condition() (name, value string) { return t.by, t.value }

// Option is the target as a word of a shell's command line, an argument or an option.
func (t Target) Option() string {
	word := t.value
	if t.by != "destination" {
		word = "--" + t.String()
	}
	if strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// IsSender says whether the target is a sender, so that it means mail for whatever destination.
func (t Target) IsSender() bool { return t.sender != nil }

// Name is the target in words: example.com, domain example.com, next hop [mx.example.com], mail from ann@example.com.
func (t Target) Name() string {
	switch t.by {
	case "domain":
		return "domain " + t.value
	case "nexthop":
		return "next hop " + t.value
	case "sender":
		return "mail from " + t.value
	case "source":
		if site := t.Site(); site != "" {
			return "source " + t.Source() + " to site " + site
		}
		return "source " + t.value
	case "tenant", "campaign":
		if site := t.Site(); site != "" {
			return t.by + " " + t.group() + " to site " + site
		}
		return t.by + " " + t.value
	case "site":
		return t.by + " " + t.value
	}
	return t.value
}

// Subject is Name as the subject of a sentence about the mail: "delivery to example.com".
func (t Target) Subject() string {
	switch t.by {
	case "sender":
		return t.Name()
	case "tenant", "campaign":
		return "mail of " + t.Name()
	case "source":
		return "mail that goes from " + t.Name()
	}
	return "delivery to " + t.Name()
}

// Mail is the mail that is meant in words, where it is meant by whom it is for, from whom it is, or whose it is: mail to
// example.com, mail from ann@example.com, mail of campaign news/spring to example.com.
func (t Target) Mail() string {
	switch t.by {
	case "tenant", "campaign":
		text := "mail of " + t.by + " " + t.group()
		if site := t.Site(); site != "" {
			text += " to " + site
		}
		return text
	case "sender":
		return t.Name()
	}
	return "mail to " + t.value
}

// Match says whether mail is meant.
func (t Target) Match(m *Mail) bool {
	switch t.by {
	case "source":
		return false
	case "tenant":
		return t.group() == m.Tenant && (t.Site() == "" || t.Site() == m.Site)
	case "campaign":
		return m.Campaign != "" && t.group() == m.Tenant+"/"+m.Campaign && (t.Site() == "" || t.Site() == m.Site)
	case "site":
		return m.Site == t.value
	case "sender":
		return t.sender(m.Sender)
	case "domain":
		return t.dest.Match("", "", m.Domain)
	case "nexthop":
		return t.dest.Match(m.Transport, m.Nexthop, "")
	}
	return t.dest.Match(m.Transport, m.Nexthop, m.Domain)
}

// IsDestination says whether the target is a destination, without a condition before it.
func (t Target) IsDestination() bool { return t.by == "destination" }

// Transport is the transport that a destination names; empty: it names none.
func (t Target) Transport() string { return t.dest.transport }

// Nexthop is the name that a destination has besides the transport; empty: it names none.
func (t Target) Nexthop() string { return t.dest.name }

// ParseNexthop reads where mail is to go: a destination that is one place, not a pattern. Its Transport or its
// Nexthop may be empty, and not both. Errors are for the operator.
func ParseNexthop(text string) (Target, error) {
	t, err := NewTarget("destination", text)
	if err == nil && (text == "*" || strings.HasPrefix(t.Nexthop(), ".")) {
		err = fmt.Errorf("%q is not a next hop: give a domain, [host]:port, transport: or transport:nexthop", text)
	}
	return t, err
}

// Compare sorts destinations, those that mean fewer next hops first: transport:nexthop, nexthop,
// .domain, where a longer one is narrower and one with a transport narrower than one without,
// transport:, and *. It is 0 only for the same text.
func (t Target) Compare(o Target) int {
	return cmp.Or(cmp.Compare(o.width(), t.width()), cmp.Compare(len(o.dest.name), len(t.dest.name)), cmp.Compare(len(o.dest.transport), len(t.dest.transport)), cmp.Compare(t.String(), o.String()))
}

// width is larger for a destination that means fewer next hops.
func (t Target) width() int {
	switch {
	case t.dest.name == "" && t.dest.transport == "":
		return 0
	case t.dest.name == "":
		return 1
	case t.dest.name[0] == '.':
		return 2
	case t.dest.transport == "":
		return 3
	}
	return 4
}

// Place says whether the target is a next hop of that name, or recipients in that domain, or all of
// them, by whatever transport: what can be said of a domain alone.
func (t Target) Place(domain string) bool {
	return t.sender == nil && t.by != "source" && t.by != "site" && !t.IsGroup() && (t.value == "*" || t.dest.name != "" && t.dest.matchName(domain))
}

// From says whether all mail from senders in the domain is meant: what can be said of a sender's domain
// alone. "" is the null sender's.
func (t Target) From(domain string) bool {
	if t.value == "*" {
		return true
	}
	if t.sender == nil || t.pattern() {
		return false
	}
	if domain == "" {
		return t.sender("")
	}
	return t.value[0] == '@' && t.sender("@"+domain)
}

// Key is a word that mail which is meant has among its Keys; empty: it may have any.
func (t Target) Key() string {
	switch {
	case t.by == "site":
		return "site=" + t.value
	case t.pattern():
		return ""
	case t.IsGroup():
		return t.by + "=" + t.group()
	case t.sender != nil && t.value[0] != '@' && t.value != "<>":
		return "@" + t.value // so that it is not taken for that of a destination
	case t.sender != nil:
		return t.value
	}
	return t.dest.name
}

// Keys are the words by which targets that mean the mail can be found: each target's Key is one of them, or empty.
func (m *Mail) Keys(yield func(string) bool) {
	parents := func(prefix, name string) bool {
		if !yield(prefix + name) {
			return false
		}
		for i := 1; i < len(name); i++ {
			if name[i] == '.' && !yield(prefix+name[i:]) {
				return false
			}
		}
		return true
	}
	if m.Tenant != "" && (!yield("tenant="+m.Tenant) || m.Campaign != "" && !yield("campaign="+m.Tenant+"/"+m.Campaign)) ||
		m.Site != "" && !yield("site="+m.Site) {
		return
	}
	nexthop, domain := strings.ToLower(m.Nexthop), strings.ToLower(m.Domain)
	if !parents("", nexthop) || nexthop != domain && !parents("", domain) {
		return
	}
	sender := strings.ToLower(m.Sender)
	if sender == "" {
		yield("<>")
		return
	}
	if yield("@" + sender) {
		parents("@", domainOf(sender))
	}
}
