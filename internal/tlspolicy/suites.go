package tlspolicy

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Protocols is a range of protocol versions.
type Protocols struct {
	Min, Max uint16
	// Gap says that older ones are allowed too, but not all in between. TLS
	// negotiates within one range, and these are the better ones.
	Gap bool
}

// Warning says what cannot be had of the list that p was read from; empty:
// nothing.
func (p Protocols) Warning() string {
	if !p.Gap {
		return ""
	}
	return fmt.Sprintf("there is a gap between the protocols: those before %s are not used", ProtocolName(p.Min))
}

// versions are the protocols in order. SSL is known by name only: it may be
// excluded, and cannot be had.
var versions = []struct {
	name string
	id   uint16
	hex  uint64
}{
	{"SSLv2", 0, 0x0002}, {"SSLv3", 0, 0x0300},
	{"TLSv1", tls.VersionTLS10, 0x0301}, {"TLSv1.1", tls.VersionTLS11, 0x0302},
	{"TLSv1.2", tls.VersionTLS12, 0x0303}, {"TLSv1.3", tls.VersionTLS13, 0x0304},
}

func versionIndex(name string) int {
	n, err := strconv.ParseUint(name, 0, 16)
	for i, v := range versions {
		if strings.EqualFold(v.name, name) || strings.EqualFold(name, "TLSv1.0") && v.name == "TLSv1" || (err == nil && v.hex == n) {
			return i
		}
	}
	return -1
}

// ProtocolName is how logs and parameters call a version.
func ProtocolName(version uint16) string {
	for _, v := range versions {
		if v.id == version {
			return v.name
		}
	}
	return "unknown"
}

// ParseProtocols reads a list such as ">=TLSv1.2", "!SSLv2, !SSLv3" or
// "TLSv1.2 TLSv1.3". An empty list allows all.
func ParseProtocols(text string) (Protocols, error) {
	lo, hi := 0, len(versions)-1
	var include, exclude [6]bool
	some := false
	for _, w := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == ':' || r == '\t' }) {
		op := ""
		for _, o := range []string{">=", "<=", "!"} {
			if rest, ok := strings.CutPrefix(w, o); ok {
				op, w = o, rest
				break
			}
		}
		i := versionIndex(w)
		if i < 0 {
			return Protocols{}, fmt.Errorf("TLS protocol %q: expected SSLv2, SSLv3, TLSv1, TLSv1.1, TLSv1.2 or TLSv1.3, which !, >= or <= may precede", w)
		}
		switch op {
		case ">=":
			lo = i
		case "<=":
			hi = i
		case "!":
			exclude[i] = true
		default:
			include[i], some = true, true
		}
	}
	var p Protocols
	gap := false
	for i, v := range versions {
		ok := v.id != 0 && i >= lo && i <= hi && !exclude[i] && (!some || include[i])
		switch {
		case ok && (gap || p.Min == 0):
			p = Protocols{v.id, v.id, gap || p.Gap}
			gap = false
		case ok:
			p.Max = v.id
		case p.Min != 0:
			gap = true
		}
	}
	if p.Min == 0 {
		return Protocols{}, fmt.Errorf("TLS protocols %q: none is left", text)
	}
	return p, nil
}

// CipherSuites gives the suites of a grade without the excluded ones, for
// protocols up to TLSv1.2: those of TLSv1.3 are all good and cannot be chosen.
func CipherSuites(grade string, exclude []string) ([]uint16, error) {
	ids := []uint16{} // not nil, which would stand for all
	var all []*tls.CipherSuite
	switch strings.ToLower(grade) {
	case "high":
		all = tls.CipherSuites()
	case "medium", "low", "export", "": // those below medium have gone from TLS itself
		all = append(tls.CipherSuites(), tls.InsecureCipherSuites()...)
	case "null":
		return nil, fmt.Errorf("TLS cipher grade null: ciphers without encryption are not available")
	default:
		return nil, fmt.Errorf("TLS cipher grade %q: expected high, medium, low, export or null", grade)
	}
	for _, s := range all {
		if strings.Contains(s.Name, "RC4") || s.SupportedVersions[0] == tls.VersionTLS13 || excluded(s.Name, exclude) {
			continue
		}
		ids = append(ids, s.ID)
	}
	return ids, nil
}

// excluded says whether a word of an exclusion list, in the terms of OpenSSL,
// covers a suite named as the standards do.
func excluded(suite string, words []string) bool {
	for _, w := range cipherWords(words) {
		covers := true
		for p := range strings.SplitSeq(w, "+") {
			covers = covers && has(suite, p)
		}
		if covers {
			return true
		}
	}
	return false
}

// cipherWords are the words of an exclusion list, which colons may separate.
func cipherWords(words []string) []string {
	return strings.FieldsFunc(strings.ToUpper(strings.Join(words, ":")), func(r rune) bool { return r == ':' })
}

// UnknownCiphers are the words of an exclusion list that stand for nothing: they
// name no cipher and no class of ciphers that OpenSSL has. To exclude what
// crypto/tls never offers is fine.
func UnknownCiphers(words []string) []string {
	all := append(tls.CipherSuites(), tls.InsecureCipherSuites()...)
	var out []string
	for _, w := range cipherWords(words) {
		for p := range strings.SplitSeq(w, "+") {
			kind, _, _ := strings.Cut(p, "-")
			if !slices.Contains(neverOffered, kind) && !slices.ContainsFunc(all, func(s *tls.CipherSuite) bool { return has(s.Name, p) }) {
				out = append(out, w)
				break
			}
		}
	}
	return out
}

// neverOffered are OpenSSL's classes of ciphers, and first words of names, that
// crypto/tls has none of.
var neverOffered = strings.Fields("ANULL ENULL NULL EXPORT EXPORT40 EXPORT56 EXP LOW MEDIUM MD5 SSLV2 ADH AECDH DH DHE EDH KDH KDHE KEDH ADSS DSS ECDH KECDH " +
	"AECDSS SEED IDEA RC2 CAMELLIA CAMELLIA128 CAMELLIA256 ARIA ARIA128 ARIA256 ARIAGCM AESCCM AESCCM8 GOST AGOST KGOST GOST94 GOST89MAC " +
	"PSK KPSK APSK RSAPSK DHEPSK ECDHEPSK KRSAPSK KDHEPSK KECDHEPSK SRP KSRP ASRP KRB5 AKRB5 KKRB5 FZA")

func has(suite, word string) bool {
	kx, rest, _ := strings.Cut(strings.TrimPrefix(suite, "TLS_"), "_WITH_")
	switch word {
	case "KRSA":
		return kx == "RSA"
	case "RSA", "ARSA":
		return strings.HasSuffix(kx, "RSA")
	case "ECDSA", "AECDSA":
		return strings.HasSuffix(kx, "ECDSA")
	case "ECDHE", "EECDH", "KECDHE", "KEECDH":
		return strings.HasPrefix(kx, "ECDHE")
	case "3DES", "DES":
		return strings.Contains(rest, "3DES")
	case "AES128", "AES256":
		return strings.Contains(rest, "AES_"+word[3:])
	case "AES", "AESGCM", "CHACHA20", "RC4", "CBC":
		return strings.Contains(rest, strings.TrimSuffix(word, "GCM")) && (word != "AESGCM" || strings.Contains(rest, "GCM"))
	case "SHA", "SHA1":
		return strings.HasSuffix(rest, "_SHA")
	case "SHA256", "SHA384":
		return strings.HasSuffix(rest, "CBC_"+word)
	}
	return strings.EqualFold(suite, word) || strings.EqualFold(openSSLName(suite), word)
}

// openSSLName is OpenSSL's name of a suite: ECDHE-RSA-AES128-GCM-SHA256.
func openSSLName(suite string) string {
	kx, rest, ok := strings.Cut(strings.TrimPrefix(suite, "TLS_"), "_WITH_")
	if !ok {
		return suite
	}
	rest = strings.NewReplacer("AES_", "AES", "_CBC", "", "3DES_EDE", "DES-CBC3", "CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305").Replace(rest)
	name := strings.ReplaceAll(kx+"-"+rest, "_", "-")
	return strings.TrimPrefix(name, "RSA-")
}

// curveNames are the key exchanges that crypto/tls has, under OpenSSL's names.
var curveNames = map[string]tls.CurveID{
	"x25519":             tls.X25519,
	"prime256v1":         tls.CurveP256,
	"secp256r1":          tls.CurveP256,
	"p-256":              tls.CurveP256,
	"secp384r1":          tls.CurveP384,
	"p-384":              tls.CurveP384,
	"secp521r1":          tls.CurveP521,
	"p-521":              tls.CurveP521,
	"x25519mlkem768":     tls.X25519MLKEM768,
	"secp256r1mlkem768":  tls.SecP256r1MLKEM768,
	"secp384r1mlkem1024": tls.SecP384r1MLKEM1024,
}

// Curves reads tls_eecdh_auto_curves. Names that are not known are passed over,
// as with OpenSSL, but one must be. An empty list leaves the choice to
// crypto/tls, which decides about the order in any case.
func Curves(names []string) ([]tls.CurveID, error) {
	var out []tls.CurveID
	for _, n := range names {
		if id, ok := curveNames[strings.ToLower(n)]; ok {
			out = append(out, id)
		}
	}
	if len(names) > 0 && len(out) == 0 {
		return nil, fmt.Errorf("none of %s is known", strings.Join(names, " "))
	}
	return out, nil
}
