package exporter

import (
	"net"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/metrics"
	"posthaste/internal/proto"
)

// serveManager answers as the queue manager of a node does, until the test ends.
func serveManager(t *testing.T, handler func(*ipc.Request)) *ipc.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qmgr")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &ipc.Server{Handler: func(_ *ipc.Conn, r *ipc.Request) { handler(r) }, OnTrigger: func([]byte) {}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(t.Context(), l, time.Second)
	}()
	client := ipc.NewClient(ipc.Unix(path), nil)
	t.Cleanup(func() {
		client.Close()
		<-done
	})
	return client
}

// What each node has comes with its name. One that is down is not asked, and one that does not answer is named: the numbers of
// neither are there, not even as zero. What a node should not say is left out.
func TestNodes(t *testing.T) {
	t.Parallel()
	h, other := newHub(), newHub()
	for hub, n := range map[*hub]float64{h: 2, other: 3} {
		s := metrics.New()
		s.Offer(func(o *metrics.Offer) { o.Gauge(metrics.Goroutines, 5) })
		s.Add(metrics.Deliveries, n, "sent")
		s.Observe(metrics.DeliveryDelay, 0.2, "sent")
		connect(t, hub, "smtp", s)
	}
	asked := make(chan string, 10)
	manager := serveManager(t, func(r *ipc.Request) {
		if r.Kind == proto.KindNodes {
			r.Reply(&proto.NodesReply{Nodes: []proto.NodeInfo{{Name: "a", Own: true}, {Name: "b"}, {Name: "c"}, {Name: "d", Down: true}}})
			return
		}
		var q proto.Forward
		if err := r.Decode(&q); err != nil || q.Asked != proto.KindGather {
			t.Errorf("%+v, %v", q, err)
		}
		asked <- q.Node
		if q.Node != "b" {
			r.Reply(&proto.ForwardReply{Failed: "it does not answer"})
			return
		}
		got := other.gather()
		for _, s := range got.Series {
			if s.Name == "posthaste_deliveries" {
				got.Series = append(got.Series, s) // twice
			}
		}
		got.Series = append(got.Series, proto.Sample{Name: "posthaste_deliveries", Labels: []string{"smtp"}, Value: 7}, // too few labels
			proto.Sample{Name: "posthaste_deliveries", Labels: []string{"smtp", "\xff"}, Value: 7}, proto.Sample{Name: "unknown", Value: 7})
		r.Reply(&proto.ForwardReply{Payload: got.Append(nil)})
	})
	w := httptest.NewRecorder()
	newWeb(h, newNodes(h, "a", manager)).Handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics/nodes", nil))
	text := w.Body.String()
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, text)
	}
	expect(t, text, `posthaste_deliveries_total{node="a",service="smtp",status="sent"} 2`, `posthaste_deliveries_total{node="b",service="smtp",status="sent"} 3`,
		`posthaste_process_goroutines{node="b",service="smtp"} 5`, `posthaste_delivery_delay_seconds_bucket{node="b",service="smtp",status="sent",le="0.5"} 1`,
		`posthaste_node_answers{node="a"} 1`, `posthaste_node_answers{node="b"} 1`, `posthaste_node_answers{node="c"} 0`, `posthaste_node_answers{node="d"} 0`)
	for _, not := range []string{`{node="c",`, `{node="d",`, `} 7`} {
		if strings.Contains(text, not) {
			t.Errorf("there is %q in\n%s", not, text)
		}
	}
	close(asked)
	for node := range asked {
		if node == "d" {
			t.Error("a node that is down was asked")
		}
	}
	// The own numbers are asked for as before, and without names of nodes.
	expect(t, get(h), `posthaste_deliveries_total{service="smtp",status="sent"} 2`)
}

// While it is not known which nodes there are a scrape fails: to leave them out would be to say that they are none.
func TestNodesUnknown(t *testing.T) {
	t.Parallel()
	h := newHub()
	manager := serveManager(t, func(r *ipc.Request) { r.Fail("the database is away") })
	w := httptest.NewRecorder()
	newWeb(h, newNodes(h, "a", manager)).Handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics/nodes", nil))
	if w.Code != 500 || !strings.Contains(w.Body.String(), "the database is away") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// The queue manager gets all series for another node.
func TestGather(t *testing.T) {
	t.Parallel()
	h := newHub()
	s := metrics.New()
	s.Add(metrics.Removed, 3)
	connect(t, h, "qmgr", s)
	var got proto.GatherReply
	if err := dial(t, h, nil).Call(t.Context(), &proto.Gather{}, &got); err != nil {
		t.Fatal(err)
	}
	for _, s := range got.Series {
		if s.Name == "posthaste_queue_removals" && s.Value == 3 {
			return
		}
	}
	t.Errorf("%+v", got)
}
