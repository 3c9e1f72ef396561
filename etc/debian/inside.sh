#!/bin/sh
# What test.sh does in the Debian root: a Postfix that is replaced and put
# back; a new installation that is upgraded, removed and purged. Commands are
# printed as a shell would show them, with what they print.
set -eu

. /root/functions.sh

useradd -m alice
useradd -m bob

say "A Postfix with aliases, virtual addresses and waiting mail"
debconf-set-selections <<'END'
postfix postfix/main_mailer_type select Internet Site
postfix postfix/mailname string example.org
END
apt-get -qq -y --no-install-recommends install postfix >/dev/null 2>&1 || fail "Postfix cannot be installed"
postconf -e maillog_file=/var/log/mail.log 'relayhost = [127.0.0.1]:26' virtual_alias_domains=virtual.example \
	virtual_alias_maps=hash:/etc/postfix/virtual 'smtpd_tls_security_level = none'
echo "info@virtual.example alice" >/etc/postfix/virtual
postmap /etc/postfix/virtual
printf 'postmaster: root\nstaff: alice, bob\n' >/etc/aliases
newaliases
postfix start 2>/dev/null
printf 'Subject: waits one\n\nx\n' | sendmail -f alice friend@elsewhere.example
printf 'Subject: waits two\n\nx\n' | sendmail -f bob friend@elsewhere.example other@elsewhere.example
until_true "two messages are deferred" sh -c 'mailq | grep -c "Connection refused" | grep -qx 2'
run mailq

say "Posthaste instead"
postfix stop 2>/dev/null # no service is stopped or started here by its package: see policy-rc.d
until_true "Postfix has stopped" sh -c '! pgrep -x master'
run apt-get -qq -y install /root/packages/posthaste.deb
set_gid
run posthaste migrate --dry-run
run posthaste migrate
run posthaste check -v
run posthaste start
run posthaste migrate --queue
until_true "both have been tried here" sh -c 'mailq | grep -c "Connection refused" | grep -qx 2'
run mailq
printf 'Subject: to staff\n\nx\n' | sendmail staff
over_smtp info@virtual.example
run as alice 'mailq && postqueue -j && sendmail -bp && postqueue -f'
! as alice 'MAIL_CONFIG=/tmp mailq' || fail "a user chose the configuration of a set-gid program"
until_true "an alias works" mailbox bob "Subject: to staff"
until_true "a virtual alias works" mailbox alice "Subject: over SMTP"

say "And back"
run posthaste stop
run posthaste migrate --back
run apt-get -qq -y --no-install-recommends install postfix
run postfix start
until_true "the two are in the queue of Postfix" queue_is 2
run mailq
postfix stop
until_true "Postfix has stopped" sh -c '! pgrep -x master'
apt-get -qq -y purge postfix posthaste >/dev/null 2>&1
rm -rf /etc/posthaste /var/mail/*

say "A new installation"
[ ! -e /etc/posthaste/main.cf ] || fail "purging left main.cf"
run dpkg -i /root/packages/posthaste.deb
postconf -e maillog_file=/var/log/mail.log
run posthaste start
run posthaste status
printf 'Subject: from sendmail\n\nx\n' | as alice '/usr/sbin/sendmail bob'
over_smtp bob
until_true "mail over SMTP arrives" mailbox bob "Subject: over SMTP"
until_true "mail of a user arrives" mailbox bob "Subject: from sendmail"

say "An upgrade keeps the queue, and the changed main.cf"
postconf -e 'relayhost = [127.0.0.1]:26'
posthaste reload
printf 'Subject: waits\n\nx\n' | sendmail friend@elsewhere.example
until_true "it is deferred" sh -c 'mailq | grep -q "Connection refused"'
before=$(postqueue -j | sed 's/.*"queue_id": *"\([^"]*\)".*/\1/')
pid=$(cat /var/spool/posthaste/pid/master.pid)
run dpkg -i /root/packages/posthaste-upgrade.deb
run posthaste status
[ "$(cat /var/spool/posthaste/pid/master.pid)" != "$pid" ] || fail "the old version runs"
[ "$(postqueue -j | sed 's/.*"queue_id": *"\([^"]*\)".*/\1/')" = "$before" ] || fail "the queue had $before"
postconf -n relayhost | grep -q 26 || fail "main.cf was replaced"
set_gid
dpkg --verify posthaste || fail "files are other than the package's"

say "Removed: the queue stays; purged: nothing does"
run dpkg -r posthaste
! pgrep -f 'posthaste|qmgr' || fail "processes are left"
[ -e /var/spool/posthaste/spool ] || fail "the queue is gone"
run dpkg -i /root/packages/posthaste-upgrade.deb
run posthaste start
until_true "the message is still there" queue_is 1
run dpkg -P posthaste
for path in /etc/posthaste /var/spool/posthaste /var/lib/posthaste /usr/lib/posthaste /etc/aliases.phdb /usr/sbin/sendmail; do
	[ ! -e $path ] || fail "$path is left: $(ls -la $path)"
done
! dpkg-statoverride --list '/usr/sbin/post*' || fail "an override is left"
say "All of it works"
