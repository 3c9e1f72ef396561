package trivialrewrite

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"posthaste/internal/proto"
	"posthaste/internal/testpostfix"
)

const likePostfix = `compatibility_level = 3.6
myhostname = mta.example.test
mydomain = example.test
myorigin = origin.test
mydestination = local.test, mta.example.test, both.test, .wild.test
parent_domain_matches_subdomains = mydestination, relay_domains
inet_interfaces = 127.0.0.1
proxy_interfaces = 192.0.2.1
relay_domains = relay.test, both2.test
virtual_alias_domains = alias.test, both.test, both2.test
virtual_mailbox_domains = mbox.test
recipient_delimiter = +-
relayhost = [rh.test]
transport_maps = inline:{ {t.test=foo:bar} {user@t2.test=:hop} {.t3.test=tr:} {t4.test=error:} {u@t5.test=:} {x+y@t6.test=ext:} {x@t6.test=noext:} {t7.test=only} }
relocated_maps = inline:{ {moved@to.test=new@place.test} {gone=elsewhere.test} }
sender_dependent_relayhost_maps = inline:{ {s@s.test=[sdr.test]:25} {@d.test=DUNNO} {<>=nullrelay.test} }
sender_dependent_default_transport_maps = inline:{ {s2@s.test=sdt:} {s3@s.test=sdt:hop} {@d.test=DUNNO} {<>=nulltr:} }
`

// asker speaks to Postfix's trivial-rewrite: names and values that end in NUL,
// and an empty name.
type asker struct {
	t *testing.T
	c net.Conn
	r *bufio.Reader
}

func (a *asker) read() map[string]string {
	answer := map[string]string{}
	for {
		name, err := a.r.ReadString(0)
		if err != nil {
			a.t.Fatal(err)
		}
		if name == "\x00" {
			return answer
		}
		value, err := a.r.ReadString(0)
		if err != nil {
			a.t.Fatal(err)
		}
		answer[strings.TrimSuffix(name, "\x00")] = strings.TrimSuffix(value, "\x00") // of flags the last
	}
}

func (a *asker) ask(words ...string) map[string]string {
	if _, err := a.c.Write([]byte(strings.Join(words, "\x00") + "\x00\x00")); err != nil {
		a.t.Fatal(err)
	}
	return a.read()
}

// Addresses put together at random, with all kinds of routing in them, go where
// Postfix sends them.
func TestAtRandomLikePostfix(t *testing.T) {
	t.Parallel()
	testpostfix.Need(t)
	p := testpostfix.New(t)
	p.Configure(likePostfix, "rewrite unix - - n - - trivial-rewrite\npostlog unix-dgram n - n - 1 postlogd\n")
	p.Start()
	c, err := net.Dial("unix", p.Path("spool/private/rewrite"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	theirs := &asker{t, c, bufio.NewReader(c)}
	theirs.read() // it says what it is
	ours := newRewriter(t, likePostfix, nil)

	pieces := []string{"a", "user", "u", "@", "@", "%", "!", ".", "-", "+x", "-ext", "_", "|", "/", "1", "owner-x", "x-request", "double-bounce", "MAILER-DAEMON",
		"local.test", "Local.Test", "sub.local.test", "sub.wild.test", "wild.test", "relay.test", "sub.relay.test", "alias.test", "mbox.test", "both.test", "both2.test", "to.test", "host", "127.0.0.1", "é", "é.test", "\xff",
		"t.test", "t2.test", "s.t3.test", "t4.test", "t5.test", "x+y@t6.test", "x+z@t6.test", "t7.test", "moved+x@to.test", "gone"}
	ends := []string{"", "", "", "@[127.0.0.1]", "@[192.0.2.1]", "@[10.1.2.3]", "@[IPv6:2001:db8::1]", "@local.test", "@sub.local.test", "@sub.wild.test", "@to.test", "@relay.test."}
	senders := []string{"", "s@s.test", "s2@s.test", "s3@s.test", "x@d.test", "other@o.test", "S@S.test"}
	classes := []struct {
		ours   proto.ResolveFlags
		theirs int
	}{{proto.ResolveRouted, 1 << 1}, {proto.ResolveError, 1 << 2}, {proto.ResolveLocal, 1 << 8}, {proto.ResolveAlias, 1 << 9}, {proto.ResolveMailbox, 1 << 10}, {proto.ResolveRelay, 1 << 11}, {proto.ResolveDefault, 1 << 12}}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		addr := ""
		for range 1 + rnd.IntN(6) {
			addr += pieces[rnd.IntN(len(pieces))]
		}
		addr += ends[rnd.IntN(len(ends))]
		if strings.HasPrefix(strings.TrimLeft(addr, "!%"), "@") && strings.Contains(addr, "IPv6") {
			continue // Postfix looks for the colon of a source route inside the literal
		}
		sender := senders[rnd.IntN(len(senders))]
		want := theirs.ask("request", "resolve", "sender", sender, "address", addr)
		res, err := ours.Resolve(t.Context(), sender, addr, false)
		if err != nil {
			t.Fatalf("%q: %v", addr, err)
		}
		flags := 0
		for _, c := range classes {
			if res.Flags&c.ours != 0 {
				flags |= c.theirs
			}
		}
		got := map[string]string{"transport": string(res.Transport), "nexthop": string(res.Nexthop), "recipient": res.Recipient, "flags": fmt.Sprint(flags)}
		for name, value := range got {
			if value != want[name] && (res.Flags&proto.ResolveError == 0 || name == "flags") {
				t.Errorf("resolve %q from <%s>: %s %q, Postfix says %q", addr, sender, name, value, want[name])
			}
		}
		if t.Failed() {
			return
		}
	}
}
