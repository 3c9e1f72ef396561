#!/bin/sh
# Installs what this tarball holds: "sh install.sh" as root. Configuration files
# that are there already stay as they are. Run it again to upgrade, with the
# mail system stopped. With DESTDIR in the environment it copies to
# there, and leaves users and modes for later.
set -eu
cd "$(dirname "$0")/root"
to=${DESTDIR:-}
if [ -z "$to" ] && [ "$(id -u)" != 0 ]; then
	echo "install.sh: only root can install a mail system; see DESTDIR in this file" >&2
	exit 1
fi
if [ -z "$to" ] && [ -x /usr/sbin/posthaste ] && /usr/sbin/posthaste status >/dev/null 2>&1; then
	echo "install.sh: the mail system runs: \"posthaste stop\" first" >&2
	exit 1
fi
find . -type d | while read -r dir; do
	[ -d "$to/$dir" ] || install -d -m 755 "$to/$dir"
done
find . -type f -o -type l | while read -r file; do
	case $file in
	./etc/posthaste/*) [ ! -e "$to/$file" ] || continue ;;
	./usr/sbin/postfix)
		if [ -e "$to/$file" ] && [ ! -L "$to/$file" ]; then
			echo "/usr/sbin/postfix is Postfix's own and stays; once Postfix is gone: ln -s posthaste /usr/sbin/postfix"
			continue
		fi
		;;
	esac
	# A running program's file cannot be written, but replaced.
	cp -P --preserve=mode "$file" "$to/$file.new"
	mv -fT "$to/$file.new" "$to/$file"
done
if [ -n "$to" ]; then
	echo "now, on the machine it is for, as root: make the user posthaste and the group postdrop; posthaste set-permissions"
	exit 0
fi
getent group postdrop >/dev/null || groupadd --system postdrop
getent passwd posthaste >/dev/null || useradd --system --user-group --no-create-home --home-dir /var/spool/posthaste --shell /usr/sbin/nologin posthaste
/usr/sbin/posthaste set-permissions
[ ! -e /etc/aliases ] || /usr/sbin/newaliases
echo "now: posthaste check; posthaste start (or: systemctl enable --now posthaste)"
