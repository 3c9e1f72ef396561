package resolver

import (
	"strings"

	"golang.org/x/net/idna"
)

// Limits of RFC 1035 section 2.3.4, without the root's own octet.
const (
	maxName  = 253
	maxLabel = 63
)

// ValidHostname says whether name could be a host's or a mail domain's: labels
// of letters, digits, hyphens and underscores, no hyphen at a label's end, not
// digits alone. Bytes over 127 do not pass: see Names.ToASCII.
func ValidHostname(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	label, alpha := 0, false
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c >= '0' && c <= '9':
			label++
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_':
			label++
			alpha = true
		case c == '-':
			if label == 0 || i+1 == len(name) || name[i+1] == '.' {
				return false
			}
			label++
			alpha = true
		case c == '.':
			if label == 0 || i+1 == len(name) {
				return false
			}
			label = 0
		default:
			return false
		}
		if label > maxLabel {
			return false
		}
	}
	return alpha
}

// Names is the rule by which international domain names are converted. The zero value converts
// as IDNA2008 does. A program has one rule, that of its settings (NamesOf), and hands it to
// everything that compares or looks up names: two rules would make two domains of one name.
type Names struct {
	// Transitional converts as IDNA2003 does, where ß is ss for example (Unicode TS #46
	// section 4): enable_idna2003_compatibility.
	Transitional bool
}

// NamesOf is the rule of enable_idna2003_compatibility.
func NamesOf(cfg interface{ Bool(name string) bool }) Names {
	return Names{Transitional: cfg.Bool("enable_idna2003_compatibility")}
}

// profiles are idna.Lookup without and with transitional processing, except that they
// leave it to ValidHostname which ASCII characters may be in a name:
// "_25._tcp.bücher.example" is one. They never change.
var profiles = [2]*idna.Profile{newProfile(false), newProfile(true)}

func newProfile(transitional bool) *idna.Profile {
	return idna.New(idna.MapForLookup(), idna.BidiRule(), idna.CheckHyphens(true), idna.StrictDomainName(false), idna.Transitional(transitional))
}

func (n Names) profile() *idna.Profile {
	if n.Transitional {
		return profiles[1]
	}
	return profiles[0]
}

// ToASCII gives the form of a domain in which it is looked up: lower case,
// internationalized labels as A-labels (RFC 5891), no trailing dot. ok is
// false when the domain cannot be a host name.
func (n Names) ToASCII(domain string) (ascii string, ok bool) {
	domain = strings.TrimSuffix(domain, ".")
	for i := 0; i < len(domain); i++ {
		if domain[i] >= 0x80 {
			a, err := n.profile().ToASCII(domain)
			if err != nil {
				return domain, false
			}
			return a, ValidHostname(a)
		}
	}
	return strings.ToLower(domain), ValidHostname(domain)
}

// OtherForm gives an international domain in the form that it is not written in:
// in ASCII if it has other characters, else with them. It is "" for a domain
// that has but one form.
func (n Names) OtherForm(domain string) string {
	if strings.IndexFunc(domain, func(c rune) bool { return c >= 0x80 }) >= 0 {
		if ascii, ok := n.ToASCII(domain); ok {
			return ascii
		}
		return ""
	}
	unicode, err := n.profile().ToUnicode(domain)
	if err != nil || strings.EqualFold(unicode, domain) {
		return ""
	}
	return unicode
}

// isLocalhost says whether name is localhost or under it, RFC 6761 section 6.3.
func isLocalhost(name string) bool {
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// unqualify takes the trailing dot off a name from a reply. Letters are kept
// as they came: logs show them.
func unqualify(name string) string { return strings.TrimSuffix(name, ".") }
