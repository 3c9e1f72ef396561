#!/bin/sh
# Installs the foreign programs that tests use, from Debian's packages. Nothing
# of them is started: postfix is here for smtp-source, smtp-sink and for
# comparing with the original. "peers.sh check" only says which are missing.
set -eu
want="curl dovecot-lmtpd gsasl ldap-utils ldnsutils maildrop mandoc mariadb-server msmtp nsd opendkim openssl postfix postgresql-15 procmail prometheus python3 rspamd s-nail slapd sqlite3 sslscan swaks unbound vacation"
missing=
for p in $want; do
	dpkg -s "$p" 2>/dev/null | grep -q '^Status: install ok installed' || missing="$missing $p"
done
if [ -z "$missing" ]; then
	echo "peers: all installed:" $want
	exit 0
fi
if [ "${1:-}" = check ]; then
	for p in $missing; do
		echo "SKIPPED: the tests that need $p, which is not installed: \"make peers\" installs it" >&2
	done
	exit 0
fi
if [ "$(id -u)" != 0 ]; then
	echo "peers: need root to install:$missing" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
echo "postfix postfix/main_mailer_type select No configuration" | debconf-set-selections
# No package may start a service here.
policy=/usr/sbin/policy-rc.d
made=
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod 755 $policy
	made=yes
fi
apt-get install -y --no-install-recommends $missing || { [ -z "$made" ] || rm -f $policy; exit 1; }
[ -z "$made" ] || rm -f $policy
