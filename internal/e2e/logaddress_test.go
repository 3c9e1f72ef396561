package e2e

import "testing"

// TestLogAddressFormat: with info_log_address_format = internal no line of the
// log quotes a local part; by default all do.
func TestLogAddressFormat(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ main, from, to string }{
		{"", `"a b"`, `"c d"`},
		{"info_log_address_format = internal\n", `a b`, `c d`},
	} {
		t.Run(c.from, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, options{main: c.main + "defer_transports = smtp\nheader_checks = static:WARN\n" +
				"transport_maps = inline:{{gone.test=discard:}}\nsmtpd_recipient_restrictions = reject\n"})
			out, status := s.tool([]byte("Subject: x\n\nx\n"), "sendmail", "-f", `"a b"@from.test`, `"c d"@to.test`, `"c d"@gone.test`)
			if status != 0 {
				t.Fatalf("sendmail: exit status %d: %s", status, out)
			}
			s.dialogue(t, "", "EHLO client.test", `MAIL FROM:<"a b"@from.test>`, `RCPT TO:<"c d"@to.test>`, "QUIT")
			from, to := "from=<"+c.from+`@from\.test>`, "to=<"+c.to+`@to\.test>`
			for _, line := range []string{
				`postfix/pickup\[\d+\]: \w+: uid=\d+ ` + from,
				`postfix/cleanup\[\d+\]: \w+: warning: header Subject: x from local; ` + from + " to=<" + c.to + "@",
				`postfix/qmgr\[\d+\]: \w+: ` + from + `, size=`,
				`postfix/error\[\d+\]: \w+: ` + to + `, relay=none, .* status=deferred`,
				`postfix/discard\[\d+\]: \w+: to=<` + c.to + `@gone\.test>, relay=none, .* status=sent`,
				`postfix/smtpd\[\d+\]: NOQUEUE: reject: RCPT from .*; ` + from + " " + to + ` proto=ESMTP`,
			} {
				s.waitLog(line)
			}
		})
	}
}
