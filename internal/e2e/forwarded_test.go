package e2e

import (
	"strings"
	"testing"
)

// forwardZone is the DNS of TestForwardedOnce: mail of good.test has no signature.
const forwardZone = `
good.test. 60 IN TXT "v=spf1 ip4:192.0.2.1 -all"
_dmarc.good.test. 60 IN TXT "v=DMARC1; p=reject"
`

// What an alias sends on goes through cleanup a second time. It was judged when it came in, by who sent it then:
// it is not judged again by the sender that a list has. And our own mail, which was signed, has one signature.
func TestForwardedOnce(t *testing.T) {
	t.Parallel()
	dns := nameServer(t, forwardZone)
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true})
	out, entry := signingKey(s)
	s.configure(next.relayhost()+judging(dns, entry)+"alias_maps = inline:{list=far@to.test, owner-list=root}\n", "")
	s.start()
	replies := s.dialogue(t, "", "EHLO client.test", "XCLIENT NAME=[UNAVAILABLE] ADDR=192.0.2.1", "EHLO client.test", "MAIL FROM:<a@good.test>",
		"RCPT TO:<list@local.test>", "DATA", "From: <a@good.test>\r\nSubject: theirs\r\n\r\nbody\r\n.")
	if last := replies[len(replies)-1]; !strings.HasPrefix(last, "250 ") {
		t.Fatalf("%q", replies)
	}
	s.waitLog(`to=<far@to\.test>,.*status=sent`)
	s.mustSend("a@from.test", []string{"list@local.test"}, "From: <a@from.test>\nDKIM-Signature: v=1; d=else.test; s=s1\nSubject: ours\n\nbody\n")
	s.waitLogN(`to=<far@to\.test>,.*status=sent`, 2)
	list := next.received()
	if len(list) != 2 || list[0].from != "owner-list@mta.test" || list[1].from != list[0].from {
		t.Fatalf("%d messages arrived", len(list))
	}
	if theirs := list[0].data; strings.Count(theirs, "\nAuthentication-Results: mx.test;") != 1 || !strings.Contains(theirs, "spf=pass smtp.mailfrom=a@good.test") {
		t.Errorf("%s", theirs)
	}
	ours := strings.Replace(list[1].data, "DKIM-Signature: v=1; d=else.test; s=s1\n", "", 1)
	if len(ours) == len(list[1].data) || strings.Count(ours, "DKIM-Signature:") != 1 {
		t.Errorf("%s", list[1].data)
	}
	if good := goodSignatures(t, ours, keyRecord(out)); good != 1 {
		t.Errorf("%d good signatures in\n%s", good, ours)
	}
}
