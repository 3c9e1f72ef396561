package smtpd

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// take runs input through a content in pieces and returns what it wrote, what
// was left behind the end, and whether the end was seen.
func take(c *content, input []byte, piece func(rest int) int, bufSize int) (out string, rest []byte, done bool) {
	var w bytes.Buffer
	c.w = &w
	var buf []byte
	for {
		used, done := c.feed(buf)
		buf = buf[used:]
		if done {
			return w.String(), append(buf, input...), true
		}
		if len(buf) >= bufSize {
			buf = buf[c.overlong(buf):]
		}
		if len(input) == 0 {
			return w.String(), buf, false
		}
		n := min(piece(len(input)), len(input), max(1, bufSize-len(buf)))
		buf = append(append([]byte(nil), buf...), input[:n]...)
		input = input[n:]
	}
}

func TestContent(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, in string
		lenient  bool
		out      string
		rest     string
		open     bool // no end is seen
		bare     bool
	}{
		{name: "plain", in: "a\r\nb\r\n.\r\nQUIT\r\n", out: "a\r\nb\r\n", rest: "QUIT\r\n"},
		{name: "empty", in: ".\r\n", out: ""},
		{name: "dots", in: "..\r\n.a\r\n...b\r\n.\r\n", out: ".\r\na\r\n..b\r\n"},
		{name: "LF . LF", in: "a\n.\nMAIL\r\n.\r\n", out: "a\r\nMAIL\r\n", bare: true},
		{name: "LF . CRLF", in: "a\n.\r\nMAIL\r\n.\r\n", out: "a\r\nMAIL\r\n", bare: true},
		{name: "CRLF . LF", in: "a\r\n.\nMAIL\r\n.\r\n", out: "a\r\nMAIL\r\n", bare: true},
		{name: "CR . CR", in: "a\r.\rMAIL\r\n.\r\n", out: "a\r.\rMAIL\r\n"},
		{name: "CRLF . CR", in: "a\r\n.\rMAIL\r\n.\r\n", out: "a\r\n\rMAIL\r\n"},
		{name: "CR . CRLF", in: "a\r.\r\nMAIL\r\n.\r\n", out: "a\r.\r\nMAIL\r\n"},
		{name: "CRCRLF . CRLF", in: "a\r\r\n.\r\nQUIT", out: "a\r\n", rest: "QUIT"},
		{name: "CRLF . CRCRLF", in: "a\r\n.\r\r\nb\r\n.\r\n", out: "a\r\n\r\nb\r\n"},
		{name: "bare lines", in: "a\nb\n\nc\r\n.\r\n", out: "a\r\nb\r\n\r\nc\r\n", bare: true},
		{name: "dot after bare", in: "a\n..b\r\n.\r\n", out: "a\r\n.b\r\n", bare: true},
		{name: "two ends", in: "a\n.\r\n.\r\n.\r\n", out: "a\r\n", rest: ".\r\n", bare: true},
		{name: "lenient", in: "a\nb\n.\nQUIT\n", lenient: true, out: "a\r\nb\r\n", rest: "QUIT\n", bare: true},
		{name: "mailbox line", in: "From x y\r\nA: b\r\n.\r\n", out: "X-Mailbox-Line: From x y\r\nA: b\r\n"},
		{name: "quoted mailbox line", in: ">From x\r\n.\r\n", out: "X-Mailbox-Line: >From x\r\n"},
		{name: "mailbox lines", in: "From x y\r\n>From z\r\nFrom u\r\nA: b\r\nFrom v\r\n.\r\n", out: "X-Mailbox-Line: From x y\r\nX-Mailbox-Line: >From z\r\nX-Mailbox-Line: From u\r\nA: b\r\nFrom v\r\n"},
		{name: "blank after a mailbox line", in: "From x\r\n y\r\n.\r\n", out: "X-Mailbox-Line: From x\r\n\r\n y\r\n"},
		{name: "dot after a mailbox line", in: "From x\n.\nFrom y\r\n.\r\n", out: "X-Mailbox-Line: From x\r\nX-Mailbox-Line: From y\r\n", bare: true},
		{name: "body after a mailbox line", in: "From x\r\n\r\nFrom y\r\n.\r\n", out: "X-Mailbox-Line: From x\r\n\r\nFrom y\r\n"},
		{name: "From later", in: "A: b\r\nFrom x\r\n.\r\n", out: "A: b\r\nFrom x\r\n"},
		{name: "NUL", in: "a\x00b\r\n.\r\n", out: "a\x00b\r\n"},
		{name: "no end", in: "a\r\nb", out: "a\r\n", rest: "b", open: true},
		{name: "end without line end", in: "a\r\n.", out: "a\r\n", rest: ".", open: true},
	} {
		for _, step := range []int{1, 2, 3, 1000} {
			c := &content{lenient: tc.lenient}
			out, rest, done := take(c, []byte(tc.in), func(int) int { return step }, bigBuf)
			if out != tc.out || string(rest) != tc.rest || done == tc.open || c.bareLF != tc.bare {
				t.Errorf("%s by %d: %q, rest %q, done %v, bare %v", tc.name, step, out, rest, done, c.bareLF)
			}
		}
	}
}

// TestSmuggling tries everything that some server has taken for an end of
// data, with a message after it that must stay inside the first one. What
// ends a message is CRLF "." CRLF alone (RFC 5321 sections 2.3.8, 4.1.1.4).
func TestSmuggling(t *testing.T) {
	t.Parallel()
	const inner = "MAIL FROM:<smuggled@x.test>\r\n"
	ends := []string{"", "\r", "\n", "\r\n", "\n\r", "\r\r\n", "\r\n\n", "\r\n\r", "\n\n", "\r\r", "\x00\r\n", "\r\x00\n", "\r\n\x00", " \r\n", "\r\n ", "\u0085", "\u2028", "\x0b", "\x0c"}
	n := 0
	for _, before := range ends {
		for _, dot := range []string{".", "..", ".\x00", ". "} {
			for _, after := range ends {
				in := "a" + before + dot + after + inner + "b\r\n.\r\nQUIT\r\n"
				isEnd := strings.HasSuffix(before, "\r\n") && dot == "." && strings.HasPrefix(after, "\r\n")
				for _, step := range []int{1, 1000} {
					out, rest, done := take(&content{}, []byte(in), func(int) int { return step }, bigBuf)
					want := "QUIT\r\n"
					if isEnd {
						want = strings.TrimPrefix(after, "\r\n") + inner + "b\r\n.\r\n" + want
					}
					if !done || string(rest) != want || isEnd == strings.Contains(out, "smuggled") {
						t.Errorf("%q %q %q by %d: content %q, rest %q, done %v", before, dot, after, step, out, rest, done)
					}
					if i := strings.IndexByte(strings.ReplaceAll(out, "\r\n", ""), '\n'); i >= 0 {
						t.Errorf("%q %q %q: a bare LF is left in %q", before, dot, after, out)
					}
					n++
				}
			}
		}
	}
	if n < 2000 {
		t.Errorf("only %d cases", n)
	}
}

func TestContentLimit(t *testing.T) {
	t.Parallel()
	c := &content{limit: 10}
	out, _, done := take(c, []byte("12345678\r\nx\r\n.\r\n"), func(n int) int { return n }, bigBuf)
	if out != "" && out != "12345678\r\n" || !done || !c.over || c.size != 13 {
		t.Errorf("%q %v %v %d", out, done, c.over, c.size)
	}
	c = &content{limit: 10}
	if _, _, done := take(c, []byte("12345678\r\n.\r\n"), func(n int) int { return n }, bigBuf); !done || c.over {
		t.Error("a message of just the limit is refused")
	}
}

func TestContentOverlong(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("x", 1000)
	in := "." + line + "\r\n" + line + ".\r\n.\r\n"
	c := &content{}
	out, _, done := take(c, []byte(in), func(int) int { return 7 }, 64)
	if want := line + "\r\n" + line + ".\r\n"; out != want || !done {
		t.Errorf("%.50q... (%d), want %d octets; done %v", out, len(out), len(want), done)
	}
	c = &content{}
	in = strings.Repeat("\r", 500) + "\n.\r\n"
	if out, _, _ := take(c, []byte(in), func(int) int { return 9 }, 64); strings.Trim(out, "\r") != "\n" {
		t.Errorf("%q", out)
	}
}

// The pieces in which content arrives make no difference, and nothing that is
// written can be taken for an end by anybody.
func TestContentAnyPieces(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := []byte(strings.Join(rapid.SliceOf(rapid.SampledFrom([]string{"a", "bc", ".", "..", "\r", "\n", "\r\n", "\r\n.\r\n", "\x00", "From x"})).Draw(t, "in"), ""))
		checkContent(t, in, func(rest int) int { return rapid.IntRange(1, rest).Draw(t, "n") })
	})
}

type fataler interface{ Fatalf(string, ...any) }

func checkContent(t fataler, in []byte, piece func(int) int) {
	whole := &content{}
	out, rest, done := take(whole, in, func(n int) int { return n }, bigBuf)
	parts := &content{}
	out2, rest2, done2 := take(parts, in, piece, bigBuf)
	if out != out2 || !bytes.Equal(rest, rest2) || done != done2 || whole.size != parts.size || whole.bareLF != parts.bareLF {
		t.Fatalf("in pieces %q %q %v, whole %q %q %v", out2, rest2, done2, out, rest, done)
	}
	for i := range len(out) {
		if out[i] == '\n' && (i == 0 || out[i-1] != '\r') {
			t.Fatalf("bare LF in %q", out)
		}
	}
	if out != "" && !strings.HasSuffix(out, "\r\n") && done {
		t.Fatalf("%q does not end in CRLF", out)
	}
	if int64(len(out)) != whole.size {
		t.Fatalf("size %d of %d octets", whole.size, len(out))
	}
}

func FuzzContent(f *testing.F) {
	f.Add([]byte("a\r\n..b\n.\r\n.\r\n"))
	f.Add([]byte("From x\r\r\n.\r.\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		checkContent(t, in, func(int) int { return 1 })
	})
}

type discardWriter struct{}

func (discardWriter) Write(p []byte) (int, error) { return len(p), nil }

func BenchmarkContent10K(b *testing.B) {
	in := []byte(strings.Repeat(strings.Repeat("x", 74)+"\r\n", 135) + ".\r\n")
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		c := &content{w: discardWriter{}}
		if _, done := c.feed(in); !done {
			b.Fatal("no end")
		}
	}
}
