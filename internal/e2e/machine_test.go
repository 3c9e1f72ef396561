package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/testproc"
	"posthaste/internal/testwait"
)

// A network is one that nobody else is on: the test's goroutine, what it
// listens on, and what it starts. 192.0.2.0/24, 198.51.100.0/24 and
// 203.0.113.0/24 all lead to it, and a name server at 127.0.0.1 knows a zone.
type network struct{ t *testing.T }

// newNetwork takes the calling goroutine, which is the test's, to a network of
// its own, for good. It takes root; without it the test is skipped.
func newNetwork(t *testing.T, zone string) *network {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED, NOT PROVED HERE: the test needs root")
	}
	runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("SKIPPED, NOT PROVED HERE: no network of its own can be had: %v", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for i, address := range []net.IP{{127, 0, 0, 1}, {192, 0, 2, 1}, {198, 51, 100, 1}, {203, 0, 113, 1}} {
		name := "lo"
		if i > 0 {
			name = fmt.Sprintf("lo:%d", i)
		}
		for _, change := range []struct {
			request uint
			set     func(*unix.Ifreq) error
		}{
			{unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(address) }},
			{unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOOPBACK); return nil }},
		} {
			r, err := unix.NewIfreq(name)
			if err == nil {
				err = change.set(r)
			}
			if err == nil {
				err = unix.IoctlIfreq(fd, change.request, r)
			}
			if err != nil {
				t.Fatalf("give %s the address %v: %v", name, address, err)
			}
		}
	}
	pc, err := net.ListenPacket("udp4", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	names := fakezone.Must(zone).Serve(pc, l)
	t.Cleanup(func() { names.Close() })
	return &network{t}
}

// A machine has a file system, users and processes that nobody else sees, as
// if somebody had just installed Posthaste on this one: what changes is in
// memory and ends with the machine. It is on the network of the goroutine.
type machine struct {
	t    *testing.T
	init *exec.Cmd
	out  testproc.Output
}

// machineInit makes the machine's root in $1 and is its first process. $2 has
// the programs, $3 main.cf and master.cf, $4 is its name.
const machineInit = `set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" overlay "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs run
rm -rf etc/posthaste var/spool/posthaste var/lib/posthaste var/log/mail.log etc/aliases etc/aliases.* etc/mailname etc/resolv.conf etc/hosts etc/nologin home srv var/mail usr/sbin/posthaste
mkdir -p etc/posthaste var/spool/posthaste var/lib/posthaste usr/lib/posthaste var/log home srv var/mail
chmod 1777 var/mail
cp "$3/main.cf" "$3/master.cf" etc/posthaste/
: > usr/sbin/posthaste
mount --bind "$2/posthaste" usr/sbin/posthaste
for p in "$2"/posthaste-*; do [ ! -e "$p" ] || cp "$p" usr/lib/posthaste/; done
for p in postdrop postqueue; do rm -f "usr/sbin/$p" "usr/bin/$p"; cp "$2/$p" "usr/sbin/$p"; done
for p in sendmail mailq newaliases postsuper postcat postconf postmap postalias postlog postmulti qshape; do
  rm -f "usr/bin/$p"
  ln -sf posthaste "usr/sbin/$p"
done
echo nameserver 127.0.0.1 > etc/resolv.conf
echo 127.0.0.1 localhost > etc/hosts
echo 'postmaster: root' > etc/aliases
grep -v '^postdrop:\|^posthaste:\|^ann:\|^joe:\|^vmail:' etc/group > group
grep -v '^posthaste:\|^ann:\|^joe:\|^vmail:' etc/passwd > passwd
uid=64200
echo "postdrop:x:64199:" >> group
for u in posthaste:/var/spool/posthaste ann:/home/ann joe:/home/joe; do
  echo "${u%:*}:x:$uid:" >> group
  echo "${u%:*}:x:$uid:$uid::${u#*:}:/bin/sh" >> passwd
  case $u in *:/home/*) mkdir -p ".${u#*:}"; chown "$uid:$uid" ".${u#*:}";; esac
  uid=$((uid+1))
done
cat group > etc/group
cat passwd > etc/passwd
rm group passwd
hostname "$4"
chroot . /bin/sh -c 'newaliases && posthaste set-permissions'
exec chroot . /bin/sh -c 'echo ready; cat > /dev/null'
`

// newMachine starts a machine of that name.
func (n *network) newMachine(name string) *machine {
	t := n.t
	t.Helper()
	dir, err := os.MkdirTemp("", "machine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	etc, err := filepath.Abs("../../etc")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, init: exec.Command("/bin/sh", "-c", machineInit, "init", dir, binDir, etc, name)}
	m.init.Stdout, m.init.Stderr = &m.out, &m.out
	m.init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC}
	// It ends when its standard input does, should this program be killed. (The kernel's
	// signal for a parent's death comes when the thread ends that made the child.)
	if _, err := m.init.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := m.init.Start(); err != nil {
		t.Skipf("SKIPPED, NOT PROVED HERE: no name spaces can be had: %v", err)
	}
	ended := make(chan struct{})
	go func() { m.init.Wait(); close(ended) }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, m.log())
		}
		m.init.Process.Kill() // and the kernel all others of its name space
		<-ended
	})
	testwait.Until(t, "the machine is ready", func() bool {
		select {
		case <-ended:
			t.Skipf("SKIPPED, NOT PROVED HERE: no machine of its own can be had: %s", m.out.String())
		default:
		}
		return strings.HasSuffix(m.out.String(), "ready\n")
	})
	return m
}

// path is where this process finds a file of the machine.
func (m *machine) path(name string) string {
	return filepath.Join("/proc", strconv.Itoa(m.init.Process.Pid), "root", name)
}

func (m *machine) log() string {
	b, _ := os.ReadFile(m.path("var/log/mail.log"))
	return string(b)
}

// write writes a file, and makes its directory.
func (m *machine) write(name, text string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.path(name)), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(m.path(name), []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// run has a shell of a user run a command, and returns what it prints and its
// exit status.
func (m *machine) run(user, command string) (out string, status int) {
	m.t.Helper()
	// It may be a whole row of commands.
	out, status = testproc.Inside(m.t, m.init.Process.Pid, []string{"--mount", "--pid", "--uts", "--ipc"}, 3*patience, user, command)
	return strings.ReplaceAll(out, "\r\n", "\n"), status
}

// must is run for what has to succeed.
func (m *machine) must(user, command string) string {
	m.t.Helper()
	out, status := m.run(user, command)
	if status != 0 {
		m.t.Fatalf("%s\nexit status %d:\n%s", command, status, out)
	}
	return out
}
