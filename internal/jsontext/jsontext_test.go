package jsontext

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestQuote(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a<b>&c/":             `"a<b>&c/"`,
		"\b\f\r\n\t\\\"":      `"\b\f\r\n\t\\\""`,
		"\x00\x01\x1f\x7f":    `"\u0000\u0001\u001F\u007F"`,
		"α\u2028\U0001F600":   "\"α\u2028\U0001F600\"",
		"not UTF-8: \xe9\xff": "\"not UTF-8: \ufffd\ufffd\"",
	} {
		if got := Quote(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

// What is written is JSON, and means what it was made of.
func TestReadBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "in"))
		var out map[string]string
		if err := json.Unmarshal([]byte(Object("k", in, "l", in)), &out); err != nil {
			t.Fatal(err)
		}
		if utf8.ValidString(in) && (out["k"] != in || out["l"] != in) {
			t.Fatalf("%q became %q", in, out)
		}
	})
}
