package mtasts

import (
	"crypto/rand"
	"encoding/json"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// Bounds of what is kept on disk.
const (
	maxFiles   = maxDomains
	maxOctets  = 64 << 20
	sweepEvery = 24 * time.Hour
	touchEvery = 24 * time.Hour // how exactly it is known when a policy was used
	partialAge = time.Hour      // when what a crash has left half-written is nobody's any more
)

// Files of the directory: a policy's is replaced whole by one with the second
// name. The time of its last change is when it was used last.
const (
	suffix  = ".json"
	partial = "new-"
)

func file(domain string) string { return domain + suffix }

// read gives what a file has, nil if that is nothing.
func (t *Table) read(name string) *entry {
	if t.dir == nil {
		return nil
	}
	b, err := t.dir.ReadFile(name)
	var e entry
	if err != nil || json.Unmarshal(b, &e) != nil {
		return nil
	}
	return &e
}

// save keeps an entry on disk. Several processes may do so at once: each file
// is replaced whole. It need not survive a power cut.
func (t *Table) save(domain string, e *entry, now time.Time) {
	if t.dir == nil {
		return
	}
	err := func() error {
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		name := partial + rand.Text()
		err = t.dir.WriteFile(name, append(b, '\n'), 0o644)
		if err == nil {
			err = t.dir.Chtimes(name, now, now)
		}
		if err == nil {
			err = t.dir.Rename(name, file(domain))
		}
		if err != nil {
			_ = t.dir.Remove(name) // it may not even exist
		}
		return err
	}()
	t.warnOnce(err)
}

// warnOnce warns of the first error of the directory. The others will be alike.
func (t *Table) warnOnce(err error) {
	t.mu.Lock()
	first := err != nil && !t.warned
	t.warned = t.warned || first
	t.mu.Unlock()
	if first {
		t.warn("mta-sts: policies cannot be kept: %v", err)
	}
}

// touch says that a policy is in use, about once a day.
func (t *Table) touch(domain string, e *entry, now time.Time) {
	if t.dir == nil || e.Policy == nil {
		return
	}
	t.mu.Lock()
	due := now.Sub(e.touched) >= touchEvery
	if due {
		e.touched = now
	}
	t.mu.Unlock()
	if due {
		_ = t.dir.Chtimes(file(domain), now, now) // the file may have gone: what is known counts
	}
}

// sweepDaily sweeps unless that was done within a day.
func (t *Table) sweepDaily(now time.Time) {
	t.mu.Lock()
	due := t.dir != nil && (t.swept.IsZero() || now.Sub(t.swept) >= sweepEvery)
	if due {
		t.swept = now
	}
	t.mu.Unlock()
	if due {
		t.warnOnce(t.sweep(now, maxFiles, maxOctets))
	}
}

// sweep removes files whose time is over, and the longest unused of those that
// are too many. Other processes may be at it too: what has gone already has
// gone, and what has changed meanwhile is in use.
func (t *Table) sweep(now time.Time, files int, octets int64) error {
	list, err := t.dir.ReadDir(".")
	if err != nil {
		return err
	}
	var kept []fs.FileInfo
	var total int64
	for _, d := range list {
		fi, err := d.Info()
		if err != nil || !fi.Mode().IsRegular() {
			continue
		}
		switch {
		case strings.HasPrefix(fi.Name(), partial):
			if now.Sub(fi.ModTime()) >= partialAge {
				t.remove(fi)
			}
		case !strings.HasSuffix(fi.Name(), suffix): // not ours
		default:
			if e := t.read(fi.Name()); e == nil || e.inForce(now) == nil {
				t.remove(fi)
				continue
			}
			kept = append(kept, fi)
			total += fi.Size()
		}
	}
	slices.SortFunc(kept, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for len(kept) > files || total > octets {
		t.remove(kept[0])
		total -= kept[0].Size()
		kept = kept[1:]
	}
	return nil
}

// remove removes a file that is still what it was. An error is of no interest:
// the next sweep finds it again.
func (t *Table) remove(fi fs.FileInfo) {
	if now, err := t.dir.Lstat(fi.Name()); err == nil && now.ModTime().Equal(fi.ModTime()) {
		_ = t.dir.Remove(fi.Name())
	}
}
