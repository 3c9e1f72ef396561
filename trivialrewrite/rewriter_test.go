package trivialrewrite

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"posthaste/internal/config"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/table"
)

const baseConfig = `
compatibility_level = 3.6
myhostname = mx.example.org
mydomain = example.org
myorigin = example.org
mydestination = mx.example.org, localhost, local.test
inet_interfaces = 127.0.0.1, [::1]
proxy_interfaces = 192.0.2.9
virtual_alias_maps =
virtual_alias_domains = alias.test
virtual_mailbox_domains = mailbox.test
relay_domains = relay.test
recipient_delimiter = +
`

func newRewriter(t testing.TB, conf string, warn func(string)) *Rewriter {
	t.Helper()
	cfg, err := config.LoadString(baseConfig + conf)
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(cfg, table.Options{Warn: warn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestRewrite(t *testing.T) {
	t.Parallel()
	plain := newRewriter(t, "", nil)
	dots := newRewriter(t, "append_dot_mydomain = yes\nremote_header_rewrite_domain = remote.invalid\n", nil)
	off := newRewriter(t, "append_at_myorigin = no\nallow_percent_hack = no\nswap_bangpath = no\n", nil)
	for _, tc := range []struct {
		r          *Rewriter
		context    string
		addr, want string
	}{
		{plain, contextLocal, "", ""},
		{plain, contextLocal, "@", ""},
		{plain, contextLocal, "user", "user@example.org"},
		{plain, contextLocal, "user@host", "user@host"},
		{plain, contextLocal, "user@a.test", "user@a.test"},
		{plain, contextLocal, "user@a.test.", "user@a.test"},
		{plain, contextLocal, "user@a.test..", "user@a.test.."},
		{plain, contextLocal, "user@.", "user@."},
		{plain, contextLocal, "user@", "user@"},
		{plain, contextLocal, "host!user", "user@host"},
		{plain, contextLocal, "a!b!user", "b!user@a"},
		{plain, contextLocal, "a!b%c", "b%c@a"},
		{plain, contextLocal, "user%host", "user@host"},
		{plain, contextLocal, "user%a%b", "user%a@b"},
		{plain, contextLocal, "user%a@b", "user%a@b"},
		{plain, contextLocal, "a!user@b", "a!user@b"},
		{plain, contextLocal, "@a,@b:user@c", "user@c"},
		{plain, contextLocal, "@a:user", "user@example.org"},
		{plain, contextLocal, "@a:", "@a:"},
		{plain, contextLocal, "two words", "two words@example.org"},
		{plain, contextLocal, "two words%host", "two words%host@example.org"},
		{plain, contextRemote, "user", "user"},
		{plain, contextRemote, "user%host", "user@host"},
		{dots, contextLocal, "user", "user@example.org"},
		{dots, contextLocal, "user@host", "user@host.example.org"},
		{dots, contextLocal, "user@[1.2.3.4]", "user@[1.2.3.4]"},
		{dots, contextLocal, "host!user", "user@host.example.org"},
		{dots, contextLocal, "user@", "user@"},
		{dots, contextRemote, "user", "user@remote.invalid"},
		{dots, contextRemote, "user@host", "user@host.remote.invalid"},
		{off, contextLocal, "user", "user"},
		{off, contextLocal, "host!user", "host!user"},
		{off, contextLocal, "user%host", "user%host"},
		{off, contextLocal, "user.", "user"},
	} {
		if got := tc.r.Rewrite(tc.context, tc.addr); got != tc.want {
			t.Errorf("%s %q: got %q, want %q", tc.context, tc.addr, got, tc.want)
		}
	}
}

// TestRewriteIsStable: an address in standard form is not changed again.
func TestRewriteIsStable(t *testing.T) {
	t.Parallel()
	r := newRewriter(t, "", nil)
	rapid.Check(t, func(t *rapid.T) {
		addr := rapid.StringMatching(`[a.@%!:,]{0,12}`).Draw(t, "addr")
		once := r.Rewrite(contextLocal, addr)
		if strings.HasPrefix(once, "@") || strings.HasSuffix(once, ".") {
			return // broken forms are left to be reported
		}
		if twice := r.Rewrite(contextLocal, once); twice != once {
			t.Fatalf("%q -> %q -> %q", addr, once, twice)
		}
	})
}

func flags(f proto.ResolveFlags) string {
	var s []string
	for _, n := range []struct {
		f    proto.ResolveFlags
		name string
	}{{proto.ResolveLocal, "local"}, {proto.ResolveRouted, "routed"}, {proto.ResolveError, "bad"}, {proto.ResolveAlias, "alias"}, {proto.ResolveMailbox, "mailbox"}, {proto.ResolveRelay, "relay"}, {proto.ResolveDefault, "default"}} {
		if f&n.f != 0 {
			s = append(s, n.name)
		}
	}
	return strings.Join(s, ",")
}

func resolve(t testing.TB, r *Rewriter, sender, addr string) string {
	t.Helper()
	res, err := r.Resolve(context.Background(), sender, addr, false)
	if err != nil {
		return "error"
	}
	return string(res.Transport) + " " + string(res.Nexthop) + " " + res.Recipient + " " + flags(res.Flags)
}

func TestResolve(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	transport := filepath.Join(dir, "transport")
	if err := os.WriteFile(transport, []byte(`
full+ext@a.test     t1:
bare@a.test         t2:hop2
dom.test            :hop3
.par.test           t4
local.test          t5:
alias.test          t6:
null.test           :
err.test            error:
err2.test           retry:4.0.0 later
moved.test          t7:
`), 0o644); err != nil {
		t.Fatal(err)
	}
	maps := "transport_maps = texthash:" + transport + "\n"
	for _, tc := range []struct{ conf, sender, addr, want string }{
		// Classes.
		{"", "", "u@local.test", "local mx.example.org u@local.test local"},
		{"", "", "u@LOCAL.test", "local mx.example.org u@LOCAL.test local"},
		{"", "", "u", "local mx.example.org u@mx.example.org local"},
		{"", "", "", "local mx.example.org MAILER-DAEMON@mx.example.org local"},
		{"", "", "@local.test", "local mx.example.org MAILER-DAEMON@local.test local"},
		{"", "", "u@alias.test", "error 5.1.1 User unknown in virtual alias table u@alias.test alias"},
		{"show_user_unknown_table_name = no\n", "", "u@alias.test", "error 5.1.1 User unknown u@alias.test alias"},
		{"", "", "u@mailbox.test", "virtual mailbox.test u@mailbox.test mailbox"},
		{"", "", "u@relay.test", "relay relay.test u@relay.test relay"},
		{"", "", "u@sub.relay.test", "relay sub.relay.test u@sub.relay.test relay"},
		{"parent_domain_matches_subdomains =\n", "", "u@sub.relay.test", "smtp sub.relay.test u@sub.relay.test default"},
		{"", "", "u@other.test", "smtp other.test u@other.test default"},
		{"", "", "u@other.test.", "smtp other.test u@other.test default"},
		{"local_transport = local\n", "", "u@local.test", "local local.test u@local.test local"},
		// Own addresses.
		{"", "", "u@[127.0.0.1]", "local mx.example.org u@[127.0.0.1] local"},
		{"", "", "u@[IPv6:::1]", "local mx.example.org u@[IPv6:::1] local"},
		{"", "", "u@[192.0.2.9]", "local mx.example.org u@[192.0.2.9] local"},
		{"", "", "u@[192.0.2.8]", "smtp [192.0.2.8] u@[192.0.2.8] default"},
		// Routing through this host.
		{"", "", "u%other.test@local.test", "smtp other.test u@other.test default"},
		{"", "", "other.test!u@local.test", "smtp other.test u@other.test default"},
		{"", "", "u@other.test@local.test", "smtp other.test u@other.test default"},
		{"", "", "u%local.test@local.test", "local mx.example.org u@local.test local"},
		{"", "", "u%x%other.test@local.test", "smtp other.test u%x@other.test routed,default"},
		{"", "", "two w%other.test@local.test", "smtp other.test two w@other.test default"},
		{"resolve_dequoted_address = no\n", "", "two w%other.test@local.test", "local mx.example.org two w%other.test@local.test local,routed"},
		{"allow_percent_hack = no\n", "", "u%other.test@local.test", "local mx.example.org u%other.test@local.test local,routed"},
		{"", "", "u%local.test@other.test", "smtp other.test u%local.test@other.test routed,default"},
		{"", "", "a!u@other.test", "smtp other.test a!u@other.test routed,default"},
		{"", "", "u@x@other.test", "smtp other.test u@x@other.test routed,default"},
		{"", "", "u@", "  u@ bad,default"},
		{"resolve_null_domain = yes\n", "", "u@", "local mx.example.org u@mx.example.org local"},
		// Malformed.
		{"", "", "u@1.2.3.4", "  u@1.2.3.4 bad,default"},
		{"resolve_numeric_domain = yes\n", "", "u@1.2.3.4", "smtp [1.2.3.4] u@[1.2.3.4] default"},
		{"resolve_numeric_domain = yes\n", "", "u@127.0.0.1", "local mx.example.org u@[127.0.0.1] local"},
		{"", "", "u@a..b", "  u@a..b bad,default"},
		{"", "", "u@-a", "  u@-a bad,default"},
		{"", "", "u@[x]", "  u@[x] bad,default"},
		{"", "", "u@a b", "  u@a b bad,default"},
		{"", "", "u@\u00fcber.test", "smtp \u00fcber.test u@\u00fcber.test default"},
		{"", "", "u@\xff.test", "  u@\xff.test bad,default"},
		{"smtputf8_enable = no\n", "", "u@\u00fcber.test", "  u@\u00fcber.test bad,default"},
		{"", "", "-u@other.test", "smtp other.test -u@other.test bad,default"},
		{"allow_min_user = yes\n", "", "-u@other.test", "smtp other.test -u@other.test default"},
		// Relay hosts.
		{"relayhost = [gw]:26\n", "", "u@other.test", "smtp [gw]:26 u@other.test default"},
		{"relayhost = [gw]:26\n", "", "u@relay.test", "relay [gw]:26 u@relay.test relay"},
		{"relayhost = [gw]:26\n", "", "u@mailbox.test", "virtual mailbox.test u@mailbox.test mailbox"},
		{"relayhost = gw\ndefault_transport = smtp:[x]\n", "", "u@other.test", "smtp [x] u@other.test default"},
		{"relayhost = gw\nsender_dependent_relayhost_maps = inline:{s@a.test=gw2, @b.test=gw3, d@b.test=DUNNO, <>=gw4}\n", "s@a.test", "u@other.test", "smtp gw2 u@other.test default"},
		{"relayhost = gw\nsender_dependent_relayhost_maps = inline:{s@a.test=gw2, @b.test=gw3, d@b.test=DUNNO, <>=gw4}\n", "x@b.test", "u@other.test", "smtp gw3 u@other.test default"},
		{"relayhost = gw\nsender_dependent_relayhost_maps = inline:{s@a.test=gw2, @b.test=gw3, d@b.test=DUNNO, <>=gw4}\n", "d@b.test", "u@other.test", "smtp gw u@other.test default"},
		{"relayhost = gw\nsender_dependent_relayhost_maps = inline:{s@a.test=gw2, @b.test=gw3, d@b.test=DUNNO, <>=gw4}\n", "", "u@other.test", "smtp gw4 u@other.test default"},
		{"sender_dependent_default_transport_maps = inline:{{s@a.test=slow:hop}}\n", "s@a.test", "u@other.test", "slow hop u@other.test default"},
		{"sender_dependent_default_transport_maps = inline:{{s@a.test=slow:hop}}\n", "s@a.test", "u@relay.test", "relay relay.test u@relay.test relay"},
		// transport_maps.
		{maps, "", "full+ext@a.test", "t1 a.test full+ext@a.test default"},
		{maps, "", "bare+ext@a.test", "t2 hop2 bare+ext@a.test default"},
		{maps, "", "u@dom.test", "smtp hop3 u@dom.test default"},
		{maps, "", "u@sub.dom.test", "smtp sub.dom.test u@sub.dom.test default"},
		{maps, "", "u@a.par.test", "t4 a.par.test u@a.par.test default"},
		{maps, "", "u@par.test", "smtp par.test u@par.test default"},
		{maps + "parent_domain_matches_subdomains = transport_maps\n", "", "u@sub.dom.test", "smtp hop3 u@sub.dom.test default"},
		{maps, "", "u@local.test", "t5 local.test u@local.test local"},
		{maps, "", "u@alias.test", "error 5.1.1 User unknown in virtual alias table u@alias.test alias"},
		{maps + "relayhost = gw\n", "", "u@null.test", "smtp gw u@null.test default"},
		{maps + "relayhost = gw\n", "", "full+ext@a.test", "t1 a.test full+ext@a.test default"},
		{maps, "", "u@err.test", "error Address is undeliverable u@err.test default"},
		{maps, "", "u@err2.test", "retry 4.0.0 later u@err2.test default"},
		{"transport_maps = inline:{*=t9:all}\n", "", "u@x.test", "t9 all u@x.test default"},
		// relocated_maps.
		{maps + "relocated_maps = inline:{{u@moved.test=u@new.test, see there}}\n", "", "u+x@moved.test", "error 5.1.6 User has moved to u@new.test, see there u+x@moved.test default"},
		{"relocated_prefix_enable = no\nrelocated_maps = inline:{{u@moved.test=5.1.7 gone}}\n", "", "u@moved.test", "error 5.1.7 gone u@moved.test default"},
		{"relocated_prefix_enable = no\nrelocated_maps = inline:{{u@moved.test=gone}}\n", "", "u@moved.test", "error 5.2.0 Mailbox is unavailable u@moved.test default"},
		// A stranger's address is part of no transport and of no host's name.
		{"transport_maps = pcre:{{/@(.*)$$/ smtp:[$$1]}, {/x.test/ t1:}}\n", "", "u@x.test", "t1 x.test u@x.test default"},
		{"sender_dependent_relayhost_maps = regexp:{{/@(.*)/ [$$1]}, {/a/ gw}}\n", "s@a.test", "u@x.test", "smtp gw u@x.test default"},
		{"sender_dependent_default_transport_maps = pcre:{{/(.)@/ $$1:}, {/a/ t2:}}\n", "s@a.test", "u@x.test", "t2 x.test u@x.test default"},
		// Tables that fail.
		{"transport_maps = fail:x\n", "", "u@x.test", "error"},
		{"relocated_maps = fail:x\n", "", "u@x.test", "error"},
		{"relay_domains = fail:x\n", "", "u@x.test", "error"},
		{"virtual_alias_domains = fail:x\n", "", "u@x.test", "error"},
		{"virtual_mailbox_domains = hash:/nonexistent\n", "", "u@x.test", "error"},
		{"mydestination = fail:x\n", "", "u@x.test", "error"},
		{"sender_dependent_relayhost_maps = fail:x\n", "s@x.y", "u@x.test", "error"},
		{"sender_dependent_default_transport_maps = fail:x\n", "s@x.y", "u@x.test", "error"},
		{"default_transport = :x\n", "", "u@x.test", "error"},
	} {
		if got := resolve(t, newRewriter(t, tc.conf, nil), tc.sender, tc.addr); got != tc.want {
			t.Errorf("%s<%s> <%s>:\ngot  %q\nwant %q", tc.conf, tc.sender, tc.addr, got, tc.want)
		}
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	r := newRewriter(t, "address_verify_default_transport = probe\naddress_verify_relayhost = gw\n"+
		"address_verify_local_transport = direct\naddress_verify_transport_maps = inline:{{m@x.test=special:}}\ntransport_maps = static:other:\n", nil)
	for addr, want := range map[string]string{"u@x.test": "probe gw", "u@local.test": "direct local.test", "m@x.test": "special x.test"} {
		res, err := r.Resolve(context.Background(), "", addr, true)
		if got := string(res.Transport) + " " + string(res.Nexthop); got != want || err != nil {
			t.Errorf("%s: %q %v", addr, got, err)
		}
	}
}

func TestListedTwice(t *testing.T) {
	t.Parallel()
	const main = "virtual_alias_domains = a.test b.test local.test\nvirtual_mailbox_domains = a.test c.test\nrelay_domains = b.test c.test\n"
	warnings := func(main string) (warned []string) {
		r := newRewriter(t, main, func(s string) { warned = append(warned, s) })
		for range 3 {
			for _, d := range []string{"a.test", "b.test", "c.test", "local.test"} {
				resolve(t, r, "", "u@"+d)
			}
		}
		return warned
	}
	if quiet := warnings(main + "helpful_warnings = no\n"); quiet != nil {
		t.Errorf("without helpful_warnings: %q", quiet)
	}
	warned := warnings(main)
	want := []string{
		"do not list domain a.test in BOTH virtual_alias_domains and virtual_mailbox_domains",
		"do not list domain b.test in BOTH virtual_alias_domains and relay_domains",
		"do not list domain c.test in BOTH virtual_mailbox_domains and relay_domains",
		"do not list domain local.test in BOTH mydestination and virtual_alias_domains",
	}
	if strings.Join(warned, "\n") != strings.Join(want, "\n") {
		t.Errorf("warned %q", warned)
	}
}

func TestConfigErrors(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString(baseConfig + "mydestination = !\nrelay_domains = !\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(cfg, table.Options{}); err == nil || !strings.Contains(err.Error(), "mydestination") || !strings.Contains(err.Error(), "relay_domains") {
		t.Errorf("got %v", err)
	}
}

// TestResolveLikePostfix compares with what Postfix itself made of the addresses.
func TestResolveLikePostfix(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/resolve.golden")
	if err != nil {
		t.Fatal(err)
	}
	var r *Rewriter
	n := 0
	for _, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "#"):
			continue
		case strings.HasPrefix(line, "["):
			conf := strings.ReplaceAll(line[1:len(line)-1], "; ", "\n")
			r = newRewriter(t, "mydestination = example.org, localhost, local.test\ninet_interfaces = 127.0.0.1\nproxy_interfaces =\n"+
				"virtual_alias_domains =\nvirtual_mailbox_domains =\nrelay_domains =\n"+conf+"\n", nil)
			continue
		}
		f := strings.Split(line, "\t")
		want := f[1] + " " + f[2] + " " + f[3] + " " + f[4]
		if got := resolve(t, r, "", f[0]); got != want {
			t.Errorf("<%s>: got %q, Postfix %q", f[0], got, want)
		}
		n++
	}
	if n < 500 {
		t.Errorf("only %d addresses compared", n)
	}
}

// FuzzResolve: every address is resolved, in bounded time, to one with a domain,
// and what is resolved again stays where it is.
func FuzzResolve(f *testing.F) {
	for _, s := range []string{"", "@", "a@b", "a%b@localhost", "\"a@b\"@localhost", "@localhost:a@localhost", "!@%@localhost", "a@localhost.", "a!b!c%d@localhost", "%@localhost", "!"} {
		f.Add(s)
	}
	r := newRewriter(f, "", nil)
	null := newRewriter(f, "resolve_null_domain = yes\nresolve_dequoted_address = no\n", nil)
	f.Fuzz(func(t *testing.T, addr string) {
		for _, r := range []*Rewriter{r, null} {
			res, err := r.Resolve(context.Background(), "", r.Rewrite(contextLocal, addr), false)
			if err != nil {
				t.Fatalf("%q: %v", addr, err)
			}
			if _, _, at := rfc5322.Split(res.Recipient); !at {
				t.Fatalf("%q: no domain: %+v", addr, res)
			}
			if class(res.Flags) == 0 {
				t.Fatalf("%q: no class: %+v", addr, res)
			}
			if res.Flags&proto.ResolveError != 0 {
				continue
			}
			again, err := r.Resolve(context.Background(), "", res.Recipient, false)
			if err != nil || again.Recipient != res.Recipient || class(again.Flags) != class(res.Flags) {
				t.Fatalf("%q: %+v, again %+v (%v)", addr, res, again, err)
			}
		}
	})
}

func BenchmarkResolve(b *testing.B) {
	r := newRewriter(b, "", nil)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Resolve(ctx, "a@b.test", "user@example.com", false); err != nil {
			b.Fatal(err)
		}
	}
}

// class is the address class alone.
func class(f proto.ResolveFlags) proto.ResolveFlags {
	return f & (proto.ResolveLocal | proto.ResolveAlias | proto.ResolveMailbox | proto.ResolveRelay | proto.ResolveDefault)
}
