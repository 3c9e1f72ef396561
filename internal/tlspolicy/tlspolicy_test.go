package tlspolicy

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseProtocols(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                         "301-304",
		">=TLSv1":                  "301-304",
		">=TLSv1.2":                "303-304",
		">=TLSv1.2, <=TLSv1.2":     "303-303",
		">=0303":                   "error",
		">=0x0303":                 "303-304",
		"!SSLv2, !SSLv3":           "301-304",
		"!SSLv2:!SSLv3:!TLSv1":     "302-304",
		"TLSv1.2 TLSv1.3":          "303-304",
		"tlsv1.3":                  "304-304",
		"!TLSv1.2":                 "304-304 there is a gap between the protocols: those before TLSv1.3 are not used",
		"TLSv1 TLSv1.2 TLSv1.3":    "303-304 there is a gap between the protocols: those before TLSv1.2 are not used",
		"TLSv1 TLSv1.2 !TLSv1.3":   "303-303 there is a gap between the protocols: those before TLSv1.2 are not used",
		"SSLv3":                    "error",
		"TLSv9":                    "error",
		"<=TLSv1.1 >=TLSv1.2":      "error",
		"TLSv1, TLSv1.1, !TLSv1.1": "301-301",
	} {
		p, err := ParseProtocols(text)
		got := fmt.Sprintf("%x-%x", p.Min, p.Max)
		if w := p.Warning(); w != "" {
			got += " " + w
		}
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: %s (%v), want %s", text, got, err, want)
		}
	}
}

func TestCipherSuites(t *testing.T) {
	t.Parallel()
	has := func(ids []uint16, id uint16) bool { return slices.Contains(ids, id) }
	medium, err := CipherSuites("medium", nil)
	if err != nil || !has(medium, tls.TLS_RSA_WITH_AES_128_CBC_SHA) || has(medium, tls.TLS_RSA_WITH_RC4_128_SHA) {
		t.Error(medium, err)
	}
	high, err := CipherSuites("high", []string{"aNULL", "ECDSA", "AES128"})
	if err != nil || has(high, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384) || has(high, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) ||
		!has(high, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384) || has(high, tls.TLS_RSA_WITH_AES_256_CBC_SHA) {
		t.Error(high, err)
	}
	for _, tt := range []struct {
		word string
		out  uint16
		in   uint16
	}{
		{"kRSA", tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256},
		{"3DES", tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA, tls.TLS_RSA_WITH_AES_128_CBC_SHA},
		{"SHA1", tls.TLS_RSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_AES_128_CBC_SHA256},
		{"AESGCM", tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_128_CBC_SHA},
		{"ECDHE-RSA-AES128-GCM-SHA256", tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
		{"AES128-SHA", tls.TLS_RSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA},
		{"kRSA+AES128", tls.TLS_RSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_AES_256_CBC_SHA},
	} {
		ids, err := CipherSuites("medium", []string{tt.word})
		if err != nil || has(ids, tt.out) || !has(ids, tt.in) {
			t.Errorf("%s: %s out: %v, %s in: %v, %v", tt.word, tls.CipherSuiteName(tt.out), !has(ids, tt.out), tls.CipherSuiteName(tt.in), has(ids, tt.in), err)
		}
	}
	if _, err := CipherSuites("null", nil); err == nil {
		t.Error("no encryption at all is a grade")
	}
}

// What excludes nothing, because it is mistyped, is told; what there is nothing
// of to exclude is not.
func TestUnknownCiphers(t *testing.T) {
	t.Parallel()
	got := UnknownCiphers([]string{"aNULL", "MD5:DES:3DES", "AES128-SHA", "ECDHE-RSA-AES128-GCM-SHA256", "DHE-RSA-AES256-SHA", "kRSA+AES128", "aRSA", "AESGCM",
		"TLS_RSA_WITH_AES_128_CBC_SHA", "CAMELLIA", "AES_128", "AES-128", "kRSA+AES129", "GCM:RC4"})
	if want := []string{"AES_128", "AES-128", "KRSA+AES129", "GCM"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	ids, err := CipherSuites("high", []string{"AES128:AES256", "CHACHA20"})
	if err != nil || ids == nil || len(ids) != 0 {
		t.Errorf("%v, %v; want none, which is not the library's own list", ids, err)
	}
}

func TestParsePolicy(t *testing.T) {
	t.Parallel()
	s := &Settings{Protocols: ">=TLSv1", MandatoryProtocols: ">=TLSv1.2", Ciphers: "medium", MandatoryCiphers: "high",
		Exclude: []string{"A"}, MandatoryExclude: []string{"B"}, SecureMatch: []string{"nexthop"}, VerifyMatch: []string{"hostname"}, EnforceSTSPatterns: true}
	for text, want := range map[string]string{
		"none":    "none  >=TLSv1 medium [A] [] false",
		"may":     "may  >=TLSv1 medium [A] [] false",
		"Encrypt": "encrypt  >=TLSv1.2 high [A B] [] false",
		"secure":  "secure  >=TLSv1.2 high [A B] [nexthop] false",
		"secure match=a.test:.b.test match=c.test":                                                       "secure  >=TLSv1.2 high [A B] [a.test .b.test c.test] false",
		"verify protocols=!SSLv2:TLSv1.3 exclude=X:Y ciphers=high":                                       "verify  !SSLv2 TLSv1.3 high [X Y] [hostname] false",
		"fingerprint match=00:11|22:33":                                                                  "fingerprint  >=TLSv1.2 high [A B] [00:11 22:33] false",
		"may servername=x connection_reuse=yes":                                                          "may x >=TLSv1 medium [A] [] true",
		"secure match=.mx.test servername=hostname policy_type=sts mx_host_pattern=mx.test policy_ttl=3": "secure hostname >=TLSv1.2 high [A B] [hostname] false",
		"secure policy_type=sts { policy_string = version: STSv1 } { policy_string = mx: a, b } {match=a.test}, { match =\r\n b.test }, servername=x": "secure x >=TLSv1.2 high [A B] [a.test b.test] false",
		"may { exclude = X, Y:Z } { protocols = !SSLv2, TLSv1.3 } {policy_type=sts} {policy_string={x}}":                                              "may  !SSLv2, TLSv1.3 medium [X Y Z] [] false",
		"may { servername = x":             "error",
		"may {servername=x}y":              "error",
		"may {servername=x}{ciphers=high}": "error",
		"may servername = x":               "error",
		"may {}":                           "error",
		"may { servername }":               "error",
		"may {= x}":                        "error",
		"":                                 "error",
		"half-dane":                        "error",
		"secure policy_failure=whatever":   "error",
		"always":                           "error",
		"may match=x":                      "error",
		"may foo":                          "error",
		"may foo=bar":                      "error",
		"may ciphers=what":                 "error",
		"may protocols=TLSv9":              "error",
		"may connection_reuse=maybe":       "error",
		"encrypt tafile=/x":                "error",
		// As Postfix has it.
		"none match=x foo":                                 "none  >=TLSv1 medium [A] [] false",
		"encrypt protocols= exclude=":                      "encrypt   high [] [] false",
		"encrypt Connection_Reuse=YES connection_reuse=No": "encrypt  >=TLSv1.2 high [A B] [] false",
		"encrypt enable_rpk=yes":                           "encrypt  >=TLSv1.2 high [A B] [] false",
		"verify tafile=/x tafile=/y":                       "verify  >=TLSv1.2 high [A B] [hostname] false",
		"dane match=x":                                     "error",
		"fingerprint match=00 tafile=/x":                   "error",
		"dane-only tafile=/x":                              "error",
		"secure match=":                                    "error",
		"secure tafile=":                                   "error",
		"encrypt ciphers=":                                 "error",
		"encrypt servername=":                              "error",
		"encrypt servername=a..b":                          "error",
		"encrypt enable_rpk=perhaps":                       "error",
		"encrypt ciphers=high ciphers=high":                "error",
		"encrypt protocols=TLSv1.2 Protocols=TLSv1.3":      "error",
		"encrypt servername=a servername=a":                "error",
		"encrypt exclude=A exclude=B":                      "error",
		"secure policy_type=sts policy_type=sts":           "error",
		"secure policy_type=mine":                          "error",
		"secure policy_type=sts policy_ttl=soon":           "error",
		"secure policy_type=sts policy_domain=a..b":        "error",
		"secure mx_host_pattern=a.test":                    "error",
		"secure policy_ttl=3":                              "error",
		"secure {policy_string=x}":                         "error",
		"secure policy_failure=validation-failure":         "error",
	} {
		p, err := s.Parse(text)
		got := "error"
		if err == nil {
			got = fmt.Sprintf("%s %s %s %s %v %v %v", p.Level, p.ServerName, p.Protocols, p.Ciphers, p.Exclude, p.Match, p.Reuse)
		}
		if got != want {
			t.Errorf("%q: %s (%v), want %s", text, got, err, want)
		}
	}
}

// What a policy was given stays at another level, the rest follows main.cf.
func TestAt(t *testing.T) {
	t.Parallel()
	s := &Settings{Protocols: "p", MandatoryProtocols: "m", Ciphers: "medium", MandatoryCiphers: "high", Exclude: []string{"A"}, MandatoryExclude: []string{"B"},
		VerifyMatch: []string{"hostname"}}
	show := func(p *Policy) string {
		return fmt.Sprint(p.Level, " ", p.Protocols, " ", p.Ciphers, " ", p.Exclude, p.Match, p.Reuse)
	}
	for _, tt := range []struct {
		text  string
		level Level
		want  string
	}{
		{"dane", May, "may p medium [A] [] false"},
		{"dane protocols=TLSv1.3 connection_reuse=yes", May, "may TLSv1.3 medium [A] [] true"},
		{"dane ciphers=low exclude=X", Encrypt, "encrypt m low [X] [] false"},
		{"may", Verify, "verify m high [A B] [hostname] false"},
		{"verify", May, "may p medium [A] [] false"},
	} {
		p, err := s.Parse(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		before := show(p)
		if got := show(s.At(p, tt.level)); got != tt.want {
			t.Errorf("%s at %s: %s, want %s", tt.text, tt.level, got, tt.want)
		}
		if show(p) != before {
			t.Errorf("%s: the policy itself has changed: %s", tt.text, show(p))
		}
	}
}

func TestAllowsMX(t *testing.T) {
	t.Parallel()
	p := &Policy{STS: true, MXPatterns: []string{"mx.a.test", "*.b.test", ".c.test", "xn--bcher-kva.test"}}
	for host, want := range map[string]bool{"mx.a.test": true, "MX.A.TEST": true, "x.b.test": true, "x.y.b.test": false, "b.test": false, "x.c.test": true, "mx2.a.test": false,
		"bücher.test": true, "mx.bücher.b.test": false, "bücher.b.test": true} {
		if p.AllowsMX(host) != want {
			t.Errorf("%s: %v", host, !want)
		}
	}
	for _, enforce := range []bool{true, false} {
		s := &Settings{EnforceSTSPatterns: enforce}
		p, err := s.Parse("secure policy_type=sts match=mx.a.test mx_host_pattern=mx.a.test")
		if err != nil || p.AllowsMX("other.test") == enforce {
			t.Errorf("smtp_tls_enforce_sts_mx_patterns %v: other.test %v (%v)", enforce, !enforce, err)
		}
		if want := map[bool]string{true: "hostname", false: "mx.a.test"}[enforce]; err == nil && (len(p.Match) != 1 || p.Match[0] != want) {
			t.Errorf("smtp_tls_enforce_sts_mx_patterns %v: match %v, want %s", enforce, p.Match, want)
		}
	}
	if !(&Policy{}).AllowsMX("x") {
		t.Error("without MTA-STS every host will do")
	}
}

func TestNameRule(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cert  string // DNS names, or cn= before a common name
		name  string
		many  bool
		match bool
	}{
		{"a.test", "a.test", false, true}, {"A.Test.", "a.test", false, true}, {"b.test a.test", "a.test", false, true},
		{"a.test", "b.a.test", true, false}, {"b.a.test", ".a.test", false, true}, {"c.b.a.test", ".a.test", false, true},
		{"a.test", ".a.test", false, false}, {"xa.test", ".a.test", false, false},
		{"*.a.test", "b.a.test", false, true}, {"*.a.test", "c.b.a.test", false, false}, {"*.a.test", "c.b.a.test", true, true},
		{"*.a.test", "a.test", true, false}, {"*.a.test", ".a.test", false, true}, {"*.test", "a.test", false, false}, {"*", "test", true, false},
		{"*.b.a.test", ".a.test", false, true}, {"b*.a.test", "b1.a.test", true, false},
		{"cn=a.test", "a.test", false, true}, {"b.test cn=a.test", "a.test", false, false}, {"a.test\x00", "a.test", false, false}, {"", "", true, false},
	} {
		c := new(x509.Certificate)
		for _, w := range strings.Fields(tt.cert) {
			if cn, ok := strings.CutPrefix(w, "cn="); ok {
				c.Subject = pkix.Name{CommonName: cn}
			} else {
				c.DNSNames = append(c.DNSNames, w)
			}
		}
		if got := (NameRule{ManyLabels: tt.many}).Match(c, []string{tt.name}); got != tt.match {
			t.Errorf("%q for %q (%v): %v", tt.cert, tt.name, tt.many, got)
		}
	}
}

func TestUsable(t *testing.T) {
	t.Parallel()
	d32, d64 := make([]byte, 32), make([]byte, 64)
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	cert, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	records := []TLSA{{0, 0, 1, d32}, {1, 1, 1, d32}, {3, 1, 1, d32}, {3, 1, 2, d64}, {3, 1, 2, d32}, {3, 2, 1, d32}, {3, 1, 3, d32}, {2, 0, 1, d32}, {3, 0, 0, nil}, {3, 0, 0, []byte{1}},
		{3, 0, 0, key}, {3, 0, 0, cert}, {3, 1, 0, key}, {2, 1, 0, cert}}
	got := fmt.Sprint(Usable(records, []string{"sha512", "sha256"}))
	want := fmt.Sprint([]TLSA{{3, 1, 2, d64}, {2, 0, 1, d32}, {3, 0, 0, cert}, {3, 1, 0, key}})
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := Usable(records[2:3], []string{"sha512"}); len(got) != 0 {
		t.Errorf("a digest that is not in use is usable: %v", got)
	}
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	c := &x509.Certificate{Raw: []byte("cert"), RawSubjectPublicKeyInfo: []byte("key")}
	sum := sha256.Sum256([]byte("key"))
	colons := strings.ReplaceAll(strings.TrimSuffix(fmt.Sprintf("% X", sum), " "), " ", ":")
	if !MatchFingerprint(c, "SHA256", []string{"zz", colons}) || MatchFingerprint(c, "sha256", []string{colons[3:]}) || MatchFingerprint(c, "md5", []string{colons}) {
		t.Error("fingerprint of the key")
	}
	if MatchFingerprint(c, "what", []string{""}) || MatchFingerprint(c, "sha256", []string{""}) {
		t.Error("an empty fingerprint matches")
	}
	if VerifyDANE(nil, []*x509.Certificate{c}, nil, 9, c.NotAfter, NameRule{}) == nil || VerifyDANE([]TLSA{{3, 1, 1, sum[:]}}, nil, nil, 9, c.NotAfter, NameRule{}) == nil {
		t.Error("DANE without records or without certificates")
	}
	if err := VerifyDANE([]TLSA{{3, 1, 1, sum[:]}}, []*x509.Certificate{c}, nil, 9, c.NotAfter, NameRule{}); err != nil {
		t.Error(err)
	}
}

func TestCurves(t *testing.T) {
	t.Parallel()
	got, err := Curves(strings.Fields("X25519MLKEM768 x25519 X448 prime256v1 secp521r1 P-384"))
	want := []tls.CurveID{tls.X25519MLKEM768, tls.X25519, tls.CurveP256, tls.CurveP521, tls.CurveP384}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}
	if got, err := Curves(nil); got != nil || err != nil {
		t.Errorf("an empty list: %v %v", got, err)
	}
	if _, err := Curves([]string{"X448"}); err == nil {
		t.Error("nothing is left, and that is no error")
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add("secure match=a:b protocols=TLSv1.3")
	s := &Settings{}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := s.Parse(text)
		if err == nil && p.Level == None && len(p.Match) > 0 {
			t.Errorf("%q", text)
		}
	})
}

func TestReadPair(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"new.pem":   "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
		"old.pem":   "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n",
		"plain.pem": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadPair(path, path)
		if err == nil || !strings.HasPrefix(err.Error(), "certificate "+path+" with key "+path+": ") ||
			strings.Contains(err.Error(), "the key is encrypted") != (name != "plain.pem") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
