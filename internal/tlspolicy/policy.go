// Package tlspolicy is what a mail client demands of a server's TLS: security
// levels, the attributes of smtp_tls_policy_maps, protocol and cipher
// selection, and the verification of certificates by name, by fingerprint and
// by DANE. It does no network I/O; it reads files that parameters name.
//
// # Standards
//
// RFC 3207, RFC 6125 (names in certificates), RFC 6698 and RFC 7672 (DANE).
package tlspolicy

import (
	"fmt"
	"slices"
	"strings"

	"posthaste/internal/table"
)

// Level is a security level, in increasing order.
type Level uint8

const (
	None        Level = iota // never TLS
	May                      // TLS if it is offered, whoever the server is
	Encrypt                  // TLS, whoever the server is
	Fingerprint              // TLS, with a certificate or key that is known
	HalfDane                 // as Dane, towards a host that an insecure MX record names
	Dane                     // as the server's signed TLSA records say; May or Encrypt without
	DaneOnly                 // as they say, and there must be some
	Verify                   // TLS, a trusted certificate, for the name of the MX host
	Secure                   // TLS, a trusted certificate, for the name of the destination
)

var levelNames = [...]string{"none", "may", "encrypt", "fingerprint", "half-dane", "dane", "dane-only", "verify", "secure"}

// String is the level's name in main.cf.
func (l Level) String() string { return levelNames[l] }

// ParseLevel reads the name of a level.
func ParseLevel(text string) (Level, error) {
	for i, n := range levelNames {
		if strings.EqualFold(text, n) && Level(i) != HalfDane {
			return Level(i), nil
		}
	}
	return None, fmt.Errorf("TLS security level %q: expected none, may, encrypt, fingerprint, dane, dane-only, verify or secure", text)
}

// Mandatory says whether there is no going on without TLS.
func (l Level) Mandatory() bool { return l >= Encrypt }

// Authenticates says whether the server must prove who it is by a certificate
// that a CA vouches for or that is known.
func (l Level) Authenticates() bool { return l == Fingerprint || l == Verify || l == Secure }

// IsDane says whether TLSA records decide.
func (l Level) IsDane() bool { return l == Dane || l == DaneOnly || l == HalfDane }

// Settings are the parameters that are in force where a policy says nothing.
type Settings struct {
	Level              Level
	Protocols          string // for May
	MandatoryProtocols string // for Encrypt and above
	Ciphers            string
	MandatoryCiphers   string
	Exclude            []string
	MandatoryExclude   []string // besides Exclude
	FingerprintMatch   []string
	VerifyMatch        []string
	SecureMatch        []string
	ServerName         string
	WildcardManyLabels bool   // tls_wildcard_matches_multiple_labels
	FingerprintDigest  string // md5, sha1, sha256, ...
	DaneDigests        []string
	TrustAnchorFiles   []string
	ConnectionReuse    bool
	EnforceSTSPatterns bool // smtp_tls_enforce_sts_mx_patterns
}

// Policy is what is demanded of one destination's servers.
type Policy struct {
	Level      Level
	Protocols  string
	Ciphers    string
	Exclude    []string
	Match      []string // names, or fingerprints
	ServerName string
	TrustFiles []string
	Reuse      bool
	STS        bool     // the policy was made from an MTA-STS policy
	MXPatterns []string // with STS: what MX hosts may be called
	Failure    string   // where it comes from it could not be had, or is wrong: no certificate will do

	anyMX                                          bool // MXPatterns do not count
	hasMatch, hasProtocols, hasCiphers, hasExclude bool
}

// Default is the policy of main.cf at a level.
func (s *Settings) Default(level Level) *Policy {
	p := &Policy{Level: level, ServerName: s.ServerName, Reuse: s.ConnectionReuse, TrustFiles: s.TrustAnchorFiles}
	s.complete(p)
	return p
}

// At is p at another level: what p was given stays, what it has from main.cf
// is what main.cf has for that level.
func (s *Settings) At(p *Policy, level Level) *Policy {
	q := *p
	q.Level = level
	if !q.hasMatch {
		q.Match = nil
	}
	s.complete(&q)
	return &q
}

// Parse reads the value of a policy table: a level, and attributes name=value,
// or { name = value } where the value has blanks or commas.
func (s *Settings) Parse(value string) (*Policy, error) {
	words := table.SplitList(value)
	if len(words) == 0 {
		return nil, fmt.Errorf("empty TLS policy: expected a security level")
	}
	level, err := ParseLevel(words[0])
	if err != nil {
		return nil, err
	}
	p := &Policy{Level: level, ServerName: s.ServerName, Reuse: s.ConnectionReuse}
	for _, w := range words[1:] {
		name, val, ok := cutAttribute(w)
		if !ok {
			return nil, fmt.Errorf("TLS policy %q: %q: expected name=value or { name = value }", value, w)
		}
		if err := p.attribute(strings.ToLower(name), val); err != nil {
			return nil, fmt.Errorf("TLS policy %q: %w", value, err)
		}
	}
	if p.TrustFiles == nil {
		p.TrustFiles = s.TrustAnchorFiles
	}
	s.complete(p)
	return p, nil
}

// cutAttribute takes an attribute apart. Inside braces white space may be
// anywhere, and each run of it counts as one blank.
func cutAttribute(word string) (name, value string, ok bool) {
	if word[0] == '{' {
		for i, depth := 0, 0; i < len(word); i++ {
			switch word[i] {
			case '{':
				depth++
			case '}':
				depth--
			}
			if (depth == 0) != (i == len(word)-1) {
				return "", "", false // the brace is never closed, or before the end
			}
		}
		word = strings.Join(strings.Fields(word[1:len(word)-1]), " ")
	}
	name, value, ok = strings.Cut(word, "=")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	return name, value, ok && name != "" && value != ""
}

// policyFailures are what programs that fetch MTA-STS policies may say in
// policy_failure, in the words of RFC 8460 section 4.3.
var policyFailures = []string{"sts-policy-fetch-error", "sts-policy-invalid", "sts-webpki-invalid", "validation-failure"}

func (p *Policy) attribute(name, value string) error {
	if p.Level == None {
		return fmt.Errorf("attribute %q has no use at level none", name)
	}
	switch name {
	case "match":
		sep := ":"
		switch p.Level {
		case Fingerprint:
			sep = "|"
		case Verify, Secure:
		default:
			return fmt.Errorf("attribute match has no use at level %s", p.Level)
		}
		p.Match = append(p.Match, strings.Split(value, sep)...)
		p.hasMatch = true
	case "protocols":
		if _, err := ParseProtocols(strings.ReplaceAll(value, ":", " ")); err != nil {
			return err
		}
		p.Protocols, p.hasProtocols = strings.ReplaceAll(value, ":", " "), true
	case "ciphers":
		if _, err := CipherSuites(value, nil); err != nil {
			return err
		}
		p.Ciphers, p.hasCiphers = value, true
	case "exclude":
		p.Exclude, p.hasExclude = strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(": ,", r) }), true
	case "servername":
		p.ServerName = value
	case "tafile":
		if !p.Level.Authenticates() {
			return fmt.Errorf("attribute tafile has no use at level %s", p.Level)
		}
		p.TrustFiles = append(p.TrustFiles, value)
	case "connection_reuse":
		switch value {
		case "yes":
			p.Reuse = true
		case "no":
			p.Reuse = false
		default:
			return fmt.Errorf("connection_reuse=%s: expected yes or no", value)
		}
	case "policy_type":
		p.STS = value == "sts"
	case "mx_host_pattern":
		p.MXPatterns = append(p.MXPatterns, value)
	case "policy_failure":
		if !slices.Contains(policyFailures, value) {
			return fmt.Errorf("policy_failure=%s: expected one of %s", value, strings.Join(policyFailures, ", "))
		}
		p.Failure = value
	case "policy_ttl", "policy_domain", "policy_string", "enable_rpk":
		// What is known of where the policy comes from, for reports; raw
		// public keys are something that this TLS does not do.
	default:
		return fmt.Errorf("unknown attribute %q", name)
	}
	return nil
}

// complete fills in what the level implies.
func (s *Settings) complete(p *Policy) {
	mandatory := p.Level.Mandatory()
	if !p.hasProtocols {
		p.Protocols = s.Protocols
		if mandatory {
			p.Protocols = s.MandatoryProtocols
		}
	}
	if !p.hasCiphers {
		p.Ciphers = s.Ciphers
		if mandatory {
			p.Ciphers = s.MandatoryCiphers
		}
	}
	if !p.hasExclude {
		p.Exclude = s.Exclude
		if mandatory {
			p.Exclude = append(append([]string(nil), s.Exclude...), s.MandatoryExclude...)
		}
	}
	if !p.hasMatch {
		switch p.Level {
		case Fingerprint:
			p.Match = s.FingerprintMatch
		case Verify:
			p.Match = s.VerifyMatch
		case Secure:
			p.Match = s.SecureMatch
		}
	}
	p.anyMX = !s.EnforceSTSPatterns
	if p.STS && s.EnforceSTSPatterns && len(p.MXPatterns) > 0 {
		p.Match = []string{"hostname"}
	}
}

// AllowsMX says whether an MTA-STS policy admits an MX host (RFC 8461 section
// 4.1). With smtp_tls_enforce_sts_mx_patterns = no each will do whose
// certificate is for a name that the policy has.
func (p *Policy) AllowsMX(host string) bool {
	if !p.STS || p.anyMX || len(p.MXPatterns) == 0 {
		return true
	}
	host = asciiName(host) // a domain without MX records is its own host
	for _, pattern := range p.MXPatterns {
		if suffix, ok := strings.CutPrefix(pattern, "*"); ok || strings.HasPrefix(pattern, ".") {
			if !ok {
				suffix = pattern
			}
			_, rest, found := strings.Cut(host, ".")
			if found && strings.EqualFold("."+rest, suffix) {
				return true
			}
		} else if strings.EqualFold(host, pattern) {
			return true
		}
	}
	return false
}
