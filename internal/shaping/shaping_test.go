package shaping

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/rate"
	"posthaste/internal/resolver"

	"pgregory.net/rapid"
)

// write puts files into a directory, and returns their names in order.
func write(t testing.TB, texts ...string) (names []string) {
	t.Helper()
	dir := t.TempDir()
	for i, text := range texts {
		name := filepath.Join(dir, fmt.Sprintf("%d.toml", i+1))
		if strings.HasPrefix(text, "{") {
			name = filepath.Join(dir, fmt.Sprintf("%d.json", i+1))
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

func load(t testing.TB, texts ...string) (*Rules, []Warning) {
	t.Helper()
	rules, warnings, err := Load(write(t, texts...))
	if err != nil {
		t.Fatal(err)
	}
	return rules, warnings
}

// say is what holds, a line for each key: its value, its line and its section.
func say(s *Settings) string {
	var b strings.Builder
	for _, k := range s.Keys() {
		v := s.Values[k]
		fmt.Fprintf(&b, "%s=%s %s:%d %s\n", k, v.Text, filepath.Base(v.At.File), v.At.Line, v.In)
	}
	return b.String()
}

const example = `["default"]
connection_limit = 10
[provider."big"]
match = [{MXSuffix=".mx.big.example"}, {DomainSuffix="big.example"}]
provider_max_message_rate = "120/s"
[[provider."big".automation]]
regex = ['^421 4\.7\.']
trigger = {Threshold="10/hr"}
action = ["Suspend", {SetConfig={name="connection_limit", value=2}}]
duration = "1h"
["one.example"]
mx_rollup = false
["one.example".sources."ip-1"]
max_message_rate = "local:100/min,max_burst=10"
`

func TestResolve(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		files []string
		q     Query
		want  string
		alone bool
	}{
		{"default", []string{example}, Query{Domain: "x.test"}, "connection_limit=10 1.toml:2 default\n", false},
		{"source", []string{example}, Query{Domain: "one.example", Source: "ip-1"}, "connection_limit=10 1.toml:2 default\nmax_message_rate=local:100/min,max_burst=10 1.toml:14 domain one.example alone, source ip-1\n", true},
		{"other source", []string{example}, Query{Domain: "one.example", Source: "ip-2"}, "connection_limit=10 1.toml:2 default\n", true},
		{"provider by hosts", []string{example}, Query{Domain: "x.test", Hosts: []string{"a.mx.big.example", "b.mx.big.example"}},
			"connection_limit=10 1.toml:2 default\nprovider_max_message_rate=120/s 1.toml:5 provider big\n", false},
		{"one host is another's", []string{example}, Query{Domain: "x.test", Hosts: []string{"a.mx.big.example", "backup.example"}}, "connection_limit=10 1.toml:2 default\n", false},
		{"provider by name", []string{example}, Query{Domain: "notbig.example"}, "connection_limit=10 1.toml:2 default\nprovider_max_message_rate=120/s 1.toml:5 provider big\n", true},
		{"a suffix is not the name", []string{"[provider.o]\nmatch=[{MXSuffix='.outlook.com'}]\nidle_timeout=5\n"}, Query{Domain: "x", Hosts: []string{"outlook.com"}}, "", false},
		{"a host by its name", []string{"[provider.o]\nmatch=[{HostName='MX.o.test'}]\nidle_timeout=5\n"}, Query{Domain: "x", Hosts: []string{"mx.o.test"}}, "idle_timeout=5 1.toml:3 provider o\n", false},
		{"an ending with a dot", []string{"[provider.o]\nmatch=[{MXSuffix='.o.test.'}]\nidle_timeout=5\n"}, Query{Domain: "x", Hosts: []string{"mx.o.test"}}, "", false},
		{"later files", []string{example, "['default']\nconnection_limit = 3\nidle_timeout='1m'\n"}, Query{Domain: "x.test"}, "connection_limit=3 2.toml:2 default\nidle_timeout=1m 2.toml:3 default\n", false},
		{"replaced later", []string{example, "['default']\nreplace_base=true\nidle_timeout='1m'\n"}, Query{Domain: "x.test"}, "idle_timeout=1m 2.toml:3 default\n", false},
		{"replaced first", []string{example, "['two.example']\nreplace_base=true\nidle_timeout='1m'\n"}, Query{Domain: "two.example"}, "idle_timeout=1m 2.toml:3 domain two.example\n", false},
		{"replaced, but not first", []string{"['default']\nconnection_limit=10\n['two.example']\nidle_timeout=1\nrset_timeout=1\n", "['two.example']\nreplace_base=true\nidle_timeout='1m'\n"},
			Query{Domain: "two.example"}, "connection_limit=10 1.toml:2 default\nidle_timeout=1m 2.toml:3 domain two.example\n", false},
		{"alone, and a later file of the site", []string{"['two.example']\nmx_rollup=false\nidle_timeout=1\n", "['two.example']\nidle_timeout=2\nrset_timeout=2\n"},
			Query{Domain: "two.example"}, "idle_timeout=1 1.toml:3 domain two.example alone\nrset_timeout=2 2.toml:3 domain two.example\n", true},
		{"what is said of it alone is not the site's", []string{"['two.example']\nmx_rollup=false\nidle_timeout=1\n", "['two.example']\nrset_timeout=2\n"},
			Query{Domain: "c.test", Peers: []string{"two.example"}}, "rset_timeout=2 2.toml:2 domain two.example\n", false},
		{"alone in two files", []string{"['two.example']\nmx_rollup=false\nidle_timeout=1\nrset_timeout=1\n", "['two.example']\nmx_rollup=false\nidle_timeout=2\n"},
			Query{Domain: "two.example"}, "idle_timeout=2 2.toml:3 domain two.example alone\nrset_timeout=1 1.toml:4 domain two.example alone\n", true},
		{"peers", []string{"['a.test']\nidle_timeout=1\nrset_timeout=1\n['b.test']\nidle_timeout=2\n"}, Query{Domain: "c.test", Peers: []string{"a.test", "b.test"}},
			"idle_timeout=2 1.toml:5 domain b.test\nrset_timeout=1 1.toml:3 domain a.test\n", false},
		{"the domain after its peers", []string{"['a.test']\nidle_timeout=1\n['b.test']\nidle_timeout=2\n"}, Query{Domain: "a.test", Peers: []string{"a.test", "b.test"}}, "idle_timeout=1 1.toml:2 domain a.test\n", false},
		{"several providers", []string{"[provider.a]\nmatch=[{MXSuffix='.x'}]\nprovider_connection_limit=1\nidle_timeout=1\n[provider.b]\nmatch=[{MXSuffix='.x'}]\nprovider_max_message_rate='1/s'\nidle_timeout=2\n"},
			Query{Domain: "c", Hosts: []string{"h.x"}}, "idle_timeout=2 1.toml:8 provider b\nprovider_max_message_rate=1/s 1.toml:7 provider b\n", false},
		{"provider, its sources, then the domain", []string{"[provider.a]\nmatch=[{MXSuffix='.x'}]\nidle_timeout=1\n[provider.a.sources.s]\nidle_timeout=2\nrset_timeout=2\n['c.test']\nidle_timeout=3\n"},
			Query{Domain: "c.test", Hosts: []string{"h.x"}, Source: "s"}, "idle_timeout=3 1.toml:8 domain c.test\nrset_timeout=2 1.toml:6 provider a, source s\n", false},
		{"a match of a later file", []string{"[provider.a]\nmatch=[{MXSuffix='.x'}]\nidle_timeout=1\n", "[provider.a]\nmatch=[{MXSuffix='.y'}]\n"}, Query{Domain: "c", Hosts: []string{"h.x", "h.y"}}, "idle_timeout=1 1.toml:3 provider a\n", false},
		{"JSON", []string{"{\"default\":\n{\"connection_limit\": \"1,000\",\n\"idle_timeout\": 1.5}}"}, Query{Domain: "c"}, "connection_limit=1,000 1.json:2 default\nidle_timeout=1.5 1.json:3 default\n", false},
		{"plumbing", []string{"['http://127.0.0.1:8008.tsa.kumomta']\nmx_rollup=false\nidle_timeout=1\n"}, Query{Domain: "http://127.0.0.1:8008.tsa.kumomta"}, "", false},
	} {
		rules, _ := load(t, c.files...)
		s := rules.Resolve(&c.q)
		if got := say(s); got != c.want || s.Alone != c.alone {
			t.Errorf("%s: alone %v,\n%s\nwant %v,\n%s", c.name, s.Alone, got, c.alone, c.want)
		}
	}
}

func TestRule(t *testing.T) {
	t.Parallel()
	rules, warnings := load(t, example)
	list := rules.Automation()
	if len(list) != 1 || len(warnings) != 0 {
		t.Fatalf("%v %v", list, warnings)
	}
	r := list[0]
	if r.At.Line != 6 || r.Section != "provider big" || r.Trigger != (Trigger{10, time.Hour}) || r.Duration != time.Hour || len(r.Actions) != 2 ||
		r.Actions[0].String() != "Suspend" || r.Actions[1].String() != "SetConfig connection_limit = 2" {
		t.Errorf("%+v", r)
	}
	// Where a rule stands does not count, and what it says does.
	again, _ := load(t, "# more\n\n"+example)
	if again.Automation()[0].ID != r.ID {
		t.Error("a rule that has moved is another one")
	}
	other, _ := load(t, strings.Replace(example, "10/hr", "11/hr", 1))
	if other.Automation()[0].ID == r.ID {
		t.Error("a rule that says something else is the same")
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"['default']\nfrobnicate=1\n": "2: the key \"frobnicate\" is not known",
		"['default']\nremember_broken_tls='3 days'\n['x.test']\nremember_broken_tls=1\n":              "2: the key remember_broken_tls has no effect here",
		"[one.example]\nidle_timeout=1\n":                                                             "1: section \"one\" is of a single DNS label",
		"[['default'.automation]]\nregex='x'\naction=['Bounce','BounceTenant']\nduration=60\n":        "",
		"[['default'.automation]]\nregex='x'\naction='Suspend'\nduration=60\nfrob=1\n":                "5: the key \"frob\" of a rule is not known",
		"[['default'.automation]]\nregex='x'\naction={SetConfig={name='q',value=1}}\nduration=60\n":   "3: the action SetConfig q =  is without effect: the key q has none",
		"['default']\nadditional_connection_limits={a=1}\n":                                           "2: the key additional_connection_limits has no effect here",
		"['default']\nmax_ready=10\nrefresh_interval='60s'\n":                                         "2: the key max_ready steers KumoMTA's own insides",
		"['http://127.0.0.1:8008.tsa.kumomta']\nfrob=1\n['generator.kumomta.internal']\nfrob=false\n": "",
	} {
		_, warnings := load(t, text)
		var got []string
		for _, w := range warnings {
			got = append(got, fmt.Sprintf("%d: %s", w.At.Line, w.Text))
		}
		if all := strings.Join(got, "\n"); want == "" && all != "" || !strings.Contains(all, want) {
			t.Errorf("%s:\n%s\nwant %s", text, all, want)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	rule := func(text string) string { return "[['default'.automation]]\n" + text }
	for text, want := range map[string]string{
		"x":                                                                           "1.toml:1: ",
		"['default']\nx=1\nx=2\n":                                                     "1.toml:3: ",
		"default = 1\n":                                                               "1.toml:1: \"default\" is a number where a section is expected",
		"['default']\nconnection_limit=0\n":                                           "1.toml:2: connection_limit: \"0\" is no number from 1 on",
		"['default']\nconnection_limit={}\n":                                          "1.toml:2: connection_limit: a table where a value is expected",
		"['default']\nmax_message_rate=10\n":                                          "1.toml:2: max_message_rate: a rate is a string",
		"['default']\nmax_message_rate='10/days'\n":                                   "1.toml:2: max_message_rate: a rate is",
		"['default']\nmax_message_rate='0/s'\n":                                       "1.toml:2: max_message_rate: a rate is",
		"['default']\n\nidle_timeout='soon'\n":                                        "1.toml:3: idle_timeout: \"soon\" is no time",
		"['default']\nenable_tls='Maybe'\n":                                           "1.toml:2: enable_tls: \"Maybe\" is none of Opportunistic,",
		"['default']\nenable_dane=1\n":                                                "1.toml:2: enable_dane: a number where true or false is expected",
		"['default']\nsmtp_port=70000\n":                                              "1.toml:2: smtp_port: there is no such port",
		"['default']\nskip_hosts=['x']\n":                                             "1.toml:2: skip_hosts: \"x\" is no network",
		"['default']\nehlo_domain=\"a\\nb\"\n":                                        "1.toml:2: ehlo_domain: a string of at most",
		"['default']\nprovider_connection_limit=1\n":                                  "1.toml:2: provider_connection_limit is a key of providers, and this is default",
		"['x.test']\nmx_rollup=1\n":                                                   "1.toml:2: mx_rollup is a number",
		"[provider.x]\nmatch='x'\n":                                                   "1.toml:2: match is a string where a list is expected",
		"[provider.x]\nmatch=[{Suffix='x'}]\n":                                        "1.toml:2: match: there is no \"Suffix\"",
		rule("action='Suspend'\nduration=1\n"):                                        "1.toml:1: a rule needs regex",
		rule("regex='('\naction='Suspend'\nduration=1\n"):                             "1.toml:2: regex: the expression is not understood",
		rule("regex=[]\naction='Suspend'\nduration=1\n"):                              "1.toml:2: regex: a string or a list",
		rule("regex='x'\naction='Explode'\nduration=1\n"):                             "1.toml:3: action: there is no \"Explode\"",
		rule("regex='x'\naction={SetConfig={name='connection_limit'}}\nduration=1\n"): "1.toml:3: action: SetConfig needs name and value",
		rule("regex='x'\naction={SetConfig={name='connection_limit',value='x'}}\nduration=1\n"): "1.toml:3: action: connection_limit: \"x\" is no number",
		rule("regex='x'\naction='Suspend'\nduration=1\ntrigger='Later'\n"):                      "1.toml:5: trigger: \"Immediate\" or",
		rule("regex='x'\naction='Suspend'\nduration=0\n"):                                       "1.toml:4: duration: it is less than a second",
		rule("regex='x'\naction='Suspend'\nduration=1\ntrigger={Threshold='100000/s'}\n"):       "1.toml:5: trigger: 100000 is more than 10000",
		"{\"default\": {\"connection_limit\": 1,\n\"connection_limit\": 2}}":                    "1.json:2: connection_limit is there twice",
		"{\"default\": 1":     "1.json:1: unexpected EOF",
		"{\"default\": null}": "1.json:1: null is not understood",
		"{} {}":               "1.json: something follows the object",
		"a = " + strings.Repeat("[", 1000) + "\n": "1.toml: lists and tables are too deep in each other",
	} {
		_, _, err := Load(write(t, text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text[:min(len(text), 200)], err, want)
		}
	}
	if _, _, err := Load([]string{"/nowhere/x.toml"}); err == nil || err.Error() != "/nowhere/x.toml: no such file or directory" {
		t.Error(err)
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"90m": 90 * time.Minute, "2 hours": 2 * time.Hour, "3 days": 72 * time.Hour, "1h 30m": 90 * time.Minute, "45": 45 * time.Second, "5ms": 5 * time.Millisecond} {
		if got, err := parseSpan(text); got != want || err != nil {
			t.Errorf("%q: %v %v", text, got, err)
		}
	}
	for _, text := range []string{"", "h", "1", "1x", "-1s", "1.5h", "99999999999999999999s", "1e9y"} {
		if got, err := parseSpan(text); err == nil && text != "1" {
			t.Errorf("%q: %v", text, got)
		}
	}
	for text, want := range map[string]rate.Rate{
		"100/min": {N: 100, Per: time.Minute}, "local:100/min,max_burst=10": {N: 100, Per: time.Minute}, "1,000/h": {N: 1000, Per: time.Hour},
		"10_000/hour": {N: 10000, Per: time.Hour}, "5/2day": {N: 5, Per: 48 * time.Hour}, "5/day": {N: 5, Per: 24 * time.Hour}, "7/5sec": {N: 7, Per: 5 * time.Second},
		"10000000/s": {N: 100000, Per: time.Second}, "5/2000s": {N: 5, Per: 34 * time.Minute}, "2000/2000h": {N: 1000, Per: 1000 * time.Hour},
	} {
		got, err := parseRate(text)
		if got != want || err != nil {
			t.Errorf("%q: %v %v", text, got, err)
		}
		if back, err := rate.Parse(got.String()); err != nil || back != got {
			t.Errorf("%q is %q: %v", text, got, err)
		}
	}
}

// TestPrecedence holds Resolve to a merge that goes through the sections one after the other.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	names := []string{"connect_timeout", "rset_timeout", "idle_timeout"}
	rapid.Check(t, func(t *rapid.T) {
		type said struct {
			file    int
			section string
			key     string
			value   int
		}
		sections := []string{`"default"`, `provider."a"`, `provider."b"`, `provider."a".sources."s"`, `provider."b".sources."s"`, `"peer.test"`, `"x.test"`, `"peer.test".sources."s"`, `"x.test".sources."s"`, `"other.test"`}
		var all []said
		var texts [2]strings.Builder
		value := 0
		rollup := rapid.Bool().Draw(t, "rollup")
		for f := range texts {
			fmt.Fprint(&texts[f], "[provider.\"a\"]\nmatch=[{MXSuffix='.a.test'}]\n[provider.\"b\"]\nmatch=[{MXSuffix='.test'}]\n")
			fmt.Fprintf(&texts[f], "[\"x.test\"]\nmx_rollup=%v\n", rollup)
			for _, s := range sections {
				var b strings.Builder
				for _, k := range names {
					if rapid.Bool().Draw(t, "said") {
						value++
						all = append(all, said{f, s, k, value})
						fmt.Fprintf(&b, "%s=%d\n", k, value)
					}
				}
				if strings.Contains(s, "sources") {
					fmt.Fprintf(&texts[f], "[%s]\n%s", s, b.String())
					continue
				}
				// Those that have a header already get their keys below it.
				switch s {
				case `provider."a"`, `provider."b"`, `"x.test"`:
					text := strings.Replace(texts[f].String(), "["+s+"]\n", "["+s+"]\n"+b.String(), 1)
					texts[f].Reset()
					texts[f].WriteString(text)
				default:
					fmt.Fprintf(&texts[f], "[%s]\n%s", s, b.String())
				}
			}
		}
		source := rapid.SampledFrom([]string{"", "s", "t"}).Draw(t, "source")
		hosts := rapid.SampledFrom([][]string{nil, {"h.a.test"}, {"h.c.test"}, {"h.a.test", "h.net"}}).Draw(t, "hosts")
		peers := rapid.SampledFrom([][]string{nil, {"peer.test"}}).Draw(t, "peers")
		want := make(map[string]int)
		for _, s := range sections {
			switch {
			case strings.Contains(s, "sources") && source != "s", s == `"other.test"`, strings.Contains(s, "peer") && peers == nil,
				strings.Contains(s, `."a"`) && !slices.Equal(hosts, []string{"h.a.test"}), strings.Contains(s, `."b"`) && len(hosts) != 1:
				continue
			}
			for _, x := range all {
				if x.section == s {
					want[x.key] = x.value
				}
			}
		}
		dir, err := os.MkdirTemp("", "shaping")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		var files []string
		for f := range texts {
			files = append(files, filepath.Join(dir, fmt.Sprint(f, ".toml")))
			if err := os.WriteFile(files[f], []byte(texts[f].String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		rules, _, err := Load(files)
		if err != nil {
			t.Fatalf("%v in\n%s\n%s", err, texts[0].String(), texts[1].String())
		}
		got := rules.Resolve(&Query{Domain: "x.test", Hosts: hosts, Peers: peers, Source: source})
		if len(got.Values) != len(want) {
			t.Fatalf("%v, want %v", got.Values, want)
		}
		for k, n := range want {
			if got.Values[k].Time != time.Duration(n)*time.Second {
				t.Fatalf("%s is %v, want %d", k, got.Values[k], n)
			}
		}
	})
}

func TestLimits(t *testing.T) {
	t.Parallel()
	rules, _ := load(t, "['default']\nconnection_limit=10\nmax_message_rate='100/s'\n['x.test']\nmax_message_rate='5/s'\n[provider.p]\nmatch=[{DomainSuffix='x.test'}]\nprovider_connection_limit=7\n")
	s := rules.Resolve(&Query{Domain: "x.test"})
	for _, c := range []struct {
		table string
		star  bool
		want  string
	}{
		{"", false, "concurrency=10, messages=5/s"}, {"none", false, "none"}, {"none", true, "concurrency=10, messages=5/s"},
		{"concurrency=3", false, "concurrency=3, messages=5/s"}, {"concurrency=3, messages=1/s", true, "concurrency=3, messages=5/s"},
		{"concurrency=3, messages=1/s", false, "concurrency=3, messages=1/s"},
	} {
		if got := s.Limits(c.table, c.star); got != c.want {
			t.Errorf("%q %v: %s, want %s", c.table, c.star, got, c.want)
		}
	}
	if got := s.ProviderLimits("recipients=5/d"); got != "concurrency=7, recipients=5/d" {
		t.Error(got)
	}
}

func TestAdvice(t *testing.T) {
	t.Parallel()
	rules, _ := load(t, "['default']\nconnect_timeout='7s'\nbanner_timeout=1\nehlo_timeout=2\nenable_tls='Required'\nenable_pipelining=false\nenable_dane=true\nskip_hosts=['10.0.0.0/8']\nsmtp_port=26\nehlo_domain='h.test'\n[['default'.automation]]\nregex='x'\naction='Suspend'\nduration=60\n")
	a := ParseAdvice(rules.Resolve(&Query{Domain: "x.test"}).Advice("a.test,b.test", "concurrency=3", ""))
	c := a.Client
	if a.Unit != "a.test,b.test" || !slices.Equal(a.Sections, []string{"default"}) || c.Connect != 7*time.Second || c.Hello != 2*time.Second || c.TLS != "Required" || !c.NoPipelining || !c.DANE ||
		len(c.Skip) != 1 || c.Port != 26 || c.Helo != "h.test" {
		t.Errorf("%+v", a)
	}
	if got := ParseAdvice(SetAdvice("unit=x", "idle_timeout", "5s")); got.Unit != "x" || got.Client.Idle != 5*time.Second {
		t.Errorf("%+v", got)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(example, false)
	f.Add("{\"default\":\n{\"connection_limit\": \"1,000\",\n\"idle_timeout\": 1.5}}", true)
	f.Add("['default']\nskip_hosts=['10.0.0.0/8']\n[provider.p]\nmatch=[{DomainSuffix='x.test'}]\nprovider_connection_limit=7\nprovider_max_message_rate='5/2000s'\n", false)
	f.Fuzz(func(t *testing.T, text string, json bool) {
		l := newLoader()
		name := "x.toml"
		if json {
			name = "x.json"
		}
		if l.file(name, []byte(text)) != nil {
			return
		}
		l.finish()
		// What was understood can be told to others, and understood again.
		for _, domain := range append(l.rules.Rollups(), "x.test") {
			s := l.rules.Resolve(&Query{Domain: domain, Hosts: []string{"h.x.test"}, Source: "ip-1"})
			for _, limits := range []string{s.Limits("", false), s.ProviderLimits("")} {
				if _, err := rate.ParseLimits(limits); limits != "" && err != nil {
					t.Fatalf("%q: %v", limits, err)
				}
			}
			if a := ParseAdvice(s.Advice("u", "", "")); a.Unit != "u" || !slices.Equal(a.Sections, s.Sections) {
				t.Fatalf("%+v of %+v", a, s)
			}
		}
	})
}

func TestDead(t *testing.T) {
	t.Parallel()
	rules, _ := load(t, "[provider.gmail]\nidle_timeout=1\n[provider.p]\nmatch=[{MXSuffix='.x.test.'},\n{DomainSuffix='y.test'}]\n[['x.test'.automation]]\naction='Suspend'\nduration=60\nregex=[\n'''\\\\[HCM1\\\\]''',\n'^too many',\n'^(421|450) ',\n'(?=x)y']\n")
	var got []string
	for _, w := range rules.Dead() {
		got = append(got, fmt.Sprint(w.At.Line, " ", w.Text))
	}
	want := []string{
		"1 provider gmail has no match, and so is never anybody's",
		"4 provider p: MXSuffix \".x.test.\" never matches: names have no dot at the end",
		"10 domain x.test: the expression \"\\\\\\\\[HCM1\\\\\\\\]\" never matches: it wants a backslash, which no reply has; between single quotes one is enough",
		"11 domain x.test: the expression \"^too many\" never matches: a reply begins with its code",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	files := write(t, strings.ReplaceAll(example, "\\.", ".")+"frobnicate = 1\n[provider.gmail]\nidle_timeout=1\n['peer.test']\nidle_timeout=7\n", "x")
	dir := filepath.Dir(files[0])
	for name, text := range map[string]string{dir + "/main.cf": "compatibility_level = 3.6\nshaping_files = " + files[0] + "\n", dir + "/none/main.cf": "compatibility_level = 3.6\n"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"check", "-c", dir}, 0, files[0] + ":15: the key \"frobnicate\" is not known, and has no effect\n" + files[0] + ":16: provider gmail has no match, and so is never anybody's\n9 keys are honoured, 1 are not, 0 steer KumoMTA's own insides; 2 providers, 2 domains, 1 rules of automation\n"},
		{[]string{"check", files[1]}, 78, files[1] + ":1: "},
		{[]string{"check", "-c", dir + "/none"}, 78, "shaping_files is empty"},
		{[]string{"explain", "-c", dir, "One.example.", "--source=ip-1"}, 0, "one.example from ip-1: mail hosts a.mx.big.example, b.mx.big.example\n  provider big\n  the same mail hosts as peer.test\n" +
			"  connection_limit = 10 (" + files[0] + ":2, default)\n  idle_timeout = 7 (" + files[0] + ":19, domain peer.test)\n" +
			"  max_message_rate = local:100/min,max_burst=10 (" + files[0] + ":14, domain one.example alone, source ip-1)\n" +
			"  provider_max_message_rate = 120/s (" + files[0] + ":5, provider big)\n" +
			"  automation Suspend, SetConfig connection_limit = 2 for 1h0m0s, trigger 10/h, on ^421 4.7. (" + files[0] + ":6, provider big)\n"},
		{[]string{"explain", "-c", dir, "other.test"}, 0, "other.test: mail hosts none are known\n  connection_limit = 10 ("},
		{[]string{"explain"}, 64, "usage: posthaste shaping check"},
		{[]string{"frob"}, 64, "usage: posthaste shaping check"},
	} {
		var out, errs strings.Builder
		status := command(&tool{Tool: cli.Tool{Name: "posthaste shaping", Stdout: &out, Stderr: &errs}, dns: hostsOfTest{}}, c.args)
		if status != c.status || !strings.HasPrefix(out.String(), c.says) && !strings.Contains(errs.String(), c.says) {
			t.Errorf("%q: exit status %d,\n%s\n%s\nwant %s", c.args, status, out.String(), errs.String(), c.says)
		}
	}
}

// hostsOfTest is a DNS in which two domains have the same mail hosts, and all others none.
type hostsOfTest struct{}

func (hostsOfTest) MX(_ context.Context, domain string) (ans resolver.Answer[resolver.MX], err error) {
	if domain == "one.example" || domain == "peer.test" {
		ans.Records = []resolver.MX{{Pref: 10, Host: "B.mx.big.example."}, {Pref: 20, Host: "a.mx.big.example"}}
	}
	return ans, nil
}

// TestSetLimit lays what rules set on limits of which a table has said two: these become less, and not more.
func TestSetLimit(t *testing.T) {
	t.Parallel()
	const limits, most = "concurrency=3, messages=5/s, messages_per_connection=4", "concurrency=3, messages=5/s"
	for _, c := range []struct{ key, value, want string }{
		{"connection_limit", "2", "concurrency=2, messages=5/s, messages_per_connection=4"},
		{"connection_limit", "20", limits},
		{"max_message_rate", "1/s", "concurrency=3, messages=1/s, messages_per_connection=4"},
		{"max_message_rate", "9/s", limits},
		{"max_deliveries_per_connection", "9", "concurrency=3, messages=5/s, messages_per_connection=9"}, // the table says nothing of it
	} {
		v, err := Set(c.key, c.value)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, ok := SetLimit(limits, most, c.key, &v); got != c.want || !ok {
			t.Errorf("%s=%s: %q, want %q", c.key, c.value, got, c.want)
		}
	}
}

// Of what a table has said that counts which no file has taken the place of.
func TestKept(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ table, merged, want string }{
		{"", "concurrency=3", ""},
		{"none", "none", ""},
		{"concurrency=3, messages=5/s", "concurrency=3, connections=1/s, messages=5/s", "concurrency=3, messages=5/s"},
		{"concurrency=3, connections=1/s", "concurrency=10, connections=1/s", "connections=1/s"},
		{"recipients=100/d, messages_per_connection=4", "recipients=100/d, messages_per_connection=4", "messages_per_connection=4"},
	} {
		if got := Kept(c.table, c.merged); got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.table, c.merged, got, c.want)
		}
	}
}
