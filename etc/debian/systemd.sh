#!/bin/sh
# What boot.sh has done where systemd is process 1, with Postfix installed: its service is
# replaced, its queue taken over; the unit keeps what it promises; an upgrade, a second instance, the end.
set -eu
. /run/test/functions.sh

out_queue() { postqueue -c /etc/posthaste-out -j | wc -l; }
queues_are_kept() { queue_is 1 && out_queue_is 1; }
out_queue_is() { [ "$(out_queue)" = "$1" ]; }
main_pid() { systemctl show -P MainPID posthaste; }
is() { [ "$(systemctl is-active "$1")" = "$2" ]; }
logged() { journalctl -q -t "$1" -g "$2" >/dev/null; }

# without reports whether no process of the mail system is there.
without() { ! pgrep -x posthaste && ! pgrep -x local && ! pgrep -u posthaste; }

id alice >/dev/null 2>&1 || useradd -m -s /bin/sh alice
id bob >/dev/null 2>&1 || useradd -m -s /bin/sh bob

say "A Postfix that runs, with waiting mail"
cat >/etc/postfix/main.cf <<'END'
compatibility_level = 3.6
myhostname = mail.example.org
inet_interfaces = loopback-only
relayhost = [127.0.0.1]:26
mydestination = $myhostname, localhost
alias_maps = hash:/etc/aliases
alias_database = hash:/etc/aliases
END
printf 'postmaster: root\nstaff: alice, bob\n' >/etc/aliases
newaliases
systemctl start postfix
until_true "Postfix listens" is postfix@- active
printf 'Subject: waits\n\nx\n' | sendmail friend@elsewhere.example
until_true "it is deferred" sh -c 'mailq | grep -q "Connection refused"'

say "Posthaste instead"
run apt-get -q -y -o Dpkg::Use-Pty=0 --no-install-recommends install /run/test/first.deb
set_gid
is posthaste active || fail "the service was not started"
[ "$(systemctl is-enabled posthaste)" = enabled ] || fail "the service is not enabled"
[ "$(systemctl show -P Id postfix)" = posthaste.service ] || fail "the service does not go by Postfix's name"
run posthaste migrate
run posthaste check
run systemctl restart posthaste
run posthaste migrate --queue
until_true "it has been tried here" sh -c 'mailq | grep -q "Connection refused"'
until_true "Postfix has stopped" sh -c '! pgrep -x master'

run systemctl reload postfix
is postfix active || fail "a reload under Postfix's name has ended it"

say "What the unit promises"
run systemd-analyze verify --man=no posthaste.service posthaste@out.service
run systemd-analyze security --no-pager --threshold=35 posthaste.service >/tmp/security || fail "$(cat /tmp/security)"
tail -1 /tmp/security
[ "$(systemctl show -P NotifyAccess posthaste)" = main ] || fail "anybody may notify"
enter="nsenter -t $(main_pid) -m"
! $enter touch /usr/sbin/mark /etc/posthaste/mark 2>/dev/null || fail "the service may write to /usr or /etc"
! $enter sh -c 'ls /dev/kmsg /dev/mem' >/dev/null 2>&1 || fail "the service sees devices"
touch /tmp/mark
! $enter ls /tmp/mark 2>/dev/null || fail "the service sees /tmp"
caps=$(sed -n 's/^CapBnd:\t0*//p' "/proc/$(main_pid)/status")
[ "$caps" = 404ff ] || fail "capabilities $caps"
grep -q '^Seccomp:.2' "/proc/$(main_pid)/status" || fail "no filter of system calls"
grep -q '^NoNewPrivs:.1' "/proc/$(pgrep -x qmgr)/status" || fail "qmgr may gain privileges"

say "Mail, also of a user's command, which sends mail by the set-gid postdrop"
cat >/home/bob/.forward <<'END'
"|id >/home/bob/who; (echo 'Subject: of a command'; echo) | /usr/sbin/sendmail alice"
END
chown bob: /home/bob/.forward
printf 'Subject: to staff\n\nx\n' | as bob '/usr/sbin/sendmail staff'
over_smtp alice@mail.example.org
until_true "mail over SMTP arrives" mailbox alice "Subject: over SMTP"
until_true "an alias works" mailbox alice "Subject: to staff"
until_true "a command works" mailbox alice "Subject: of a command"
grep -q '(bob)' /home/bob/who || fail "the command ran as $(cat /home/bob/who)"
until_true "the log is in the journal" logged postfix/local 'to=<alice@mail.example.org>, .*status=sent'
[ "$(journalctl -q -b -g 'starting the Posthaste mail system' | wc -l)" = 2 ] || fail "a line is twice in the journal"

say "Reload"
pid=$(main_pid)
postconf -e 'smtpd_banner = $myhostname reloaded'
run systemctl reload posthaste
until_true "the greeting is new" perl -MIO::Socket::INET -e 'exit(IO::Socket::INET->new(PeerAddr => "127.0.0.1:25", Timeout => 180)->getline !~ /reloaded/)'
cp -p /etc/posthaste/main.cf /root/main.cf
echo 'smtpd_hard_error_limit = seven' >>/etc/posthaste/main.cf
! systemctl reload posthaste 2>/dev/null || fail "a main.cf that is wrong was taken"
until_true "the reason is in the journal" logged posthaste 'main.cf:[0-9]*: smtpd_hard_error_limit = seven'
[ "$(main_pid)" = "$pid" ] || fail "reload ended the service"

say "A main.cf that is wrong, and the start that fails of it"
systemctl stop posthaste
without || fail "processes are left"
[ "$(systemctl show -P Result posthaste)" = success ] || fail "stopped: $(systemctl show -P Result posthaste)"
! systemctl start posthaste 2>/dev/null || fail "started with a main.cf that is wrong"
systemctl stop posthaste
cp -p /root/main.cf /etc/posthaste/main.cf
systemctl reset-failed posthaste
run systemctl start posthaste

say "Killed"
pid=$(main_pid)
kill -9 "$pid"
restarted() { [ "$(systemctl show -P NRestarts posthaste)" = 1 ] && is posthaste active; }
until_true "it is started again" restarted
[ "$(main_pid)" != "$pid" ] || fail "the process is the same"
until_true "the queue is as it was" queue_is 1
kill -9 "$(pgrep -x qmgr)"
until_true "master starts a service again" sh -c 'mailq | grep -q friend'

say "A second instance"
postmulti -e init
run postmulti -I posthaste-out -e create
postconf -c /etc/posthaste-out -e 'relayhost = [127.0.0.1]:26' 'mydestination =' 'authorized_submit_users = static:anyone'
run systemctl enable --now posthaste@out
is posthaste@out active || fail "the second instance does not run"
printf 'Subject: out\n\nx\n' | sendmail -C /etc/posthaste-out other@elsewhere.example
until_true "it has its own queue" sh -c 'postqueue -c /etc/posthaste-out -j | grep -q "\"queue_name\": *\"deferred\""'
out_queue_is 1 || fail "its queue has $(out_queue)"
queue_is 1 || fail "the queue has $(queue)"

say "An upgrade keeps the queues"
pid=$(main_pid)
run dpkg -i /run/test/second.deb
is posthaste active || fail "the new version does not run"
# Its restart follows the first one's, and nobody waits for it.
until_true "the second instance of the new version runs" is posthaste@out active
[ "$(main_pid)" != "$pid" ] || fail "the old version runs"
until_true "the queues are kept" queues_are_kept
set_gid

say "Removed and purged"
run dpkg -r --force-depends posthaste
without || fail "processes are left"
is posthaste inactive || fail "the service is $(systemctl is-active posthaste)"
run dpkg -P --force-depends posthaste
[ "$(systemctl show -P LoadState posthaste)" = not-found ] || fail "a unit is left"
say "All of it works"
