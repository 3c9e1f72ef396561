package smtp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// TestArrange: addresses are tried by preference, among equals by the family
// that smtp_address_preference names, and else in any order whatever.
func TestArrange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		prefs := rapid.SliceOfN(rapid.Uint16Range(0, 3), 1, 12).Draw(t, "preferences")
		six := rapid.SliceOfN(rapid.Bool(), len(prefs), len(prefs)).Draw(t, "IPv6")
		family := rapid.SampledFrom([]string{"any", "ipv4", "ipv6"}).Draw(t, "family")
		seed := rapid.Uint64().Draw(t, "seed")
		d := &delivery{a: &Agent{rnd: rand.New(rand.NewPCG(seed, 0))}, set: &settings{randomize: true, preference: family}}
		var list []target
		for i, pref := range prefs {
			ip := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
			if six[i] {
				ip = netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i))
			}
			list = append(list, target{ip: ip, pref: pref})
		}
		seen := make(map[netip.Addr]bool)
		out := d.arrange(list)
		for i, x := range out {
			if seen[x.ip] {
				t.Fatalf("%v twice", x.ip)
			}
			seen[x.ip] = true
			if i == 0 {
				continue
			}
			before := out[i-1]
			if before.pref > x.pref {
				t.Fatalf("preference %d before %d", before.pref, x.pref)
			}
			if before.pref == x.pref && (family == "ipv4" && !before.ip.Is4() && x.ip.Is4() || family == "ipv6" && before.ip.Is4() && !x.ip.Is4()) {
				t.Fatalf("%v before %v", before.ip, x.ip)
			}
		}
		if len(out) != len(prefs) {
			t.Fatalf("%d of %d", len(out), len(prefs))
		}
	})
	// Without smtp_balance_inet_protocols a limit takes nothing away here, and with it one for each family stays.
	for _, balanced := range []bool{false, true} {
		d := &delivery{a: &Agent{rnd: rand.New(rand.NewPCG(1, 2))}, set: &settings{preference: "any", balance: balanced, maxAddrs: 2}}
		var list []target
		for i := range byte(4) {
			list = append(list, target{ip: netip.AddrFrom4([4]byte{192, 0, 2, i})})
		}
		list = append(list, target{ip: netip.MustParseAddr("2001:db8::1"), pref: 1})
		want := 5
		if balanced {
			want = 2
		}
		if out := d.arrange(list); len(out) != want || out[want-1].ip.Is4() {
			t.Errorf("balanced: %v, %v", balanced, out)
		}
	}
	// Each address of equal MX hosts comes first about as often, whichever host it belongs to.
	first := make(map[netip.Addr]int)
	d := &delivery{a: &Agent{rnd: rand.New(rand.NewPCG(1, 2))}, set: &settings{randomize: true, preference: "any"}}
	for range 4000 {
		list := []target{{pref: 20, ip: netip.MustParseAddr("192.0.2.9")}}
		for i := range byte(4) {
			list = append(list, target{host: "mx" + string('1'+i/3), pref: 10, ip: netip.AddrFrom4([4]byte{192, 0, 2, i})})
		}
		first[d.arrange(list)[0].ip]++
	}
	if len(first) != 4 {
		t.Errorf("first of equals: %v", first)
	}
	for ip, n := range first {
		if n < 850 || n > 1150 {
			t.Errorf("%v comes first in %d of 4000 times, want about 1000", ip, n)
		}
	}
}
