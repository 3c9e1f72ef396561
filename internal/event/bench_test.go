package event

import (
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
)

// BenchmarkJSON is what the event of a delivery costs the process that tells of it.
func BenchmarkJSON(b *testing.B) {
	line := &maillog.Delivery{ID: "4jWn4F1YhnzSshsm4", To: "joe@example.net", Relay: "mx.example.net[192.0.2.25]:25", Delay: 1530 * time.Millisecond,
		Delays: [4]time.Duration{20 * time.Millisecond, 10 * time.Millisecond, 1200 * time.Millisecond, 300 * time.Millisecond}, DSN: dsn.S(2, 0, 0), Status: "sent",
		Text: "250 2.0.0 Ok: queued as 123", From: "ann@example.org", MessageID: "<1@example.org>", Nexthop: "example.net", Size: 2048, Attempt: 1,
		Session: "TLS 1.3 TLS_AES_256_GCM_SHA384", Tenant: "shop", Campaign: "spring"}
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		e, ok := Of(now, line)
		if !ok || len(e.JSON("mail.example.org")) == 0 {
			b.Fatal("no event")
		}
	}
}
