package smtpd

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/config"
)

// What OpenSSL's names exclude is not offered; if that is everything, only
// TLSv1.3 is left, and never the library's own list.
func TestExcludedCiphers(t *testing.T) {
	t.Parallel()
	const aes128 = tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
	for _, tt := range []struct {
		main     string
		offered  bool // ECDHE-RSA-AES128-GCM-SHA256
		low      uint16
		warnings int
		err      bool
	}{
		{main: "", offered: true, low: tls.VersionTLS12},
		{main: "smtpd_tls_exclude_ciphers = aNULL, MD5, DES\n", offered: true, low: tls.VersionTLS12},
		{main: "smtpd_tls_exclude_ciphers = AES128\n", low: tls.VersionTLS12},
		{main: "smtpd_tls_exclude_ciphers = ECDHE-RSA-AES128-GCM-SHA256\n", low: tls.VersionTLS12},
		{main: "smtpd_tls_exclude_ciphers = AESGCM\n", low: tls.VersionTLS12},
		{main: "smtpd_tls_exclude_ciphers = aRSA\n", low: tls.VersionTLS12},
		{main: "smtpd_tls_exclude_ciphers = AES, CHACHA20\n", low: tls.VersionTLS13},
		{main: "smtpd_tls_exclude_ciphers = ECDHE\nsmtpd_tls_protocols = TLSv1.2\n", err: true},
		{main: "smtpd_tls_exclude_ciphers = AES_128\n", offered: true, low: tls.VersionTLS12, warnings: 1},
		{main: "tls_medium_cipherlist = aNULL:-aNULL:kEECDH+AESGCM+aRSA:@STRENGTH\n", offered: true, low: tls.VersionTLS12},
		{main: "tls_medium_cipherlist = ECDHE-RSA-AES256-GCM-SHA384\n", low: tls.VersionTLS12},
		{main: "tls_high_cipherlist = ECDHE-RSA-AES256-GCM-SHA384\n", offered: true, low: tls.VersionTLS12}, // not the grade in force
		{main: "tls_high_cipherlist = ECDHE-RSA-AES256-GCM-SHA384\nsmtpd_tls_ciphers = high\n", low: tls.VersionTLS12},
		{main: "tls_medium_cipherlist = EECDH+AESGCM\nsmtpd_tls_exclude_ciphers = AES128\n", low: tls.VersionTLS12},
		{main: "tls_low_cipherlist = ECDHE-RSA-AES256-GCM-SHA384\nsmtpd_tls_ciphers = low\n", low: tls.VersionTLS12},
	} {
		cfg, err := config.LoadString("smtpd_tls_protocols = >=TLSv1.2\n" + tt.main)
		if err != nil {
			t.Fatal(err)
		}
		var said []string
		s := &tlsSettings{keys: new(keyring)}
		err = s.makeConfig(cfg, func(format string, v ...any) { said = append(said, fmt.Sprintf(format, v...)) })
		if (err != nil) != tt.err || len(said) != tt.warnings {
			t.Errorf("%q: %v; warnings %q", tt.main, err, said)
		}
		if err != nil {
			continue
		}
		if tt.warnings > 0 && !strings.Contains(said[0], `"AES_128"`) {
			t.Errorf("%q: %q", tt.main, said)
		}
		c := s.config
		if c.CipherSuites == nil || slices.Contains(c.CipherSuites, aes128) != tt.offered || c.MinVersion != tt.low {
			t.Errorf("%q: %v from %#x on", tt.main, c.CipherSuites, c.MinVersion)
		}
	}
}
