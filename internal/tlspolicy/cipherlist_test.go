package tlspolicy

import (
	"crypto/tls"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/testpeers"
)

// openSSLNames are the suites of a list, sorted.
func openSSLNames(ids []uint16) (names []string) {
	for _, s := range negotiable() {
		if slices.Contains(ids, s.ID) {
			names = append(names, openSSLName(s.Name))
		}
	}
	slices.Sort(names)
	return names
}

func TestParseCipherList(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, suites, absent, without string }{
		{"", "", "", ""},
		{"ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384", "", ""},
		{"TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384", "", ""},
		{"aNULL:-aNULL:kEECDH+AESGCM+aRSA:@STRENGTH", "ECDHE-RSA-AES128-GCM-SHA256 ECDHE-RSA-AES256-GCM-SHA384", "", ""},
		{"EECDH+AESGCM, DHE-RSA-AES256-GCM-SHA384 !ECDSA", "ECDHE-RSA-AES128-GCM-SHA256 ECDHE-RSA-AES256-GCM-SHA384", "DHE-RSA-AES256-GCM-SHA384", ""},
		{"AES128-SHA:!AES128-SHA:AES128-SHA", "", "", ""},
		{"AES128-SHA:-AES128-SHA:AES128-SHA", "AES128-SHA", "", ""},
		{"CHACHA20:+CHACHA20", "ECDHE-ECDSA-CHACHA20-POLY1305 ECDHE-RSA-CHACHA20-POLY1305", "", ""},
		{"MEDIUM:!kECDHE", "DES-CBC3-SHA", "", ""},
		{"AES256-SHA:NONSENSE:RC4-SHA:@SECLEVEL=2", "AES256-SHA", "NONSENSE RC4-SHA", "@SECLEVEL=2"},
		{"!:-:+", "", "", ""},
	} {
		l := ParseCipherList(test.text)
		if got := strings.Join(openSSLNames(l.Suites), " "); l.Suites == nil || got != test.suites {
			t.Errorf("%q: %q, want %q", test.text, got, test.suites)
		}
		if got := strings.Join(l.Absent, " "); got != test.absent {
			t.Errorf("%q: absent %q, want %q", test.text, got, test.absent)
		}
		if got := strings.Join(l.Without, " "); got != test.without {
			t.Errorf("%q: without effect %q, want %q", test.text, got, test.without)
		}
	}
}

// TestCipherListOracle: of the suites that both have, a list selects those that OpenSSL selects.
func TestCipherListOracle(t *testing.T) {
	t.Parallel()
	testpeers.Program(t, "openssl")
	names := func(list string) []string {
		out, err := exec.Command("openssl", "ciphers", list+":@SECLEVEL=0").Output()
		if err != nil {
			t.Fatalf("openssl ciphers %s: %v", list, err)
		}
		return strings.Split(strings.TrimSpace(string(out)), ":")
	}
	all := names("ALL:COMPLEMENTOFALL")
	for _, list := range []string{"HIGH", "ALL", "DEFAULT", "HIGH:!aNULL", "HIGH:!kRSA", "ECDHE+AESGCM:ECDHE+CHACHA20", "HIGH:!SHA1", "AES256", "AES128+kRSA",
		"aECDSA", "ECDSA:!AES128", "kRSA:-SHA256", "AESGCM:!aRSA", "TLSv1.2", "HIGH:MEDIUM:!SHA384", "EECDH+SHA256", "ALL:!AES256:AES256", "ALL:-AES256:AES256+kEECDH"} {
		want := slices.DeleteFunc(names(list), func(name string) bool {
			return !slices.ContainsFunc(negotiable(), func(s *tls.CipherSuite) bool { return openSSLName(s.Name) == name })
		})
		slices.Sort(want)
		got := slices.DeleteFunc(openSSLNames(ParseCipherList(list).Suites), func(name string) bool { return !slices.Contains(all, name) })
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%q\nopenssl has\n%q", list, got, want)
		}
	}
}

// mediumSet is a main.cf with a value of tls_medium_cipherlist, and no other setting.
type mediumSet string

func (m mediumSet) String(name string) string {
	if m.IsDefault(name) {
		return "x"
	}
	return string(m)
}

func (m mediumSet) IsDefault(name string) bool { return name != "tls_medium_cipherlist" }

func TestGrades(t *testing.T) {
	t.Parallel()
	var warnings []string
	g := ReadGrades(mediumSet("AES128-SHA:AES256-SHA:NONSENSE:@SECLEVEL=1"), func(format string, args ...any) {
		warnings = append(warnings, fmt.Sprintf(format, args...))
	})
	if len(warnings) != 2 || !strings.Contains(warnings[0], "tls_medium_cipherlist: crypto/tls has no cipher of: NONSENSE") ||
		!strings.Contains(warnings[1], "@SECLEVEL=1") {
		t.Errorf("warnings %q", warnings)
	}
	for _, test := range []struct{ grade, exclude, want string }{
		{"medium", "", "AES128-SHA AES256-SHA"}, {"Medium", "AES256", "AES128-SHA"},
	} {
		ids, err := g.Suites(test.grade, []string{test.exclude})
		if got := strings.Join(openSSLNames(ids), " "); err != nil || got != test.want {
			t.Errorf("%s without %q: %q, %v; want %q", test.grade, test.exclude, got, err, test.want)
		}
	}
	usual, _ := CipherSuites("high", nil)
	for _, g := range []Grades{g, nil} {
		if ids, err := g.Suites("high", nil); err != nil || !slices.Equal(ids, usual) {
			t.Errorf("high: %v, %v", ids, err)
		}
	}
}
