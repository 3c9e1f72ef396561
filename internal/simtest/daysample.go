package simtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"testing"
	"time"
)

// measure says how things are now. Garbage is collected before, twice, since what was given back to a pool is kept over
// one collection.
func (d *day) measure() sample {
	s := sample{at: time.Since(d.began), sessions: d.sessions.Load(), commands: d.commands.Load(), taken: d.taken.Load(), arrived: d.delivered.Load(), asked: d.dns.asked.Load()}
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.heap, s.goroutines = float64(m.HeapAlloc), float64(runtime.NumGoroutine())
	files, _ := os.ReadDir("/proc/self/fd")
	s.files = float64(len(files))
	cache, _ := os.ReadFile(filepath.Join(d.dir, "data", "postscreen_cache"))
	known := map[string]bool{}
	for l := range bytes.Lines(cache) {
		client, _, _ := bytes.Cut(l, []byte(" "))
		known[string(client)] = true
	}
	s.screened = len(known)
	for _, dir := range []string{"spool/seg", "spool/big"} {
		names, _ := d.site.disk.List(dir)
		for _, name := range names {
			if f, err := d.site.disk.Open(dir + "/" + name); err == nil {
				n, _ := f.Size()
				s.disk += float64(n)
				_ = f.Close()
			}
		}
	}
	d.mu.Lock()
	var all []*process
	for _, e := range d.services {
		for _, p := range append(slices.Clone(e.old), e.now, e.next) {
			if p != nil {
				all = append(all, p)
			}
		}
	}
	d.mu.Unlock()
	for _, p := range all {
		p.mu.Lock()
		s.conns += float64(len(p.conns))
		p.mu.Unlock()
		for _, v := range p.metrics.Take().Samples {
			switch v.Name {
			case "posthaste_queue_messages":
				s.queue += v.Value
			case "posthaste_scheduler_destinations":
				s.destinations += v.Value
			}
		}
	}
	return s
}

// profile writes a heap profile, if it is wanted.
func (d *day) profile(t *testing.T) {
	if d.order.heap == "" {
		return
	}
	f, err := os.Create(filepath.Join(d.order.heap, fmt.Sprintf("heap.%d", len(d.samples))))
	if err == nil {
		err = errors.Join(pprof.WriteHeapProfile(f), f.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

func (s sample) String() string {
	return fmt.Sprintf("%8v: %d sessions, %d commands, %d messages taken, %d arrived, %d questions; heap %.1f MB, disk %.1f MB, %v goroutines, %v connections, %v files; postscreen's file %d clients, queue %v, destinations %v",
		s.at.Round(time.Minute), s.sessions, s.commands, s.taken, s.arrived, s.asked, s.heap/1e6, s.disk/1e6, s.goroutines, s.conns, s.files, s.screened, s.queue, s.destinations)
}

// spare is the disk space that the spool may take before it uses what is free anew.
const spare = 12e6

// unbounded says what has grown in the course of a day: of what the median of the last quarter is above that of the time
// from the eighth part to the third by more than a tenth and a constant. Of 24 hours that is the last six against hours 4 to 8.
// The disk of a simulation is in memory, and is taken off the heap.
func unbounded(samples []sample) (grown []string) {
	n := len(samples)
	early, late := samples[n/8:n/3], samples[n-n/4:]
	for _, q := range []struct {
		what   string
		of     func(sample) float64
		beyond float64
	}{
		{"octets of live heap", func(s sample) float64 { return s.heap - s.disk }, 2e6},
		{"octets of disk", func(s sample) float64 { return s.disk }, spare},
		{"goroutines", func(s sample) float64 { return s.goroutines }, 60},
		{"connections", func(s sample) float64 { return s.conns }, 30},
		{"descriptors", func(s sample) float64 { return s.files }, 3},
		{"messages in the queue", func(s sample) float64 { return s.queue }, 40},
		{"destinations", func(s sample) float64 { return s.destinations }, 40},
	} {
		if a, b := median(early, q.of), median(late, q.of); b > a*1.1+q.beyond {
			grown = append(grown, fmt.Sprintf("%s: from %.0f early to %.0f late", q.what, a, b))
		}
	}
	return grown
}

// median is the upper one.
func median(samples []sample, of func(sample) float64) float64 {
	var list []float64
	for _, s := range samples {
		list = append(list, of(s))
	}
	slices.Sort(list)
	return list[len(list)/2]
}
