package sasl

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"
	"testing"

	"posthaste/internal/testcert"
)

// session is a TLS session, as its two ends see it.
func session(t *testing.T, version uint16) (client tls.ConnectionState, server Client) {
	pair := testcert.Make(t, x509.Certificate{}, nil)
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	srv := tls.Server(far, &tls.Config{Certificates: []tls.Certificate{pair.TLS()},
		MaxVersion: version, SessionTicketsDisabled: true})
	result := make(chan error, 1)
	go func() { result <- srv.Handshake() }()
	c := tls.Client(near, &tls.Config{InsecureSkipVerify: true})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	state := srv.ConnectionState()
	return c.ConnectionState(), Client{TLS: &state, Certificate: pair.Cert}
}

// What both ends see of the session has to be in the proof: who relays an
// exchange from one session to another gets nowhere.
func TestChannelBinding(t *testing.T) {
	t.Parallel()
	const plus = "SCRAM-SHA-256-PLUS"
	u := users(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		state, c := session(t, version)
		ekm, err := state.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
		if err != nil {
			t.Fatal(err)
		}
		cert := sha256.Sum256(state.PeerCertificates[0].Raw)
		_, other := session(t, version)
		resumed := c
		resumed.Certificate = nil
		for _, tt := range []struct {
			name, mech, gs2 string
			c               Client
			data            []byte
			ok              bool
		}{
			{"exporter", plus, "p=tls-exporter,,", c, ekm, true},
			{"certificate", plus, "p=tls-server-end-point,,", c, cert[:], true},
			{"exporter, resumed", plus, "p=tls-exporter,,", resumed, ekm, true},
			{"certificate, resumed", plus, "p=tls-server-end-point,,", resumed, cert[:], false},
			{"no data", plus, "p=tls-exporter,,", c, nil, false},
			{"one named, the other sent", plus, "p=tls-exporter,,", c, cert[:], false},
			{"another session", plus, "p=tls-exporter,,", other, ekm, false},
			{"another certificate", plus, "p=tls-server-end-point,,", other, cert[:], false},
			{"an unknown type of binding", plus, "p=tls-unique,,", c, ekm, false},
			{"not bound at all", plus, "n,,", c, nil, false},
			{"without", "SCRAM-SHA-256", "n,,", c, nil, true},
			{"deceived", "SCRAM-SHA-256", "y,,", c, nil, false},
			{"not offered", "SCRAM-SHA-256", "y,,", Client{TLS: c.TLS, Certificate: c.Certificate, Unbound: true}, nil, true},
		} {
			if err := boundClient(t, u, tt.c, tt.mech, "joe", "secret", tt.gs2, tt.data, nil); (err == nil) != tt.ok {
				t.Errorf("%s %s: %v", tls.VersionName(version), tt.name, err)
			}
		}
	}
}

func TestMechanismsByClient(t *testing.T) {
	t.Parallel()
	u := users(t)
	u.tokens = &Tokens{}
	_, c := session(t, tls.VersionTLS13)
	hidden := c
	hidden.Unbound = true
	for _, tt := range []struct {
		c    Client
		want []string
	}{
		{Client{}, []string{"PLAIN", "LOGIN", "SCRAM-SHA-256"}},
		{c, []string{"PLAIN", "LOGIN", "SCRAM-SHA-256", "SCRAM-SHA-256-PLUS", "OAUTHBEARER", "XOAUTH2"}},
		{hidden, []string{"PLAIN", "LOGIN", "SCRAM-SHA-256", "OAUTHBEARER", "XOAUTH2"}},
	} {
		list, err := u.Mechanisms(t.Context(), tt.c)
		var names []string
		for _, m := range list {
			names = append(names, m.Name)
		}
		if err != nil || !slices.Equal(names, tt.want) {
			t.Errorf("%v: %v, want %v", err, names, tt.want)
		}
	}
}
