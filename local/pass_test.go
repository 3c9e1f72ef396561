package local

import (
	"slices"
	"strings"
	"testing"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

func (s *site) expectPassed(want ...string) {
	s.t.Helper()
	if !slices.Equal(s.passed, want) {
		s.t.Errorf("passed %q, want %q", s.passed, want)
	}
	s.passed = nil
}

// forwards are the recipients of what was queued again, and forgets them.
func (s *site) forwards() (list []string) {
	for _, q := range s.queued {
		for _, r := range q.Envelope.Recipients {
			list = append(list, r.Address)
		}
	}
	s.queued = nil
	return list
}

func down(string) (dsn.Action, dsn.Status) { return dsn.Deferred, dsn.S(4, 4, 1) }

// TestTransports: another transport stores the mail, of all, of some, and of
// names that nobody has.
func TestTransports(t *testing.T) {
	t.Parallel()
	s := newSite(t, "two joe, ann\nan ann\n", "mailbox_transport = lmtp:unix:box")
	s.expect(s.deliver("joe@example.org"), "relayed 2.1.5 taken")
	s.expectPassed("joe@example.org by lmtp:unix:box")
	s.expect(s.deliver("JOE+x@example.org"), "relayed 2.1.5 taken")
	s.expectPassed("JOE+x@example.org by lmtp:unix:box")
	s.expect(s.deliver("who@example.org"), "relayed 2.1.5 taken") // users who have no account
	s.expectPassed("who@example.org by lmtp:unix:box")
	s.expect(s.deliver("two@example.org"), "relayed 2.1.5 taken")
	s.expectPassed("joe@example.org by lmtp:unix:box", "ann@example.org by lmtp:unix:box")
	s.expect(s.deliver("an@example.org"), "relayed 2.1.5 taken")
	s.expect(s.deliver("joe@example.org", "ann@example.org"), "relayed 2.1.5 taken", "relayed 2.1.5 taken")
	if len(s.queued) != 0 {
		t.Errorf("queued again: %q", s.forwards())
	}
	s.other = func(to string) (dsn.Action, dsn.Status) { return dsn.Failed, dsn.S(5, 2, 2) }
	s.expect(s.deliver("two@example.org"), "failed 5.2.2 no")
	s.other = func(to string) (dsn.Action, dsn.Status) { return dsn.Undeliverable, dsn.S(5, 2, 2) }
	s.expect(s.deliverEnv(mail.Envelope{Trace: mail.TraceReport}, message, "two@example.org"), "undeliverable 5.2.2 no")
	s.other = func(to string) (dsn.Action, dsn.Status) { return dsn.Undeliverable, dsn.S(4, 2, 2) }
	s.expect(s.deliverEnv(mail.Envelope{Trace: mail.TraceReport}, message, "two@example.org"), "undeliverable 4.2.2 no")
	s.expect(s.deliverEnv(mail.Envelope{Trace: mail.TraceReport}, message, "joe@example.org"), "undeliverable 4.2.2 no")
	s.other = func(to string) (dsn.Action, dsn.Status) { return dsn.Deliverable, dsn.S(2, 0, 0) }
	s.expect(s.deliverEnv(mail.Envelope{Trace: mail.TraceReport}, message, "two@example.org"), "deliverable 2.0.0 no")
	s.other = func(to string) (dsn.Action, dsn.Status) { return 0, dsn.Status{} }
	s.expect(s.deliver("joe@example.org"), "delayed 4.3.0 mail transport unavailable")
	if strings.Contains(s.logged(), "status=sent (taken)") {
		t.Errorf("logged twice: %s", s.logged())
	}

	s = newSite(t, "", "mailbox_transport_maps = inline:{ joe=lmtp: }\nfallback_transport_maps = inline:{ shop=lmtp:shop }\nfallback_transport = uucp")
	s.expect(s.deliver("joe+a@example.org", "ann@example.org", "shop@example.org", "who@example.org"),
		"relayed 2.1.5 taken", "delivered 2.0.0 delivered to mailbox", "relayed 2.1.5 taken", "relayed 2.1.5 taken")
	s.expectPassed("joe+a@example.org by lmtp:example.org", "shop@example.org by lmtp:shop", "who@example.org by uucp:example.org")
	s = newSite(t, "", "mailbox_transport_maps = fail:x\nfallback_transport = uucp")
	s.expect(s.deliver("joe@example.org"), "delayed 4.3.0 table lookup failure")
	s = newSite(t, "", "fallback_transport_maps = fail:x")
	s.expect(s.deliver("joe@example.org", "who@example.org"), "delivered 2.0.0 delivered to mailbox", "delayed 4.3.0 table lookup failure")
	s = newSite(t, "", "mailbox_transport = local:x")
	s.expect(s.deliver("joe@example.org"), "delayed 4.3.5 mail system configuration error")
	s.expectPassed()
}

// TestTransportAndForward: the user's mailbox is another transport's, and his
// .forward names it and more. Nothing is lost nor sent again and again.
func TestTransportAndForward(t *testing.T) {
	t.Parallel()
	for _, forward := range []string{"\\joe, x@far.test\n", "x@far.test, \\joe\n", "x@far.test\njoe\n"} {
		for _, to := range []string{"joe@example.org", "JOE@Example.org", "joe+x@example.org"} {
			s := newSite(t, "", "mailbox_transport = lmtp:unix:box\npropagate_unmatched_extensions =")
			s.forward("joe", forward)
			s.expect(s.deliver(to), "expanded 2.1.5 taken; forwarded as NEWID")
			s.expectPassed("joe@example.org by lmtp:unix:box")
			if got := s.forwards(); !slices.Equal(got, []string{"x@far.test"}) {
				t.Errorf("%q: forwarded to %q", forward, got)
			}
			s.other = down
			s.expect(s.deliver(to), "delayed 4.4.1 no")
			if got := s.forwards(); got != nil {
				t.Errorf("%q: what is tried again was forwarded to %q", forward, got)
			}
			s.other, s.refuse = nil, true
			s.expect(s.deliver(to), "delayed 4.3.0 unable to forward message")
			s.refuse = false
			s.other = func(string) (dsn.Action, dsn.Status) { return dsn.Failed, dsn.S(5, 1, 1) }
			s.expect(s.deliver(to), "failed 5.1.1 no")
			if got := s.forwards(); !slices.Equal(got, []string{"x@far.test"}) {
				t.Errorf("%q: forwarded to %q when the mailbox is not there", forward, got)
			}
		}
	}
}

func TestTransportAndCommand(t *testing.T) {
	t.Parallel()
	for _, forward := range []string{"\"|echo x >> $HOME/ran\", \\joe\n", "\\joe, \"|echo x >> $HOME/ran\"\n"} {
		s := newSite(t, "", "mailbox_transport = lmtp:unix:box")
		s.forward("joe", forward)
		s.deliver("joe@example.org")
		s.expectPassed("joe@example.org by lmtp:unix:box")
		if got := s.read("home/joe/ran"); got != "x\n" {
			t.Errorf("%q: the command ran so often: %q", forward, got)
		}
	}
	s := newSite(t, "", "mailbox_transport = lmtp:unix:box")
	s.forward("joe", "\\joe, \"|exit 75\"\n")
	s.expect(s.deliver("joe@example.org"), "delayed 4.3.0 temporary failure")
	s.forward("joe", "\\joe, \"|exit 67\"\n")
	s.expect(s.deliver("joe@example.org"), "failed 5.1.1 user unknown")
}
