package smtpd

import (
	"crypto/tls"
	"slices"
	"testing"

	"posthaste/internal/config"
)

// TestCurves: tls_eecdh_auto_curves decides about key exchanges.
func TestCurves(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]tls.CurveID{
		"": {tls.X25519MLKEM768, tls.X25519, tls.CurveP256, tls.CurveP521, tls.CurveP384},
		"tls_eecdh_auto_curves = secp384r1 X448\n": {tls.CurveP384},
		"tls_eecdh_auto_curves = X448\n":           nil,
	} {
		cfg, err := config.LoadString(text)
		if err != nil {
			t.Fatal(err)
		}
		s := &tlsSettings{keys: new(keyring)}
		err = s.makeConfig(cfg, t.Logf)
		if (err == nil) != (want != nil) {
			t.Errorf("%q: %v", text, err)
		} else if err == nil && !slices.Equal(s.config.CurvePreferences, want) {
			t.Errorf("%q: %v, want %v", text, s.config.CurvePreferences, want)
		}
	}
}
