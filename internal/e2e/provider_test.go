package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestProviderConcurrency sends mail to many domains of one provider: all of it arrives, never
// more than three messages at a time, although most of it was parked; and mail for somebody else
// arrives.
func TestProviderConcurrency(t *testing.T) {
	t.Parallel()
	provider, other := newLimitedOn(t, listenLoopback(t), 1000, 20*time.Millisecond), newSink(t, nil)
	const domains, each = 20, 4
	var routes strings.Builder
	var to []string
	for d := range domains {
		fmt.Fprintf(&routes, "d%d.test smtp:[127.2.0.%d]:%d\n", d, d+1, provider.l.Addr().(*net.TCPAddr).Port)
		for i := range each {
			to = append(to, fmt.Sprintf("u%d@d%d.test", i, d))
		}
	}
	fmt.Fprintf(&routes, "other.test smtp:[127.0.0.1]:%d\n", other.port())
	table := filepath.Join(t.TempDir(), "transport")
	if err := os.WriteFile(table, []byte(routes.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	s := newSystem(t, options{main: "transport_maps = texthash:" + table + `
destination_provider_maps = inline:{ {127.0.0.1 = other} }, static:big
destination_limit_maps = inline:{ {provider:big = concurrency=3} }
shared_limit_active_limit = 20
`})
	s.sendMany(to)
	if err := s.send("from@many.test", []string{"x@other.test"}, "Subject: x\n\nx\n"); err != nil {
		t.Fatal(err)
	}
	s.eventually("mail for somebody else arrives", func() bool { return len(other.received()) == 1 })
	s.waitLogN("@d[0-9]+.test>.*status=sent", len(to))
	if n := provider.most.Load(); n > 3 || n < 2 {
		t.Errorf("the provider had %d messages at a time, and takes 3", n)
	}
	if !strings.Contains(s.log(), "status=deferred (waiting for the limit of provider big)") {
		t.Error("nothing was parked: this proves too little")
	}
}
