package smtp

import (
	"math/rand/v2"
	"testing"

	"posthaste/internal/resolver"
)

// TestOrderSRV: weight is chance, priority is not.
func TestOrderSRV(t *testing.T) {
	t.Parallel()
	d := &delivery{a: &Agent{rnd: rand.New(rand.NewPCG(1, 2))}}
	records := []resolver.SRV{{Priority: 2, Weight: 9, Target: "c"}, {Priority: 1, Weight: 30, Target: "a"}, {Priority: 1, Weight: 10, Target: "b"}, {Priority: 1, Target: "z"}}
	first := make(map[string]int)
	for range 4000 {
		out := d.orderSRV(records)
		if len(out) != 4 || out[3].Target != "c" {
			t.Fatalf("%v", out)
		}
		first[out[0].Target]++
	}
	if first["a"] < 2700 || first["a"] > 3100 || first["b"] < 850 || first["z"] > 200 {
		t.Errorf("first: %v, want a three times as often as b, and z hardly ever", first)
	}
}

func TestKeepRecord(t *testing.T) {
	t.Parallel()
	a := tcpAgent(t, "smtp_dns_reply_filter = pcre:{ {/ AAAA / IGNORE} {/ TXT / REJECT} }\n")
	for record, want := range map[string]bool{"x. 1 IN AAAA ::1": false, "x. 1 IN A 192.0.2.1": true, "x. 1 IN TXT \"\"": true} {
		if a.keepRecord(record) != want {
			t.Errorf("%s: %v", record, !want)
		}
	}
}
