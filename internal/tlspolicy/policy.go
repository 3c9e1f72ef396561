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
	"strconv"
	"strings"

	"posthaste/internal/resolver"
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
	CertNames          NameRule
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
	Ignored    []string // attributes as they are written, which have no use at level none

	names                                          resolver.Names // of the Settings
	anyMX                                          bool           // MXPatterns do not count
	hasMatch, hasProtocols, hasCiphers, hasExclude bool
}

// Default is the policy of main.cf at a level.
func (s *Settings) Default(level Level) *Policy {
	p := &Policy{Level: level, names: s.CertNames.Names, ServerName: s.ServerName, Reuse: s.ConnectionReuse, TrustFiles: s.TrustAnchorFiles}
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
// or { name = value } where the value has blanks or commas. A mistake may make a
// policy weaker than it was meant, so that each is an error; but at level none
// there is nothing to be weakened, and attributes are set aside unread.
func (s *Settings) Parse(value string) (*Policy, error) {
	words := table.SplitList(value)
	if len(words) == 0 {
		return nil, fmt.Errorf("empty TLS policy: expected a security level")
	}
	level, err := ParseLevel(words[0])
	if err != nil {
		return nil, err
	}
	p := &Policy{Level: level, names: s.CertNames.Names, ServerName: s.ServerName, Reuse: s.ConnectionReuse}
	if words = words[1:]; level == None {
		p.Ignored, words = words, nil
	}
	seen := make(map[string]bool)
	for _, w := range words {
		name, val, ok := cutAttribute(w)
		if !ok {
			return nil, fmt.Errorf("TLS policy %q: %q: expected name=value or { name = value }", value, w)
		}
		name = strings.ToLower(name)
		if seen[name] && slices.Contains(single, name) {
			return nil, fmt.Errorf("TLS policy %q: attribute %q is specified multiple times", value, name)
		}
		seen[name] = true
		if err := p.attribute(name, val); err != nil {
			return nil, fmt.Errorf("TLS policy %q: %w", value, err)
		}
	}
	if !seen["policy_type"] {
		for _, name := range external {
			if seen[name] {
				return nil, fmt.Errorf("TLS policy %q: attribute %q without policy_type", value, name)
			}
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
	return name, value, ok && name != "" && !strings.ContainsAny(name, " \t\r\n")
}

// single are the attributes that a policy may have once. Of match, tafile,
// policy_string and mx_host_pattern each adds to those before; of
// connection_reuse and enable_rpk the last counts.
var single = []string{"ciphers", "protocols", "servername", "exclude", "policy_ttl", "policy_type", "policy_domain", "policy_failure"}

// external are the attributes of policies that others have made, who say so by
// policy_type.
var external = []string{"policy_ttl", "policy_domain", "policy_string", "mx_host_pattern", "policy_failure"}

// policyTypes are what policy_type may say, as RFC 8460 section 4.2 has it.
var policyTypes = []string{"sts", "tlsa", "no-policy-found"}

// policyFailures are what programs that fetch MTA-STS policies may say in
// policy_failure, in the words of RFC 8460 section 4.3.
var policyFailures = []string{"sts-policy-fetch-error", "sts-policy-invalid", "sts-webpki-invalid", "validation-failure"}

func (p *Policy) attribute(name, value string) error {
	if value == "" && (name == "match" || name == "ciphers" || name == "tafile") {
		return fmt.Errorf("attribute %q has empty value", name)
	}
	useless := fmt.Errorf("attribute %q invalid at security level %q", name, p.Level)
	switch name {
	case "match":
		sep := ":"
		switch p.Level {
		case Fingerprint:
			sep = "|"
		case Verify, Secure:
		default:
			return useless
		}
		p.Match = append(p.Match, strings.Split(value, sep)...)
		p.hasMatch = true
	case "protocols": // all, if empty
		if _, err := ParseProtocols(strings.ReplaceAll(value, ":", " ")); err != nil {
			return err
		}
		p.Protocols, p.hasProtocols = strings.ReplaceAll(value, ":", " "), true
	case "ciphers":
		if _, err := CipherSuites(value, nil); err != nil {
			return err
		}
		p.Ciphers, p.hasCiphers = value, true
	case "exclude": // none, if empty
		p.Exclude, p.hasExclude = strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(": ,", r) }), true
	case "servername":
		if _, ok := p.names.ToASCII(value); !ok {
			return fmt.Errorf("\"servername=%s\" specifies an invalid hostname", value)
		}
		p.ServerName = value
	case "tafile": // CAs matter only where names do
		if p.Level != Verify && p.Level != Secure {
			return useless
		}
		p.TrustFiles = append(p.TrustFiles, value)
	case "connection_reuse":
		on, err := yesNo(name, value)
		p.Reuse = on
		return err
	case "enable_rpk": // raw public keys are something that this TLS does not do
		_, err := yesNo(name, value)
		return err
	default:
		return p.externalAttribute(name, value)
	}
	return nil
}

// yesNo reads an attribute that is one or the other.
func yesNo(name, value string) (bool, error) {
	yes := strings.EqualFold(value, "yes")
	if !yes && !strings.EqualFold(value, "no") {
		return false, fmt.Errorf("attribute %q has bad value: %q: expected yes or no", name, value)
	}
	return yes, nil
}

// externalAttribute is attribute for what is known of where the policy comes
// from.
func (p *Policy) externalAttribute(name, value string) error {
	oneOf := func(list []string) error {
		if !slices.Contains(list, value) {
			return fmt.Errorf("attribute %q has an unexpected value: %q: expected one of %s", name, value, strings.Join(list, ", "))
		}
		return nil
	}
	switch name {
	case "policy_type":
		p.STS = value == "sts"
		return oneOf(policyTypes)
	case "policy_failure":
		p.Failure = value
		return oneOf(policyFailures)
	case "policy_ttl":
		if _, err := strconv.ParseUint(value, 10, 32); err != nil {
			return fmt.Errorf("attribute %q has a malformed value: %q: expected seconds", name, value)
		}
	case "policy_domain":
		if _, ok := p.names.ToASCII(value); !ok {
			return fmt.Errorf("attribute %q has a malformed value: %q: expected a domain", name, value)
		}
	case "policy_string": // for reports
	case "mx_host_pattern":
		p.MXPatterns = append(p.MXPatterns, value)
	default:
		return fmt.Errorf("invalid attribute name: %q", name)
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
	return NamesMX(p.MXPatterns, asciiName(p.names, host)) // a domain without MX records is its own host
}

// NamesMX says whether the mx lines of an MTA-STS policy name a host, which is in ASCII and without
// a dot at its end (RFC 8461 section 4.1). A pattern "*.example.com", or ".example.com" as
// certificates' names are given in main.cf, is for the names with one label more.
func NamesMX(patterns []string, host string) bool {
	for _, pattern := range patterns {
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
