package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSyntax(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "  orphan = ignored\n   and its continuation\n"+
		"# comment\nalways_bcc = a # no comment\n\n   \t\n  # inside\n\tb  \r\n"+
		"relayhost=\n  myorigin  =  c=d  \n"+
		"header_checks =\n  pcre:/x\n# between\n  regexp:/y\nmydestination\t=\tlast line")
	want := map[string]string{
		"always_bcc":    "a # no comment\tb",
		"relayhost":     "myorigin  =  c=d",
		"header_checks": "pcre:/x  regexp:/y",
		"mydestination": "last line",
	}
	for name, text := range want {
		if got := c.String(name); got != text {
			t.Errorf("%s = %q, want %q", name, got, text)
		}
	}
	if set, _, _ := c.IsSet("orphan"); set {
		t.Error("a line that begins with white space and continues nothing was read")
	}
	if w := c.Warnings(); len(w) == 0 || !strings.HasPrefix(w[0], "main.cf:1: logical line must not start with whitespace: \"") {
		t.Errorf("warnings: %q, want one about line 1", w)
	}
}

func TestSplitList(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text string
		want []string // nil: an error
	}{
		{"", []string{}},
		{" , ,", []string{}},
		{"a,b c\td\r\n e", []string{"a", "b", "c", "d", "e"}},
		{"{ a b }, c", []string{"a b", "c"}},
		{"check_x inline:{ {a=b c}, d=e } permit", []string{"check_x", "inline:{ {a=b c}, d=e }", "permit"}},
		{"regexp:{{/^[^A-Z]/ Bogus}}", []string{"regexp:{{/^[^A-Z]/ Bogus}}"}},
		{"{ {a} {b} }", []string{"{a} {b}"}},
		{"{a}{b}", []string{"{a}{b}"}},
		{"{}", []string{""}},
		{"a } b", []string{"a", "}", "b"}},
		{"a { b", nil},
		{"{{a}", nil},
	}
	for _, tt := range tests {
		got, err := SplitList(tt.text)
		if tt.want == nil {
			if err == nil {
				t.Errorf("SplitList(%q) = %q, want an error", tt.text, got)
			}
			continue
		}
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("SplitList(%q) = %q, %v; want %q", tt.text, got, err, tt.want)
		}
	}
}

func TestSource(t *testing.T) {
	t.Parallel()
	c, err := LoadString("smtpd_authorized_verp_clients = 192.0.2.1\n")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"smtpd_forbid_bare_newline_exclusions": "mynetworks",
		"smtpd_authorized_verp_clients":        "smtpd_authorized_verp_clients",
		"mynetworks":                           "mynetworks",
		"myorigin":                             "myhostname",
		"message_size_limit":                   "message_size_limit",
	} {
		if got := c.Source(name); got != want {
			t.Errorf("the source of %s is %s, want %s", name, got, want)
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	main := strings.Join([]string{
		"mydestination = example.com",
		"mydestination = example.org",
		"typo_param = 1",
		"my_networks = 192.0.2.0/24",
		"mynetworks = $my_networks",
		"mua_relay = reject",
		"smtpd_restriction_classes = greylist",
		"greylist = permit",
		"accounts_server_host = ldap.example.com",
		"slow_no_such_limit = 3",
		"enable_long_queue_ids = no",
		"max_use = 100", // its default: there is nothing to say
		"tlsproxy_watchdog_timeout = 5",
		"alias_maps = hash:/etc/aliases, proxy:ldap:accounts",
		"smtp_conect_timeout = 5s",
	}, "\n")
	master := "submission inet n - n - - smtpd -o smtpd_relay_restrictions=$mua_relay -o other=1 -o max_use=3\n"
	for name, text := range map[string]string{"main.cf": main, "master.cf": master} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "main.cf")
	want := []string{
		file + ":2: overriding earlier entry: mydestination=example.com",
		file + ":3: unknown parameter typo_param=1: nothing reads it",
		file + ":10: unknown parameter slow_no_such_limit=3: nothing reads it",
		file + ":11: parameter enable_long_queue_ids has no effect in Posthaste: only long queue IDs exist",
		file + ":13: parameter tlsproxy_watchdog_timeout has no effect in Posthaste: every service speaks TLS itself, there is no TLS proxy process",
		file + ":15: unknown parameter smtp_conect_timeout=5s: nothing reads it; did you mean smtp_connect_timeout?",
	}
	got := c.Warnings()
	if !slices.Equal(got, want) {
		t.Errorf("warnings:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	services, faulty, err := LoadMaster(dir, c)
	if err != nil || len(faulty) > 0 {
		t.Fatal(faulty, err)
	}
	want = []string{
		filepath.Join(dir, "master.cf") + ":1: service submission/inet: -o: unknown parameter other=1: nothing reads it",
		filepath.Join(dir, "master.cf") + ":1: service submission/inet: -o: parameter max_use has no effect in Posthaste: " + oneProcess,
	}
	if got := services[0].Warnings(c); !slices.Equal(got, want) {
		t.Errorf("warnings:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Every reason stands for a parameter that exists.
func TestNoEffect(t *testing.T) {
	t.Parallel()
	for name := range noEffect {
		if _, ok := Lookup(name); !ok {
			t.Errorf("noEffect lists %s, which is not declared", name)
		}
	}
	for _, p := range noEffectPrefixes {
		if !slices.ContainsFunc(All(), func(q Param) bool { return strings.HasPrefix(q.Name, p.prefix) }) {
			t.Errorf("noEffect lists %s..., and no parameter begins so", p.prefix)
		}
	}
}

// printMain writes a configuration as a main.cf.
func printMain(c *Config) string {
	var b strings.Builder
	for _, name := range c.Names() {
		fmt.Fprintf(&b, "%s = %s\n", name, c.Raw(name))
	}
	return b.String()
}

// What is loaded, printed and loaded again is the same.
func TestPrintLoad(t *testing.T) {
	t.Parallel()
	names := []string{"always_bcc", "relayhost", "myhostname", "own_name", "message_size_limit", "mydestination", "header_checks", "smtpd_timeout"}
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		for range rapid.IntRange(0, 12).Draw(t, "lines") {
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				b.WriteString(rapid.StringMatching(`[ \t]*(#[a-z= ]*)?\n`).Draw(t, "comment"))
			case 1:
				b.WriteString(rapid.StringMatching(`[ \t]+[a-z={},]+[ \t]*\r?\n`).Draw(t, "continuation"))
			default:
				b.WriteString(rapid.SampledFrom(names).Draw(t, "name"))
				b.WriteString(rapid.StringMatching(`[ \t]*=[ \t]*([0-9]{1,3}|[a-z.]{0,9}|\$own_name x|\$\{own_name\?\{a b\}\}|[a-z ,{}]{0,9})[ \t]*\n`).Draw(t, "value"))
			}
		}
		first, err := LoadString(b.String())
		if err != nil {
			return
		}
		printed := printMain(first)
		second, err := LoadString(printed)
		if err != nil {
			t.Fatalf("%q was loaded, printed as %q and refused: %v", b.String(), printed, err)
		}
		if again := printMain(second); again != printed {
			t.Fatalf("%q printed as %q, then as %q", b.String(), printed, again)
		}
		for _, name := range first.Names() {
			x, errX := first.Value(name)
			y, errY := second.Value(name)
			if x != y || errX != nil || errY != nil {
				t.Fatalf("%s is %q (%v), printed and loaded %q (%v)", name, x, errX, y, errY)
			}
		}
	})
}

func FuzzMain(f *testing.F) {
	f.Add("a = b\n c\n# d\ne = $a ${a?{x}:{y}}\n")
	f.Add("message_size_limit = 10x\nmydestination = { a\n")
	f.Add(expansionMain)
	f.Add("a=$b$b\nb=$c$c\nc=$d$d\nd=$e$e\ne=xxxxxxxx")
	f.Fuzz(func(t *testing.T, text string) {
		lines := LogicalLines(text)
		end := 0
		for _, l := range lines {
			if l.Start < end || l.End <= l.Start || l.End > len(text) {
				t.Fatalf("line %d has the extent %d to %d", l.Line, l.Start, l.End)
			}
			end = l.End
		}
		c, err := LoadString(text)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without text")
			}
			return
		}
		for _, name := range c.Names() {
			if _, err := c.Value(name); err != nil {
				t.Fatalf("%s passed Load: %v", name, err)
			}
		}
		c.Warnings()
		if _, err := LoadString(printMain(c)); err != nil {
			t.Fatalf("%q was loaded, printed as %q and refused: %v", text, printMain(c), err)
		}
	})
}

func FuzzExpand(f *testing.F) {
	for _, tt := range expansions {
		f.Add(tt.text)
	}
	c := mustLoad(f, expansionMain)
	f.Fuzz(func(t *testing.T, text string) {
		out, err := c.Expand(text)
		if err == nil && !strings.Contains(text, "$") && out != text {
			t.Fatalf("%q without a dollar expands to %q", text, out)
		}
		again, err2 := c.Expand(text)
		if out != again || (err == nil) != (err2 == nil) {
			t.Fatalf("%q expands to %q (%v), then to %q (%v)", text, out, err, again, err2)
		}
	})
}

// A handful of settings that double each other must not fill memory.
func TestExpansionIsBounded(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("a0 = xxxxxxxxxxxxxxxx\n")
	for i := range 40 {
		fmt.Fprintf(&b, "a%d = $a%d$a%d\n", i+1, i, i)
	}
	if _, err := LoadString(b.String()); err == nil || !strings.Contains(err.Error(), "expected an expansion of at most") {
		t.Errorf("40 doublings: %.200v, want an error about the size", err)
	}
}

func TestForms(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"myhostname = -x.example.com", "myhostname = a..b", "myhostname = a b", "myhostname =", "mydomain = " + strings.Repeat("a", 64),
		"compatibility_level = three", "compatibility_level = 1.2.3.4", "inet_protocols = ipv5", "inet_protocols =", "metrics_listen = 9187",
		"queue_directory = spool", "spool_content_directory = content", "spool_content_directory = /", "spool_content_directory = /a/../b", "spool_content_directory = /a//b",
		"spool_content_directory = /" + strings.Repeat("x", 4000), "spool_content_directory = $queue_directory", "spool_content_directory = /var/spool",
		"queue_directory = /q\nspool_content_directory = /q/private/x", "queue_directory = /q\nspool_content_directory = /q/maildrop", "queue_directory = /q\nspool_content_directory = /q/",
		"queue_directory = /q\nspool_content_directory = /q/spool/big", "data_directory = /d\nspool_content_directory = /d", "data_directory = /d/e\nspool_content_directory = /d",
		"data_directory = /d\nspool_content_directory = /d/content",
		"smtpd_timeout = 0", "maximal_queue_lifetime = 8640001s", "minimal_backoff_time = 1x", "hopcount_limit = 1e3",
		"message_size_limit = 9223372036854775807k", "smtpd_relay_restrictions = { permit",
	} {
		if _, err := LoadString(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
	for _, text := range []string{
		"myhostname = a_b.example.com", "myhostname = localhost", "compatibility_level = 3.10.1", "inet_protocols = ipv4, ipv6", "metrics_listen = :9187", "metrics_listen =",
		"default_destination_concurrency_positive_feedback = 1 / sqrt_concurrency", "slow_destination_concurrency_negative_feedback = 1/4",
		"smtp_connect_timeout = 0", "smtpd_timeout = ${stress?{10}:{300}}s", "smtpd_tls_security_level =", "message_size_limit = 0",
		"spool_content_directory =", "spool_content_directory = /srv/content", "spool_content_directory = /srv/content/", "queue_directory = /q\nspool_content_directory = /q/content",
		"queue_directory = /q\nspool_content_directory = /queue", "queue_directory = /q\nspool_content_directory = /q/spools", "queue_directory = /\nspool_content_directory = /spool/x",
	} {
		if _, err := LoadString(text); err != nil {
			t.Errorf("%q was refused: %v", text, err)
		}
	}
	if got := mustLoad(t, "smtpd_tls_security_level = Encrypt").String("smtpd_tls_security_level"); got != "encrypt" {
		t.Errorf("smtpd_tls_security_level = %q, want the declared spelling", got)
	}
}

func TestChildSettings(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "relayhost = a", Override{"relayhost", "b c"}, Override{"stress", ""})
	with, err := c.With(Override{"stress", "yes"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Int("smtpd_hard_error_limit") != 20 || with.Int("smtpd_hard_error_limit") != 1 {
		t.Error("With does not leave the one alone and change the other")
	}
	if want := []string{"-c", DefaultDir, "-o", "relayhost=b c", "-o", "stress=", "-o", "stress=yes"}; !slices.Equal(with.Args(), want) {
		t.Errorf("Args = %q, want %q", with.Args(), want)
	}
	var over []Override
	for i, a := range with.Args() {
		if i > 2 && with.Args()[i-1] == "-o" {
			o, err := ParseOverride(a)
			if err != nil {
				t.Fatal(err)
			}
			over = append(over, o)
		}
	}
	child := mustLoad(t, "relayhost = a", over...)
	if child.String("relayhost") != "b c" || child.String("stress") != "yes" {
		t.Error("a child with these arguments has other settings")
	}
	if _, err := c.With(Override{"hopcount_limit", "x"}); err == nil {
		t.Error("With accepted a malformed value")
	}
}

func BenchmarkLoad(b *testing.B) {
	text, err := os.ReadFile(filepath.Join("..", "..", "etc", "main.cf"))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		mustLoad(b, string(text))
	}
}

func BenchmarkInt(b *testing.B) {
	c := mustLoad(b, "")
	for b.Loop() {
		c.Int("smtp_destination_concurrency_limit")
	}
}

func TestReadersAtOnce(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, expansionMain+"relayhost = $w")
	done := make(chan string)
	for range 8 {
		go func() {
			for _, p := range All() {
				c.String(p.Name)
			}
			done <- c.String("relayhost")
		}()
	}
	for range 8 {
		if got := <-done; got != "<val>" {
			t.Errorf("relayhost = %q, want <val>", got)
		}
	}
}
