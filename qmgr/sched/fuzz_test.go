package sched

import (
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/rate"
)

// fuzzTerms are narrow, and disagree with each other.
var fuzzTerms = [4]*Terms{1: {Shares: [levels]Share{{"a", Limits{Concurrency: 1}}, {"s", Limits{Messages: rate.Rate{N: 1, Per: time.Minute}}}, {"p", Limits{Concurrency: 1}}}},
	2: {Rollup: true, Shares: [levels]Share{{}, {"s", Limits{Recipients: rate.Rate{N: 1, Per: rate.Day}}}, {"q", Limits{Connections: rate.Rate{N: 2, Per: time.Hour}}}}},
	3: {Shares: [levels]Share{{"a", Limits{}}, {}, {"p", Limits{Concurrency: 2}}}}}

// fuzzQuotas are such, too, of tenants.
var fuzzQuotas = [4]*Quota{1: {Shares: [levels]Share{{"a", Limits{Concurrency: 1}}, {"s", Limits{Messages: rate.Rate{N: 1, Per: time.Minute}}}, {"p", Limits{Concurrency: 1}}}},
	2: {Shares: [levels]Share{{}, {"s", Limits{Recipients: rate.Rate{N: 1, Per: rate.Day}}}, {"q", Limits{Concurrency: 2}}}},
	3: {Shares: [levels]Share{{"a", Limits{}}, {}, {"p", Limits{Concurrency: 2}}}}}

// FuzzEvents gives the scheduler events that no sane shell would: reports of
// what was never asked for, twice, out of order, for messages that are gone.
// It must neither panic nor lose its invariants.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("\x01\x01\x02\x01\x04\x01\x01\x02\x02\x02\x08\x02\x0b\x03"))
	f.Add([]byte("\x01\x11\x01\x12\x02\x11\x02\x12\x06\x11\x09\x11\x0d\x12\x0a\x11\x04\x11"))
	f.Fuzz(fuzzOne)
}

// fuzzOne plays one such sequence.
func fuzzOne(t *testing.T, data []byte) {
	cfg := DefaultConfig()
	cfg.ActiveLimit, cfg.RecipientLimit, cfg.RecipientMinimum, cfg.QueueRunDelay = 3, 8, 2, 0
	cfg.SharedActiveLimit = 1
	cfg.DefaultTransports.ProcessLimit, cfg.DefaultTransports.RecipientLimit, cfg.DefaultTransports.BatchLimit = 2, 8, 2
	s := New(cfg)
	now := epoch
	var out []Effect
	var entries []EntryID
	for i := 0; i+1 < len(data) && i < 400; i += 2 {
		k, x := data[i], data[i+1]
		ev := Event{Kind: EventKind(k & 15), ID: MsgID(x & 7), OK: k&16 != 0, Now: k&16 != 0, Corrupt: k&32 != 0, Site: "a",
			Scope: Scope(x >> 6), Queue: Queue(k >> 6), Unread: int(k >> 5), Next: int(x >> 4), Transport: "smtp", Config: &cfg}
		ev.Arrival = Arrival{Queue: Queue(k >> 6), Created: now, Rcpts: int(x >> 4), Flags: Flags(x >> 2), Tenant: []string{"", "", "a", "b"}[x&3]}
		for n := range int(x>>4) & 3 {
			ev.Rcpts = append(ev.Rcpts, Rcpt{Index: n, Transport: []mail.Transport{"smtp", "local", "retry", "error"}[k>>6], Nexthop: "a", Queue: "a", Site: "a"})
		}
		if n := len(entries); n > 0 {
			ev.Entry = entries[int(x)%n]
			ev.Entries = entries[:n:n]
		}
		if k&8 != 0 {
			for i := range ev.Rcpts {
				ev.Rcpts[i].Terms, ev.Rcpts[i].Quota = fuzzTerms[x&3], fuzzQuotas[x>>2&3]
			}
		}
		if ev.Kind == 0 {
			ev.Kind, ev.Terms = EventTerms, fuzzTerms[x&3]
			if k&32 != 0 {
				ev.Kind, ev.Tenant, ev.Quota = EventQuota, []string{"a", "b"}[k>>4&1], fuzzQuotas[x&3]
			}
		}
		ev.Result = Result{Opened: k&128 != 0, SiteFailed: k&32 != 0, Hungry: k&64 != 0, Failed: k&16 != 0}
		if k&32 != 0 {
			ev.Result.Deferred = []int{0}
		}
		now = now.Add(time.Duration(x) * time.Duration(x) * 50 * time.Millisecond)
		out = s.Step(now, ev, out[:0])
		for _, e := range out {
			if e.Kind == EffectDeliver {
				entries = append(entries, e.Entry)
			}
		}
		if err := s.Check(); err != nil {
			t.Fatalf("event %d of kind %d: %v", i/2, ev.Kind, err)
		}
		for id := range MsgID(8) {
			s.Explain(id)
		}
	}
}
