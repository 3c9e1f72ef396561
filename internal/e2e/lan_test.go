package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"posthaste/internal/testproc"
	"posthaste/internal/testwait"
)

// A lan is a network of hosts, each in a name space of its own, which are joined by a bridge. The test's goroutine is on the
// bridge as 10.77.0.1 and more, and nothing of it is seen outside. Each way from host to host can be cut by itself.
type lan struct {
	t   *testing.T
	hub int // the file of the bridge's name space
}

// A host is a network name space and a mount name space, which stay when all programs in them have been killed.
type host struct {
	lan  *lan
	name string
	ip   string
	pid  int // of the process that keeps the name spaces
}

const lanPrefix = "10.77.0."

// newLan takes the calling goroutine, which is the test's, to the bridge, for good. It has the addresses 10.77.0.1 to .9.
func newLan(t *testing.T) *lan {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED, NOT PROVED HERE: the test needs root")
	}
	runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("SKIPPED, NOT PROVED HERE: no network of its own can be had: %v", err)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	l := &lan{t: t, hub: fd}
	l.do("ip", "link", "set", "lo", "up")
	l.do("ip", "link", "add", "br0", "type", "bridge")
	for i := 1; i < 10; i++ {
		l.do("ip", "addr", "add", fmt.Sprintf("%s%d/24", lanPrefix, i), "dev", "br0")
	}
	l.do("ip", "link", "set", "br0", "up")
	return l
}

// do runs a command on the bridge. It is called on the test's goroutine.
func (l *lan) do(args ...string) {
	l.t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// within starts f on a goroutine that is on the bridge: what it dials is on this network.
func (l *lan) within(f func()) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks
		err := unix.Setns(l.hub, unix.CLONE_NEWNET)
		done <- err
		if err == nil {
			f()
		}
	}()
	if err := <-done; err != nil {
		l.t.Fatal(err)
	}
}

// newHost adds a host. The shell command setup is run in it first.
func (l *lan) newHost(name string, number int, setup string) *host {
	l.t.Helper()
	h := &host{lan: l, name: name, ip: fmt.Sprint(lanPrefix, number)}
	var out testproc.Output
	cmd := exec.Command("unshare", "--net", "--mount", "--", "/bin/sh", "-c", "set -e; ip link set lo up\n"+setup+"\necho ready; exec cat >/dev/null")
	cmd.Stdout, cmd.Stderr = &out, &out
	// It ends with its standard input, should this program be killed.
	if _, err := cmd.StdinPipe(); err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	l.t.Cleanup(func() { cmd.Process.Kill(); <-ended })
	testwait.Until(l.t, "the host is there", func() bool {
		select {
		case <-ended:
			l.t.Skipf("SKIPPED, NOT PROVED HERE: no host of its own can be had: %s", out.String())
		default:
		}
		return strings.HasSuffix(out.String(), "ready\n")
	})
	h.pid = cmd.Process.Pid
	wire := fmt.Sprint("wire", number)
	l.do("ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(h.pid))
	l.do("ip", "link", "set", wire, "master", "br0", "up")
	l.do(h.args("--net", "ip", "addr", "add", h.ip+"/24", "dev", "eth0")...)
	l.do(h.args("--net", "ip", "link", "set", "eth0", "up")...)
	return h
}

// args is a command in name spaces of the host, "--net" or "--net --mount".
func (h *host) args(spaces string, command ...string) []string {
	return append(append([]string{"nsenter", "--target", strconv.Itoa(h.pid)}, strings.Fields(spaces)...), append([]string{"--"}, command...)...)
}

// path is where this process finds a file of the host.
func (h *host) path(name string) string { return fmt.Sprintf("/proc/%d/root%s", h.pid, name) }

// cut has everything vanish that the host sends to the others, without a word: it goes to a station that is not there.
func (h *host) cut(others ...string) {
	h.lan.t.Helper()
	for _, ip := range others {
		h.lan.do(h.args("--net", "ip", "neigh", "replace", ip, "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")...)
	}
}

// mend ends that.
func (h *host) mend(others ...string) {
	h.lan.t.Helper()
	for _, ip := range others {
		h.lan.do(h.args("--net", "ip", "neigh", "del", ip, "dev", "eth0")...)
	}
}
