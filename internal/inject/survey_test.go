package inject

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What is read eight octets at a time says of every text what one at a time says.
func TestSurvey(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var text []byte
		for range rapid.IntRange(0, 6).Draw(t, "pieces") {
			text = append(text, bytes.Repeat([]byte{rapid.SampledFrom([]byte("a \xc3\x80\xff\x7f")).Draw(t, "octet")},
				rapid.OneOf(rapid.IntRange(0, 20), rapid.IntRange(maxLine-20, maxLine+2)).Draw(t, "times"))...)
			text = append(text, rapid.SampledFrom([]string{"", "\n", "\r", "\r\n", "\x00", "\x1f", " "}).Draw(t, "end")...)
		}
		eight, line, long, control := 0, 0, false, false
		for _, c := range text {
			if c >= 0x80 {
				eight++
			}
			if line++; c == '\n' || c == '\r' {
				line = 0
			}
			long = long || line > maxLine
			control = control || c < ' '
		}
		ascii, n, tooLong := survey(text)
		if ascii != (eight == 0) || n != eight || tooLong != long {
			t.Fatalf("%q: ASCII %v, %d not, long %v; want %d, %v", text, ascii, n, tooLong, eight, long)
		}
		if hasControl(text) != control {
			t.Fatalf("%q: control is %v", text, !control)
		}
		bare := strings.ContainsAny(strings.ReplaceAll(string(text), "\r\n", ""), "\r\n")
		if hasCRLF(text) == bare {
			t.Fatalf("%q: CRLF everywhere is %v", text, !bare)
		}
	})
}

// A key is found wherever it may be, and what has none is not kept for one.
func TestHasKey(t *testing.T) {
	t.Parallel()
	for item, want := range map[string]bool{
		`{"idempotency_key": "a"}`:              true,
		`{"send_at": 1, "idempotency_key":"a"}`: true,
		`{"idempotenc\u0079_key": "a"}`:         true,
		`{"text": "a\n\\b", "send_at": 1}`:      false,
		`{"text": "idempotency", "_key": 1}`:    false,
		`{"idempotency_`:                        false,
		`\`:                                     false,
	} {
		if hasKey([]byte(item)) != want {
			t.Errorf("%s: not %v", item, want)
		}
	}
}
