package bounce

import (
	"testing"

	"pgregory.net/rapid"
)

// What is encoded comes back; what is malformed is left alone.
func TestFromXtextUTF8(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                        "",
		"joe@to.test":             "joe@to.test",
		`f\x{E4}llt@far.test`:     "fällt@far.test",
		`\x{1F600}\x{5C}@x`:       `😀\@x`,
		`\x{}@x`:                  `\x{}@x`,
		`\x{D800}\x{110000}\x{E4`: `\x{D800}\x{110000}\x{E4`,
		`\x{x\x{E4}`:              `\x{xä`,
		`\x{FFFFFFFFFF}`:          `\x{FFFFFFFFFF}`,
	} {
		if got := fromXtextUTF8(in); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		if got := fromXtextUTF8(xtextUTF8(s)); got != s {
			t.Errorf("%q comes back as %q", s, got)
		}
	})
}
