package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"posthaste/internal/testproc"
)

// dnsAddress is where the servers listen: no client has taken a port there.
const dnsAddress = "127.7.53.1"

// A signedDNS is an authoritative server with zones, signed and not, and a
// resolver that validates.
type signedDNS struct {
	t        *testing.T
	dir      string
	resolver string // address and port
	nsd      *exec.Cmd
}

// zoneFile is a zone as a test wants it.
type zoneFile struct {
	name    string
	records string
	version int
	signed  bool
	expired bool
	// spoil changes the zone after it has been signed.
	spoil func(text string) string
}

// text is the zone as a file.
func (z *zoneFile) text() string {
	return fmt.Sprintf("$ORIGIN %s.\n$TTL 300\n@ SOA ns.%[1]s. root.%[1]s. %[2]d 3600 600 86400 300\n@ NS ns.%[1]s.\nns A 127.0.0.1\n%[3]s", z.name, 1+z.version, z.records)
}

// change puts another version of a zone, which is not signed, in its place. The
// resolver goes on to give out what it has already, but for records without a
// time to live.
func (d *signedDNS) change(z zoneFile) {
	d.t.Helper()
	d.write(z.name+".zone", z.text())
	if err := d.nsd.Process.Signal(syscall.SIGHUP); err != nil {
		d.t.Fatal(err)
	}
}

// run runs a program in d's directory and returns what it prints.
func (d *signedDNS) run(program string, args ...string) string {
	d.t.Helper()
	cmd := exec.Command(need(d.t, program), args...)
	cmd.Dir = d.dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		d.t.Fatalf("%s %v: %v\n%s%s", program, args, err, out, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

func (d *signedDNS) write(name, text string) string {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		d.t.Fatal(err)
	}
	return path
}

// sign signs a zone, and returns the file and the anchor that leads to it.
func (d *signedDNS) sign(z *zoneFile) (file, anchor string) {
	key := d.run("ldns-keygen", "-a", "ECDSAP256SHA256", "-k", z.name)
	args := []string{"-f", z.name + ".signed", z.name + ".zone", key}
	if z.expired {
		args = append([]string{"-i", "20200101000000", "-e", "20200201000000"}, args...)
	}
	d.run("ldns-signzone", args...)
	path := filepath.Join(d.dir, z.name+".signed")
	if z.spoil != nil {
		text, err := os.ReadFile(path)
		if err != nil {
			d.t.Fatal(err)
		}
		spoilt := z.spoil(string(text))
		if spoilt == string(text) {
			d.t.Fatalf("zone %s is as good as it was:\n%s", z.name, text)
		}
		d.write(z.name+".signed", spoilt)
	}
	return path, filepath.Join(d.dir, key+".ds")
}

// start starts a program that stays until the test ends.
func (d *signedDNS) start(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(need(d.t, program), args...)
	var out testproc.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Dir = d.dir
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(testproc.Watch(d.t, cmd, ""))
	d.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		if d.t.Failed() {
			d.t.Logf("%s:\n%s", program, out.String())
		}
	})
	return cmd
}

// newSignedDNS serves zones by nsd, and asks it through unbound.
func newSignedDNS(t *testing.T, zones []zoneFile) *signedDNS {
	t.Helper()
	need(t, "ldns-signzone")
	need(t, "nsd")
	need(t, "unbound")
	d := &signedDNS{t: t}
	var err error
	if d.dir, err = os.MkdirTemp("", "dns"); err != nil {
		t.Fatal(err)
	}
	os.Chmod(d.dir, 0o755)
	t.Cleanup(func() { os.RemoveAll(d.dir) })
	authority, resolver := freePort(t), freePort(t)
	nsd := fmt.Sprintf("server:\n  ip-address: "+dnsAddress+"@%d\n  username: \"\"\n  chroot: \"\"\n  zonesdir: %q\n  pidfile: nsd.pid\n  database: \"\"\n"+
		"  xfrdfile: %q\n  zonelistfile: %q\n  logfile: \"\"\n  server-count: 1\nremote-control:\n  control-enable: no\n",
		authority, d.dir, filepath.Join(d.dir, "xfrd"), filepath.Join(d.dir, "zonelist"))
	unbound := fmt.Sprintf("server:\n  interface: "+dnsAddress+"@%d\n  username: \"\"\n  chroot: \"\"\n  directory: %q\n  pidfile: \"\"\n  use-syslog: no\n  logfile: \"\"\n"+
		"  do-not-query-localhost: no\n  do-daemonize: no\n  num-threads: 1\n  module-config: \"validator iterator\"\n  local-zone: \"test.\" nodefault\n"+
		"  root-hints: \"\"\n  val-log-level: 2\n", resolver, d.dir)
	stubs := ""
	for i := range zones {
		z := &zones[i]
		file := d.write(z.name+".zone", z.text())
		if z.signed {
			anchor := ""
			file, anchor = d.sign(z)
			unbound += fmt.Sprintf("  trust-anchor-file: %q\n", anchor)
		}
		nsd += fmt.Sprintf("zone:\n  name: %s\n  zonefile: %s\n", z.name, file)
		stubs += fmt.Sprintf("stub-zone:\n  name: %s\n  stub-addr: %s@%d\n", z.name, dnsAddress, authority)
	}
	d.nsd = d.start("nsd", "-d", "-c", d.write("nsd.conf", nsd))
	d.start("unbound", "-d", "-p", "-c", d.write("unbound.conf", unbound+"remote-control:\n  control-enable: no\n"+stubs))
	d.resolver = net.JoinHostPort(dnsAddress, fmt.Sprint(resolver))
	q := new(dns.Msg)
	q.SetQuestion(zones[0].name+".", dns.TypeSOA)
	q.SetEdns0(1232, true)
	for limit := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		m, err := dns.Exchange(q, d.resolver)
		if err == nil && len(m.Answer) > 0 && m.AuthenticatedData {
			return d
		}
		if time.Now().After(limit) {
			t.Fatalf("the resolver does not say anything that is vouched for: %v %v", m, err)
		}
	}
}
