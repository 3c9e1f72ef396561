package sqltable

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// hosts are the servers of one table, any of which will do.
type hosts struct {
	list  []*host
	retry time.Duration

	mu sync.Mutex // protects the state of each host
}

// host is one server.
type host struct {
	backend
	name  string
	local bool // on this machine's socket: asked first

	failed time.Time // when it last failed; zero if it did not since it last answered
	err    error     // how
}

// again is how soon a server that failed is tried again when there is no other.
const again = time.Second

// final is an error that no other server would change.
type final struct{ error }

func (f *final) Unwrap() error { return f.error }

// reply is an error in a server's own words: the connection is good.
type reply struct{ error }

func (r *reply) Unwrap() error { return r.error }

// each calls ask with one server after the other until it has succeeded.
func (h *hosts) each(ask func(*host) error) error {
	var errs []error
	for _, s := range h.order(time.Now()) {
		err := ask(s)
		var f *final
		if errors.As(err, &f) {
			return f.error
		}
		h.recordResult(s, err)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	return h.why()
}

// order is the servers to try now: good ones at random, local ones first, then
// those that failed, the one that was tried longest ago first. A server that
// failed a moment ago is left out.
func (h *hosts) order(now time.Time) []*host {
	h.mu.Lock()
	defer h.mu.Unlock()
	var local, remote, failed []*host
	for _, i := range rand.Perm(len(h.list)) {
		s := h.list[i]
		switch {
		case s.failed.IsZero() || now.Sub(s.failed) >= h.retry:
			if s.local {
				local = append(local, s)
			} else {
				remote = append(remote, s)
			}
		case now.Sub(s.failed) >= again:
			failed = append(failed, s)
		}
	}
	if good := append(local, remote...); len(good) > 0 {
		return append(good, failed...)
	}
	for _, s := range failed {
		s.failed = now // we try it; others need not wait with us
	}
	return failed
}

func (h *hosts) recordResult(s *host, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var r *reply
	switch {
	case err == nil:
		s.failed, s.err = time.Time{}, nil
	case !errors.As(err, &r):
		s.failed, s.err = time.Now(), err
	}
}

// why says what was wrong with the servers when last tried.
func (h *hosts) why() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, s := range h.list {
		errs = append(errs, fmt.Errorf("%s failed %v ago: %w", s.name, time.Since(s.failed).Round(time.Millisecond), s.err))
	}
	return errors.Join(errs...)
}

func (h *hosts) close() error {
	var errs []error
	for _, s := range h.list {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

// where is where a server listens.
type where struct{ network, addr string }

// parseHost reads host, host:port, inet:host:port or unix:/path. The port may
// be missing, and is then def.
func parseHost(text, def string) (where, error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		if path == "" || path[0] != '/' && path[0] != '@' {
			return where{}, fmt.Errorf("%q: expected unix:/path", text)
		}
		return where{"unix", path}, nil
	}
	addr := strings.TrimPrefix(text, "inet:")
	name, port := addr, def
	switch end := strings.LastIndexByte(addr, ']'); {
	case strings.HasPrefix(addr, "[") && end > 0:
		name = addr[1:end]
		if rest := addr[end+1:]; rest != "" {
			if rest[0] != ':' {
				return where{}, fmt.Errorf("%q: expected [address]:port", text)
			}
			port = rest[1:]
		}
	case strings.Count(addr, ":") == 1:
		name, port, _ = strings.Cut(addr, ":")
	case strings.Contains(addr, ":"):
		if _, err := netip.ParseAddr(addr); err != nil {
			return where{}, fmt.Errorf("%q: expected host, host:port, or unix:/path", text)
		}
	}
	if name == "" || port == "" {
		return where{}, fmt.Errorf("%q: expected host, host:port, or unix:/path", text)
	}
	return where{"tcp", net.JoinHostPort(name, port)}, nil
}
