package resolver

import (
	"strings"
	"sync/atomic"

	"golang.org/x/net/idna"
)

// Limits of RFC 1035 section 2.3.4, without the root's own octet.
const (
	maxName  = 253
	maxLabel = 63
)

// ValidHostname says whether name could be a host's or a mail domain's: labels
// of letters, digits, hyphens and underscores, no hyphen at a label's end, not
// digits alone. Bytes over 127 do not pass: see ToASCII.
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

// profiles are idna.Lookup without and with transitional processing, but that they
// leave it to ValidHostname which ASCII characters may be in a name:
// "_25._tcp.bücher.example" is one.
var profiles = [2]*idna.Profile{newProfile(false), newProfile(true)}

func newProfile(transitional bool) *idna.Profile {
	return idna.New(idna.MapForLookup(), idna.BidiRule(), idna.CheckHyphens(true), idna.StrictDomainName(false), idna.Transitional(transitional))
}

var transitional atomic.Bool

// SetTransitional has the process convert names as IDNA2003 does
// (enable_idna2003_compatibility): ß is ss, for example (Unicode TS #46 section 4). Names are
// converted where nobody knows of settings, and all by one rule, so that this is the process's,
// which calls it once, before it serves.
func SetTransitional(yes bool) { transitional.Store(yes) }

func lookupProfile() *idna.Profile {
	if transitional.Load() {
		return profiles[1]
	}
	return profiles[0]
}

// ToASCII gives the form of a domain in which it is looked up: lower case,
// internationalized labels as A-labels (RFC 5891), no trailing dot. ok is
// false when the domain cannot be a host name.
func ToASCII(domain string) (ascii string, ok bool) {
	domain = strings.TrimSuffix(domain, ".")
	for i := 0; i < len(domain); i++ {
		if domain[i] >= 0x80 {
			a, err := lookupProfile().ToASCII(domain)
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
func OtherForm(domain string) string {
	if strings.IndexFunc(domain, func(c rune) bool { return c >= 0x80 }) >= 0 {
		if ascii, ok := ToASCII(domain); ok {
			return ascii
		}
		return ""
	}
	unicode, err := lookupProfile().ToUnicode(domain)
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
