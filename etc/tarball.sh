#!/bin/sh
# Builds the tarball: tarball.sh DIR puts it into DIR and says its name. It holds
# what "make install" installs, and a program that puts that in place.
set -eu
umask 022
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make -s -C "$here/.." install DESTDIR="$work/root" PREFIX=/usr BIN="${BIN:-$work/bin}" LDFLAGS="-s -w" >/dev/null
name=posthaste-$("$work/root/usr/sbin/posthaste" postconf -dh mail_version)-linux-$("${GO:-go}" env GOARCH)
mkdir "$work/$name"
mv "$work/root" "$work/$name/root"
mkdir -p "$work/$name/root/usr/share/doc/posthaste"
cp "$here"/../README.md "$here"/../LICENSE "$here"/../docs/*.md "$work/$name/root/usr/share/doc/posthaste/"
cp -R "$here/../docs/licences" "$here/../docs/results" "$work/$name/root/usr/share/doc/posthaste/"
cp -R "$here/metrics" "$work/$name/root/usr/share/doc/posthaste/metrics"
cp "$here/install.sh" "$work/$name/install.sh"
tar -C "$work" --owner=root:0 --group=root:0 --sort=name -czf "$out/$name.tar.gz" "$name"
echo "$1/$name.tar.gz"
