package smallnet

import (
	"strings"

	"posthaste/internal/testpeers"
)

// listPy is a mailing list: it changes the subject and the body of a message, seals what its host had
// found of it (ARC, by dkimpy), and sends it on, with a sender to whom bounces go, and not the list. By its argument, something is wrong with the seal.
const listPy = `import dkim, re, subprocess, sys
kind = sys.argv[1]
m = sys.stdin.buffer.read().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
m = re.sub(rb"^From .*\r\n", b"", m)
m = m.replace(b"\r\nSubject: ", b"\r\nSubject: [list] ", 1) + b"-- \r\nThe list\r\n"
key = open("/etc/other.pem" if kind == "forged" else "/etc/dkim.pem", "rb").read()
fields = [f.replace(b"\r\n", b"\n").rstrip(b"\n").replace(b"\n", b"\r\n") + b"\r\n" for f in dkim.arc_sign(m, b"s1", b"rspam.net", key, b"mx.rspam.net")]
if kind == "truncated":
    fields = [f for f in fields if not f.lower().startswith(b"arc-message-signature")]
if kind == "broken":
    m += b"An advertisement\r\n"
m = b"".join(fields) + m
subprocess.run(["/usr/sbin/sendmail", "-i", "-f", "owner-" + kind + "@rspam.net", "ann@example.org"], input=m.replace(b"\r\n", b"\n"), check=True)
`

// list: a mailing list changes mail, so that its author's signature is broken, and sends it with a sender of
// its own: it fails DMARC, and is refused. When the list's host is trusted, its seal vouches for it; one that
// is forged, truncated or broken does not.
func (s *story) list() {
	t, h, lists := s.t, s.ours, s.rspamd
	if _, status := lists.run("/usr/bin/python3 -c 'import dkim, authres'"); status != 0 {
		testpeers.Missing(t, "python3-dkim")
	}
	lists.write("srv/list.py", listPy)
	lists.write("etc/postfix/lists", `good |"/usr/bin/python3 /srv/list.py good"
forged |"/usr/bin/python3 /srv/list.py forged"
truncated |"/usr/bin/python3 /srv/list.py truncated"
broken |"/usr/bin/python3 /srv/list.py broken"
`)
	lists.must("openssl genrsa -out /etc/other.pem 2048 2>/dev/null; chmod 644 /etc/other.pem; postconf -e 'alias_maps = texthash:/etc/postfix/lists'; postfix reload")
	refused := func(kind string) {
		t.Helper()
		h.logged("5.7.26 Error: pfix.net does not authorize this message: DMARC policy is reject; from=<owner-" + kind + "@rspam.net>")
	}
	send(s.postfix, "joe@pfix.net", "good@rspam.net", "to a list that nobody trusts")
	refused("good")
	h.must("postconf -e 'arc_trusted_sealers = rspam.net'; posthaste reload")
	for _, kind := range []string{"forged", "truncated", "broken", "good"} {
		send(s.postfix, "joe@pfix.net", kind+"@rspam.net", "to a list, "+kind)
	}
	message := h.mail("ann", "Subject: [list] to a list, good")
	found(t, message, "dmarc=fail", "arc=pass header.d=rspam.net")
	if !strings.Contains(message, "-- \nThe list") {
		t.Errorf("the mail of the list:\n%s", message)
	}
	for _, kind := range []string{"forged", "truncated", "broken"} {
		refused(kind)
	}
	if m, of := h.find("ann", "to a list, "); of == 0 || !strings.Contains(m, "to a list, good") {
		t.Errorf("what came of the lists:\n%s", m)
	}
	for _, kind := range []string{"forged", "truncated", "broken", "that nobody trusts"} {
		if m, _ := h.find("ann", "to a list, "+kind); m != "" {
			t.Errorf("%s: it was taken:\n%s", kind, m)
		}
	}
}
