package metrics

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

// find is the sample of a family with these labels.
func find(m *proto.Measures, id ID, labels ...string) (proto.Sample, bool) {
	for _, s := range m.Samples {
		if s.Name == families[id].Name && fmt.Sprint(s.Labels) == fmt.Sprint(labels) {
			return s, true
		}
	}
	return proto.Sample{}, false
}

// Every family has a name, a sentence and as many labels as fit.
func TestFamilies(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for id, f := range families {
		if f.Name == "" || f.Help == "" || len(f.Labels) > maxLabels || seen[f.Name] {
			t.Errorf("family %d: %+v", id, f)
		}
		seen[f.Name] = true
	}
}

// What is taken is taken once.
func TestTake(t *testing.T) {
	t.Parallel()
	s := New()
	total := 10.0
	s.Offer(func(o *Offer) {
		o.Total(Decisions, total)
		o.Gauge(QueueMessages, 7, "active")
	})
	s.Add(Accepted, 2, "network")
	s.Add(Accepted, 3, "network")
	s.Observe(DeliveryDelay, 0.05, "sent")
	s.Observe(DeliveryDelay, 1e9, "sent")
	m := s.Take()
	if got, _ := find(m, Accepted, "network"); got.Value != 5 {
		t.Errorf("accepted: %v", got)
	}
	if got, _ := find(m, Decisions); got.Value != 10 {
		t.Errorf("decisions: %v", got)
	}
	h, _ := find(m, DeliveryDelay, "sent")
	if h.Value != 1e9+0.05 || h.Counts[1] != 1 || h.Counts[len(bounds)] != 1 {
		t.Errorf("delay: %+v", h)
	}
	total = 12
	m = s.Take()
	if _, again := find(m, Accepted, "network"); again {
		t.Error("the second Take has what the first had")
	}
	if got, _ := find(m, Decisions); got.Value != 2 {
		t.Errorf("decisions: %v", got)
	}
	if got, _ := find(m, QueueMessages, "active"); got.Value != 7 {
		t.Errorf("gauge: %v", got)
	}
}

// Strangers cannot make series without bound, and nothing is lost by it.
func TestBounded(t *testing.T) {
	t.Parallel()
	s := New()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range maxSeries {
				s.Add(SASLFailures, 1, fmt.Sprint(g, i))
			}
		})
	}
	wg.Wait()
	m := s.Take()
	sum := 0.0
	for _, x := range m.Samples {
		sum += x.Value
	}
	if len(m.Samples) > maxSeries+1 || sum != 4*maxSeries {
		t.Errorf("%d series, %v in all", len(m.Samples), sum)
	}
}

// The lines of the log are counted, and what has an event of its own once
// more.
func TestEvents(t *testing.T) {
	t.Parallel()
	s := New()
	s.Event(maillog.LevelInfo, true, &maillog.Delivery{Status: "sent", Delay: 2 * time.Second, Delays: [4]time.Duration{time.Second, 0, 0, time.Second}})
	s.Event(maillog.LevelInfo, true, maillog.Reject{Action: "reject", Stage: "RCPT", Text: "554 5.7.1 <x@y>: Relay access denied"})
	s.Event(maillog.LevelWarning, true, maillog.SASLFailed{Method: "XYZZY"})
	s.Event(maillog.LevelInfo, false, &maillog.TLSEstablished{Server: true, Proto: "TLSv1.3"})
	s.Event(maillog.LevelInfo, true, maillog.SMTPDDisconnect{Counts: []maillog.CommandCount{{Name: "rcpt", OK: 1, Total: 3}}})
	s.Event(maillog.LevelError, true, nil)
	m := s.Take()
	for _, want := range []struct {
		id     ID
		v      float64
		labels []string
	}{
		{Deliveries, 1, []string{"sent"}},
		{Rejected, 1, []string{"reject", "RCPT", "5", "relay denied"}},
		{SASLFailures, 1, []string{"other"}},
		{TLSSessions, 1, []string{"server", "TLSv1.3"}},
		{Commands, 1, []string{"rcpt", "ok"}},
		{Commands, 2, []string{"rcpt", "refused"}},
		{LogLines, 3, []string{"info"}},
		{LogLines, 1, []string{"warning"}},
		{LogLines, 1, []string{"error"}},
	} {
		if got, ok := find(m, want.id, want.labels...); !ok || got.Value != want.v {
			t.Errorf("%s%v = %v, want %v", families[want.id].Name, want.labels, got.Value, want.v)
		}
	}
}

// A Set that is nil counts nothing.
func TestNil(t *testing.T) {
	t.Parallel()
	var s *Set
	s.Add(Accepted, 1, "network")
	s.Observe(DeliveryDelay, 1, "sent")
	s.Offer(nil)
	s.Event(maillog.LevelInfo, true, nil)
	if n := len(s.Take().Samples); n != 0 {
		t.Errorf("%d samples", n)
	}
}

func BenchmarkDelivery(b *testing.B) {
	s := New()
	e := &maillog.Delivery{Status: "sent", Delay: 2 * time.Second}
	b.ReportAllocs()
	for b.Loop() {
		s.Event(maillog.LevelInfo, true, e)
	}
}

// Failures that have a class are counted by it.
func TestFailures(t *testing.T) {
	t.Parallel()
	s := New()
	for _, class := range []string{"QuotaIssues", "QuotaIssues", ""} {
		s.Event(maillog.LevelInfo, true, maillog.Delivery{To: "a@b.test", Status: "deferred", DSN: dsn.S(4, 2, 2), Class: class})
	}
	m := s.Take()
	if got, _ := find(m, DeliveryFailures, "deferred", "QuotaIssues"); got.Value != 2 {
		t.Errorf("%v of a class", got.Value)
	}
	if got, ok := find(m, DeliveryFailures, "deferred", ""); ok {
		t.Errorf("%v without a class", got.Value)
	}
}

// Deliveries are counted by domain and by what was said, within bounds: a sender
// of mail to a million domains makes no million series, and a domain that gets much
// mail has a name although it came late.
func TestDomains(t *testing.T) {
	t.Parallel()
	s := New()
	deliver := func(to string, status dsn.Status, n int) {
		for range n {
			s.Event(maillog.LevelInfo, true, maillog.Delivery{To: to, Status: "sent", DSN: status})
		}
	}
	deliver("a@First.test", dsn.S(2, 0, 0), 3)
	deliver("b@first.test", dsn.S(4, 7, 28), 1)
	deliver("b@first.test", dsn.S(5, 999, 1), 1)
	for i := range 2000 {
		deliver(fmt.Sprintf("a@d%d.test", i), dsn.S(2, 0, 0), 1)
	}
	deliver("a@large.test", dsn.S(2, 0, 0), 500)
	m := s.Take()
	for _, c := range []struct {
		id     ID
		labels []string
		want   float64
	}{
		{DomainDeliveries, []string{"first.test", "sent"}, 5},
		{DomainDeliveries, []string{"d3.test", "sent"}, 1},
		{DomainDeliveries, []string{"large.test", "sent"}, 500 - share + 1},
		{DomainDeliveries, []string{Other, "sent"}, 2000 - (freeNames - 1) + share - 1},
		{DeliveryReplies, []string{"4xx", "4.7.28"}, 1},
		{DeliveryReplies, []string{"5xx", Other}, 1},
		{DeliveryReplies, []string{"2xx", "2.0.0"}, 2503},
	} {
		if got, _ := find(m, c.id, c.labels...); got.Value != c.want {
			t.Errorf("%s %v: %v, want %v", families[c.id].Name, c.labels, got.Value, c.want)
		}
	}
	domains := 0
	for _, sm := range m.Samples {
		if sm.Name == families[DomainDeliveries].Name {
			domains++
		}
	}
	if domains > maxNames+1 {
		t.Errorf("%d domains have a name", domains)
	}
	for i := range 100 * stretch {
		s.names.name(fmt.Sprint("x", i))
	}
	if len(s.names.waiting) > stretch || len(s.names.known) > maxNames {
		t.Errorf("%d domains wait, %d are known", len(s.names.waiting), len(s.names.known))
	}
}

// Deliveries are counted by provider and source, as many pairs of them as domains, and all others together.
func TestProviders(t *testing.T) {
	t.Parallel()
	s := New()
	for i := range 1000 {
		s.Event(maillog.LevelInfo, true, maillog.Delivery{To: "a@b.test", Status: "deferred", DSN: dsn.S(4, 2, 2), Provider: fmt.Sprintf("p%d", i), Source: "mta1"})
	}
	s.Event(maillog.LevelInfo, true, maillog.Delivery{To: "a@b.test", Status: "sent", DSN: dsn.S(2, 0, 0), Provider: "P1", Source: "mta1"})
	s.Event(maillog.LevelInfo, true, maillog.Delivery{To: "a@b.test", Status: "sent", DSN: dsn.S(2, 0, 0)})
	m := s.Take()
	for _, c := range []struct {
		labels []string
		want   float64
	}{
		{[]string{"p1", "mta1", "deferred"}, 1}, {[]string{"P1", "mta1", "sent"}, 1}, {[]string{Other, Other, "deferred"}, 1000 - freeNames},
	} {
		if got, _ := find(m, ProviderDeliveries, c.labels...); got.Value != c.want {
			t.Errorf("%v: %v, want %v", c.labels, got.Value, c.want)
		}
	}
	n := 0.0
	for _, sm := range m.Samples {
		if sm.Name == families[ProviderDeliveries].Name {
			n += sm.Value
		}
	}
	if n != 1001 {
		t.Errorf("%v deliveries are counted", n)
	}
}

// Feedback is counted by tenant and by domain, and what has no tenant has a label of its own.
func TestFeedback(t *testing.T) {
	t.Parallel()
	s := New()
	s.AddFeedback("shop", "joe@Example.net", "complaint")
	s.AddFeedback("", "joe@example.net", "bounce")
	hosts := "mx1.example.net,mx2.example.net,mx3.example.net"
	s.AddProviderFeedback("bigmail", "mta1", "complaint")
	s.AddProviderFeedback(hosts+",mx4.example.net,mx5.example.net", "", "bounce")
	s.AddProviderFeedback("", "mta1", "bounce")
	(*Set)(nil).AddFeedback("shop", "joe@example.net", "complaint")
	got := map[string]float64{}
	for _, m := range s.Take().Samples {
		got[m.Name+" "+strings.Join(m.Labels, " ")] = m.Value
	}
	want := map[string]float64{"posthaste_feedback shop complaint": 1, "posthaste_feedback (none) bounce": 1, "posthaste_domain_feedback example.net complaint": 1, "posthaste_domain_feedback example.net bounce": 1,
		"posthaste_provider_feedback bigmail mta1 complaint": 1, "posthaste_provider_feedback " + hosts + ",... (none) bounce": 1}
	if !maps.Equal(got, want) {
		t.Errorf("%v, expected %v", got, want)
	}
}
