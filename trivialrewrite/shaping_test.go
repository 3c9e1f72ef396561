package trivialrewrite

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/proto"
	"posthaste/internal/table"
)

// shapingFile writes a file, and returns the line of main.cf that names it.
func shapingFile(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "shaping.toml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "shaping_files = " + name + "\n"
}

// shaped is what is said of a recipient's mail: its limits, and what goes with it.
func shaped(t *testing.T, s *server, addr string) string {
	t.Helper()
	reply := s.resolve(&proto.Resolve{Address: addr, Limits: true})
	var words []string
	add := func(name, value string) {
		if value != "" {
			words = append(words, name+value)
		}
	}
	add("site ", reply.Site)
	if reply.Alone {
		words = append(words, "alone")
	}
	add("provider ", reply.Provider)
	add("own: ", reply.OwnLimits)
	add("site: ", reply.SiteLimits)
	add("provider: ", reply.ProviderLimits)
	advice, err := url.QueryUnescape(reply.Advice)
	if err != nil {
		t.Fatal(err)
	}
	add("advice: ", advice)
	members, err := proto.DecodeMembers(reply.Members)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		add(m.Source+" own: ", m.OwnLimits)
		add(m.Source+" site: ", m.SiteLimits)
		add(m.Source+" provider: ", m.ProviderLimits)
		advice, _ := url.QueryUnescape(m.Advice)
		add(m.Source+" advice: ", advice)
	}
	return strings.Join(words, "; ")
}

const shapingText = `["default"]
connection_limit = 10
[provider."big net"]
match = [{MXSuffix=".big.net"}]
provider_connection_limit = 20
max_deliveries_per_connection = 5
[provider."big net".sources."mta1"]
connection_limit = 3
[["provider"."big net".automation]]
regex = 'x'
action = 'Suspend'
duration = 60
["a.example"]
max_message_rate = "5/s"
["own.example"]
mx_rollup = false
connection_limit = 1
`

func TestShaping(t *testing.T) {
	t.Parallel()
	const both = "mx1.host.example,mx2.host.example"
	const pools = "egress_source_maps = inline:{ {mta1 = address=192.0.2.1} {mta2 = address=192.0.2.2} }\negress_pool_maps = inline:{ {all = mta1, mta2} }\ndefault_egress_pool = all\n"
	for _, c := range []struct{ name, conf, addr, want string }{
		{"default", "", "x@none.example", "own: concurrency=10; advice: unit=none.example"},
		{"a site", "", "x@c.example", "site mx1.host.example; alone; site: concurrency=10; advice: unit=mx1.host.example"},
		{"a section of the domain", "", "x@a.example", "site " + both + "; alone; site: concurrency=10, messages=5/s; advice: unit=" + both},
		{"a section of another domain with the same hosts", "", "x@b.example", "site " + both + "; alone; site: concurrency=10, messages=5/s; advice: unit=" + both},
		{"rolled up", "destination_rollup = yes\n", "x@b.example", "site " + both + "; site: concurrency=10, messages=5/s; advice: unit=" + both},
		{"by its name", "destination_rollup = yes\n", "x@own.example", "site mx9.host.example; alone; own: concurrency=1; advice: unit=own.example"},
		{"a provider", "", "x@exact.example", "site special.big.net; alone; provider big-net; site: concurrency=10, messages_per_connection=5; provider: concurrency=20; advice: in=provider big net&unit=special.big.net"},
		{"a table of providers", "destination_provider_maps = inline:{ {.big.net = other} }\n", "x@exact.example", "site special.big.net; alone; provider other; site: concurrency=10, messages_per_connection=5; advice: in=provider big net&unit=special.big.net"},
		{"a table of limits", "destination_limit_maps = inline:{ {a.example = concurrency=2} {provider:big-net = concurrency=9} }\n", "x@a.example",
			"site " + both + "; alone; own: concurrency=2, messages=5/s; advice: most=concurrency=2&unit=a.example"},
		{"and of a provider's", "destination_limit_maps = inline:{ {provider:big-net = concurrency=9} }\n", "x@exact.example",
			"site special.big.net; alone; provider big-net; site: concurrency=10, messages_per_connection=5; provider: concurrency=9; advice: in=provider big net&pmost=concurrency=9&unit=special.big.net"},
		{"for all", "destination_limit_maps = inline:{ {* = concurrency=7, connections=1/s, messages=9/s} }\n", "x@a.example",
			"site " + both + "; alone; site: concurrency=7, connections=1/s, messages=5/s; advice: most=concurrency=7, connections=1/s&unit=" + both},
		{"none", "destination_limit_maps = inline:{ {a.example = none} }\n", "x@a.example", "site " + both + "; alone; own: none; advice: unit=a.example"},
		{"what stays here", "", "x@box.test", ""},
		{"in brackets", "transport_maps = inline:{ {x.test = smtp:[gate.big.net]} }\n", "y@x.test", "site gate.big.net; alone; provider big-net; site: concurrency=10, messages_per_connection=5; provider: concurrency=20; advice: in=provider big net&unit=gate.big.net"},
		{"the DNS fails", "", "x@bad.example", "own: concurrency=10; advice: unit=bad.example"},
		{"sources", pools, "x@exact.example", "site special.big.net; alone; provider big-net" +
			"; mta1 site: concurrency=3, messages_per_connection=5; mta1 provider: concurrency=20; mta1 advice: in=provider big net&unit=special.big.net" +
			"; mta2 site: concurrency=10, messages_per_connection=5; mta2 provider: concurrency=20; mta2 advice: in=provider big net&unit=special.big.net"},
		{"the table's limits of a source", pools + "destination_limit_maps = inline:{ {a.example from mta1 = concurrency=2} {* from mta2 = concurrency=4, recipients=8/s} }\n", "x@a.example",
			"site " + both + "; alone; mta1 own: concurrency=2, messages=5/s; mta1 advice: most=concurrency=2&unit=" + both +
				"; mta2 site: concurrency=4, messages=5/s, recipients=8/s; mta2 advice: most=concurrency=4&unit=" + both},
	} {
		r, warned, _ := newSiteRewriter(t, c.conf+shapingFile(t, shapingText))
		s := newServer(context.Background(), r, nil, keepLong)
		r.sites.due()
		r.sites.findPeers(context.Background())
		if got := strings.ReplaceAll(shaped(t, s, c.addr), "big+net", "big net"); got != c.want || len(*warned) != 0 {
			t.Errorf("%s:\n%s\nwant\n%s\n%v", c.name, got, c.want, *warned)
		}
		s.Close()
	}
}

// TestShapingErrors has files that stop the service, and one that it names.
func TestShapingErrors(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("compatibility_level = 3.6\n" + shapingFile(t, "['default']\nconnection_limit = 'x'\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(cfg, table.Options{}); err == nil || !strings.Contains(err.Error(), "shaping.toml:2: connection_limit: ") {
		t.Error(err)
	}
	_, warned, _ := newSiteRewriter(t, shapingFile(t, "['default']\nremember_broken_tls = 60\n"))
	if len(*warned) != 1 || !strings.Contains((*warned)[0], "shaping.toml:2: the key remember_broken_tls has no effect here") {
		t.Error(*warned)
	}
}
