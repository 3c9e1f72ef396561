package mtasts

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"posthaste/internal/lockstep/hostile"
	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/webclient"
)

// Who publishes a policy is a stranger: of whatever the site sends no more is taken, and for no
// longer, than a policy may need.
func TestHostileSites(t *testing.T) {
	t.Parallel()
	hostile.Web(t, hostile.WebClient{Reads: true, Most: 2*maxPolicy + 32<<10, Time: fetchTime, Says: "a.test", Fetch: fetchFrom})
}

// fetchFrom looks up the policy of a.test, whose site is what dial connects to.
func fetchFrom(t *testing.T, dial func(context.Context, string, string) (net.Conn, error), roots *x509.CertPool) (err error) {
	dns := fakezone.Must("_mta-sts.a.test. 0 TXT \"v=STSv1; id=1\"").Resolver()
	defer dns.Close()
	client := webclient.New(webclient.Options{Resolver: dns})
	tr := client.Transport.(*http.Transport)
	tr.DialContext, tr.TLSClientConfig.RootCAs = dial, roots
	tab := New(Options{Resolver: dns, Client: client, Warn: func(text string) { err = errors.New(text) }})
	if p, perr := tab.Policy(t.Context(), "a.test"); p != nil || perr != nil {
		t.Errorf("policy %v, %v", p, perr)
	}
	return errors.Join(err, tab.Close())
}

// A domain's DNS cannot have us connect to this host or to a network of ours.
func TestPrivateSites(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"A 127.0.0.1", "A 10.1.2.3", "A 169.254.169.254", "AAAA ::1", "AAAA fd00::1"} {
		dns := fakezone.Must("_mta-sts.a.test. TXT \"v=STSv1; id=1\"\nmta-sts.a.test. " + addr).Resolver()
		var said string
		asked := 0
		tab := New(Options{Resolver: dns, Warn: func(text string) { said += text },
			Allowed: func(context.Context, netip.Addr) (bool, error) { asked++; return false, nil }})
		if p, err := tab.Policy(t.Context(), "a.test"); p != nil || err != nil {
			t.Errorf("%s: policy %v, %v", addr, p, err)
		}
		tab.Close()
		dns.Close()
		if asked != 1 || !strings.HasPrefix(said, "mta-sts: policy of a.test: ") || !strings.HasSuffix(said, ": "+webclient.ErrNotPublic.Error()) {
			t.Errorf("%s: asked %d times, said %q", addr, asked, said)
		}
	}
}
