package exporter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"posthaste/internal/metrics"
)

// Totals outlive the process that keeps them: one that ends leaves them in a file, and
// the next one takes that away when it has read it. After a crash there is no
// file, and totals begin at zero: an old file's would be smaller than what has
// been published, and Prometheus would take the whole of that for new.

const (
	// totalsFile lies in data_directory.
	totalsFile = "metrics.totals"
	newTotals  = "metrics.totals.new"
	// maxTotals bounds the octets that are read.
	maxTotals = 64 << 20
)

// saved is the file.
type saved struct {
	Version int
	Began   time.Time
	Series  []savedSeries
}

type savedSeries struct {
	Name   string
	Labels []string // the service first
	Value  float64
	Counts []uint64 `json:",omitempty"`
}

const savedVersion = 1

// save leaves the totals for the next process.
func (h *hub) save(dir *os.Root) error {
	h.mu.Lock()
	s := saved{Version: savedVersion, Began: h.began}
	for name, f := range h.families {
		for k, t := range f.totals {
			s.Series = append(s.Series, savedSeries{Name: name, Labels: f.values(k), Value: t.value, Counts: t.counts})
		}
	}
	b, err := json.Marshal(&s)
	h.mu.Unlock()
	if err != nil {
		return err
	}
	if err := dir.WriteFile(newTotals, b, 0o600); err != nil {
		return err
	}
	return dir.Rename(newTotals, totalsFile)
}

// restore takes the totals that a process before this one has left, if there are any.
func (h *hub) restore(dir *os.Root) error {
	f, err := dir.Open(totalsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTotals))
	f.Close()
	if err := errors.Join(err, dir.Remove(totalsFile)); err != nil {
		return err
	}
	var s saved
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s: %w", totalsFile, err)
	}
	if s.Version != savedVersion || s.Began.IsZero() || s.Began.After(time.Now()) {
		return fmt.Errorf("%s: it is not of this version, or of the future", totalsFile)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.began = s.Began
	for i := range s.Series {
		h.adopt(&s.Series[i])
	}
	return nil
}

// adopt adds what was counted before.
func (h *hub) adopt(s *savedSeries) {
	f := h.families[s.Name]
	if f == nil || f.Kind == metrics.Gauge {
		return // another version's
	}
	n := len(f.Labels)
	if f.PerService {
		n++
	}
	if len(s.Labels) != n || s.Value < 0 || f.Kind == metrics.Histogram && len(s.Counts) != len(h.buckets)+1 {
		return
	}
	var k labels
	copy(k[:], s.Labels)
	t := f.totals[k]
	if t == nil {
		t = new(total)
		f.totals[k] = t
	}
	t.add(f.Kind, s.Value, s.Counts)
}
