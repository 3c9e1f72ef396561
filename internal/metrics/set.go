// Package metrics is what a process counts about itself, for the metrics
// service, which publishes it (package exporter).
//
// Most counts come from the log: the events of package maillog are typed, and
// a Set that observes a logger counts each one as it is written. What the log
// says and what the metrics say is therefore the same. What has no log line
// (queue sizes, the spool's numbers, processor time) a service adds with Add
// or offers with Offer.
//
// # How the numbers travel
//
// Nothing is counted, and nobody connected to, unless metrics_listen is set.
// If it is, each process keeps a connection to the metrics service. When the
// system is scraped that service asks all of them, and each one answers with
// what it has counted since it was last asked (Take), and what it has now of
// what goes up and down. A process that ends says so much unasked. Totals are
// kept by the metrics service alone: a service that restarts takes nothing
// from them, and when the metrics service restarts they begin at zero once,
// which is the reset that Prometheus knows.
//
// Processes do not link an HTTP server for this, nor the client library of
// Prometheus: these are in the program posthaste-metrics.
//
// # Security
//
// Label values that come from outside (a SASL method, a destination) are
// bounded in number and in length: a Set that has too many series counts the
// others under "other".
//
// # Bugs
//
// What a process has counted since the last scrape is lost when it is killed,
// or when the metrics service ends between its question and the answer.
package metrics

import (
	"strings"
	"sync"

	"posthaste/internal/proto"
)

const (
	// maxSeries bounds the series of a process.
	maxSeries = 2000
	// maxLabel bounds a label's value, in octets.
	maxLabel = 128
	// maxLabels is how many labels a family has at most.
	maxLabels = 4
	// Other stands for label values that are one too many.
	Other = "other"
)

type key struct {
	id     ID
	labels [maxLabels]string
}

// A Set is what one process counts. All methods may be called concurrently,
// and do nothing on a nil Set.
type Set struct {
	mu     sync.Mutex
	counts map[key]float64
	hists  map[key]*histogram
	totals map[key]float64 // as they were at the last Take
	offers []func(*Offer)
	names  names // recipient domains that have a name
	// Tenants that have one.
	tenants names
	// Providers with sources that have one; between them is a NUL.
	providers names
}

type histogram struct {
	counts [len(bounds) + 1]uint64
	sum    float64
}

// New makes an empty Set.
func New() *Set {
	return &Set{counts: make(map[key]float64), hists: make(map[key]*histogram), totals: make(map[key]float64)}
}

// makeKey bounds the labels.
func makeKey(id ID, labels []string) key {
	k := key{id: id}
	for i, l := range labels {
		if len(l) > maxLabel {
			l = l[:maxLabel]
		}
		k.labels[i] = l
	}
	return k
}

// overflow is the key for what is one series too many.
func (k key) overflow() key {
	for i := range families[k.id].Labels {
		k.labels[i] = Other
	}
	return k
}

// Add adds n to a counter. labels are values in the order of the family's
// names.
func (s *Set) Add(id ID, n float64, labels ...string) {
	if s == nil {
		return
	}
	k := makeKey(id, labels)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(k, n)
}

// add is Add with mu held.
func (s *Set) add(k key, n float64) {
	if _, known := s.counts[k]; !known && len(s.counts) >= maxSeries {
		k = k.overflow()
	}
	// What is kept of labels must not keep the memory that they are part of.
	if _, known := s.counts[k]; !known {
		k.clone()
	}
	s.counts[k] += n
}

func (k *key) clone() {
	for i, l := range k.labels {
		k.labels[i] = strings.Clone(l)
	}
}

// Observe counts one observation of a histogram, in seconds.
func (s *Set) Observe(id ID, v float64, labels ...string) {
	if s == nil {
		return
	}
	k := makeKey(id, labels)
	i := 0
	for i < len(bounds) && v > bounds[i] {
		i++
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hists[k]
	if h == nil {
		if len(s.hists) >= maxSeries {
			k = k.overflow()
		}
		k.clone()
		if h = s.hists[k]; h == nil {
			h = new(histogram)
			s.hists[k] = h
		}
	}
	h.counts[i]++
	h.sum += v
}

// Offer has f called at each Take, for what is not counted as it happens. f
// may wait for other goroutines of the process, but for nobody else.
func (s *Set) Offer(f func(*Offer)) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers = append(s.offers, f)
}

// An Offer takes what is offered at one Take.
type Offer struct {
	s    *Set
	list []proto.Sample
}

// Gauge offers a present value.
func (o *Offer) Gauge(id ID, v float64, labels ...string) {
	k := makeKey(id, labels)
	o.list = append(o.list, sample(k, v))
}

// Total offers a counter that somebody else keeps, since the process began.
func (o *Offer) Total(id ID, v float64, labels ...string) {
	k := makeKey(id, labels)
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.s.add(k, v-o.s.totals[k])
	o.s.totals[k] = v
}

// Take returns what has been counted since the last Take, and what is
// offered now.
func (s *Set) Take() *proto.Measures {
	if s == nil {
		return new(proto.Measures)
	}
	s.mu.Lock()
	offers := s.offers
	s.mu.Unlock()
	o := Offer{s: s}
	for _, f := range offers {
		f(&o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &proto.Measures{Samples: o.list}
	for k, v := range s.counts {
		m.Samples = append(m.Samples, sample(k, v))
	}
	for k, h := range s.hists {
		sm := sample(k, h.sum)
		sm.Counts = h.counts[:]
		m.Samples = append(m.Samples, sm)
	}
	clear(s.counts)
	clear(s.hists)
	return m
}

func sample(k key, v float64) proto.Sample {
	f := &families[k.id]
	return proto.Sample{Name: f.Name, Labels: append([]string(nil), k.labels[:len(f.Labels)]...), Value: v}
}
