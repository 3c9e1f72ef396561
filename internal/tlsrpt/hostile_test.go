package tlsrpt

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/lockstep/hostile"
)

// Where a report goes is for strangers to say: what is answered there is not read beyond what
// says whether the report was taken.
func TestHostileSites(t *testing.T) {
	t.Parallel()
	hostile.Web(t, hostile.WebClient{Most: 64 << 10, Time: sendTime, Says: hostile.WebHost,
		Fetch: func(t *testing.T, dial func(context.Context, string, string) (net.Conn, error), roots *x509.CertPool) error {
			client := httpClient(nil)
			tr := client.Transport.(*http.Transport)
			tr.DialContext, tr.TLSClientConfig.RootCAs = dial, roots
			s := newSystem(t, t.TempDir(), `_smtp._tls.to.test. TXT "v=TLSRPTv1;rua=https://`+hostile.WebHost+`/"`, client)
			return s.send(t.Context(), s.compose("to.test", day, []*tally{{policy: stsOf, good: 1}}), noon)
		}})
}

// However many places a domain names that hang, the reports about others wait for a minute.
func TestHangingDestinations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t, t.TempDir(), `_smtp._tls.to.test. TXT "v=TLSRPTv1;rua=mailto:a@x.test,mailto:b@x.test,mailto:c@x.test"`, nil)
		s.opt.Mail = func(ctx context.Context, _ string, _ []byte) error {
			<-ctx.Done()
			return ctx.Err()
		}
		start := time.Now()
		err := s.send(t.Context(), s.compose("to.test", day, []*tally{{policy: stsOf, good: 1}}), noon)
		if took := time.Since(start); err == nil || !strings.Contains(err.Error(), "c@x.test") || took != sendTime {
			t.Errorf("%v after %v", err, took)
		}
	})
}
