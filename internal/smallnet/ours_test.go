package smallnet

import (
	"os"
	"strings"
)

// newOurs is a machine on which Posthaste has just been installed, and nothing else was done.
func newOurs(n *internet, d *tree, a *authority) *host {
	n.t.Helper()
	h := n.host("mail.example.org", "11.22.33.10", prefix6+"10")
	h.logs = append(h.logs, "var/log/mail.log")
	d.resolve(h)
	a.trust(h)
	h.must(`grep -v '^posthaste:\|^postdrop:' /etc/group >/tmp/group
grep -v '^posthaste:' /etc/passwd >/tmp/passwd
echo 'posthaste:x:64200:' >>/tmp/group
echo 'postdrop:x:64199:' >>/tmp/group
echo 'posthaste:x:64200:64200::/var/spool/posthaste:/bin/sh' >>/tmp/passwd
cat /tmp/group >/etc/group
cat /tmp/passwd >/etc/passwd
mkdir -p /etc/posthaste /var/spool/posthaste /var/lib/posthaste`)
	for _, p := range []string{"posthaste", "postdrop", "postqueue"} {
		h.must("rm -f /usr/sbin/" + p + " /usr/bin/" + p)
		h.install(p, "usr/sbin/"+p)
	}
	for _, name := range []string{"main.cf", "master.cf"} {
		b, err := os.ReadFile("../../etc/" + name)
		if err != nil {
			n.t.Fatal(err)
		}
		h.write("etc/posthaste/"+name, string(b))
	}
	h.must(`for p in sendmail mailq newaliases postsuper postcat postconf postmap postalias postlog; do
  rm -f /usr/bin/$p /usr/sbin/$p
  ln -s posthaste /usr/sbin/$p
done
newaliases
posthaste set-permissions`)
	return h
}

// fragment is what a command printed for the zone file, without comments.
func fragment(out string) (records []string) {
	if _, after, found := strings.Cut(out, "The same as a fragment of a zone file:\n"); found {
		out = after
	}
	for line := range strings.Lines(out) {
		last := len(records) - 1
		switch line = strings.TrimSpace(line); {
		case line == "" || line[0] == ';':
		case last >= 0 && strings.Count(records[last], "(") > strings.Count(records[last], ")"):
			records[last] += "\n" + line
		default:
			records = append(records, line)
		}
	}
	return records
}
