package smallnet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"posthaste/internal/testpeers"
	"posthaste/internal/testwait"
)

// debianRoot is where internal/e2e/peers.sh has put a Debian as it is after its installation: the
// smallest one with systemd. It has no compiler, no mail system, and no file of this machine.
const debianRoot = "/var/cache/posthaste-peers/debian"

// debianInit makes the root of a machine in $1, whose name is $2 and whose control group is $3, as
// its kernel and firmware would, and becomes systemd. $4 is the root that it is made of. Its control
// group and its devices are its own; etc/debian/boot.sh does the same for the package's test.
const debianInit = `set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
cd "$1"
mkdir up work root groups
mount -t cgroup2 cgroup2 groups
mkdir "groups/$3"
echo 0 > "groups/$3/cgroup.procs"
mount -t overlay -o "lowerdir=$4,upperdir=$1/up,workdir=$1/work" overlay root
cat > init <<'END'
set -e
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for d in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
  (IFS=:; set -- $d; mknod -m 666 "dev/$1" c "$2" "$3")
done
ln -s /proc/self/fd dev/fd
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs run
mount -o bind,ro proc/sys proc/sys
rm -f etc/resolv.conf etc/machine-id
: > etc/machine-id
hostname "$2"
echo "$2" > etc/hostname
printf '127.0.0.1 localhost\n' > etc/hosts
ip link set lo up
pivot_root . mnt
umount -l /mnt
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  setpriv --bounding-set=-sys_module,-sys_time,-sys_rawio,-sys_boot,-syslog /lib/systemd/systemd --show-status=no --log-level=warning
END
cd root
exec unshare --cgroup /bin/sh ../init "$@"
`

// debian starts a machine on which Debian has been installed, and nothing else. Its first process is
// systemd, so that the package starts its service, and its log is the journal.
func (n *internet) debian(name, address string) *host {
	t := n.t
	t.Helper()
	for _, p := range []string{"pivot_root", "setpriv"} {
		testpeers.Program(t, p)
	}
	if _, err := os.Stat(filepath.Join(debianRoot, "etc/debian_version")); err != nil {
		testpeers.Missing(t, "Debian in "+debianRoot)
	}
	group := "posthaste-" + strconv.Itoa(os.Getpid()) + "-" + filepath.Base(t.TempDir())
	t.Cleanup(func() { // what is registered first is done last: all its processes have ended
		out, err := exec.Command("unshare", "--mount", "/bin/sh", "-c", `mount -t cgroup2 cgroup2 /mnt && find "/mnt/$1" -depth -type d -exec rmdir {} +`, "sh", group).CombinedOutput()
		if err != nil {
			t.Logf("the control group %s stays: %s", group, out)
		}
	})
	h := n.boot(debianInit, name, []string{address}, group, debianRoot)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: %s\n%s", name, h.out.String(), h.journal())
		}
	})
	testwait.Until(t, name+" has booted", func() bool {
		h.alive()
		out, _ := h.run("systemctl is-active multi-user.target")
		return strings.TrimSpace(out) == "active"
	})
	n.wire(h, []string{address})
	h.must("useradd -m -s /bin/sh ann")
	return h
}

// journal is what the mail system has logged on a machine with systemd. It may be read when the test
// is over, and the machine is not yet.
func (h *host) journal() string {
	h.t.Helper()
	out, err := exec.Command("nsenter", "--target", strconv.Itoa(h.init.Process.Pid), "--mount", "--pid", "--root", "--", "journalctl", "-q", "--no-pager", "-u", "posthaste").CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s(%v)\n", out, err)
	}
	return string(out)
}
