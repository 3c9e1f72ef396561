package smallnet

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"strings"

	"posthaste/internal/testpeers"
	"posthaste/internal/testwait"
)

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// newForeign starts a host mx.DOMAIN that others have written the mail server of, and publishes
// what the world has to know of it: DANE, SPF and DMARC at their strictest, and the key in
// /etc/dkim.pem by which it signs. The second address, if there is one, is of IPv6.
func newForeign(n *internet, d *tree, domain string, addresses ...string) *host {
	n.t.Helper()
	testpeers.Program(n.t, "openssl")
	h := n.host("mx."+domain, addresses...)
	spf := "ip4:" + h.address
	if h.six != "" {
		spf += " ip6:" + h.six
		d.publish(domain, "mx AAAA "+h.six)
		d.publish(reverse6, nibbles(h.six)+" PTR "+h.name+".")
	}
	h.logs = append(h.logs, "var/log/mail.log")
	d.resolve(h)
	h.must("openssl genrsa -out /etc/dkim.pem 2048 2>/dev/null; openssl rsa -in /etc/dkim.pem -pubout -out /etc/dkim.pub 2>/dev/null")
	block, _ := pem.Decode([]byte(h.read("etc/dkim.pub")))
	key := base64.StdEncoding.EncodeToString(block.Bytes)
	d.publish(domain,
		"@ MX 10 "+h.name+".",
		"mx A "+h.address,
		h.keyPair(n.t),
		`@ TXT "v=spf1 `+spf+` -all"`,
		`mx TXT "v=spf1 a -all"`,
		`s1._domainkey TXT "v=DKIM1; k=rsa; p=" "`+key[:200]+`" "`+key[200:]+`"`,
		`_dmarc TXT "v=DMARC1; p=reject; rua=mailto:joe@`+domain+`"`)
	d.publish(reverse, last(h.address)+" PTR "+h.name+".")
	return h
}

// last is the last number of an address, as the reverse zone has it.
func last(address string) string { return address[strings.LastIndexByte(address, '.')+1:] }

// nibbles are the last 64 bits of an address with prefix6, as the reverse zone has them.
func nibbles(six string) string {
	digits := strings.TrimPrefix(six, prefix6)
	digits = strings.Repeat("0", 16-len(digits)) + digits
	var out []string
	for i := len(digits) - 1; i >= 0; i-- {
		out = append(out, digits[i:i+1])
	}
	return strings.Join(out, ".")
}

// listens waits until somebody answers at a port of the host.
func (h *host) listens(port string) {
	h.t.Helper()
	testwait.Until(h.t, h.name+" listens on port "+port, func() bool {
		_, status := h.run("exec 2>/dev/null; bash -c 'exec 3<>/dev/tcp/" + h.address + "/" + port + "' || bash -c 'exec 3<>/dev/tcp/127.0.0.1/" + port + "'")
		return status == 0
	})
}

// postfixMain is the main.cf of a site with Postfix that wants to know who sends mail. {name} is
// the host's, {domain} the site's.
const postfixMain = `compatibility_level = 3.6
myhostname = {name}
mydomain = {domain}
myorigin = $mydomain
mydestination = $myhostname, $mydomain, localhost
mynetworks_style = host
inet_interfaces = all
inet_protocols = all
smtp_address_preference = ipv6
alias_maps =
alias_database =
home_mailbox = Maildir/
maillog_file = /var/log/mail.log
smtp_dns_support_level = dnssec
smtp_tls_security_level = dane
smtp_tls_loglevel = 1
smtpd_tls_security_level = may
smtpd_tls_received_header = yes
smtpd_tls_cert_file = /etc/cert.pem
smtpd_tls_key_file = /etc/key.pem
minimal_backoff_time = 1s
queue_run_delay = 1s
`

// startPostfix starts Postfix, with more settings and services.
func (h *host) startPostfix(main, master string) {
	h.t.Helper()
	testpeers.Postfix(h.t, "postfix")
	_, domain, _ := strings.Cut(h.name, ".")
	h.write("etc/postfix/main.cf", strings.NewReplacer("{name}", h.name, "{domain}", domain).Replace(postfixMain)+main)
	h.must("awk '$2 ~ /^(inet|unix|unix-dgram)$/ && $1 !~ /^#/ {$5 = \"n\"} {print}' /usr/share/postfix/master.cf.dist >/etc/postfix/master.cf")
	h.write("etc/postfix/master.cf", h.read("etc/postfix/master.cf")+master)
	h.must("postfix set-permissions >/dev/null 2>&1 || true; postfix start")
	h.listens("25")
}

// newPostfix is a site with Postfix, OpenDKIM, OpenDMARC and policyd-spf, which refuses what these
// do not approve of.
func newPostfix(n *internet, d *tree, domain string) *host {
	for _, p := range []string{"opendkim", "opendmarc", "policyd-spf"} {
		testpeers.Program(n.t, p)
	}
	h := newForeign(n, d, domain, "11.22.33.20", prefix6+"20")
	h.write("etc/opendkim.conf", `Syslog no
Mode sv
Background no
Domain `+domain+`
Selector s1
KeyFile /etc/dkim.pem
Canonicalization relaxed/relaxed
Socket inet:8891@127.0.0.1
InternalHosts 127.0.0.1
RequireSafeKeys no
AuthservID mx.`+domain+`
AlwaysAddARHeader yes
On-BadSignature reject
TrustAnchorFile /etc/small-anchor
Nameservers 127.0.0.1
`)
	h.write("etc/opendmarc.conf", `Syslog no
Background no
AuthservID mx.`+domain+`
TrustedAuthservIDs mx.`+domain+`
PublicSuffixList /usr/share/publicsuffix/public_suffix_list.dat
Socket inet:8893@127.0.0.1
RejectFailures yes
SPFIgnoreResults no
SPFSelfValidate yes
`)
	h.write("etc/postfix-policyd-spf-python/policyd-spf.conf", `debugLevel = 1
TestOnly = 1
HELO_reject = Fail
Mail_From_reject = Fail
PermError_reject = True
TempError_Defer = True
Header_Type = AR
Authserv_Id = mx.`+domain+`
skip_addresses = 127.0.0.0/8
`)
	h.daemon("opendkim", "opendkim -f -x /etc/opendkim.conf")
	h.daemon("opendmarc", "opendmarc -f -c /etc/opendmarc.conf")
	h.listens("8891")
	h.listens("8893")
	h.startPostfix(`smtpd_milters = inet:127.0.0.1:8891, inet:127.0.0.1:8893
non_smtpd_milters = inet:127.0.0.1:8891
smtpd_recipient_restrictions = permit_mynetworks, reject_unauth_destination, check_policy_service unix:private/policyd-spf
`, "policyd-spf unix - n n - 0 spawn user=nobody argv=/usr/bin/policyd-spf\n")
	return h
}
