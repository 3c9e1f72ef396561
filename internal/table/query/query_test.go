package query

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func bracket(s string) string { return "<" + s + ">" }

func TestTemplates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ template, key, want string }{
		{"a = '%s'", "u@d.example", "a = '<u@d.example>'"},
		{"%u at %d", "u@d.example", "<u> at <d.example>"},
		{"%u", "plain", "<plain>"},
		{"%d", "plain", "no"},
		{"%u", "@d.example", "no"},
		{"%d", "@d.example", "<d.example>"},
		{"%d", "u@", "no"},
		{"%u|%d", "a@b@c", "<a@b>|<c>"},
		{"%1 %2 %3", "user@mail.example.com", "<com> <example> <mail>"},
		{"%4", "user@mail.example.com", "no"},
		{"%2", "user@a..b", "no"},
		{"%1", "example.com", "no"},
		{"%S%U%D", "u@d", "<u@d><u><d>"},
		{"100%% %s", "k", "100% <k>"},
		{"fixed", "k", "fixed"},
	} {
		tp, err := Parse(c.template)
		if err != nil {
			t.Errorf("%s: %v", c.template, err)
			continue
		}
		got, ok := tp.Query(c.key, bracket)
		if !ok {
			got = "no"
		}
		if got != c.want {
			t.Errorf("%s with %s: %q, expected %q", c.template, c.key, got, c.want)
		}
		if tp.Fixed() != !strings.Contains(strings.ReplaceAll(c.template, "%%", ""), "%") {
			t.Errorf("%s: Fixed is %v", c.template, tp.Fixed())
		}
	}
	for _, bad := range []string{"%", "a%x", "%0", "%", "%%%"} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		format, key string
		values      []string
		limit       int
		want        string
	}{
		{"%s", "k", []string{"a", "", "b"}, 0, "a,b"},
		{"smtp:[%s]", "k", []string{"a", "b"}, 0, "smtp:[a],smtp:[b]"},
		{"%u@%D", "k@key.example", []string{"x@value.example", "y"}, 0, "x@key.example,y@key.example"},
		{"%d", "k", []string{"a@b", "c"}, 0, "b"},
		{"%U.%1=%s", "k@key.example", []string{"v"}, 0, "k.example=v"},
		{"%D", "k", []string{"v"}, 0, "none"},
		{"%s", "k", nil, 0, "none"},
		{"%s", "k", []string{"a", "b"}, 2, "a,b"},
		{"%s", "k", []string{"a", "b", "c"}, 2, "error"},
	} {
		format, err := ParseResult(c.format)
		if err != nil {
			t.Fatal(err)
		}
		r := &Results{Key: c.key, Format: format, Limit: c.limit}
		for _, v := range c.values {
			if err = r.Add(v); err != nil {
				break
			}
		}
		got, found := r.Answer()
		switch {
		case err != nil:
			got = "error"
		case !found:
			got = "none"
		}
		if got != c.want {
			t.Errorf("%s with %s %q: %q, expected %q", c.format, c.key, c.values, got, c.want)
		}
	}
	r := &Results{Key: "k", Format: &Template{parts: []part{{what: 's'}}}}
	if err := r.Add(strings.Repeat("x", maxAnswer+1)); err == nil {
		t.Error("an answer over the limit is taken")
	}
}

// What a stranger chooses is in a query only as quoted.
func TestQuotedOnly(t *testing.T) {
	t.Parallel()
	tp, err := Parse("%s %u %d %1 %2")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringMatching(`[a-z'@.\\%"]{1,20}`).Draw(t, "key")
		text, ok := tp.Query(key, func(s string) string { return strings.Repeat("q", len(s)) })
		if ok && strings.Trim(text, "q ") != "" {
			t.Fatalf("%q: %q", key, text)
		}
	})
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	inner := errors.New("a:\n\tb\n\tc")
	err := OneLine(errors.Join(inner, errors.New("d")))
	if got := err.Error(); got != "a: b; c; d" || !errors.Is(err, inner) {
		t.Error(got)
	}
	if OneLine(nil) != nil {
		t.Error("no error is one")
	}
}

func FuzzTemplate(f *testing.F) {
	f.Add("SELECT a FROM b WHERE c = '%s' AND d = '%2'", "user@example.com")
	f.Add("%%%u%", "@")
	f.Fuzz(func(t *testing.T, text, key string) {
		tp, err := Parse(text)
		if err != nil {
			return
		}
		if out, ok := tp.Query(key, func(string) string { return "" }); ok && len(out) > len(text) {
			t.Fatalf("%q made of %q", out, text)
		}
	})
}
