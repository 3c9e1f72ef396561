#!/bin/sh
# Builds the Debian package: build.sh DIR puts it into DIR and says its name. It
# holds what "make install" installs, with the changes that Debian's policy asks for.
# VERSION in the environment gives it another version than the program has, and
# BUILDMODE=default programs at fixed addresses, which are built faster; COMPRESS=none
# saves the time for that.
set -eu
umask 022
here=$(dirname "$0")
out=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
GOFLAGS="-buildmode=${BUILDMODE:-pie}" make -s -C "$here/../.." install DESTDIR="$root" PREFIX=/usr BIN="${BIN:-$work/bin}" LDFLAGS="-s -w" >/dev/null

doc=$root/usr/share/doc/posthaste
own=$("$root/usr/sbin/posthaste" postconf -dh mail_version)
version=${VERSION:-$own}
maintainer=$(cat "$here/../../MAINTAINERS")
[ -z "${DEBEMAIL:-}" ] || maintainer="${DEBFULLNAME:-Posthaste maintainers} <$DEBEMAIL>"
arch=$(dpkg --print-architecture)

# Where Debian has these: users call mailq, and programs /usr/lib/sendmail.
mkdir -p "$root/usr/bin" "$root/lib/systemd/system"
for link in mailq newaliases; do
	rm "$root/usr/sbin/$link"
	ln -s ../sbin/posthaste "$root/usr/bin/$link"
done
ln -s ../sbin/sendmail "$root/usr/lib/sendmail"
mv "$root"/usr/lib/systemd/system/* "$root/lib/systemd/system/"
rm -r "$root/usr/lib/systemd"
# The package takes the place of Postfix's, so that "systemctl reload postfix" is for this one.
ln -s posthaste.service "$root/lib/systemd/system/postfix.service"
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
# The package bash-completion has files for Postfix's tools of these names.
for tool in postalias postcat postconf postfix postmap postsuper; do
	rm "$root/usr/share/bash-completion/completions/$tool"
done
gzip -9n "$root"/usr/share/man/man*/*

mkdir -p "$doc/examples" "$root/usr/share/lintian/overrides"
cp "$here"/../../README.md "$here"/../../docs/*.md "$doc"
cp -R "$here/../../docs/licences" "$here/../../docs/results" "$doc/"
cp -R "$here/../metrics" "$doc/examples/"
cp "$here/copyright" "$doc/copyright"
cp "$here/lintian-overrides" "$root/usr/share/lintian/overrides/posthaste"
sed "s|@MAINTAINER@|$maintainer|" "$here/changelog" >"$work/changelog"
case $(sed -n '1s/.*(\(.*\)).*/\1/p' "$work/changelog") in
"${own%%+*}") ;; # between two tags the version is that of the last with the commit after a plus sign
*) echo "build.sh: etc/debian/changelog does not begin with version $own" >&2; exit 1 ;;
esac
gzip -9nc "$work/changelog" >"$doc/changelog.gz"
chmod -R u=rwX,go=rX "$root"

mkdir "$root/DEBIAN"
install -m 755 "$here/postinst" "$here/prerm" "$here/postrm" "$root/DEBIAN/"
printf '/etc/posthaste/main.cf\n/etc/posthaste/master.cf\n' >"$root/DEBIAN/conffiles"
(cd "$root" && find . -path ./DEBIAN -prune -o -path ./etc -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
# The programs are linked with the C library: it knows the users of sites with LDAP and the like.
mkdir "$work/debian" && printf 'Source: posthaste\n\nPackage: posthaste\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O root/usr/sbin/posthaste root/usr/lib/posthaste/* 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
size=$(du -sk --exclude=DEBIAN "$root" | cut -f1)
sed "s|@VERSION@|$version|; s|@ARCH@|$arch|; s|@MAINTAINER@|$maintainer|; s|@SIZE@|$size|; s|@DEPENDS@|$depends|" "$here/control" >"$root/DEBIAN/control"

mkdir -p "$out"
deb=$out/posthaste_${version}_$arch.deb
dpkg-deb --root-owner-group "-Z${COMPRESS:-xz}" --build "$root" "$deb" >/dev/null
echo "$deb"
