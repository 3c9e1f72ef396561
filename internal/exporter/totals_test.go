package exporter

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/metrics"
)

// What has been counted goes on where it was after a reload; after a crash, of
// which there is no file, totals begin at zero.
func TestTotalsLast(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	dir, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	old := newHub()
	old.began = time.Now().Add(-time.Hour).Truncate(time.Second)
	s := metrics.New()
	s.Add(metrics.Deliveries, 3, "sent")
	s.Observe(metrics.DeliveryDelay, 0.2, "sent")
	connect(t, old, "smtp", s)
	expect(t, get(old), `posthaste_deliveries_total{service="smtp",status="sent"} 3`)
	if err := old.save(dir); err != nil {
		t.Fatal(err)
	}
	next := newHub()
	if err := next.restore(dir); err != nil {
		t.Fatal(err)
	}
	if !next.began.Equal(old.began) {
		t.Errorf("the totals begin at %v, not %v", next.began, old.began)
	}
	s.Add(metrics.Deliveries, 1, "sent")
	s.Observe(metrics.DeliveryDelay, 0.2, "sent")
	connect(t, next, "smtp", s)
	expect(t, get(next), `posthaste_deliveries_total{service="smtp",status="sent"} 4`,
		`posthaste_delivery_delay_seconds_bucket{service="smtp",status="sent",le="0.5"} 2`, `posthaste_queue_removals_total 0`)
	if names, _ := filepath.Glob(filepath.Join(path, "*")); len(names) > 0 {
		t.Errorf("a crash now would count twice: there is %v", names)
	}
	third := newHub()
	if err := third.restore(dir); err != nil || strings.Contains(get(third), `status="sent"`) {
		t.Errorf("after a crash: %v", err)
	}
	for _, text := range []string{"", "{", `{"Version":2}`, `{"Version":1,"Began":"2999-01-01T00:00:00Z"}`} {
		if err := dir.WriteFile(totalsFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := newHub().restore(dir); err == nil {
			t.Errorf("%q is taken for totals", text)
		}
	}
	odd := `{"Version":1,"Began":"2026-01-01T00:00:00Z","Series":[{"Name":"posthaste_nosuch","Labels":["a"],"Value":1},` +
		`{"Name":"posthaste_deliveries","Labels":["a"],"Value":1},{"Name":"posthaste_delivery_delay_seconds","Labels":["smtp","sent"],"Value":1,"Counts":[1]}]}`
	if err := dir.WriteFile(totalsFile, []byte(odd), 0o600); err != nil {
		t.Fatal(err)
	}
	if h := newHub(); h.restore(dir) != nil || strings.Contains(get(h), `service="`) {
		t.Error("what another version has left is taken over")
	}
}

// Labels that many processes make up over time are bounded here, too.
func TestManySeries(t *testing.T) {
	t.Parallel()
	h := newHub()
	f := h.families["posthaste_domain_deliveries"]
	for i := range maxSeries + 100 {
		s := metrics.New()
		s.Add(metrics.DomainDeliveries, 1, "d"+strings.Repeat("x", i%50)+string(rune('a'+i/50%26))+string(rune('a'+i/1300)), "sent")
		for _, sm := range s.Take().Samples {
			f.add("smtp", &sm)
		}
	}
	if n := len(f.totals); n != maxSeries+1 || f.totals[labels{metrics.Other, metrics.Other}].value != 100 {
		t.Errorf("%d series, %+v", n, f.totals[labels{metrics.Other, metrics.Other}])
	}
}
