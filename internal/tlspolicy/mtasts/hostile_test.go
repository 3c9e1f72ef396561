package mtasts

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"testing"

	"posthaste/internal/lockstep/hostile"
	"posthaste/internal/resolver/fakezone"
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
	client := httpClient(dns)
	tr := client.Transport.(*http.Transport)
	tr.DialContext, tr.TLSClientConfig.RootCAs = dial, roots
	tab := New(Options{Resolver: dns, Client: client, Warn: func(text string) { err = errors.New(text) }})
	if p, perr := tab.Policy(t.Context(), "a.test"); p != nil || perr != nil {
		t.Errorf("policy %v, %v", p, perr)
	}
	return errors.Join(err, tab.Close())
}
