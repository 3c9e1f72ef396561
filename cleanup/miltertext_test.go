package cleanup

import (
	"strings"
	"testing"
)

// TestMilterArguments: of what a filter says with an address, the parameters that mean something here are taken,
// in either case of letters; each other one is warned of and goes no further.
func TestMilterArguments(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want, warned string }{
		{"", "", ""},
		{"RET=HDRS  envid=x", " RET=HDRS envid=x", ""},
		{"SIZE=10 RET=FULL BODY=8BITMIME", " RET=FULL", "bad SIZE=10, bad BODY=8BITMIME"},
		{"RE ENVI ENVID=", " ENVID=", "bad RE, bad ENVI"},
		{"a\x07b", "", "bad a?b"},
	} {
		m := new(Message)
		got := (&filtering{m: m}).parameters(tt.args, "bad %s", "RET=", "ENVID=")
		var warned []string
		for _, l := range m.log {
			if !l.Warning {
				t.Errorf("%q: no warning: %s", tt.args, l.Text)
			}
			warned = append(warned, l.Text)
		}
		if w := strings.Join(warned, ", "); got != tt.want || w != tt.warned {
			t.Errorf("%q: %q, warned of %q, want %q and %q", tt.args, got, w, tt.want, tt.warned)
		}
	}
}

func TestBracketed(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"a@b.test": "<a@b.test>", "<a@b.test>": "<a@b.test>", " a@b.test ": "<a@b.test>", "\t<a@b.test>": "<a@b.test>", "": "<>", "<>": "<>"} {
		if got := bracketed(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
