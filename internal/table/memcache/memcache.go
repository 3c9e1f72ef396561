// Package memcache is lookup tables in a memcached server, with the settings of
// Postfix's memcache_table(5). Package query says where settings are, and what %s,
// %u and so on mean in key_format.
//
// # Settings
//
//	memcache         inet:localhost:11211: the server: inet:host:port, or unix:/path
//	backup           a table, type:name, that is asked for what memcached does not
//	                 have; what it answers is stored in memcached
//	key_format       %s: what memcached is asked for; the backup gets the key itself
//	domain           the domains that the table is for; empty: any key
//	ttl              3600: seconds for which memcached keeps what is stored; over 30
//	                 days it is a Unix time
//	flags            0: the number that is stored with a value
//	data_size_limit  10240: a longer value, in octets, is an error
//	line_size_limit  1024: a longer line of the protocol is an error
//	max_try          2: how often a request is made before the lookup fails
//	retry_pause      1: seconds between tries
//	timeout          2: seconds for one request and its reply
//
// # Keys
//
// The protocol ends a key at a blank and a request at the end of the line. A key
// with a blank or a control character in it, and one of more than 250 octets, cannot be in
// memcached, and it is not asked: only the backup is.
//
// # Errors
//
// With a backup memcached is no more than a cache: while it is away, or answers
// nonsense, the backup answers, with a warning. Without one the lookup fails. A request
// is not tried again when the server takes no connection.
//
// # Security
//
// Whoever can reach a memcached server can write to it. So these tables are
// refused where an answer says what is executed or written, and as whom. What the
// server says is bounded, has to be about the key that was asked for, and a
// connection on which it says more than it was asked is closed.
package memcache

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/lockstep"
	"posthaste/internal/table"
	"posthaste/internal/table/query"
)

// maxKey is the longest key, in octets, that memcached takes.
const maxKey = 250

// maxTTL bounds ttl, which over 30 days is a Unix time.
const maxTTL = 1 << 40

// cache is one table.
type cache struct {
	pool    lockstep.Pool
	keys    query.Keys
	format  *query.Template
	backup  table.Table // nil: none
	title   string
	warn    func(string) // nil: nobody listens
	ttl     int
	flags   int
	maxData int
	maxLine int
	tries   int
	pause   time.Duration
	timeout time.Duration
}

// Open returns the opener of memcache tables. cfg is main.cf, for tables whose
// settings are there. The server is not contacted before the first lookup.
func Open(cfg *config.Config) table.Opener {
	return func(name string, o table.Options) (table.Table, error) {
		s, err := query.Load(name, cfg)
		if err != nil {
			return nil, err
		}
		t := newCache(s, o)
		backup := s.Text("", "backup")
		if err := s.End(o); err != nil {
			return nil, err
		}
		if backup != "" {
			if t.backup, err = table.Open(backup, o); err != nil {
				return nil, fmt.Errorf("%s: backup: %w", s.Where(), err)
			}
		}
		return t, nil
	}
}

func newCache(s *query.Settings, o table.Options) *cache {
	t := &cache{
		keys: s.Domain(o), format: s.Template("key_format", "%s"), title: s.Where(), warn: o.Warn,
		ttl: s.Int("ttl", 3600, 0, maxTTL), flags: s.Int("flags", 0, 0, 1<<32-1),
		maxData: s.Int("data_size_limit", 10240, 1, query.MaxAnswer), maxLine: s.Int("line_size_limit", 1024, maxKey+64, 1<<20),
		tries: s.Int("max_try", 2, 1, 100), pause: time.Duration(s.Int("retry_pause", 1, 0, 3600)) * time.Second,
		timeout: s.Seconds("timeout", 2*time.Second),
	}
	var err error
	t.pool.Network, t.pool.Addr, err = table.ParseEndpoint(s.Text("inet:localhost:11211", "memcache"))
	if err != nil {
		s.Fail("memcache", "%v", err)
	}
	t.pool.Dial = o.Dial
	return t
}

// Lookup implements table.Table.
func (t *cache) Lookup(ctx context.Context, key string) (string, bool, error) {
	key, ok, err := t.keys.Key(ctx, key)
	if err != nil || !ok {
		return "", false, err
	}
	name, ok := t.format.Query(key, func(s string) string { return s })
	if !ok {
		return "", false, nil
	}
	holds := sendable(name)
	if holds {
		value, found, err := t.get(ctx, name)
		if found || t.backup == nil {
			return value, found, err
		}
		if err != nil {
			t.warning("%v; trying the backup", err)
			holds = false // what is wrong with the server costs one wait, not two
		}
	}
	if t.backup == nil {
		return "", false, nil
	}
	value, found, err := t.backup.Lookup(ctx, key)
	if found && err == nil && holds && len(value) <= t.maxData {
		if err := t.set(ctx, name, value); err != nil {
			t.warning("%v; the answer of the backup is not stored", err)
		}
	}
	return value, found, err
}

// sendable says whether a key can be part of a request.
func sendable(name string) bool {
	if name == "" || len(name) > maxKey {
		return false
	}
	for i := 0; i < len(name); i++ {
		if c := name[i]; c <= ' ' || c == 127 {
			return false
		}
	}
	return true
}

// get asks the server for a key.
func (t *cache) get(ctx context.Context, name string) (value string, found bool, err error) {
	err = t.ask(ctx, []byte("get "+name+"\r\n"), func(r *bufio.Reader) (err error) {
		value, found, err = t.readValue(r, name)
		return err
	})
	if err != nil {
		return "", false, err
	}
	return value, found, nil
}

// set stores a value.
func (t *cache) set(ctx context.Context, name, value string) error {
	request := fmt.Appendf(nil, "set %s %d %d %d\r\n%s\r\n", name, t.flags, t.ttl, len(value), value)
	return t.ask(ctx, request, func(r *bufio.Reader) error {
		line, err := t.readLine(r)
		if err == nil && line != "STORED" {
			err = fmt.Errorf("it does not store a value: %.200q", line)
		}
		return err
	})
}

// ask makes a request, as often as the settings allow.
func (t *cache) ask(ctx context.Context, request []byte, read func(*bufio.Reader) error) error {
	for try := 1; ; try++ {
		within, cancel := context.WithTimeout(ctx, t.timeout)
		err := t.pool.Ask(within, request, read)
		late := within.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			return nil
		}
		if late {
			err = fmt.Errorf("no answer within %v: %w", t.timeout, err)
		}
		err = fmt.Errorf("memcached at %s: %w", t.pool.Addr, err)
		var unreachable *lockstep.DialError
		if try >= t.tries || ctx.Err() != nil || errors.As(err, &unreachable) || errors.Is(err, lockstep.ErrClosed) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(t.pause):
		}
	}
}

// readLine reads a line of a reply.
func (t *cache) readLine(r *bufio.Reader) (string, error) {
	line, err := lockstep.ReadLine(r, t.maxLine)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return string(line), err
}

// readValue reads the reply to get: "VALUE key flags length", the value, and END; or END
// alone.
func (t *cache) readValue(r *bufio.Reader, name string) (value string, found bool, err error) {
	line, err := t.readLine(r)
	if err != nil || line == "END" {
		return "", false, err
	}
	f := strings.Fields(line)
	if len(f) < 4 || len(f) > 5 || f[0] != "VALUE" {
		return "", false, fmt.Errorf("unknown reply %.200q", line)
	}
	if f[1] != name {
		return "", false, fmt.Errorf("%w: the answer is about another key", lockstep.ErrUnasked)
	}
	n, err := strconv.ParseUint(f[3], 10, 31)
	if err != nil {
		return "", false, fmt.Errorf("unknown reply %.200q", line)
	}
	if n > uint64(t.maxData) {
		return "", false, fmt.Errorf("a value of %d octets is over data_size_limit (%d)", n, t.maxData)
	}
	data := make([]byte, n+2)
	if _, err := io.ReadFull(r, data); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return "", false, err
	}
	if string(data[n:]) != "\r\n" {
		return "", false, errors.New("a value does not end where it should")
	}
	if line, err = t.readLine(r); err == nil && line != "END" {
		err = fmt.Errorf("expected END after a value: %.200q", line)
	}
	return string(data[:n]), err == nil, err
}

// Pattern implements table.Table.
func (t *cache) Pattern() bool { return false }

// All implements table.Sequence: it lists what the backup has.
func (t *cache) All(fn func(key, value string) bool) error {
	s, ok := t.backup.(table.Sequence)
	if !ok {
		return fmt.Errorf("%s: a memcached server cannot be listed, and there is no backup that can", t.title)
	}
	return s.All(fn)
}

// Close implements table.Table.
func (t *cache) Close() error {
	err := t.pool.Close()
	if t.backup != nil {
		err = errors.Join(err, t.backup.Close())
	}
	return err
}

func (t *cache) warning(format string, args ...any) {
	if t.warn != nil {
		t.warn(t.title + ": " + fmt.Sprintf(format, args...))
	}
}
