package macro

import "testing"

func TestExpand(t *testing.T) {
	t.Parallel()
	names := func(name string) (string, bool) {
		v, ok := map[string]string{"user": "joe", "home": "/home/joe", "empty": "", "bad": "a/b;c"}[name]
		return v, ok
	}
	for _, tt := range []struct {
		text, want string
		undefined  bool
		fails      bool
	}{
		{"$home/.forward", "/home/joe/.forward", false, false},
		{"${home}x$(user)$$", "/home/joexjoe$", false, false},
		{"$home/.forward${delim}${extension}", "/home/joe/.forward", true, false},
		{"${user?yes}${extension?no}${extension:none}${empty:none}", "yesnonenone", false, false},
		{"${user?{yes}:{no}}-${extension?{yes}:{no}}", "yes-no", false, false},
		{"${user?{a $home}}", "a /home/joe", false, false},
		{"${user?{${extension?{x}:{y}}}}", "y", false, false},
		{"${user?{yes}:}${extension?{yes}:}", "yes", false, false},
		{"$bad", "a/b_c", false, false},
		{"a;$empty;", "a;;", false, false},
		{"${user", "", false, true},
		{"$ x", "", false, true},
		{"${user!}", "", false, true},
		{"${?x}", "", false, true},
		{"${user?{a}b}", "", false, true},
	} {
		got, undefined, err := Expand(tt.text, names, "abcdefghijklmnopqrstuvwxyz/")
		if got != tt.want || undefined != tt.undefined || (err != nil) != tt.fails {
			t.Errorf("%q: %q %t %v", tt.text, got, undefined, err)
		}
	}
}

func FuzzExpand(f *testing.F) {
	f.Add("${a?{b $c}:{${d:e}}}$$")
	f.Fuzz(func(t *testing.T, text string) {
		Expand(text, func(n string) (string, bool) { return n, len(n) > 1 }, "abc")
	})
}
