package exporter

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"posthaste/internal/ipc"
	"posthaste/internal/metrics"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
	"posthaste/internal/service"
	"posthaste/internal/storage"
)

const (
	// nodeTime is how long other nodes may take, all at once: Prometheus waits 10 s for a scrape.
	nodeTime = 8 * time.Second
	// nodeLabel is the first label of each series of a node.
	nodeLabel = "node"
)

// nodes are all nodes that share the queue: a prometheus.Collector of what each of them would publish itself, with its name. The
// own numbers come from the hub, those of others by way of the queue manager. Nobody is asked unless somebody scrapes this.
type nodes struct {
	hub     *hub
	own     string // name of this node
	manager *ipc.Client
	descs   map[string]*prometheus.Desc // by family
	answers *prometheus.Desc
}

// openNodes is for a queue that nodes share; nil for another.
func openNodes(env *service.Env, h *hub) *nodes {
	if !storage.Elsewhere(env.Config) {
		return nil
	}
	return newNodes(h, env.Config.String("cluster_node_name"), ipc.NewClient(env.Public(env.Config.String("queue_service_name")), nil))
}

func (n *nodes) close() {
	if n != nil {
		n.manager.Close()
	}
}

func newNodes(h *hub, own string, manager *ipc.Client) *nodes {
	n := &nodes{hub: h, own: own, manager: manager, descs: make(map[string]*prometheus.Desc),
		answers: prometheus.NewDesc("posthaste_node_answers", "1 for a node whose numbers are here; 0 for one that does not answer: they are missing.", []string{nodeLabel}, nil)}
	for _, f := range h.families {
		n.descs[f.Name] = prometheus.NewDesc(f.published(), f.Help, append([]string{nodeLabel}, f.labelNames()...), nil)
	}
	return n
}

// Describe implements prometheus.Collector.
func (n *nodes) Describe(ch chan<- *prometheus.Desc) {
	ch <- n.answers
	for _, d := range n.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector: it is one scrape, and fails where it is not known which nodes there are.
func (n *nodes) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), nodeTime)
	defer cancel()
	var reply proto.NodesReply
	conn, err := n.manager.Conn(ctx)
	if err == nil {
		err = conn.Call(ctx, &proto.Nodes{}, &reply)
	}
	if err != nil {
		ch <- prometheus.NewInvalidMetric(n.answers, fmt.Errorf("which nodes there are is not known: %w", err))
		return
	}
	var asking sync.WaitGroup
	for i := range reply.Nodes {
		node := &reply.Nodes[i]
		switch {
		case node.Own:
		// It is not waited for: its numbers are missing as long as it is down.
		case node.Down:
			n.answered(ch, node.Name, nil)
		default:
			asking.Go(func() {
				var got proto.GatherReply
				if queueclient.Elsewhere(conn, node.Name, "metrics").Call(ctx, &proto.Gather{}, &got) != nil {
					n.answered(ch, node.Name, nil)
					return
				}
				n.answered(ch, node.Name, &got)
			})
		}
	}
	n.answered(ch, n.own, n.hub.gather())
	asking.Wait()
}

// answered publishes what a node has; nil: it has not answered.
func (n *nodes) answered(ch chan<- prometheus.Metric, node string, got *proto.GatherReply) {
	value := 0.0
	if got != nil {
		value = 1
		n.series(ch, node, got)
	}
	if m, err := prometheus.NewConstMetric(n.answers, prometheus.GaugeValue, value, node); err == nil {
		ch <- m
	}
}

// series publishes a node's series. The other node may be of another version, and whoever can write to the database may have
// put anything there: what is not of a family, is not text, or is there twice is left out.
func (n *nodes) series(ch chan<- prometheus.Metric, node string, got *proto.GatherReply) {
	type key struct {
		family string
		labels labels
	}
	seen := make(map[key]bool, len(got.Series))
	for i := range got.Series {
		s := &got.Series[i]
		f := n.hub.families[s.Name]
		if f == nil || len(s.Labels) != len(f.labelNames()) {
			continue
		}
		k := key{family: s.Name}
		copy(k.labels[:], s.Labels)
		if seen[k] {
			continue
		}
		seen[k] = true
		m, err := n.hub.metric(f, n.descs[s.Name], append([]string{node}, s.Labels...), s, got.Began)
		if err == nil {
			ch <- m
		}
	}
}

// gather asks the processes of this node, and returns all series as they are published.
func (h *hub) gather() *proto.GatherReply {
	h.scraping.Lock()
	defer h.scraping.Unlock()
	h.ask()
	return &proto.GatherReply{Began: h.began, Series: h.snapshot()}
}

// answer sends what gather finds, to another node. It waits for the processes, and so it is not called by who reads the
// connection.
func (h *hub) answer(r *ipc.Request) {
	select {
	case h.asked <- struct{}{}:
	default:
		r.Fail("too many ask at the same time")
		return
	}
	h.answering.Go(func() {
		defer func() { <-h.asked }()
		r.Reply(h.gather())
	})
}

// metric makes a value of a series.
func (h *hub) metric(f *family, desc *prometheus.Desc, values []string, s *proto.Sample, began time.Time) (prometheus.Metric, error) {
	switch f.Kind {
	case metrics.Gauge:
		return prometheus.NewConstMetric(desc, prometheus.GaugeValue, s.Value, values...)
	case metrics.Histogram:
		buckets, sum := h.cumulate(s.Counts)
		return prometheus.NewConstHistogramWithCreatedTimestamp(desc, sum, s.Value, buckets, began, values...)
	}
	return prometheus.NewConstMetricWithCreatedTimestamp(desc, prometheus.CounterValue, s.Value, began, values...)
}
