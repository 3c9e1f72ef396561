package egress

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want, err string }{
		{"address=192.0.2.1", "address=192.0.2.1", ""},
		{" address6=2001:db8::1 ,helo=mta1.example.org,\taddress=192.0.2.1", "address=192.0.2.1, address6=2001:db8::1, helo=mta1.example.org", ""},
		{"address=[192.0.2.1] tls_cert=/etc/c.pem tls_key=/etc/k.pem", "address=192.0.2.1, tls_cert=/etc/c.pem, tls_key=/etc/k.pem", ""},
		{"proxy=socks5:127.0.0.1:1080", "proxy=socks5:127.0.0.1:1080", ""},
		{"address6=2001:db8::1, proxy=haproxy:[::1]:80", "address6=2001:db8::1, proxy=haproxy:[::1]:80", ""},
		{"warmup=2026-11-28:50,100,=500, warmup_over=wait, address=192.0.2.1", "address=192.0.2.1", ""},
		{"", "", "nothing says what mail comes from"},
		{"helo=a.example", "", "nothing says what mail comes from"},
		{"proxy=haproxy:127.0.0.1:80", "", "needs an address"},
		{"address=2001:db8::1", "", "other family"},
		{"address6=192.0.2.1", "", "other family"},
		{"address6=::ffff:192.0.2.1", "", "expected an IP address"},
		{"address=0.0.0.0", "", "expected an IP address"},
		{"address=192.0.2.1 address=192.0.2.2", "", "named twice"},
		{"address=192.0.2.1 helo=a\x01b", "", "host name"},
		{"address=192.0.2.1 mx=1", "", "no item"},
		{"address=192.0.2.1 helo", "", "name=value"},
		{"address=192.0.2.1 proxy=http:127.0.0.1:80", "", "no kind of proxy"},
		{"address=192.0.2.1 proxy=socks5:127.0.0.1", "", "host:port"},
		{"address=192.0.2.1 tls_key=/k", "", "without tls_cert"},
		{"address=192.0.2.1 warmup_over=wait", "", "without warmup"},
		{"address=192.0.2.1 warmup=soon:1", "", "expected a date"},
		{"address=192.0.2.1 warmup=2026-11-28:0", "", "no number"},
		{"address=192.0.2.1 warmup=2026-11-28:=5,6", "", "no number"},
	} {
		s, err := Parse("mta1", c.text)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: %v, want %q", c.text, err, c.err)
			}
			continue
		}
		if err != nil || s.String() != c.want {
			t.Errorf("%q: %q, %v", c.text, s.String(), err)
			continue
		}
		again, err := Parse("mta1", s.String())
		if s.Warmup = (Warmup{}); err != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%q: %+v is %+v when it is read again: %v", c.text, s, again, err)
		}
	}
	if _, err := Parse("a b", "address=192.0.2.1"); err == nil {
		t.Error("a name with a blank is none")
	}
}

func TestWarmup(t *testing.T) {
	t.Parallel()
	at := func(s string) time.Time {
		x, err := time.Parse(time.DateTime, s)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	for _, c := range []struct {
		warmup, now string
		day         int
		n           int64
	}{
		{"2026-11-28:50,100", "2026-11-27 23:59:59", 0, 0},
		{"2026-11-28:50,100", "2026-11-28 00:00:00", 1, 50},
		{"2026-11-28:50,100", "2026-11-29 23:59:59", 2, 100},
		{"2026-11-28:50,100", "2026-11-30 00:00:00", 3, 0},
		{"2026-11-28:50,=100", "2027-11-30 00:00:00", 368, 100},
	} {
		w, err := ParseWarmup(c.warmup)
		if err != nil {
			t.Fatal(err)
		}
		if day, n := w.Today(at(c.now)); day != c.day || n != c.n {
			t.Errorf("%s at %s: day %d with %d", c.warmup, c.now, day, n)
		}
	}
	var none Warmup
	if day, n := none.Today(at("2026-11-28 00:00:00")); day == 0 || n != 0 {
		t.Error("without a warm-up there is no bound")
	}
}

func TestParsePool(t *testing.T) {
	t.Parallel()
	list, err := ParsePool("mta1=10, mta2 mta3=1")
	if want := []Member{{"mta1", 10}, {"mta2", 1}, {"mta3", 1}}; err != nil || !reflect.DeepEqual(list, want) {
		t.Errorf("%v, %v", list, err)
	}
	for _, bad := range []string{"", ",", "a=0", "a=x", "a=1 a=2", "a=-1", "a/b", "a==1", strings.Repeat("x", 65)} {
		if list, err := ParsePool(bad); err == nil {
			t.Errorf("%q: %v", bad, list)
		}
	}
}

func TestFrom(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")
	for _, c := range []struct {
		text       string
		four, six  string
		can4, can6 bool
	}{
		{"address=192.0.2.1", "192.0.2.1", "invalid IP", true, false},
		{"address6=2001:db8::1", "invalid IP", "2001:db8::1", false, true},
		{"address=192.0.2.1 address6=2001:db8::1", "192.0.2.1", "2001:db8::1", true, true},
		{"proxy=socks5:127.0.0.1:1080", "invalid IP", "invalid IP", true, true},
	} {
		s, err := Parse("m", c.text)
		if err != nil {
			t.Fatal(err)
		}
		if a, ok := s.From(v4); a.String() != c.four || ok != c.can4 {
			t.Errorf("%s: %v %v", c.text, a, ok)
		}
		if a, ok := s.From(v6); a.String() != c.six || ok != c.can6 {
			t.Errorf("%s: %v %v", c.text, a, ok)
		}
	}
}

// FuzzParse: whatever is read says the same when it is written and read again.
func FuzzParse(f *testing.F) {
	f.Add("address=192.0.2.1, address6=2001:db8::1, helo=mta1.example.org, tls_cert=/c, tls_key=/k, proxy=haproxy:h:1, warmup=2026-11-28:50,100,=200, warmup_over=wait")
	f.Add("proxy=socks5:[::1]:1080")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("m", text)
		if err != nil {
			return
		}
		again, err := Parse("m", s.String())
		if s.Warmup = (Warmup{}); err != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%+v is %+v: %v", s, again, err)
		}
	})
}
