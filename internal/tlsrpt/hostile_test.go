package tlsrpt

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/dayreport"
	"posthaste/internal/lockstep/hostile"
	"posthaste/internal/webclient"
)

// Where a report goes is for strangers to say: what is answered there is not read beyond what
// says whether the report was taken.
func TestHostileSites(t *testing.T) {
	t.Parallel()
	hostile.Web(t, hostile.WebClient{Most: 64 << 10, Time: sendTime, Says: hostile.WebHost,
		Fetch: func(t *testing.T, dial func(context.Context, string, string) (net.Conn, error), roots *x509.CertPool) error {
			client := webclient.New(webclient.Options{})
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

// Places that hang do not hold up the reports to others: some are sent at a time, and never more.
func TestSomeAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const hanging = 3*dayreport.AtOnce - 1
		zone := "_smtp._tls.zz.test. TXT \"v=TLSRPTv1;rua=mailto:ok@zz.test\"\n"
		for i := range hanging {
			zone += fmt.Sprintf("_smtp._tls.d%02d.test. TXT \"v=TLSRPTv1;rua=mailto:hang@x.test\"\n", i)
		}
		s := newSystem(t, t.TempDir(), zone, nil)
		var now, most atomic.Int32
		start := time.Now()
		var arrived time.Duration
		s.opt.Mail = func(ctx context.Context, to string, _ []byte) error {
			n := now.Add(1)
			defer now.Add(-1)
			for old := most.Load(); old < n && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			if to == "ok@zz.test" {
				arrived = time.Since(start)
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		for i := range hanging {
			s.Record(noon, Policy{Type: PolicyNone, Domain: fmt.Sprintf("d%02d.test", i)}, nil)
		}
		s.Record(noon, Policy{Type: PolicyNone, Domain: "zz.test"}, nil)
		s.Step(t.Context(), morning)
		if took := time.Since(start); most.Load() != dayreport.AtOnce || arrived != 2*sendTime || took != 3*sendTime {
			t.Errorf("%d at once; the last was sent after %v, all that hang took %v", most.Load(), arrived, took)
		}
		left, err := s.journal.Dir.Glob("report/*.json")
		if err != nil || len(left) != hanging {
			t.Errorf("%d reports wait, %v", len(left), err)
		}
	})
}
