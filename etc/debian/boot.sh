#!/bin/sh
# systemd as process 1 of a Debian root: boot.sh ROOT SCRIPT FILE... boots it, has
# it run SCRIPT, prints what that prints, and exits as it does. SCRIPT and the other
# FILEs are in /run/test there. When ROOT is /, it is a copy of this machine's, in
# memory, in which nothing is enabled: no file here changes and no service of this
# machine is touched. It all happens in namespaces of its own, without a
# network, and ends with this program. Exit status 77: not on this machine, or not by this user.
set -eu
[ $# -ge 2 ] || { echo "usage: boot.sh ROOT SCRIPT FILE..." >&2; exit 64; }

if [ "${1#--}" = "$1" ]; then
	[ "$(id -u)" = 0 ] || { echo "boot.sh: only root can" >&2; exit 77; }
	[ -x "$1/lib/systemd/systemd" ] || { echo "boot.sh: systemd is not installed in $1" >&2; exit 77; }
	work=$(mktemp -d)
	trap 'rmdir "$work"' EXIT
	unshare --mount true || exit 77
	status=0
	unshare --mount --fork --kill-child "$0" --outer "$work" "$@" || status=$?
	exit $status
fi

# Outside of the root, with mounts that nobody else sees: the root, and a control
# group for its processes.
outer() {
	work=$1 root=$2
	shift 2
	mount -t tmpfs -o mode=755 tmpfs "$work" || exit 77
	mkdir "$work/root" "$work/groups" "$work/run" "$work/run/test"
	mount -t cgroup2 cgroup2 "$work/groups" || exit 77
	if [ "$root" = / ]; then
		mkdir "$work/upper" "$work/overlay"
		mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/overlay" overlay "$work/root" || exit 77
		rm -rf "$work"/root/etc/systemd/system/*.wants "$work/root/usr/sbin/policy-rc.d" \
			"$work/root/var/lib/man-db/auto-update" "$work/root/etc/apt/apt.conf.d/20packagekit"
		# A new installation is tried, whatever has been tried on this machine.
		rm -rf "$work/root/etc/posthaste" "$work/root/var/spool/posthaste" "$work/root/var/lib/posthaste"
	else
		mount --bind "$root" "$work/root"
	fi
	cp "$@" "$work/run/test/"
	: >"$work/run/test/output"
	mkdir -p "$work/run/systemd/system"
	cat >"$work/run/systemd/system/test.service" <<-END
		[Unit]
		Requires=basic.target
		After=basic.target
		SuccessAction=exit-force
		FailureAction=exit-force
		FailureActionExitStatus=1
		[Service]
		Type=oneshot
		TimeoutStartSec=${LIMIT:-300}
		Environment=HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
		ExecStart=/bin/sh /run/test/${1##*/}
		StandardOutput=append:/run/test/output
		StandardError=append:/run/test/output
	END
	# What a unit says itself of its times holds; a slow machine is no reason to give up a service of Debian's.
	mkdir "$work/run/systemd/system.conf.d"
	printf '[Manager]\nDefaultTimeoutStartSec=10min\nDefaultTimeoutStopSec=10min\n' >"$work/run/systemd/system.conf.d/test.conf"
	group=$work/groups/posthaste-$$
	mkdir "$group" || exit 77
	trap 'find "$group" -depth -type d -exec rmdir {} +' EXIT
	(
		exec sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec unshare "$@"' sh "$group" \
			--mount --pid --fork --kill-child --net --uts --ipc --cgroup "$0" --inner "$work"
	) &
	tail -f -s 0.2 --pid=$! "$work/run/test/output"
	wait $!
}

# Inside: what a machine's kernel and firmware give to its process 1.
inner() {
	work=$1
	root=$work/root
	mount -t proc proc "$root/proc"
	mount -t sysfs -o ro sysfs "$root/sys"
	mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
	mount -t tmpfs -o mode=755 tmpfs "$root/dev"
	for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
		(IFS=: && set -- $device && mknod -m 666 "$root/dev/$1" c "$2" "$3")
	done
	mkdir "$root/dev/pts" "$root/dev/shm"
	mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
	ln -s pts/ptmx "$root/dev/ptmx"
	mount -t tmpfs tmpfs "$root/dev/shm"
	mount -t tmpfs tmpfs "$root/tmp"
	mount --rbind "$work/run" "$root/run"
	mount -o bind,ro "$root/proc/sys" "$root/proc/sys"
	ip link set lo up
	hostname mail.example.org
	cd "$root"
	pivot_root . mnt
	umount -l /mnt
	exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		setpriv --bounding-set=-sys_module,-sys_time,-sys_rawio,-sys_boot,-syslog \
		/lib/systemd/systemd --unit=test.service --show-status=no --log-level=warning
}

step=${1#--}
shift
$step "$@"
