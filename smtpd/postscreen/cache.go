// The memory of clients that have passed the tests. Without it every client would wait
// for the greeting each time, and mail with it.

package postscreen

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"posthaste/internal/statedir"
)

// cache remembers which clients have passed which tests. It is kept in
// memory and in a file of lines
//
//	address expiry expiry expiry expiry expiry
//
// with times in seconds, one for each test, zero for none. A later line for
// an address takes the place of an earlier one. Lines are added as clients
// pass; the file is written anew when most of it is out of date, and after
// postscreen_cache_cleanup_interval. It is worth
// no more than the tests: what a crash loses is tested again.
type cache struct {
	dir    *statedir.Dir // of the file, which is written anew inside chroot too
	name   string        // of the file in dir
	retain time.Duration // how long an entry outlives the last of its tests
	every  time.Duration // time between two cleanings; 0: none but at the start and for want of room

	mu      sync.Mutex // guards what follows
	entries map[netip.Addr][ntests]time.Time
	file    *os.File  // open for appending
	lines   int       // in the file, those that are out of date with them
	cleaned time.Time // when the file was last written anew
}

// maxEntries bounds the cache: a client costs a connection to get into it,
// and a botnet has many.
const maxEntries = 200_000

// openCache reads the file, if there is one, and writes it anew, so that a cache
// that cannot be written is noticed at the start. retain and every are
// postscreen_cache_retention_time and postscreen_cache_cleanup_interval.
func openCache(path string, retain, every time.Duration) (*cache, error) {
	dir, err := statedir.Open(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("postscreen_cache_map: %w", err)
	}
	c := &cache{dir: dir, name: filepath.Base(path), retain: retain, every: every, entries: map[netip.Addr][ntests]time.Time{}}
	if err := c.load(time.Now()); err != nil {
		return nil, fmt.Errorf("postscreen_cache_map: %w", err)
	}
	if err := c.rewrite(time.Now()); err != nil {
		return nil, fmt.Errorf("postscreen_cache_map: %w", err)
	}
	return c, nil
}

// load reads the file. Lines that make no sense are skipped, and so are entries
// that are too old.
func (c *cache) load(now time.Time) error {
	f, err := c.dir.Open(c.name)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if a, exp, ok := parseEntry(sc.Text()); ok && c.fresh(exp, now) {
			c.entries[a] = exp
		}
	}
	return sc.Err()
}

// parseEntry reads one line. ok is false for a line that a crash has torn, or that
// is not ours.
func parseEntry(line string) (a netip.Addr, exp [ntests]time.Time, ok bool) {
	f := strings.Fields(line)
	if len(f) != int(ntests)+1 {
		return a, exp, false
	}
	a, err := netip.ParseAddr(f[0])
	if err != nil {
		return a, exp, false
	}
	for i, w := range f[1:] {
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil {
			return a, exp, false
		}
		if n > 0 {
			exp[i] = time.Unix(n, 0)
		}
	}
	return a, exp, true
}

// fresh says whether an entry is still worth keeping.
func (c *cache) fresh(exp [ntests]time.Time, now time.Time) bool {
	for _, t := range exp {
		if !t.IsZero() && now.Sub(t) < c.retain {
			return true
		}
	}
	return false
}

// get returns when each test expires for a client; false if it is not known.
func (c *cache) get(a netip.Addr) ([ntests]time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[a]
	return e, ok
}

// put records when each test expires for a client, in memory and in the file. An
// error is that of the file: the client is remembered all the same, until the
// process ends.
func (c *cache) put(a netip.Addr, exp [ntests]time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.entries[a]; !known && len(c.entries) >= maxEntries {
		for old := range c.entries { // any: all of them can be tested again
			delete(c.entries, old)
			break
		}
	}
	c.entries[a] = exp
	if now := time.Now(); c.lines > 1000 && c.lines > 4*len(c.entries) || c.every > 0 && now.Sub(c.cleaned) >= c.every {
		return c.rewrite(now)
	}
	c.lines++
	_, err := c.file.Write(appendEntry(nil, a, exp))
	return err
}

// appendEntry appends the line of one client.
func appendEntry(b []byte, a netip.Addr, exp [ntests]time.Time) []byte {
	b = a.AppendTo(b)
	for _, t := range exp {
		var n int64
		if !t.IsZero() {
			n = t.Unix()
		}
		b = strconv.AppendInt(append(b, ' '), n, 10)
	}
	return append(b, '\n')
}

// rewrite writes the file with what is still worth keeping. Called with mu
// held, or before the cache is shared.
func (c *cache) rewrite(now time.Time) error {
	var b []byte
	for a, exp := range c.entries {
		if !c.fresh(exp, now) {
			delete(c.entries, a)
			continue
		}
		b = appendEntry(b, a, exp)
	}
	if err := c.dir.Replace(c.name, b); err != nil {
		return err
	}
	f, err := c.dir.OpenFile(c.name, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if c.file != nil {
		c.file.Close()
	}
	c.file, c.lines, c.cleaned = f, len(c.entries), now
	return nil
}

// Close closes the file.
func (c *cache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.file.Close(), c.dir.Close())
}
