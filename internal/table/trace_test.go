package table

import (
	"fmt"
	"strings"
	"testing"
)

// Whoever follows a session sees each element that is compared, each key that is asked for, and
// no more of an answer than a line can have.
func TestTrace(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	ctx := WithTrace(t.Context(), func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) })
	words := []string{"a.test", "b.test", "c.test", "d.test", "e.test", "f.test", "g.test", "h.test"} // long enough for a set
	list := func(kind Kind, words ...string) *List {
		l, err := NewList("some_list", words, ListOptions{Kind: kind})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	long := strings.Repeat("x", 2*maxTraced)
	for _, tc := range []struct {
		what string
		do   func() (bool, error)
		yes  bool
		want string
	}{
		{"a client by its name", func() (bool, error) {
			return list(Clients, "!192.0.2.1", ".site.test").MatchClient(ctx, "h.site.test", "192.0.2.2")
		}, true,
			"match_hostname: some_list: h.site.test ~? 192.0.2.1\nmatch_hostaddr: some_list: 192.0.2.2 ~? 192.0.2.1\nmatch_hostname: some_list: h.site.test ~? .site.test\n"},
		{"an excluded client", func() (bool, error) {
			return list(Clients, "!192.0.2.1", "192.0.2.0/24").MatchClient(ctx, "", "192.0.2.1")
		}, false, "match_hostaddr: some_list: 192.0.2.1 ~? 192.0.2.1\n"},
		{"a long list", func() (bool, error) { return list(Strings, words...).Match(ctx, "B.test") }, true,
			"match_string: some_list: b.test ~? a.test\nmatch_string: some_list: b.test ~? b.test\n"},
		{"a table in a list", func() (bool, error) { return list(Strings, "inline:{k=v}").Match(ctx, "k") }, true,
			"match_string: some_list: k ~? inline:{k=v}\nmaps_find: some_list: inline:{k=v}: k = v\n"},
		{"nothing", func() (bool, error) { return list(Domains, "a.test").Match(ctx, "b.test") }, false,
			"match_hostname: some_list: b.test ~? a.test\nmatch_list_match: b.test: no match\n"},
		{"several tables", func() (bool, error) {
			_, found, err := OpenMaps("some_maps", []string{"inline:{a=1}", "inline:{b=2}"}, Options{}).Lookup(ctx, "b", false)
			return found, err
		}, true, "maps_find: some_maps: inline:{b=2}: b = 2\n"},
		{"a long answer", func() (bool, error) {
			_, found, err := OpenMaps("access table static:"+long, []string{"static:" + long}, Options{}).Lookup(ctx, "b", false)
			return found, err
		}, true, "maps_find: static:" + long + ": static:" + long + ": b = " + long[:maxTraced] + "...\n"},
	} {
		b.Reset()
		if yes, err := tc.do(); yes != tc.yes || err != nil {
			t.Errorf("%s: %v, %v", tc.what, yes, err)
		}
		if b.String() != tc.want {
			t.Errorf("%s: the trace is\n%swanted\n%s", tc.what, b.String(), tc.want)
		}
	}
	b.Reset()
	TraceOf(ctx).Sent("request", "rewrite", "sender", "")
	TraceOf(ctx).Received("flags", "0", "reason", "", "text", long)
	if want := "send attr request = rewrite\nsend attr sender = \n" +
		"input attribute name: flags\ninput attribute value: 0\ninput attribute name: reason\ninput attribute value: (end)\n" +
		"input attribute name: text\ninput attribute value: " + long[:maxTraced] + "...\n"; b.String() != want {
		t.Errorf("attributes:\n%swanted\n%s", b.String(), want)
	}
	if TraceOf(WithTrace(ctx, nil)) != nil || TraceOf(t.Context()) != nil {
		t.Error("somebody is told without having asked")
	}
}
