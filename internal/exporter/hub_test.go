package exporter

import (
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/metrics"
	"posthaste/internal/proto"
	"posthaste/internal/testwait"
)

// connect connects a process with the hub, and says who it is.
func connect(t *testing.T, h *hub, service string, set *metrics.Set) *ipc.Conn {
	t.Helper()
	client := dial(t, h, set)
	present(t, client, service)
	return client
}

func dial(t *testing.T, h *hub, set *metrics.Set) *ipc.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	server := ipc.NewConn(ours, h.handle)
	h.join(server)
	client := ipc.NewConn(theirs, func(_ *ipc.Conn, r *ipc.Request) {
		if set != nil {
			r.Reply(set.Take())
		}
	})
	t.Cleanup(func() { client.Close(); server.Close(); client.Wait(); server.Wait() })
	return client
}

func present(t *testing.T, client *ipc.Conn, service string) {
	t.Helper()
	// The connection keeps the order: when the call is answered the hub knows who it is.
	client.Push(&proto.Present{Service: service})
	if err := client.Call(t.Context(), &proto.Measure{}, &proto.Measures{}); err == nil {
		t.Fatal("the hub answers what only processes do")
	}
}

func get(h *hub) string {
	w := httptest.NewRecorder()
	newWeb(h, nil).Handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	b, _ := io.ReadAll(w.Result().Body)
	return string(b)
}

// Two processes of one service are one series; what one has counted stays when
// it ends, its gauges go.
func TestHub(t *testing.T) {
	t.Parallel()
	h := newHub()
	a, b := metrics.New(), metrics.New()
	for _, s := range []*metrics.Set{a, b} {
		s.Offer(func(o *metrics.Offer) { o.Gauge(metrics.Goroutines, 5) })
		s.Add(metrics.Deliveries, 2, "sent")
		s.Observe(metrics.DeliveryDelay, 0.2, "sent")
	}
	first := connect(t, h, "smtp", a)
	connect(t, h, "smtp", b)
	expect(t, get(h), `posthaste_deliveries_total{service="smtp",status="sent"} 4`, `posthaste_process_goroutines{service="smtp"} 10`,
		`posthaste_delivery_delay_seconds_bucket{service="smtp",status="sent",le="0.1"} 0`,
		`posthaste_delivery_delay_seconds_bucket{service="smtp",status="sent",le="0.5"} 2`,
		`posthaste_delivery_delay_seconds_count{service="smtp",status="sent"} 2`, `posthaste_queue_removals_total 0`)
	a.Add(metrics.Deliveries, 1, "sent")
	if err := first.Call(t.Context(), a.Take(), &proto.MeasuresReply{}); err != nil {
		t.Fatal(err)
	}
	expect(t, get(h), `posthaste_deliveries_total{service="smtp",status="sent"} 5`, `posthaste_process_goroutines{service="smtp"} 5`)
}

func expect(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains(text, "\n"+l+"\n") {
			t.Errorf("no line %q in\n%s", l, text)
		}
	}
}

// A process that has connected and not yet said who it is waits for the next
// scrape.
func TestNameless(t *testing.T) {
	t.Parallel()
	h := newHub()
	s := metrics.New()
	s.Add(metrics.Removed, 3)
	s.Add(metrics.Deliveries, 2, "sent")
	client := dial(t, h, s)
	expect(t, get(h), `posthaste_queue_removals_total 0`)
	present(t, client, "qmgr")
	expect(t, get(h), `posthaste_queue_removals_total 3`, `posthaste_deliveries_total{service="qmgr",status="sent"} 2`)
}

// A process that does not answer holds up a scrape for a while, and takes
// nothing from what others say.
func TestSilentProcess(t *testing.T) {
	t.Parallel()
	h := newHub()
	s := metrics.New()
	s.Add(metrics.Removed, 3)
	connect(t, h, "stuck", nil)
	connect(t, h, "qmgr", s)
	testwait.Until(t, "what others say is there", func() bool { // the next scrape has it, if this process was too slow
		began := time.Now()
		text := get(h)
		if time.Since(began) < answerTime {
			t.Fatal("the scrape did not wait for the process")
		}
		return strings.Contains(text, "posthaste_queue_removals_total 3\n")
	})
}
