package qmgr

import (
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/table"
)

// TestHelpfulWarnings: who wants no advice is not told what clogs the queue.
func TestHelpfulWarnings(t *testing.T) {
	t.Parallel()
	for main, want := range map[string]time.Duration{"": 300 * time.Second, "helpful_warnings = no\n": 0} {
		cfg, err := config.LoadString(main)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Load(cfg, nil, table.Options{}, t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		if s.Sched.ClogWarn != want {
			t.Errorf("%q: ClogWarn is %v, want %v", main, s.Sched.ClogWarn, want)
		}
	}
}

// TestTenantWeights: who is listed has its weight, others none of their own, and a list with a mistake is refused.
func TestTenantWeights(t *testing.T) {
	t.Parallel()
	for main, want := range map[string]int{"": 0, "tenant_weights = shop=3, office=2": 3, "tenant_weights = office=2": 0} {
		cfg, err := config.LoadString(main + "\n")
		if err != nil {
			t.Fatal(err)
		}
		s, err := Load(cfg, nil, table.Options{}, t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		if s.Sched.TenantWeight != nil {
			n = s.Sched.TenantWeight("shop")
		}
		if n != want {
			t.Errorf("%q: the weight of shop is %d, want %d", main, n, want)
		}
	}
	for _, list := range []string{"shop", "shop=", "shop=0", "shop=1001", "sh/op=1", "=1", "shop=x"} {
		cfg, err := config.LoadString("tenant_weights = " + list + "\n")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Load(cfg, nil, table.Options{}, t.Logf); err == nil {
			t.Errorf("%q is taken", list)
		}
	}
}

// TestSharesLimits: trivial-rewrite is asked for limits if any parameter needs that, each by itself.
func TestSharesLimits(t *testing.T) {
	t.Parallel()
	for main, want := range map[string]bool{
		"": false, "destination_rollup = no": false, "destination_rollup = No": false, "destination_rollup = mx": true, "destination_rollup =": false,
		"destination_limit_maps = static:x": true, "shaping_files = /x": true, "egress_source_maps = static:x": true, "egress_pool_maps = static:x": true,
		"sender_dependent_egress_pool_maps = static:x": true, "default_egress_pool = x": true,
	} {
		cfg, err := config.LoadString(main + "\n")
		if err != nil {
			t.Errorf("%q: %v", main, err)
			continue
		}
		if got := sharesLimits(cfg); got != want {
			t.Errorf("%q: %v", main, got)
		}
	}
}

// A setting that makes no sense is refused, each by itself, so that a start or a reload with it does not go on as if it were not there.
func TestSettingsRefused(t *testing.T) {
	t.Parallel()
	for _, main := range []string{"queue_only_destinations = sender=x@", "shaping_files = /nowhere/x.toml", "tenant_weights = x"} {
		cfg, err := config.LoadString(main + "\n")
		if err != nil {
			continue // it is refused even before
		}
		if _, err := Load(cfg, nil, table.Options{}, t.Logf); err == nil {
			t.Errorf("%q is taken", main)
		}
	}
	// What may be flushed: nothing if nothing is listed, nor what has no name.
	for main, want := range map[string]bool{"fast_flush_domains =": false, "fast_flush_domains = a.test": true, "fast_flush_domains = b.test": false, "fast_flush_domains = fail:x": false} {
		cfg, err := config.LoadString(main + "\n")
		if err != nil {
			t.Fatal(err)
		}
		s, err := Load(cfg, nil, table.Options{}, t.Logf)
		if err != nil {
			t.Errorf("%q: %v", main, err)
			continue
		}
		if s.FlushDomain("a.test") != want || s.FlushDomain("") {
			t.Errorf("%q: %v", main, s.FlushDomain("a.test"))
		}
	}
}
