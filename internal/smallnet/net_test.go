// Package smallnet is a small internet: name servers for a root, two top-level domains and the
// domains below, all signed; an authority that issues certificates; mail servers that others have
// written; and a machine on which somebody installs Posthaste and makes a domain ready for the
// world, as docs/start.md and docs/domain.md say.
//
// Each host has a network, a file system, a host name and processes of its own, in name spaces that
// end with the test. Their file systems are that of this machine with changes in memory, so that
// the foreign programs are those that are installed here; no daemon and no file of this machine is
// touched. The machine that docs/start.md is about has nothing of this one: it is a Debian of its own,
// with systemd as its first process. The hosts are on one bridge, in a network name space from which no route leads away:
// that is why they can have public addresses, which the product treats as such.
//
// It takes root, Debian's packages (internal/e2e/peers.sh), a C compiler, and two to three minutes.
package smallnet

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"posthaste/internal/testpeers"
	"posthaste/internal/testproc"
	"posthaste/internal/testwait"
)

// patience is how long a command of a host may take.
const patience = testwait.Patience

// binDir has the programs under test, and the authority.
var binDir string

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run builds the programs before the tests run.
func run(m *testing.M) int {
	if os.Getuid() != 0 {
		return m.Run() // everything is skipped
	}
	dir, err := os.MkdirTemp("", "posthaste-smallnet-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // services run as another user
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	binDir = dir
	for _, p := range []string{"posthaste/cmd/posthaste", "posthaste/cmd/sendmail", "posthaste/cmd/postdrop", "posthaste/cmd/postqueue", "github.com/letsencrypt/pebble/v2/cmd/pebble"} {
		if out, err := exec.Command("go", "build", "-ldflags=-w", "-o", dir+"/", p).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", p, err, out)
			return 1
		}
	}
	return m.Run()
}

// An internet is the bridge that all hosts are on, in a network name space that is that of the
// test's goroutine.
type internet struct {
	t     *testing.T
	dir   string
	hosts int
}

// newInternet takes the calling goroutine, which is the test's, to a network of its own, for good.
func newInternet(t *testing.T) *internet {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED, NOT PROVED HERE: the test needs root")
	}
	for _, p := range []string{"ip", "nsenter", "unshare"} {
		testpeers.Program(t, p)
	}
	runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("SKIPPED, NOT PROVED HERE: no network of its own can be had: %v", err)
	}
	n := &internet{t: t, dir: t.TempDir()}
	n.ip("link add br0 type bridge")
	n.ip("link set br0 up")
	return n
}

// ip runs ip(8) in the network of the bridge.
func (n *internet) ip(args string) {
	n.t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v\n%s", args, err, out)
	}
}

// A host has a file system, users, processes and a network that nobody else sees. What changes is
// in memory and ends with it.
type host struct {
	t       *testing.T
	name    string
	address string
	six     string // its IPv6 address, if it has one
	init    *exec.Cmd
	ended   chan struct{} // closed when its first process has ended
	out     testproc.Output
	logs    []string // what is shown if the test fails
}

// hostInit makes the root of a host in $1 and is its first process; $2 is its name.
const hostInit = `set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" overlay "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs run
rm -rf var/log/mail.log etc/mailname etc/resolv.conf etc/hosts etc/nologin etc/aliases etc/aliases.* etc/posthaste usr/sbin/posthaste usr/lib/posthaste home var/mail var/spool/postfix var/spool/posthaste var/lib/posthaste
mkdir -p home var/mail var/log var/spool/postfix
chmod 1777 var/mail
printf 'nameserver 127.0.0.1\noptions edns0 trust-ad\n' > etc/resolv.conf
printf '127.0.0.1 localhost\n' > etc/hosts
echo 'postmaster: root' > etc/aliases
grep -v '^ann:\|^joe:' etc/group > group
grep -v '^ann:\|^joe:' etc/passwd > passwd
uid=64201
for u in ann joe; do
  echo "$u:x:$uid:" >> group
  echo "$u:x:$uid:$uid::/home/$u:/bin/sh" >> passwd
  mkdir "home/$u"
  chown "$uid:$uid" "home/$u"
  uid=$((uid+1))
done
cat group > etc/group
cat passwd > etc/passwd
rm group passwd
hostname "$2"
ip link set lo up
exec chroot . /bin/sh -c 'echo ready; cat > /dev/null'
`

// host starts a host, which has these addresses and the programs of this machine.
func (n *internet) host(name string, addresses ...string) *host {
	n.t.Helper()
	h := n.boot(hostInit, name, addresses)
	testwait.Until(n.t, name+" is ready", func() bool {
		h.alive()
		return strings.HasSuffix(h.out.String(), "ready\n")
	})
	n.wire(h, addresses)
	return h
}

// boot starts the first process of a host: a script, whose arguments are a directory of its own, the
// host's name, and more.
func (n *internet) boot(script, name string, addresses []string, more ...string) *host {
	t := n.t
	t.Helper()
	n.hosts++
	dir := filepath.Join(n.dir, fmt.Sprint("host", n.hosts))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, name: name, address: addresses[0], ended: make(chan struct{})}
	if last := addresses[len(addresses)-1]; strings.Contains(last, ":") {
		h.six = last
	}
	h.init = exec.Command("/bin/sh", append([]string{"-c", script, "init", dir, name}, more...)...)
	h.init.Stdout, h.init.Stderr = &h.out, &h.out
	// Should this program be killed, so is it; the thread that has started it is the test's own.
	h.init.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET}
	// It ends when its standard input does, too.
	if _, err := h.init.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := h.init.Start(); err != nil {
		t.Skipf("SKIPPED, NOT PROVED HERE: no name spaces can be had: %v", err)
	}
	go func() { _ = h.init.Wait(); close(h.ended) }()
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range h.logs {
				b, _ := os.ReadFile(h.path(name))
				t.Logf("%s of %s:\n%s", name, h.name, b[max(0, len(b)-20_000):])
			}
		}
		_ = h.init.Process.Kill() // and the kernel all others of its name space
		<-h.ended
	})
	return h
}

// alive ends the test if the host's first process has ended.
func (h *host) alive() {
	h.t.Helper()
	select {
	case <-h.ended:
		h.t.Fatalf("%s: %s", h.name, h.out.String())
	default:
	}
}

// wire connects a host with the bridge.
func (n *internet) wire(h *host, addresses []string) {
	n.t.Helper()
	wire := fmt.Sprint("h", n.hosts)
	n.ip(fmt.Sprintf("link add %s type veth peer name eth0 netns %d", wire, h.init.Process.Pid))
	n.ip("link set " + wire + " master br0 up")
	// By the ip(8) of this machine: the host may have none.
	for _, a := range addresses {
		if strings.Contains(a, ":") {
			n.inside(h, "ip addr add "+a+"/64 dev eth0 nodad") // nobody else has it
		} else {
			n.inside(h, "ip addr add "+a+"/24 dev eth0")
		}
	}
	n.inside(h, "ip link set eth0 up")
}

// inside runs a command of this machine in the network of a host.
func (n *internet) inside(h *host, command string) {
	n.t.Helper()
	if out, err := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(h.init.Process.Pid), "--net", "--"}, strings.Fields(command)...)...).CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %s: %v\n%s", h.name, command, err, out)
	}
}

// path is where this process finds a file of the host.
func (h *host) path(name string) string {
	return filepath.Join("/proc", strconv.Itoa(h.init.Process.Pid), "root", name)
}

// read returns a file of the host; one that is not there is empty.
func (h *host) read(name string) string {
	b, _ := os.ReadFile(h.path(name))
	return string(b)
}

// write writes a file, and makes its directory.
func (h *host) write(name, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(h.path(name), []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// run has root's shell run a command, and returns what it prints and its exit status.
func (h *host) run(command string) (out string, status int) { return h.runAs("root", command) }

func (h *host) runAs(user, command string) (out string, status int) {
	h.t.Helper()
	return testproc.Inside(h.t, h.init.Process.Pid, []string{"--mount", "--pid", "--uts", "--ipc", "--net"}, patience, user, command)
}

// must is run for what has to succeed.
func (h *host) must(command string) string {
	h.t.Helper()
	out, status := h.run("set -e\n" + command)
	if status != 0 {
		h.t.Fatalf("%s: %s\nexit status %d:\n%s", h.name, command, status, out)
	}
	return out
}

// daemon starts a program that stays, and whose output is in a log.
func (h *host) daemon(name, command string) {
	h.t.Helper()
	log := "/var/log/" + name + ".out"
	h.logs = append(h.logs, log)
	h.must("setsid " + command + " >" + log + " 2>&1 </dev/null &")
}

// logged waits for a text in the log of the mail system.
func (h *host) logged(texts ...string) {
	h.t.Helper()
	for _, text := range texts {
		testwait.For(h.t, func() string {
			if strings.Contains(h.read("var/log/mail.log"), text) {
				return ""
			}
			return h.name + ": the log lacks " + strconv.Quote(text)
		})
	}
}

// find is a message with a text in it in somebody's mailbox, if there is one, and how many messages
// there are.
func (h *host) find(user, text string) (message string, of int) {
	names, _ := filepath.Glob(h.path("home/" + user + "/Maildir/new/*"))
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte(text)) {
			return string(b), len(names)
		}
	}
	return "", len(names)
}

// mail waits for a message with a text in it in somebody's mailbox, and returns it.
func (h *host) mail(user, text string) (message string) {
	h.t.Helper()
	testwait.For(h.t, func() string {
		of := 0
		if message, of = h.find(user, text); message != "" {
			return ""
		}
		return fmt.Sprintf("%s: none of %d messages of %s has %q", h.name, of, user, text)
	})
	return message
}
