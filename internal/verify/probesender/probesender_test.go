package probesender

import (
	"testing"
	"time"

	"posthaste/internal/config"
)

func TestSender(t *testing.T) {
	t.Parallel()
	now := time.Unix(1700000000, 0)
	for _, tt := range []struct{ settings, fixed string }{
		{"", "double-bounce@o.test"}, {"double_bounce_sender = db", "db@o.test"}, {"address_verify_sender = p@q@r.test", "p@q@r.test"},
		{"address_verify_sender =", ""}, {"address_verify_sender = <>", ""}, {"address_verify_sender = <>\naddress_verify_sender_ttl = 3h", ""},
		{"address_verify_sender_ttl = 3333s", "double-bounce@o.test"},
	} {
		cfg, err := config.LoadString("myorigin = o.test\n" + tt.settings + "\n")
		if err != nil {
			t.Fatal(err)
		}
		s := Of(cfg)
		addr := s.At(now)
		if s.ttl == 0 {
			if addr != tt.fixed {
				t.Errorf("%s: %q", tt.settings, addr)
			}
			if fixed, ok := s.Is(addr, now.Add(10000*time.Hour)); ok != (addr != "") || fixed != tt.fixed {
				t.Errorf("%s: %q is known: %v, as %q", tt.settings, addr, ok, fixed)
			}
			continue
		}
		end := time.Unix((now.Unix()/s.ttl+2)*s.ttl, 0) // of the period after
		for at, want := range map[time.Time]bool{now: true, end.Add(-time.Second): true, end: false, now.Add(-time.Duration(s.ttl) * time.Second): false} {
			if fixed, ok := s.Is(addr, at); ok != want || fixed != tt.fixed {
				t.Errorf("%s: at %v %q is known: %v, as %q", tt.settings, at, addr, ok, fixed)
			}
		}
		for _, other := range []string{"", tt.fixed, addr + "0", "0" + addr} {
			if _, ok := s.Is(other, now); ok {
				t.Errorf("%s: %q is taken for %q", tt.settings, other, addr)
			}
		}
	}
}
