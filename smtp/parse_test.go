package smtp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/config"
	"posthaste/internal/resolver"
	"posthaste/internal/rfc5322"
)

func TestParseNexthops(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	for _, tt := range []struct {
		list, want string
		lmtp       bool
		keys       string // what tables are asked for; "": not looked at
	}{
		{list: "a.test", want: "a.test:25", keys: "a.test"},
		{list: "a.test:smtp", want: "a.test:25"},
		{list: "a.test:2525, [b.test]", want: "a.test:2525 [b.test]:25"},
		{list: "[192.0.2.1]:26\t[ipv6:2001:db8::1] [IPv6:2001:db8::1]:27 [::1]", want: "[192.0.2.1]:26 [2001:db8::1]:25 [2001:db8::1]:27 [::1]:25"},
		{list: "unix:/a/b c:24", lmtp: true, want: "unix /a/b [c]:24", keys: "/a/b c:24"},
		{list: "inet:a.test inet:[b.test]:3", lmtp: true, want: "[a.test]:24 [b.test]:3", keys: "a.test [b.test]:3"},
		{list: "", want: "error"}, {list: " , ", want: "error"}, {list: ":25", want: "error"}, {list: "[]", want: "error"},
		{list: "[a", want: "error"}, {list: "[a]b", want: "error"}, {list: "a:0", want: "error"}, {list: "a:65536", want: "error"},
		{list: "a:", want: "error"}, {list: "a:no-such-service", want: "error"}, {list: "unix:", lmtp: true, want: "error"},
	} {
		port := "smtp"
		if tt.lmtp {
			port = "24"
		}
		hops, err := parseNexthops(nil, tt.list, port, tt.lmtp, cfg.Port)
		var out, keys []string
		for _, h := range hops {
			keys = append(keys, h.text)
			switch {
			case h.path != "":
				out = append(out, "unix "+h.path)
			case h.noMX:
				out = append(out, "["+h.host+"]:"+h.port)
			default:
				out = append(out, h.host+":"+h.port)
			}
		}
		got := strings.Join(out, " ")
		if err != nil {
			got = "error"
		}
		if tt.keys != "" && strings.Join(keys, " ") != tt.keys {
			t.Errorf("%q: keys %q, want %s", tt.list, keys, tt.keys)
		}
		if got != tt.want {
			t.Errorf("%q: got %s (%v), want %s", tt.list, got, err, tt.want)
		}
	}
}

func testConfig(t testing.TB) *config.Config {
	cfg, err := config.LoadString("myhostname = me.test\n")
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// FuzzNexthops: a destination that is accepted has what it takes to connect.
func FuzzNexthops(f *testing.F) {
	for _, s := range []string{"a.test", "[::1]:25, b:smtp", "unix:/x", "inet:a:b", "[ipv6:::1]", "a]:2[b"} {
		f.Add(s, false)
		f.Add(s, true)
	}
	cfg := testConfig(f)
	f.Fuzz(func(t *testing.T, list string, lmtp bool) {
		hops, err := parseNexthops(nil, list, "25", lmtp, cfg.Port)
		if err != nil {
			return
		}
		for _, h := range hops {
			if h.path == "" && (h.host == "" || h.port == "" || strings.Trim(h.port, "0123456789") != "") || h.path != "" && !lmtp {
				t.Errorf("%q: %+v", list, h)
			}
		}
	})
}

// canned is a connection that delivers what a reader does.
type canned struct {
	net.Conn
	r interface{ Read([]byte) (int, error) }
}

func (c canned) Read(b []byte) (int, error)    { return c.r.Read(b) }
func (canned) SetReadDeadline(time.Time) error { return nil }

// replies reads all replies of a text.
func replies(r interface{ Read([]byte) (int, error) }) string {
	w := newWire(canned{r: r}, 2048)
	var out strings.Builder
	for range 1000 {
		r, err := w.readReply(time.Second, func(line []byte) { fmt.Fprintf(&out, "{%q}", line) })
		if err != nil {
			fmt.Fprintf(&out, "%v", err)
			break
		}
		fmt.Fprintf(&out, "%d %s %q\n", r.code, r.status, r.text())
	}
	return out.String()
}

// FuzzReply: any way of cutting a server's words into pieces gives the same
// replies, which are printable and bounded.
func FuzzReply(f *testing.F) {
	f.Add([]byte("220 x ESMTP\r\n250-a\r\n250 2.1.0 b\r\n"))
	f.Add([]byte("garbage\r\n250\r\n354-x\n354 y\n\n999\n"))
	f.Add(bytes.Repeat([]byte("x"), 5000))
	f.Fuzz(func(t *testing.T, b []byte) {
		whole, single := replies(bytes.NewReader(b)), replies(iotest.OneByteReader(bytes.NewReader(b)))
		if whole != single {
			t.Errorf("at once:\n%s\nby octets:\n%s", whole, single)
		}
	})
}

// A server that never comes to an end gets a bounded number of octets read, by whatever it
// does not end.
func TestReplyWithoutEnd(t *testing.T) {
	t.Parallel()
	for name, piece := range map[string]string{
		"line":               strings.Repeat("x", 4096),
		"lines":              "250-x\r\n",
		"empty lines":        "\r\n",
		"lines without code": "garbage\r\n",
		"long lines":         "250-" + strings.Repeat("x", 60<<10) + "\r\n",
		"long garbage":       strings.Repeat("x", 5000) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := &endlessReader{piece: piece}
			w := newWire(canned{r: in}, 2048)
			if _, err := w.readReply(time.Second, nil); !errors.Is(err, errReplyLimit) {
				t.Errorf("error %v", err)
			}
			if in.read > 2*maxReplyBytes {
				t.Errorf("read %d octets", in.read)
			}
		})
	}
}

// TestLargestReply: the longest reply that is read is in memory once. The other tests wait meanwhile, so
// that the memory in use is that of this one.
func TestLargestReply(t *testing.T) {
	line := "250-" + strings.Repeat("x", maxReplyBytes/maxReplyLines-8) + "\r\n"
	text := strings.Repeat(line, maxReplyLines-1) + "250 end\r\n"
	inUse := func() int64 {
		runtime.GC()
		runtime.GC() // what was put back for use again is gone with the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := inUse()
	w := newWire(canned{r: strings.NewReader(text)}, 2048)
	r, err := w.readReply(time.Second, nil)
	held := inUse() - before
	if err != nil || r.code != 250 {
		t.Fatalf("%+v: %v", r, err)
	}
	t.Logf("%d octets of %d are held", held, len(text))
	if held > 96<<10 {
		t.Errorf("%d octets are held", held)
	}
	runtime.KeepAlive(w)
	runtime.KeepAlive(r)
}

// TestReplyText: of a long reply the log and the notices have the beginning.
func TestReplyText(t *testing.T) {
	t.Parallel()
	line := "550-" + strings.Repeat("x", 95) + "\r\n"
	w := newWire(canned{r: strings.NewReader(strings.Repeat(line, 100) + "550 end\r\n")}, 2048)
	r, err := w.readReply(time.Second, nil)
	if text := r.text(); err != nil || len(text) != maxReplyText || !strings.HasPrefix(text, "550-xxx") {
		t.Errorf("%d octets of text, %v", len(text), err)
	}
}

// endlessReader says piece again and again.
type endlessReader struct {
	piece string
	read  int
}

func (r *endlessReader) Read(p []byte) (n int, err error) {
	for n < len(p) {
		n += copy(p[n:], r.piece[(r.read+n)%len(r.piece):])
	}
	r.read += n
	return n, nil
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"a b": "a b", "a\nb": "a b", "a\r\x00\x1b[": "a???[", "\xc3\xa9\xff": "é?", "\u0085": "?", "\u202e": "\u202e"} {
		if got := printable([]byte(in)); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// FuzzFilter: however content is cut into pieces, what is sent is the same,
// and taking the dots off again gives the content, but for folded lines.
func FuzzFilter(f *testing.F) {
	f.Add([]byte(".\r\n..a\r\nb\r\n"), 3, 5)
	f.Add([]byte("abc\r\n\r\n"), 1, 1)
	f.Add([]byte("abc\r\n"), 2, 2)
	f.Fuzz(func(t *testing.T, b []byte, cut, limit int) {
		b = bytes.ReplaceAll(bytes.ReplaceAll(b, []byte("\r"), nil), []byte("\n"), []byte("\r\n"))
		if cut < 1 || limit < 0 {
			return
		}
		run := func(cut int) string {
			o := &output{w: &wire{}, set: &settings{}}
			fl := filter{o: o, limit: limit, start: true}
			for rest := b; len(rest) > 0; {
				n := min(cut, len(rest))
				fl.write(rest[:n])
				rest = rest[n:]
			}
			if len(o.buf) > chunk/2 {
				t.Skip()
			}
			return string(o.buf)
		}
		if len(b) > chunk/8 {
			return
		}
		got := run(len(b) + 1)
		if piecewise := run(cut); got != piecewise {
			t.Errorf("at once:\n%q\nin pieces:\n%q", got, piecewise)
		}
		if limit == 0 {
			var plain []string
			for _, l := range strings.SplitAfter(got, "\r\n") {
				plain = append(plain, strings.TrimPrefix(l, "."))
			}
			if strings.Join(plain, "") != string(b) {
				t.Errorf("%q became %q", b, got)
			}
			return
		}
		for _, l := range strings.Split(got, "\r\n") {
			if len(strings.TrimPrefix(l, ".")) > max(limit, 2) {
				t.Errorf("a line of %d octets: %q", len(l), l)
			}
		}
	})
}

// FuzzConverter: however content is cut into pieces, what is sent is the same,
// and a message without anything to do passes unchanged.
func FuzzConverter(f *testing.F) {
	f.Add([]byte("MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Transfer-Encoding: 8bit\r\n\r\n\xe9=\r\n--b--\r\n"), 3)
	f.Add([]byte("Subject: x\r\n y\r\nno header\r\n"), 1)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		b = bytes.ReplaceAll(bytes.ReplaceAll(b, []byte("\r"), nil), []byte("\n"), []byte("\r\n"))
		if cut < 1 || len(b) > chunk/8 {
			return
		}
		if !bytes.HasSuffix(b, crlf) {
			b = append(b, crlf...)
		}
		run := func(cut int, downgrade bool) string {
			o := &output{w: &wire{}, set: &settings{}}
			fl := &filter{o: o, start: true}
			c := &converter{d: &delivery{}, rules: &outputRules{maxField: 1 << 20}, out: fl,
				mime: rfc5322.Structure{MaxDepth: 10, MaxBoundary: 100}}
			if downgrade {
				c.down = &rfc5322.Downgrader{Structure: c.mime}
			}
			for rest := b; len(rest) > 0; {
				n := min(cut, len(rest))
				c.write(rest[:n])
				rest = rest[n:]
			}
			c.end()
			return string(o.buf)
		}
		whole := run(len(b)+1, true)
		if pieces := run(cut, true); whole != pieces {
			t.Errorf("at once:\n%q\nin pieces:\n%q", whole, pieces)
		}
	})
}

// TestConverterPasses: what needs nothing is not changed.
func TestConverterPasses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "\r\n", "Subject: x\r\n", "Subject: x\r\n\r\n", "Subject: x\r\n\r\nbody\r\n", "\r\nbody: x\r\n",
		"A: b\r\n c\r\n\td\r\n\r\n", "A: b\r\nContent-Type: multipart/mixed; boundary=q\r\n\r\n--q\r\nX: y\r\n\r\n z\r\n--q--\r\n",
		"Content-Type: message/rfc822\r\n\r\nA: b\r\n\r\nc\r\n",
	} {
		o := &output{w: &wire{}, set: &settings{}}
		c := &converter{d: &delivery{}, rules: &outputRules{maxField: 1 << 20}, out: &filter{o: o, start: true},
			mime: rfc5322.Structure{MaxDepth: 10, MaxBoundary: 100}}
		c.write([]byte(text))
		c.end()
		if string(o.buf) != text {
			t.Errorf("%q became %q", text, o.buf)
		}
	}
}

// TestBalance: whatever there is, the limit holds, the order stays, no family
// is left out that has addresses, and places are not left empty.
func TestBalance(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	rapid.Check(t, func(t *rapid.T) {
		families := rapid.SliceOfN(rapid.Bool(), 0, 20).Draw(t, "families")
		limit := rapid.IntRange(2, 8).Draw(t, "limit")
		var list []target
		for i, is4 := range families {
			ip := v6
			if is4 {
				ip = v4
			}
			list = append(list, target{ip: ip, pref: uint16(i)})
		}
		count := func(l []target) (n4, n6 int) {
			for _, x := range l {
				if x.ip.Is4() {
					n4++
				} else {
					n6++
				}
			}
			return
		}
		out := balance(list, limit)
		a4, a6 := count(list)
		b4, b6 := count(out)
		for i := 1; i < len(out); i++ {
			if out[i].pref <= out[i-1].pref {
				t.Fatalf("order changed: %v", out)
			}
		}
		if a4 > 0 && a6 > 0 && len(list) > limit {
			if len(out) != limit || b4 == 0 || b6 == 0 {
				t.Fatalf("%d+%d of %d+%d, limit %d", b4, b6, a4, a6, limit)
			}
		} else if len(out) != len(list) {
			t.Fatalf("%d of %d", len(out), len(list))
		}
	})
}

func TestUTF8Xtext(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in     string
		native bool
		want   string
	}{{"jörg@x", true, "jörg@x"}, {"jörg@x", false, `j\x{F6}rg@x`}, {`a+b=c\d e`, true, `a\x{2B}b\x{3D}c\x{5C}d\x{20}e`}} {
		if got := utf8Xtext(tt.in, tt.native); got != tt.want {
			t.Errorf("%q: %q", tt.in, got)
		}
	}
}

func TestDomainKeys(t *testing.T) {
	t.Parallel()
	for domain, want := range map[string]string{
		"a.b.test":                      "a.b.test .b.test .test",
		"test":                          "test",
		"bücher.firm.test":              "bücher.firm.test xn--bcher-kva.firm.test .firm.test .test",
		"XN--bcher-kva.firm.test":       "XN--bcher-kva.firm.test bücher.firm.test .firm.test .test",
		"a.bücher.xn--mnchen-3ya":       "a.bücher.xn--mnchen-3ya a.xn--bcher-kva.xn--mnchen-3ya .bücher.xn--mnchen-3ya .xn--bcher-kva.xn--mnchen-3ya .xn--mnchen-3ya",
		"xn--zzzzzzzzzzz99999.test":     "xn--zzzzzzzzzzz99999.test .test",
		"[192.0.2.1]:25":                "[192.0.2.1]:25 .0.2.1]:25 .2.1]:25 .1]:25",
		"/var/run/socket":               "/var/run/socket",
		"[bücher.firm.test]:submission": "[bücher.firm.test]:submission .firm.test]:submission .test]:submission",
	} {
		if got := strings.Join(slices.Collect(domainKeys(domain, resolver.Names{})), " "); got != want {
			t.Errorf("%s: %s, want %s", domain, got, want)
		}
	}
}
