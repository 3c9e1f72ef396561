package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// probed are recipients, or senders, that the next system knows or does not.
func probed(line string) string {
	switch {
	case strings.HasPrefix(line, "RCPT TO:<bad"):
		return "550 5.1.1 no such user here"
	case strings.HasPrefix(line, "RCPT TO:<later"):
		return "450 4.2.1 ask again"
	}
	return ""
}

const verifySettings = `myorigin = local.test
smtputf8_enable = no
mail_name = Postfix
local_recipient_maps = inline:{ somebody=x }
relay_domains = far.test
transport_maps = inline:{ {far.test=smtp:[127.0.0.1]:%d} }
smtpd_sender_restrictions = reject_unverified_sender
smtpd_relay_restrictions =
smtpd_recipient_restrictions = check_recipient_access inline:{ {local.test=permit} }, reject_unverified_recipient, permit_mynetworks, reject
unverified_recipient_reject_code = 550
unverified_sender_reject_code = 551
address_verify_map = btree:$data_directory/verify_cache
address_verify_poll_count = 30
address_verify_poll_delay = 1s
address_verify_sender_ttl = 3333s
`

// TestVerify has both mail systems find out whether recipients and senders
// exist, and compares what they tell the client.
func TestVerify(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	senders := map[bool]string{} // of probes, for Postfix's and ours
	systems := map[bool]*system{}
	sinks := map[bool]*sink{}
	for _, like := range []bool{true, false} {
		sinks[like] = newSink(t, func(line string) string {
			if from, ok := strings.CutPrefix(line, "MAIL FROM:<"); ok {
				mu.Lock()
				defer mu.Unlock()
				senders[like], _, _ = strings.Cut(from, ">")
			}
			return probed(line)
		})
		o := options{main: fmt.Sprintf(verifySettings, sinks[like].port())}
		if like {
			systems[like] = newPostfix(t, o)
		} else {
			systems[like] = newSystem(t, o)
		}
	}
	ask := func(like bool, sender, recipient string) string {
		replies := systems[like].dialogue(t, "", "EHLO client.test", "MAIL FROM:<"+sender+">", "RCPT TO:<"+recipient+">", "QUIT")
		return replies[3]
	}
	cases := []struct{ sender, recipient, want string }{
		{"good@far.test", "good@far.test", "250 2.1.5 Ok"},
		{"", "good@far.test", "250 2.1.5 Ok"},
		{"good@far.test", "bad@far.test", "550 5.1.1 <bad@far.test>: Recipient address rejected: undeliverable address: host 127.0.0.1[127.0.0.1] said: 550 5.1.1 no such user here (in reply to RCPT TO command)"},
		{"good@far.test", "later@far.test", "450 4.1.1 <later@far.test>: Recipient address rejected: unverified address: host 127.0.0.1[127.0.0.1] said: 450 4.2.1 ask again (in reply to RCPT TO command)"},
		{"badsender@far.test", "good@far.test", "551 5.1.7 <badsender@far.test>: Sender address rejected: undeliverable address: host 127.0.0.1[127.0.0.1] said: 550 5.1.1 no such user here (in reply to RCPT TO command)"},
		{"later@far.test", "good@far.test", "450 4.1.7 <later@far.test>: Sender address rejected: unverified address: host 127.0.0.1[127.0.0.1] said: 450 4.2.1 ask again (in reply to RCPT TO command)"},
		{"nosuchuser@local.test", "good@far.test", `551 5.1.7 <nosuchuser@local.test>: Sender address rejected: undeliverable address: unknown user: "nosuchuser"`},
	}
	for _, c := range cases {
		theirs, ours := ask(true, c.sender, c.recipient), ask(false, c.sender, c.recipient)
		if theirs != c.want || ours != c.want {
			t.Errorf("from <%s> to <%s>: Postfix says\n%s, we\n%s, and expected is\n%s", c.sender, c.recipient, theirs, ours, c.want)
		}
	}

	// The probed host may verify the sender in turn; its name changes with time.
	mu.Lock()
	asked := map[bool]string{true: senders[true], false: senders[false]}
	mu.Unlock()
	for like, sender := range asked {
		if !regexp.MustCompile(`^double-bounce[0-9a-zA-Z]+@local\.test$`).MatchString(sender) {
			t.Errorf("a probe is from <%s> (Postfix's: %v)", sender, like)
		}
		if got := ask(like, "", sender); got != "250 2.1.5 Ok" {
			t.Errorf("to the sender of probes <%s> (Postfix's: %v): %s", sender, like, got)
		}
		if got := ask(like, "", "double-bouncezzzzzz@local.test"); !strings.HasPrefix(got, "550 5.1.1") {
			t.Errorf("to a name that no probe had (Postfix's: %v): %s", like, got)
		}
		systems[like].mustSend("", []string{sender}, "Subject: x\n\nx\n")
		systems[like].waitLog(`to=<double-bounce@local\.test>,.* relay=none,.*status=sent \(undeliverable postmaster notification discarded\)`)
	}

	// What is known is known after a restart, when nobody can be asked.
	s := systems[false]
	s.stop()
	sinks[false].close()
	s.start()
	for _, c := range cases {
		if got := ask(false, c.sender, c.recipient); got != c.want {
			t.Errorf("after a restart from <%s> to <%s>: %s", c.sender, c.recipient, got)
		}
	}
	if n := strings.Count(s.log(), "postfix/verify["); n > 0 {
		t.Errorf("verify has logged something")
	}
}

// TestVerifyLimit: while as many probes are under way as may be, an address of
// which nothing is known is refused for now, with Postfix's words. One that is
// known, or being found out, is answered as ever, and the refusal is not
// remembered as what is known of the address, as Postfix does.
func TestVerifyLimit(t *testing.T) {
	t.Parallel()
	const settings = "\naddress_verify_poll_count = 1\naddress_verify_pending_request_limit = 1\n"
	for _, like := range []bool{true, false} {
		t.Run(map[bool]string{true: "postfix", false: "posthaste"}[like], func(t *testing.T) {
			t.Parallel()
			answer := make(chan struct{})
			var asked atomic.Bool
			next := newSink(t, func(line string) string {
				if strings.HasPrefix(line, "RCPT TO:<slow@") {
					asked.Store(true)
					select {
					case <-answer:
					case <-t.Context().Done():
					}
				}
				return probed(line)
			})
			o := options{main: fmt.Sprintf(verifySettings, next.port()) + settings}
			var s *system
			if like {
				s = newPostfix(t, o)
			} else {
				s = newSystem(t, o)
			}
			becomes := func(recipient, want string) {
				t.Helper()
				got := ""
				s.eventually(fmt.Sprintf("<%s> is answered %q", recipient, want), func() bool {
					got = s.dialogue(t, "", "EHLO client.test", "MAIL FROM:<>", "RCPT TO:<"+recipient+">", "QUIT")[3]
					return got == want
				})
			}
			refused := func(recipient, why string) string {
				return "450 4.1.1 <" + recipient + ">: Recipient address rejected: unverified address: " + why
			}
			becomes("good@far.test", "250 2.1.5 Ok")
			s.waitLog(`: removed$`) // it has been under way up to here
			becomes("slow@far.test", refused("slow@far.test", "Address verification in progress"))
			s.eventually("the next system is asked", asked.Load)
			becomes("more@far.test", refused("more@far.test", "Too many address verification requests"))
			becomes("slow@far.test", refused("slow@far.test", "Address verification in progress"))
			becomes("good@far.test", "250 2.1.5 Ok")
			close(answer)
			becomes("slow@far.test", "250 2.1.5 Ok")
			if !like {
				becomes("more@far.test", "250 2.1.5 Ok")
			}
		})
	}
}
