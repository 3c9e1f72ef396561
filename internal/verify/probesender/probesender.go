// Package probesender is the envelope sender of address probes: who sends
// them, and who must know mail to it when he sees it.
//
// With address_verify_sender_ttl the address changes with time, so that one
// that leaks is of no use for long. A server that asks back whether the sender
// of a probe exists may do so a while later: the address of the period before
// is known too.
//
// # Parameters
//
// address_verify_sender, address_verify_sender_ttl, myorigin.
package probesender

import (
	"strconv"
	"strings"
	"time"

	"posthaste/internal/config"
)

// A Sender is not changed after it is made.
type Sender struct {
	fixed         string // what the address would be if it did not change; empty: the null sender, which does not
	local, domain string
	ttl           int64 // seconds; 0: it does not change
}

// Of is the sender that the configuration has.
func Of(cfg *config.Config) Sender {
	addr := cfg.String("address_verify_sender")
	if addr == "" || addr == "<>" {
		return Sender{}
	}
	s := Sender{local: addr, domain: cfg.String("myorigin")}
	if i := strings.LastIndexByte(addr, '@'); i >= 0 {
		s.local, s.domain = addr[:i], addr[i+1:]
	}
	s.fixed = s.local + "@" + s.domain
	if ttl := cfg.Duration("address_verify_sender_ttl"); ttl > 0 {
		s.ttl = max(int64(ttl/time.Second), 1)
	}
	return s
}

// base is that of the period's number: digits and lower case letters.
const base = 36

// At is the address at a time; "" is the null sender.
func (s Sender) At(now time.Time) string {
	if s.ttl == 0 {
		return s.fixed
	}
	return s.local + strconv.FormatInt(now.Unix()/s.ttl, base) + "@" + s.domain
}

// Is says whether addr is the address now, or was in the period before, and
// what it would be if it did not change: by that name the mail system knows
// what to do with it. The null sender is nobody's.
func (s Sender) Is(addr string, now time.Time) (fixed string, ok bool) {
	switch {
	case s.fixed == "":
		return "", false
	case s.ttl == 0:
		return s.fixed, strings.EqualFold(addr, s.fixed)
	case len(addr) <= len(s.fixed) || !strings.EqualFold(addr[:len(s.local)], s.local):
		return s.fixed, false
	}
	before := now.Add(-time.Duration(s.ttl) * time.Second)
	return s.fixed, strings.EqualFold(addr, s.At(now)) || strings.EqualFold(addr, s.At(before))
}
