package exporter

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"posthaste/internal/ipc"
	"posthaste/internal/metrics"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
)

// A hub knows the processes and keeps the totals. It is a
// prometheus.Collector.
type hub struct {
	began    time.Time
	families map[string]*family
	buckets  []float64

	scraping sync.Mutex // held by gather: scrapes take turns
	// Of other nodes' scrapes: asked holds one for each, and answering waits for them.
	asked     chan struct{}
	answering sync.WaitGroup

	mu    sync.Mutex
	peers map[*ipc.Conn]*peer
}

// A peer is one process.
type peer struct {
	service string // empty before it has said who it is
	gauges  []proto.Sample
}

// A family is what is known of one metric. What is in it belongs to hub.mu.
type family struct {
	metrics.Family
	desc   *prometheus.Desc
	totals map[labels]*total
}

// labelNames are those of its series, in their order.
func (f *family) labelNames() []string {
	if f.PerService {
		return append([]string{"service"}, f.Labels...)
	}
	return f.Labels
}

// published is the name of the metric.
func (f *family) published() string {
	if f.Kind == metrics.Counter {
		return f.Name + "_total"
	}
	return f.Name
}

// maxSeries bounds the series of a family, those of its services under "other" aside.
const maxSeries = 5000

// labels are a series' values, the service first.
type labels [5]string

type total struct {
	value  float64
	counts []uint64
}

func newHub() *hub {
	h := &hub{began: time.Now(), families: make(map[string]*family), buckets: metrics.Bounds(), peers: make(map[*ipc.Conn]*peer), asked: make(chan struct{}, maxScrapes)}
	for _, f := range metrics.Families() {
		fam := &family{Family: f, totals: make(map[labels]*total)}
		names := fam.labelNames()
		fam.desc = prometheus.NewDesc(fam.published(), f.Help, names, nil)
		if f.Kind == metrics.Counter && len(names) == 0 {
			fam.totals[labels{}] = new(total) // there is a zero to begin with
		}
		h.families[f.Name] = fam
	}
	return h
}

// join, leave and handle are called by the ipc server.

func (h *hub) join(c *ipc.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.peers[c] = new(peer)
}

func (h *hub) leave(c *ipc.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.peers, c)
}

func (h *hub) handle(c *ipc.Conn, r *ipc.Request) {
	switch r.Kind {
	case proto.KindPresent:
		var p proto.Present
		if err := r.Decode(&p); err != nil {
			r.Fail("%v", err)
			return
		}
		h.mu.Lock()
		if known := h.peers[c]; known != nil {
			known.service = p.Service
		}
		h.mu.Unlock()
	case proto.KindMeasures: // the last of a process that ends
		var m proto.Measures
		if err := r.Decode(&m); err != nil {
			r.Fail("%v", err)
			return
		}
		h.addMeasures(c, &m)
		h.leave(c)
		r.Reply(&proto.MeasuresReply{})
	case proto.KindGather: // from the queue manager, for another node
		h.answer(r)
	default:
		r.Fail("metrics: unknown request %d", r.Kind)
	}
}

// addMeasures adds what a process has counted to the totals, and keeps its gauges.
func (h *hub) addMeasures(c *ipc.Conn, m *proto.Measures) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[c]
	if p == nil {
		p = new(peer) // it has gone, and what it counted counts
	}
	p.gauges = reuse.Truncated(p.gauges)
	for _, s := range m.Samples {
		f := h.families[s.Name]
		if f == nil || len(s.Labels) != len(f.Labels) {
			continue // a process of another version: it is about to be replaced
		}
		if f.Kind == metrics.Gauge {
			p.gauges = append(p.gauges, s)
			continue
		}
		f.add(p.service, &s)
	}
}

func (f *family) add(service string, s *proto.Sample) {
	k := f.key(service, s.Labels)
	t := f.totals[k]
	if t == nil && len(f.totals) >= maxSeries { // processes come and go, each with names of its own
		for i := range k {
			if k[i] != "" && (i > 0 || !f.PerService) {
				k[i] = metrics.Other
			}
		}
		t = f.totals[k]
	}
	if t == nil {
		t = new(total)
		f.totals[k] = t
	}
	t.add(f.Kind, s.Value, s.Counts)
}

// add adds what was counted elsewhere. The first counts that a histogram gets say how many
// buckets it has; counts beyond those are not added.
func (t *total) add(kind metrics.Kind, value float64, counts []uint64) {
	t.value += value
	if kind != metrics.Histogram {
		return
	}
	if t.counts == nil {
		t.counts = make([]uint64, len(counts))
	}
	for i, n := range counts[:min(len(counts), len(t.counts))] {
		t.counts[i] += n
	}
}

func (f *family) key(service string, values []string) (k labels) {
	i := 0
	if f.PerService {
		k[0], i = service, 1
	}
	copy(k[i:], values)
	return k
}

// values are those of the family's labels, in their order.
func (f *family) values(k labels) []string {
	n := len(f.Labels)
	if f.PerService {
		n++
	}
	return append([]string(nil), k[:n]...)
}

// ask asks every process that has said who it is, and waits until all have
// answered, at most for answerTime.
func (h *hub) ask() {
	h.mu.Lock()
	var wg sync.WaitGroup
	for c, p := range h.peers {
		if p.service == "" {
			continue // what it would say could not be told from what others say
		}
		p.gauges = nil
		wg.Add(1)
		c.Go(&proto.Measure{}, func(payload []byte, err error) {
			defer wg.Done()
			var m proto.Measures
			if err == nil && m.Decode(payload) == nil {
				h.addMeasures(c, &m)
			}
		})
	}
	h.mu.Unlock()
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	t := time.NewTimer(answerTime)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// Describe implements prometheus.Collector.
func (h *hub) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range h.families {
		ch <- f.desc
	}
}

// Collect implements prometheus.Collector: it is one scrape.
func (h *hub) Collect(ch chan<- prometheus.Metric) {
	got := h.gather()
	for i := range got.Series {
		s := &got.Series[i]
		f := h.families[s.Name]
		// It cannot fail: the hub has made the series, of labels that were looked at.
		if m, err := h.metric(f, f.desc, s.Labels, s, got.Began); err == nil {
			ch <- m
		}
	}
}

// snapshot is all series, as they are published: gauges of all processes together, and totals.
func (h *hub) snapshot() (list []proto.Sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gauges := make(map[*family]map[labels]float64)
	for _, p := range h.peers {
		for i := range p.gauges {
			f := h.families[p.gauges[i].Name]
			if gauges[f] == nil {
				gauges[f] = make(map[labels]float64)
			}
			gauges[f][f.key(p.service, p.gauges[i].Labels)] += p.gauges[i].Value
		}
	}
	for _, f := range h.families {
		for k, v := range gauges[f] {
			list = append(list, proto.Sample{Name: f.Name, Labels: f.values(k), Value: v})
		}
		for k, t := range f.totals {
			list = append(list, proto.Sample{Name: f.Name, Labels: f.values(k), Value: t.value, Counts: slices.Clone(t.counts)})
		}
	}
	return list
}

// cumulate adds the buckets up, as the format has them.
func (h *hub) cumulate(counts []uint64) (buckets map[float64]uint64, sum uint64) {
	buckets = make(map[float64]uint64, len(h.buckets))
	for i, n := range counts {
		sum += n
		if i < len(h.buckets) {
			buckets[h.buckets[i]] = sum
		}
	}
	return buckets, sum
}
