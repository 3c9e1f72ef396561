#!/bin/sh
# The package in a Debian root of its own: "make deb-test". What is done there is in
# inside.sh, and printed. It needs root, debootstrap, and a Debian mirror for the
# root and for Postfix's package; no service is reached from outside, nor
# is any process left: the root has namespaces of its own.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
suite=${SUITE:-bookworm}
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

"$here/build.sh" "$work/first" >/dev/null
VERSION=$(dpkg-deb -f "$work"/first/*.deb Version)+upgrade "$here/build.sh" "$work/second" >/dev/null
lintian --allow-root --fail-on error,warning "$work"/first/*.deb

root=$work/root
debootstrap --variant=minbase --include=ca-certificates,netbase,procps,systemd-sysv "$suite" "$root" >"$work/debootstrap.log" || { tail "$work/debootstrap.log"; exit 1; }
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
echo mail.example.org >"$root/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 mail.example.org mail\n' >"$root/etc/hosts"
chroot "$root" apt-get -qq -y --no-install-recommends --download-only install postfix >/dev/null
mkdir "$root/root/packages"
cp "$work"/first/*.deb "$root/root/packages/posthaste.deb"
cp "$work"/second/*.deb "$root/root/packages/posthaste-upgrade.deb"
cp "$here/inside.sh" "$here/functions.sh" "$root/root/"

unshare --mount --pid --fork --kill-child --net --uts --ipc sh -c '
	set -e
	hostname mail.example.org
	ip link set lo up
	mount -t proc proc "$1/proc"
	mount -t devtmpfs dev "$1/dev" 2>/dev/null || mount --rbind /dev "$1/dev"
	mkdir -p "$1/dev/pts" && mount -t devpts devpts "$1/dev/pts" || true
	exec chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 sh /root/inside.sh
' sh "$root"

rm "$root/usr/sbin/policy-rc.d"
chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install postfix >/dev/null
mv "$root/root/packages/posthaste.deb" "$work/first.deb"
mv "$root/root/packages/posthaste-upgrade.deb" "$work/second.deb"
"$here/boot.sh" "$root" "$here/systemd.sh" "$here/functions.sh" "$work/first.deb" "$work/second.deb"
