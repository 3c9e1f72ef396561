#!/bin/sh
# Installs the foreign programs that tests use, from Debian's packages and npm's registry. Nothing
# of them is started, now or when the machine is booted: postfix is here for smtp-source, smtp-sink and for
# comparing with the original; libnet-ssleay-perl is what swaks has TLS by. "peers.sh check"
# only says which are missing, and "peers.sh disable PACKAGE..." has the machine not start the services
# of packages: what somebody who has installed them with an older peers.sh wants for once.
set -eu

# disable has the machine not start the services of some packages when it is booted. Who wants one
# can enable it: a later version of the package leaves it as it is.
disable() {
	root=${DPKG_ROOT:-}
	files=$(dpkg-query --root="$root/" -L "$@")
	for unit in $(echo "$files" | sed -n 's#^\(/usr\)*/lib/systemd/system/\([^/]*\.\(service\|socket\|timer\|path\)\)$#\2#p'); do
		DPKG_MAINTSCRIPT_PACKAGE=$1 deb-systemd-helper disable "$unit" >/dev/null
	done
	for script in $(echo "$files" | sed -n 's#^/etc/init\.d/\([^/]*\)$#\1#p'); do
		for start in "$root"/etc/rc[2-5].d/S[0-9][0-9]"$script"; do
			[ ! -L "$start" ] || mv "$start" "${start%/*}/K01$script"
		done
	done
}
if [ "${1:-}" = disable ]; then
	shift
	disable "$@"
	exit 0
fi
want="btrfs-progs chromium curl dovecot-imapd dovecot-lmtpd dpkg-dev e2fsprogs etcd-server gsasl iproute2 ldap-utils ldnsutils libdb5.3 libevent-2.1-7 libgnutls-dane0 libidn12 libnet-ssleay-perl libnsl2 libopendmarc2 libsisimai-perl libspf2-2 maildrop mandoc mariadb-server memcached mmdebstrap msmtp mutt nsd opendkim opendmarc openssl patroni pflogsumm postfix postfix-ldap postfix-lmdb postfix-mysql postfix-pcre postfix-pgsql postfix-policyd-spf-python postfix-sqlite postgresql-15 procmail prometheus publicsuffix python3 python3-aiosmtpd python3-dkim python3-etcd rspamd s-nail sasl2-bin slapd sqlite3 sslscan swaks systemd unbound vacation xfsprogs"
# Mail servers that cannot be installed beside postfix are only unpacked, and
# run from there in a root of their own; the libraries above are theirs. So are
# those readers of logs that would become services of this machine.
unpack="exim4-daemon-heavy exim4-daemon-light fail2ban logwatch opensmtpd postsrsd prometheus-postfix-exporter"
into=/var/cache/posthaste-peers
# axe-core examines pages for barriers to people with disabilities. It is one script, which a
# browser runs in the page, and comes from npm's registry; nothing of it is linked in.
axe=4.14.1
axesum=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
# A Debian as it is after its installation, without anything of this machine: the smallest system with
# systemd, in a directory, of the same release and from the same mirror.
clean=$into/debian
command -v npm >/dev/null || want="$want npm"
missing=
for p in $want; do
	dpkg -s "$p" 2>/dev/null | grep -q '^Status: install ok installed' || missing="$missing $p"
done
absent=
for p in $unpack; do
	[ -d $into/$p ] || absent="$absent $p"
done
noaxe=
echo "$axesum  $into/axe-core/axe.min.js" | sha256sum -c --status 2>/dev/null || noaxe=" axe-core"
noclean=
[ -e $clean/etc/debian_version ] || noclean=" Debian"
if [ -z "$missing$absent$noaxe$noclean" ]; then
	echo "peers: all installed:" $want $unpack axe-core Debian
	exit 0
fi
if [ "${1:-}" = check ]; then
	for p in $missing $absent $noaxe $noclean; do
		echo "SKIPPED: the tests that need $p, which is not installed: \"make peers\" installs it" >&2
	done
	exit 0
fi
if [ "$(id -u)" != 0 ]; then
	echo "peers: need root to install:$missing$absent$noaxe$noclean" >&2
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
	made=yes
	# It would keep all services of this machine from being started for ever, should this be interrupted.
	trap 'rm -f $policy' EXIT
	trap 'exit 1' HUP INT TERM
	chmod 755 $policy
fi
if [ -n "$missing" ]; then
	# What is there already is its owner's. With what is installed comes what that depends on.
	before=$(mktemp)
	dpkg-query -W -f '${Package}\n' | sort -u >"$before"
	apt-get install -y --no-install-recommends $missing
	new=$(dpkg-query -W -f '${Package}\n' | sort -u | comm -13 "$before" - | grep -v '^\(systemd\|dbus\)') || :
	rm "$before"
	[ -z "$new" ] || disable $new
fi
[ -z "$made" ] || rm -f $policy
for p in $absent; do
	work=$(mktemp -d)
	chmod 755 "$work"
	(cd "$work" && apt-get download -qq "$p" && dpkg -x "$p"_*.deb content)
	mkdir -p $into
	mv "$work/content" $into/$p
	rm -rf "$work"
done
if [ -n "$noaxe" ]; then
	work=$(mktemp -d)
	(cd "$work" && npm pack --silent "axe-core@$axe" >/dev/null && tar xzf "axe-core-$axe.tgz" &&
		echo "$axesum  package/axe.min.js" | sha256sum -c --quiet)
	chmod 755 "$work/package"
	mkdir -p $into
	rm -rf $into/axe-core
	mv "$work/package" $into/axe-core
	rm -rf "$work"
fi
if [ -n "$noclean" ]; then
	work=$(mktemp -d)
	release=$(. /etc/os-release && echo "$VERSION_CODENAME")
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $release" | head -1)
	mmdebstrap --quiet --mode=root --variant=minbase --include=ca-certificates,systemd-sysv "$release" "$work/root" "deb $mirror $release main"
	mkdir -p $into
	rm -rf --one-file-system $clean
	mv "$work/root" $clean
	rmdir "$work"
fi
