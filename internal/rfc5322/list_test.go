package rfc5322

import (
	"bytes"
	"strings"
	"testing"
)

func TestAppendAddresses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		want string // addresses with "|" between; "+" before one without a comma before it
	}{
		{"", ""},
		{"joe", "joe"},
		{"joe@example.com", "joe@example.com"},
		{" joe @ example . com (Joe)", "joe@example.com"},
		{"Joe <joe@example.com>", "joe@example.com"},
		{`"Doe, Joe" <joe@example.com>, jack`, "joe@example.com|jack"},
		{"a@b,c@d , , e@f", "a@b|c@d|e@f"},
		{"a@b c@d", "a@b|+c@d"},
		{"a b <c@d> e", "c@d|+e"},
		{"<a@b> <c@d>", "a@b|+c@d"},
		{"Group: a@b, C <c@d>; e@f", "a@b|c@d|e@f"},
		{"undisclosed-recipients:;", ""},
		{"undisclosed-recipients:", ""},
		{"node::user", "node::user"},
		{"<>", ""},
		{"<@a,@b:c@d>", "@a,@b:c@d"},
		{`"quoted \"local\" part"@x.y`, `quoted "local" part@x.y`},
		{"a@[1.2.3.4]", "a@[1.2.3.4]"},
		{"a@[1.2. 3.4]", "a@[1.2. 3.4]"},
		{"a (comment (nested) \\) more) @ b", "a@b"},
		{"Joe (a, b) <joe@x>, y", "joe@x|y"},
		{"joe (unbalanced", "joe"},
		{"<joe@x", "joe@x"},
		{"joe@x>", "joe@x"},
		{`"unfinished`, "unfinished"},
		{"a%b!c", "a%b!c"},
		{"=?utf-8?q?J=C3=B6?= <j@x>", "j@x"},
		{"J\u00f6 <j\u00f6@x>", "j\u00f6@x"},
		{"a\r\n\tb@c,\r\n d@e", "a|+b@c|d@e"},
		{"first last@x", "first|+last@x"},
		{`a."b c".d@e`, "a.b c.d@e"},
		{"\\a@b", "a@b"},
		{",;:", ""},
	} {
		var got []string
		for _, a := range AppendAddresses(nil, tc.text, 0) {
			s := a.Addr
			if a.Addr == "" && a.Bracketed {
				continue
			}
			if a.MissingComma {
				s = "+" + s
			}
			got = append(got, s)
			if ext := tc.text[a.Start:a.End]; !strings.ContainsAny(ext, ` "\[(`) && ext != a.Addr {
				t.Errorf("%q: range says %q, address %q", tc.text, ext, a.Addr)
			}
		}
		if g := strings.Join(got, "|"); g != tc.want {
			t.Errorf("%q: got %q, want %q", tc.text, g, tc.want)
		}
	}
}

func TestTokenLimit(t *testing.T) {
	t.Parallel()
	if got := AppendAddresses(nil, strings.Repeat("a,", 1000), 10); len(got) != 5 {
		t.Errorf("%d addresses of 10 tokens", len(got))
	}
}

func TestAppendRewritten(t *testing.T) {
	t.Parallel()
	up := func(text string) string {
		addrs := AppendAddresses(nil, text, 0)
		for i := range addrs {
			addrs[i].Addr, addrs[i].Changed = strings.ToUpper(addrs[i].Addr), true
		}
		return string(AppendRewritten(nil, "To", text, addrs))
	}
	for in, want := range map[string]string{
		" joe":                       "To: JOE\r\n",
		" joe (Joe)":                 "To: JOE (Joe)\r\n",
		` "Doe, Joe" <joe@x>,jack@x`: "To: \"Doe, Joe\" <JOE@X>, JACK@X\r\n",
		" a b c":                     "To: A, B, C\r\n",
		" G: a,\r\n\tb;, c":          "To: G: A, B;, C\r\n",
		` "a b"@c, X <"d e"@f>`:      "To: \"A B\"@C, X <\"D E\"@F>\r\n",
		" <>, a":                     "To: <>, A\r\n",
		" \"long display name number one\" <a@x>, \"long display name number two\" <b@x>": "To: \"long display name number one\" <A@X>,\r\n\t\"long display name number two\" <B@X>\r\n",
	} {
		if got := up(in); got != want {
			t.Errorf("%q:\ngot  %q\nwant %q", in, got, want)
		}
	}
}

// FuzzAddresses: ranges are in order and inside the text; a list written
// again holds the same addresses.
func FuzzAddresses(f *testing.F) {
	for _, s := range []string{"a@b, c", "G:a;", `"x" <y@z> (c)`, "a b <c> d", "<@a:b", "[x", "\\", "a\r\n b", ":;,<>()\"[]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list := AppendAddresses(nil, text, 0)
		last := 0
		for _, a := range list {
			if a.Start < last || a.End < a.Start || a.End > len(text) || a.Item > a.Start || a.Item < last {
				t.Fatalf("%q: %+v after %d", text, a, last)
			}
			last = a.End
			if strings.ContainsAny(a.Addr, "\r\n") {
				t.Fatalf("%q: line end in %q", text, a.Addr)
			}
		}
		for i := range list {
			list[i].Changed = list[i].Addr != ""
		}
		out := AppendRewritten(nil, "To", text, list)
		field, ok := ParseField(out)
		if !ok || !bytes.HasSuffix(out, []byte("\r\n")) || fieldLen(append(out, 'x')) != len(out) {
			t.Fatalf("%q: not one field: %q", text, out)
		}
		again := AppendAddresses(nil, string(field.Body()), 0)
		var want, got []string
		for _, a := range list {
			want = append(want, a.Addr)
		}
		for _, a := range again {
			got = append(got, a.Addr)
		}
		if plain(text) && strings.Join(want, "\n") != strings.Join(got, "\n") {
			t.Fatalf("%q: %q, written %q, read %q", text, want, out, got)
		}
	})
}

// plain says whether text is well-formed enough for its addresses to survive
// being written and read exactly: unbalanced punctuation may not.
func plain(text string) bool {
	for i := 0; i < len(text); i++ {
		if c := text[i]; class[c]&atext == 0 && strings.IndexByte(" ,.@", c) < 0 || strings.IndexByte(`|%!\`, c) >= 0 {
			return false
		}
	}
	return true
}

func FuzzHeader(f *testing.F) {
	f.Add([]byte("A: b\r\n c\r\nD:\r\n\r\nbody"))
	f.Add([]byte("A : b\n\n"))
	f.Fuzz(func(t *testing.T, msg []byte) {
		var joined []byte
		rest := msg
		for {
			f, r, ok := NextField(rest)
			if !ok {
				break
			}
			if len(f.Name()) == 0 || f.AfterName()[0] != ':' {
				t.Fatalf("%q: field %q", msg, f.Raw)
			}
			_, _, _ = f.Body(), f.Value(), f.Lines()
			joined = append(joined, f.Raw...)
			rest = r
		}
		if !bytes.Equal(joined, msg[:len(msg)-len(rest)]) {
			t.Fatalf("%q: %q is not %q", msg, joined, msg[:len(msg)-len(rest)])
		}
	})
}

func FuzzStructure(f *testing.F) {
	f.Add("multipart/mixed; boundary=\"a b\"; boundary=c", "--a b--")
	f.Add("message/rfc822", "--")
	f.Fuzz(func(t *testing.T, ctype, line string) {
		s := Structure{MaxDepth: 3, MaxBoundary: 10}
		for range 6 {
			field, ok := ParseField([]byte("Content-Type: " + ctype + "\r\n"))
			if ok {
				s.Field(field)
			}
			s.EncodingFault()
			s.EndOfHeader()
			s.Boundary([]byte(line))
		}
		for _, b := range s.stack {
			if len(b.text) > 10 {
				t.Fatalf("boundary %q", b.text)
			}
		}
		if len(s.stack) > 4+maxMIMETokens {
			t.Fatalf("%d deep", len(s.stack))
		}
	})
}

func TestHidden(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`a@b`: 0, `"a"@b`: 0, `"a b"@c`: 0, `a%b@c`: 0, `"q@q"@b`: 3, `"q@q"`: 3, `<"q@q">`: 3, `a\@b@c`: 3, `"q!q"."r"@b`: 5,
		`"a%b"`: 3, `@a:"q@q"@c`: 0, `"q@q"%c`: 0, `"@a:b@c"@d`: 6, `"q@q" (x) @ [1.2.3.4]`: 3, `""`: 0, `[a@b]`: 5,
	} {
		addrs := AppendAddresses(nil, text, 0)
		if len(addrs) != 1 || addrs[0].Hidden != want {
			t.Errorf("%s: %+v, want %d octets hidden", text, addrs, want)
		}
	}
}
