package smallnet

import (
	"os"

	"posthaste/internal/testpeers"
)

// eximPackage is where internal/e2e/peers.sh has unpacked Debian's package.
const eximPackage = "/var/cache/posthaste-peers/exim4-daemon-heavy"

// eximConf has Exim refuse what fails SPF, and bad signatures, and say in the header what it
// has found. It signs, and insists on DANE where there is some. Debian builds it without DMARC.
const eximConf = `primary_hostname = mx.exim.net
qualify_domain = exim.net
exim_user = Debian-exim
exim_group = Debian-exim
log_file_path = /var/log/exim4/%slog
spool_directory = /var/spool/exim4
local_interfaces = <; 0.0.0.0 ; ::0
daemon_smtp_ports = 25
dns_dnssec_ok = 1
tls_advertise_hosts = *
tls_certificate = /etc/cert.pem
tls_privatekey = /etc/key.pem
acl_smtp_mail = mail
acl_smtp_rcpt = rcpt
acl_smtp_dkim = dkim
acl_smtp_data = data
log_selector = +tls_certificate_verified +dnssec
keep_environment =
notifier_socket =
begin acl
mail:
  deny spf = fail
       message = 5.7.23 SPF: $spf_smtp_comment
  accept
rcpt:
  deny local_parts = nobody
       domains = exim.net
       message = 5.1.1 no such user
  accept domains = exim.net
  accept hosts = : 127.0.0.1
  deny message = 5.7.1 relay access denied
dkim:
  deny dkim_status = fail
       message = 5.7.20 DKIM: $dkim_verify_reason
  accept
data:
  accept add_header = :at_start:${authresults {$primary_hostname}}
begin routers
away:
  driver = dnslookup
  domains = ! exim.net
  transport = away
  dnssec_request_domains = *
  ignore_target_hosts = 127.0.0.0/8
  no_more
here:
  driver = accept
  check_local_user
  transport = maildir
begin transports
maildir:
  driver = appendfile
  directory = /home/$local_part_data/Maildir
  create_directory
  maildir_format
  delivery_date_add
  envelope_to_add
  return_path_add
away:
  driver = smtp
  dnssec_request_domains = *
  hosts_try_dane = *
  dkim_domain = exim.net
  dkim_selector = s1
  dkim_private_key = /etc/dkim.pem
begin retry
* * F,1h,1s
`

// newExim is a site with Exim, as Debian's exim4-daemon-heavy has it.
func newExim(n *internet, d *tree) *host {
	n.t.Helper()
	program, err := os.ReadFile(eximPackage + "/usr/sbin/exim4")
	if err != nil {
		testpeers.Missing(n.t, "exim4-daemon-heavy")
	}
	h := newForeign(n, d, "exim.net", "11.22.33.30", prefix6+"30")
	h.logs = append(h.logs, "var/log/exim4/mainlog")
	h.must(`sed -i '/^Debian-exim:/d' /etc/passwd /etc/group
echo Debian-exim:x:64210: >>/etc/group
echo Debian-exim:x:64210:64210::/var/spool/exim4:/bin/false >>/etc/passwd
rm -rf /var/spool/exim4 /var/log/exim4 /usr/sbin/sendmail
install -d -o Debian-exim -g Debian-exim /var/spool/exim4 /var/log/exim4
mkdir -p /etc/exim4
chgrp Debian-exim /etc/key.pem /etc/dkim.pem
chmod 640 /etc/key.pem /etc/dkim.pem`)
	h.write("usr/sbin/exim4", string(program))
	h.write("etc/exim4/exim4.conf", eximConf)
	h.must("chmod 4755 /usr/sbin/exim4; ln -s exim4 /usr/sbin/sendmail")
	h.daemon("exim", "exim4 -bdf -q1s")
	h.listens("25")
	return h
}
