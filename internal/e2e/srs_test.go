package e2e

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"

	"posthaste/internal/mailauth"
	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
)

// srsZone is the DNS by which the receiver of TestSRS judges: mail of good.test comes from one
// address, and that of the forwarder from this machine.
const srsZone = `
good.test. 60 IN TXT "v=spf1 ip4:192.0.2.1 -all"
fwd.test. 60 IN TXT "v=spf1 ip4:127.0.0.1 -all"
`

// Mail that a virtual alias and one of aliases(5) send on to a receiver that refuses whatever SPF
// does not permit. It arrives, under a sender from which a bounce finds its way back; a bounce to
// an address that was made up does not.
func TestSRS(t *testing.T) {
	t.Parallel()
	zone, err := fakezone.Parse(srsZone)
	if err != nil {
		t.Fatal(err)
	}
	dns := zone.Resolver()
	judge := mailauth.New(dns, resolver.Names{}, "sink.test")
	strict := func(line string) string {
		if strings.HasPrefix(line, "MAIL FROM:") {
			if r := judge.SPF(context.Background(), netip.MustParseAddr("127.0.0.1"), "fwd.test", between(line)); r.Result != mailauth.Pass {
				return "550 5.7.23 SPF: " + string(r.Result) + " for " + r.Domain
			}
		}
		return ""
	}
	next := newSink(t, strict)
	s := newSystem(t, options{unstarted: true})
	s.write("srs_secret", "a secret of this test\n")
	if err := os.Chmod(s.path("srs_secret"), 0o600); err != nil { // as with postsrsd, root's alone
		t.Fatal(err)
	}
	s.configure(next.relayhost()+"srs_domain = fwd.test\nsrs_secret_file = "+s.path("srs_secret")+"\nmyhostname = fwd.test\n"+
		"alias_maps = inline:{box=joe@far.test}\nvirtual_alias_domains = virtual.test\nvirtual_alias_maps = inline:{{web@virtual.test=jim@far.test}}\n"+
		"smtpd_peername_lookup = no\nsmtpd_authorized_xclient_hosts = 127.0.0.0/8\nsmtpd_recipient_restrictions = permit_auth_destination, reject\n", "")
	s.start()
	outside := []string{"", "EHLO client.test", "XCLIENT NAME=[UNAVAILABLE] ADDR=192.0.2.1", "EHLO client.test"}
	say := func(lines ...string) string {
		t.Helper()
		replies := s.dialogue(t, append(outside, lines...)...)
		return replies[len(replies)-1]
	}
	if last := say("MAIL FROM:<ann@good.test>", "RCPT TO:<box@local.test>", "RCPT TO:<web@virtual.test>", "DATA", "Subject: forwarded\r\n\r\nbody\r\n."); !strings.HasPrefix(last, "250 ") {
		t.Fatal(last)
	}
	s.waitLog(`to=<joe@far\.test>, orig_to=<box@local\.test>,.*status=sent`)
	s.waitLog(`to=<jim@far\.test>, orig_to=<web@virtual\.test>,.*status=sent`)
	list := next.received()
	if len(list) != 2 || list[0].from != list[1].from || !strings.HasPrefix(list[0].from, "SRS0=") || !strings.HasSuffix(list[0].from, "=good.test=ann@fwd.test") {
		t.Fatalf("%+v", list)
	}
	bounce := func(to string) string {
		return say("MAIL FROM:<>", "RCPT TO:<"+to+">", "DATA", "Subject: bounce\r\n\r\nbody\r\n.")
	}
	if last := bounce(list[0].from); !strings.HasPrefix(last, "250 ") {
		t.Fatal(last)
	}
	s.waitLog(`to=<ann@good\.test>, orig_to=<SRS0=.*@fwd\.test>,.*status=sent`)
	if got := next.received()[2]; got.from != "" || len(got.to) != 1 || got.to[0] != "ann@good.test" {
		t.Errorf("%+v", got)
	}
	bounce("SRS0=aaaa=AA=good.test=ann@fwd.test")
	s.waitLog(`reject: RCPT .* 550 5\.1\.1 <SRS0=aaaa=AA=good\.test=ann@fwd\.test>: Recipient address rejected: User unknown: the hash`)
}
