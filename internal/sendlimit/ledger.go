package sendlimit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"posthaste/internal/proto"
	"posthaste/internal/rate"
)

// maxAccounts bounds how many accounts are remembered, of some 300 octets each. An account that is
// one too many is not limited: there are not so many real ones, and mail must go on.
const maxAccounts = 200_000

// A ledger is what the accounts have sent. It is a pure value: the time is passed in.
type ledger struct {
	accounts map[string]*account
}

// An account is what one has sent.
type account struct {
	Locked bool `json:"locked,omitempty"`
	// Told is when the last notice about it stops to hold, in seconds since the epoch: 0: none
	// was sent.
	Told int64 `json:"told,omitempty"`
	// Counts are by the time of a limit, in seconds. Limits of the same time share a count.
	Counts map[int64]count `json:"counts"`
}

// A count is how many recipients there were in a span of a limit's time. Spans are counted from
// the epoch, so that a day begins at midnight UTC.
type count struct {
	Span int64 `json:"span"`
	N    int64 `json:"n"`
}

func newLedger() *ledger { return &ledger{accounts: make(map[string]*account)} }

// used is what counts towards a limit at a time, and when that limit begins anew.
func (a *account) used(r rate.Rate, now int64) (n, until int64) {
	per := int64(r.Per / time.Second)
	span := now / per
	if c := a.Counts[per]; c.Span == span {
		n = c.N
	}
	return n, (span + 1) * per
}

// An outcome is what came of spend.
type outcome struct {
	refused  bool
	locked   bool      // the account is
	exceeded rate.Rate // the limit, when it is that
	until    int64     // when it begins anew
	tell     bool      // the postmaster has not heard of it yet
}

// spend counts n recipients of an account, unless one of the limits would be exceeded. With lock,
// an account that exceeds one is locked. Without limits nothing is kept.
func (l *ledger) spend(name string, limits []rate.Rate, n int64, lock bool, at time.Time) outcome {
	now := at.Unix()
	a := l.accounts[name]
	if a != nil && a.Locked {
		return outcome{refused: true, locked: true}
	}
	if len(limits) == 0 {
		return outcome{}
	}
	if a == nil {
		if len(l.accounts) >= maxAccounts {
			l.sweep(at)
		}
		if len(l.accounts) >= maxAccounts {
			return outcome{}
		}
		a = &account{Counts: make(map[int64]count)}
		l.accounts[name] = a
	}
	for _, r := range limits {
		used, until := a.used(r, now)
		if used+n <= r.N {
			continue
		}
		o := outcome{refused: true, exceeded: r, until: until, tell: now >= a.Told}
		if lock {
			a.Locked, o.locked = true, true
		}
		if o.tell {
			a.Told = until
		}
		return o
	}
	done := map[int64]bool{}
	for _, r := range limits {
		per := int64(r.Per / time.Second)
		if done[per] { // two limits of the same time
			continue
		}
		done[per] = true
		used, _ := a.used(r, now)
		a.Counts[per] = count{now / per, used + n}
	}
	return outcome{}
}

// unlock forgets an account.
func (l *ledger) unlock(name string) { delete(l.accounts, name) }

// sweep forgets the accounts of which nothing counts any more.
func (l *ledger) sweep(at time.Time) {
	now := at.Unix()
	for name, a := range l.accounts {
		for per, c := range a.Counts {
			if now/per != c.Span {
				delete(a.Counts, per)
			}
		}
		if len(a.Counts) == 0 && !a.Locked && now >= a.Told {
			delete(l.accounts, name)
		}
	}
}

// usage is what an account has sent, under its limits.
func (l *ledger) usage(name string, limits []rate.Rate, at time.Time) proto.AccountUsage {
	u := proto.AccountUsage{Account: name}
	a := l.accounts[name]
	if a == nil {
		a = &account{}
	}
	u.Locked = a.Locked
	for _, r := range limits {
		used, until := a.used(r, at.Unix())
		u.Limits = append(u.Limits, proto.LimitUsage{Limit: r.String(), Used: used, Until: until})
	}
	return u
}

// names are the accounts of which something is kept, sorted.
func (l *ledger) names() []string {
	names := make([]string, 0, len(l.accounts))
	for name := range l.accounts {
		names = append(names, name)
	}
	slices.SortFunc(names, cmp.Compare[string])
	return names
}

// text is the ledger as a file.
func (l *ledger) text() ([]byte, error) { return json.Marshal(l.accounts) }

// parseLedger reads a file.
func parseLedger(text []byte) (*ledger, error) {
	l := newLedger()
	if err := json.Unmarshal(text, &l.accounts); err != nil {
		return nil, err
	}
	if l.accounts == nil || len(l.accounts) > maxAccounts {
		return nil, fmt.Errorf("expected at most %d accounts", maxAccounts)
	}
	for name, a := range l.accounts {
		if a == nil {
			return nil, fmt.Errorf("account %q: expected an object", name)
		}
		for per, c := range a.Counts {
			if per < 1 || c.N < 0 {
				return nil, fmt.Errorf("account %q: malformed counts", name)
			}
		}
		if a.Counts == nil {
			a.Counts = make(map[int64]count)
		}
	}
	return l, nil
}
