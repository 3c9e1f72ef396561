package mailauth

import (
	"fmt"
	"slices"
	"strings"

	"posthaste/internal/mailauth/dkimkey"
)

// A Published is a DMARC record as its domain's owner looks at it (RFC 9989 section 4.7):
// with what is in it and what receivers will not heed. Mail is judged by what Check reads.
type Published struct {
	Policy     string   // p: none, quarantine or reject; receivers take none where it is absent
	Subdomains string   // sp; empty: as Policy
	Missing    string   // np, for subdomains that do not exist; empty: as Subdomains
	Strict     []string // dkim and spf, where alignment is strict
	Testing    bool     // t=y: receivers apply the next milder policy
	Reports    []string // the URIs of rua, to which aggregate reports go
	Faults     []string // one sentence for each thing that receivers ignore or take otherwise
}

// obsolete are the tags of RFC 7489 that RFC 9989 has removed.
var obsolete = []string{"pct", "rf", "ri"}

// ParsePublished reads the text of a TXT record. ok is false if it is no DMARC record at all.
func ParsePublished(text string) (p Published, ok bool) {
	version, rest, _ := strings.Cut(text, ";")
	name, value, _ := strings.Cut(version, "=")
	if !strings.EqualFold(strings.TrimSpace(name), "v") || strings.TrimSpace(value) != "DMARC1" {
		return Published{}, false
	}
	tags := make(map[string]string)
	for n, v := range dkimkey.Tags(rest) {
		tags[strings.ToLower(n)] = v
	}
	p.Policy = p.policy(tags, "p")
	if p.Policy == "" {
		p.Policy = "none"
		if _, set := tags["p"]; !set {
			p.Faults = append(p.Faults, "the record has no p=, which receivers take for p=none")
		}
	}
	p.Subdomains, p.Missing = p.policy(tags, "sp"), p.policy(tags, "np")
	for tag, what := range map[string]string{"adkim": "dkim", "aspf": "spf"} {
		switch strings.ToLower(tags[tag]) {
		case "", "r":
		case "s":
			p.Strict = append(p.Strict, what)
		default:
			p.Faults = append(p.Faults, fmt.Sprintf("%s=%s: expected r or s", tag, tags[tag]))
		}
	}
	slices.Sort(p.Strict)
	p.Testing = strings.EqualFold(tags["t"], "y")
	p.Reports = p.uris(tags["rua"])
	for _, tag := range obsolete {
		if v, set := tags[tag]; set {
			p.Faults = append(p.Faults, fmt.Sprintf("%s=%s has no effect since RFC 9989", tag, v))
		}
	}
	slices.Sort(p.Faults)
	return p, true
}

// policy is the value of one of the tags that name a policy.
func (p *Published) policy(tags map[string]string, tag string) string {
	v, set := tags[tag]
	policy := policyOf(strings.ToLower(v))
	if set && policy == "" {
		p.Faults = append(p.Faults, fmt.Sprintf("%s=%s: expected none, quarantine or reject", tag, v))
	}
	return policy
}

// uris are the destinations of rua. A size behind an exclamation mark is of RFC 7489, and is
// taken off as receivers do.
func (p *Published) uris(list string) (uris []string) {
	if list == "" {
		return nil
	}
	for uri := range strings.SplitSeq(list, ",") {
		uri = strings.TrimSpace(uri)
		bare, size, sized := strings.Cut(uri, "!")
		switch {
		case !strings.HasPrefix(strings.ToLower(uri), "mailto:") || !strings.Contains(uri, "@"):
			p.Faults = append(p.Faults, fmt.Sprintf("rua=%s: expected mailto:user@domain", uri))
			continue
		case sized:
			p.Faults = append(p.Faults, fmt.Sprintf("the size !%s behind %s has no effect since RFC 9990", size, bare))
		}
		uris = append(uris, bare)
	}
	return uris
}
