package tlspolicy

import (
	"crypto/tls"
	"slices"
	"strings"
)

// A CipherList is what an OpenSSL cipher list (ciphers(1)) means for crypto/tls: which suites
// of TLS 1.0 to 1.2 it has. The suites of TLS 1.3 cannot be chosen. Nor can the order: crypto/tls
// has one of its own.
type CipherList struct {
	Suites []uint16 // never nil
	// Absent are the words that ask for suites of which crypto/tls has none, or that are
	// unknown, in their order.
	Absent []string
	// Without are the commands without effect: @STRENGTH has none here, and is not among them.
	Without []string
}

// ParseCipherList reads a cipher list. Like OpenSSL it passes over words that it does not know.
func ParseCipherList(text string) CipherList {
	l := CipherList{Suites: []uint16{}}
	killed := make(map[uint16]bool)
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(":, ;\t\r\n", r) }) {
		op, name := word[0], strings.TrimLeft(word, "!-+")
		switch {
		case strings.HasPrefix(word, "@"):
			if !strings.EqualFold(word, "@STRENGTH") {
				l.Without = append(l.Without, word)
			}
			continue
		case name == "" || op == '+': // the latter is about order alone
			continue
		}
		found := suitesOf(name)
		if len(found) == 0 && op != '!' && op != '-' && !slices.Contains(l.Absent, word) && !emptyClass(name) {
			l.Absent = append(l.Absent, word)
		}
		for _, id := range found {
			switch {
			case op == '!' || op == '-':
				l.Suites = slices.DeleteFunc(l.Suites, func(other uint16) bool { return other == id })
				killed[id] = killed[id] || op == '!'
			case !killed[id] && !slices.Contains(l.Suites, id):
				l.Suites = append(l.Suites, id)
			}
		}
	}
	return l
}

// emptyClass says whether OpenSSL itself has nothing in a class, or nothing that it would offer,
// so that nobody misses it.
func emptyClass(name string) bool {
	switch strings.ToUpper(name) {
	case "ANULL", "ENULL", "NULL", "LOW", "EXPORT", "EXP", "EXPORT40", "EXPORT56", "COMPLEMENTOFDEFAULT", "COMPLEMENTOFALL":
		return true
	}
	return false
}

// suitesOf are the suites that a word without its sign stands for: a name, a class, or classes
// joined by +.
func suitesOf(word string) (ids []uint16) {
	parts := strings.Split(strings.ToUpper(word), "+")
	for _, s := range negotiable() {
		if !slices.ContainsFunc(parts, func(p string) bool { return !inClass(s.Name, p) }) {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// negotiable are the suites that can be chosen at all. RC4 is not among them, as with any
// OpenSSL of today.
func negotiable() []*tls.CipherSuite {
	all := append(tls.CipherSuites(), tls.InsecureCipherSuites()...)
	return slices.DeleteFunc(all, func(s *tls.CipherSuite) bool {
		return strings.Contains(s.Name, "RC4") || s.SupportedVersions[0] == tls.VersionTLS13
	})
}

// inClass is has with the classes that make no sense in an exclusion list.
func inClass(suite, class string) bool {
	triple := strings.Contains(suite, "3DES")
	switch class {
	case "ALL", "DEFAULT":
		return true
	case "HIGH":
		return !triple
	case "MEDIUM":
		return triple
	case "TLSV1", "TLSV1.0":
		return strings.HasSuffix(suite, "_SHA")
	case "SSLV3":
		return strings.HasSuffix(suite, "_SHA")
	case "TLSV1.2":
		return !strings.HasSuffix(suite, "_SHA")
	}
	return has(suite, class)
}

// Grades are the cipher lists that stand for cipher grades: tls_high_cipherlist and so on. A
// grade that is not there means what CipherSuites says. The nil map is valid.
type Grades map[string]CipherList

// A Configuration is main.cf.
type Configuration interface {
	String(name string) string
	IsDefault(name string) bool
}

// ReadGrades reads the parameters tls_GRADE_cipherlist. One with its default value stands for
// what CipherSuites says. warn is told what cannot be had.
func ReadGrades(cfg Configuration, warn func(format string, args ...any)) Grades {
	g := make(Grades)
	for _, p := range []struct{ grade, name, text string }{
		{"high", "tls_high_cipherlist", cfg.String("tls_high_cipherlist")},
		{"medium", "tls_medium_cipherlist", cfg.String("tls_medium_cipherlist")},
		{"low", "tls_low_cipherlist", cfg.String("tls_low_cipherlist")},
		{"export", "tls_export_cipherlist", cfg.String("tls_export_cipherlist")},
	} {
		if cfg.IsDefault(p.name) {
			continue
		}
		l := ParseCipherList(p.text)
		g[p.grade] = l
		if len(l.Absent) > 0 {
			warn("%s: crypto/tls has no cipher of: %s", p.name, strings.Join(l.Absent, " "))
		}
		if len(l.Without) > 0 {
			warn("%s: without effect in crypto/tls: %s", p.name, strings.Join(l.Without, " "))
		}
		if len(l.Suites) == 0 {
			warn("%s: no cipher is left: TLSv1.3 alone is offered, whose ciphers cannot be chosen", p.name)
		}
	}
	return g
}

// Suites is CipherSuites with the site's own lists.
func (g Grades) Suites(grade string, exclude []string) ([]uint16, error) {
	l, ok := g[strings.ToLower(grade)]
	if !ok {
		return CipherSuites(grade, exclude)
	}
	ids := []uint16{}
	for _, s := range negotiable() {
		if slices.Contains(l.Suites, s.ID) && !excluded(s.Name, exclude) {
			ids = append(ids, s.ID)
		}
	}
	return ids, nil
}
