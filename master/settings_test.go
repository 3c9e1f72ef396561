package master

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
	"posthaste/internal/service"
	"posthaste/internal/testport"
)

// services makes settings of a master.cf with services that do nothing. The error has what
// is wrong with entries.
func services(t *testing.T, main, master string) (*settings, error) {
	t.Helper()
	cfg, err := config.LoadString("compatibility_level = 3.7\ninet_interfaces = 192.0.2.1\n" + main)
	if err != nil {
		t.Fatal(err)
	}
	list, faulty := config.LoadMasterString(master, cfg)
	specs := make(map[string]service.Spec)
	for _, name := range []string{"smtpd", "qmgr", "pipe"} {
		specs[name] = service.Spec{Process: name}
	}
	s := makeSettings(cfg, list, specs)
	s.addFaulty(faulty)
	return s, config.JoinLineErrors(s.faulty)
}

func describe(s *settings) string {
	var lines []string
	for _, e := range s.services {
		line := e.key() + ": " + e.Command + " " + strings.Join(e.line.Strings(), " ")
		for _, ep := range e.endpoints {
			line += " @" + ep.String()
		}
		lines = append(lines, line)
	}
	return strings.Join(append(lines, s.notes...), "\n")
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, main, master, want string }{
		{
			"columns", "",
			"25 inet n - n - - smtpd -v -o a=b -o { c = d e } -vv\nq unix n - n - 0 qmgr\np unix - n y - 3 pipe\n  flags=DR { argv=x y }\n",
			"25/inet: smtpd -n 25 -t inet -s 1 -p 100 -u -v -v -v -o a=b -o c=d e @192.0.2.1:25\n" +
				"q/unix: qmgr -n q -t unix -s 1 -p 0 -u @public/q\n" +
				"p/unix: pipe -n p -t unix -s 1 -p 3 -c flags=DR argv=x y @private/p",
		},
		{
			"the old queue manager's name", "", "qmgr unix n - n 300 1 oqmgr\n",
			"qmgr/unix: qmgr -n qmgr -t unix -s 1 -p 1 -u @public/qmgr",
		},
		{
			"built in", "", "scache unix - - n - 1 scache\n",
			"service scache/unix is built in: smtp keeps its own sessions",
		},
		{
			"turned off", "master_service_disable = !26.inet, inet, q/unix\n",
			"25 inet n - n - - smtpd\n26 inet n - n - - smtpd\nq unix - - n - - qmgr\n",
			"26/inet: smtpd -n 26 -t inet -s 1 -p 100 -u @192.0.2.1:26\n" +
				"service 25/inet is turned off (master_service_disable)\nservice q/unix is turned off (master_service_disable)",
		},
		{
			"postscreen", "",
			"25 inet n - n - 1 postscreen -o c=d\nsmtpd pass - - n - 40 smtpd -v -o a=b\ndnsblog unix - - n - 0 dnsblog\n",
			"25/inet: smtpd -n 25 -t inet -s 1 -p 40 -u -v -o c=d -o a=b @192.0.2.1:25\n" +
				"service 25/inet: postscreen and the smtpd behind it are one process (smtpd), with the options of service smtpd/pass too, and its process limit\n" +
				"service dnsblog/unix is built in: smtpd asks DNS lists itself",
		},
		{
			"pass without postscreen", "", "smtpd pass - - n - - smtpd\n",
			"smtpd/pass: smtpd -n smtpd -t pass -s 1 -p 100 -u @private/smtpd",
		},
		{
			"hosts", "inet_protocols = all\n",
			"127.0.0.1:10025 inet n - n - - smtpd\n[::1]:10026 inet n - n - - smtpd\n[192.0.2.7]:submission inet n - n - - smtpd\n",
			"127.0.0.1:10025/inet: smtpd -n 127.0.0.1:10025 -t inet -s 1 -p 100 -u @127.0.0.1:10025\n" +
				"[::1]:10026/inet: smtpd -n [::1]:10026 -t inet -s 1 -p 100 -u @[::1]:10026\n" +
				"[192.0.2.7]:submission/inet: smtpd -n [192.0.2.7]:submission -t inet -s 1 -p 100 -u @192.0.2.7:587",
		},
		{
			"all", "inet_interfaces = all\n", "smtp inet n - n - - smtpd\n",
			"smtp/inet: smtpd -n smtp -t inet -s 2 -p 100 -u @0.0.0.0:25 @[::]:25",
		},
		{
			"one protocol", "inet_interfaces = all\ninet_protocols = ipv6\n", "smtps inet n - n - - smtpd\n",
			"smtps/inet: smtpd -n smtps -t inet -s 1 -p 100 -u @[::]:465",
		},
		{
			"several addresses", "inet_interfaces = 192.0.2.1, 192.0.2.2 192.0.2.1 [2001:db8::1]\n", "25 inet n - n - - smtpd\n",
			"25/inet: smtpd -n 25 -t inet -s 3 -p 100 -u @192.0.2.1:25 @192.0.2.2:25 @[2001:db8::1]:25",
		},
		{
			"loopback", "inet_interfaces = loopback-only\ninet_protocols = ipv4\n", "25 inet n - n - - smtpd\n",
			"25/inet: smtpd -n 25 -t inet -s 1 -p 100 -u @127.0.0.1:25",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, err := services(t, test.main, test.master)
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(s); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

// Lines that every master.cf has, of services that have nothing to do here, are no process,
// unless a parameter or another program makes more of them.
func TestDoneElsewhere(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("bounce_service_name = trace\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, typ, command string
		done               bool
	}{
		{"defer", "unix", "bounce", true}, {"defer", "unix", "pipe", false}, {"defer", "inet", "bounce", false}, {"trace", "unix", "bounce", false},
		{"bounce", "unix", "bounce", false}, {"proxywrite", "unix", "proxymap", true}, {"proxymap", "unix", "proxymap", false},
	} {
		if got := doneElsewhere(cfg, &config.Service{Name: c.name, Type: c.typ, Command: c.command}); (got != "") != c.done {
			t.Errorf("%v: %q", c, got)
		}
	}
}

func TestSettingsRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ main, master, want string }{
		{"", "\nq unix - - n - - ehco\n", "master.cf:2: service q/unix: command ehco: expected one of: dnsblog flush pipe postscreen qmgr scache smtpd tlsmgr tlsproxy; put a #"},
		{"", "25 inet n - n - - postscreen\n", "master.cf:1: service 25/inet: postscreen is built in, and hands its clients to service smtpd/pass, which master.cf does not have"},
		{"", "25 inet n - n - - postscreen\nsmtpd pass - - n - - no\n", "master.cf:1: service 25/inet: command no: expected one of"},
		{"", "nosuchport inet n - n - - smtpd\n", `master.cf:1: service nosuchport/inet: no such port or service: "nosuchport"`},
		{"", "[nonsense]:25 inet n - n - - smtpd\n", "address [nonsense]: expected an IP address in brackets"},
		{"", "q unix - - n - - qmgr -x\n", "option -x: expected -o name=value, -v or -D"},
		{"", "a unix - - n - - qmgr\n  -o x=1 -o message_size_limit=big\n", "master.cf:1: service a/unix: -o: message_size_limit = big: expected a size such as"},
		{"inet_interfaces =\n", "25 inet n - n - - smtpd\n", "inet_interfaces is empty"},
		{"inet_protocols = ipv6\n", "25 inet n - n - - smtpd\n", "no address to listen on: 192.0.2.1 has none of inet_protocols = ipv6"},
		{"", "a unix - - n - - no\nb unix - - n - - no\n", "master.cf:1: service a/unix"},
		{"", "a unix - - n - - no\nb unix - - n - - no\n", "master.cf:2: service b/unix"},
	} {
		if _, err := services(t, test.main, test.master); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s%s: %v\nwant %s", test.main, test.master, err, test.want)
		}
	}
}

// TestFaultyEntries: each kind of mistake costs the service of its entry alone.
func TestFaultyEntries(t *testing.T) {
	t.Parallel()
	for _, faulty := range []string{
		"628 inet n - n - - qmqpd", "reindex unix n - n - 1 nbdb_reindexd", "short unix - - n", "word", "t tcp - - n - - qmgr",
		"m unix - - n - many qmgr", "w unix - - n x - qmgr", "o unix - - n - - qmgr -o", "b unix - - n - - qmgr -o { a = b",
		"x unix - - n - - qmgr -x", "l unix - - n - - qmgr -o message_size_limit=big", "nosuchport inet n - n - - smtpd",
		"25 inet n - n - - smtpd\n25 unix - - n - - qmgr -o", "[::1 inet n - n - - smtpd", "smtp inet n - n - - postscreen",
		"26 inet n - n - - smtpd\n192.0.2.1:26 inet n - n - - smtpd",
	} {
		s, err := services(t, "", "first unix - - n - - qmgr\n"+faulty+"\nlast unix - - n - - pipe\n")
		if err == nil || len(s.faulty) != 1 {
			t.Errorf("%s: %d errors: %v", faulty, len(s.faulty), err)
			continue
		}
		if f := s.faulty[0]; f.File != "master.cf" || f.Line != 2+strings.Count(faulty, "\n") || f.Name != strings.Fields(faulty[strings.LastIndexByte(faulty, '\n')+1:])[0] {
			t.Errorf("%s: the error is of %s:%d, service %s", faulty, f.File, f.Line, f.Name)
		}
		if n := len(s.services); s.services[0].Name != "first" || s.services[n-1].Name != "last" || n != 2+strings.Count(faulty, "\n") {
			t.Errorf("%s: %s", faulty, describe(s))
		}
	}
}

func TestSocketTwice(t *testing.T) {
	t.Parallel()
	_, err := services(t, "", "127.0.0.1:0 inet n - n - - smtpd\n[127.0.0.1]:0 inet n - n - - smtpd\n")
	if err == nil || !strings.Contains(err.Error(), "master.cf:2: service [127.0.0.1]:0/inet: 127.0.0.1:0 is used by an earlier line of master.cf") {
		t.Error(err)
	}
}

// TestAbsentAddress: an IPv6 address that the system does not have is left out
// when there is another one, and is an error when it is the only one.
func TestAbsentAddress(t *testing.T) {
	t.Parallel()
	s, err := services(t, "inet_interfaces = 127.0.0.1 [2001:db8::25]\n", "0 inet n - n - - smtpd\n")
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := (&master{}).openSockets(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, sock := range sockets {
		defer sock.remove()
	}
	if e := s.services[0]; len(sockets) != 1 || sockets["127.0.0.1:0"] == nil || e.line.Sockets != 1 || len(e.endpoints) != 1 {
		t.Errorf("sockets %v for %+v", sockets, e)
	}
	s, err = services(t, "inet_interfaces = [2001:db8::25]\n", "0 inet n - n - - smtpd\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&master{}).openSockets(s, nil); err == nil || !strings.Contains(err.Error(), "master.cf:1: service 0/inet: listen on [2001:db8::25]:0: ") {
		t.Error(err)
	}
}

// TestOtherInterfaces: a reload may change between all addresses and single ones of a port. The sockets
// of before listen until it is done, and afterwards nobody can share the port of those of now. Whoever
// else has the port is not taken for us, and nothing that stays is.
func TestOtherInterfaces(t *testing.T) {
	t.Parallel()
	m := &master{}
	port := testport.Free(t)
	open := func(interfaces string, have map[string]*socket) (map[string]*socket, error) {
		t.Helper()
		s, err := services(t, "inet_protocols = ipv4\ninet_interfaces = "+interfaces+"\n", fmt.Sprint(port, " inet n - n - - smtpd\n"))
		if err != nil {
			t.Fatal(err)
		}
		return m.openSockets(s, have)
	}
	var have map[string]*socket
	for _, interfaces := range []string{"127.0.0.1", "all", "127.0.0.1 127.0.0.2", "all"} {
		sockets, err := open(interfaces, have)
		if err != nil {
			t.Fatalf("%s: %v", interfaces, err)
		}
		for name, sock := range have {
			if n, err := unix.GetsockoptInt(sock.fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || n != 1 {
				t.Errorf("%s: %s of before does not listen: %v", interfaces, name, err)
			}
			sock.remove()
		}
		for name, sock := range sockets {
			if n, err := unix.GetsockoptInt(sock.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT); err != nil || n != 0 {
				t.Errorf("%s: others may share %s: %v", interfaces, name, err)
			}
		}
		c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatalf("%s: %v", interfaces, err)
		}
		c.Close()
		have = sockets
	}
	// A service that has the port and keeps it is an error, as it is at a start.
	s, err := services(t, "inet_protocols = ipv4\ninet_interfaces = all\n", fmt.Sprintf("%d inet n - n - - smtpd\n127.0.0.1:%[1]d inet n - n - - smtpd\n", port))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.openSockets(s, have); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("two services have one port: %v", err)
	}
	for _, sock := range have {
		sock.remove()
	}
	other, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := open("all", nil); err == nil || !strings.Contains(err.Error(), "has the port: stop it") {
		t.Errorf("another program has the port: %v", err)
	}
}

// TestWindowSize: a socket that listens has the buffers of tcp_windowsize, which
// Linux doubles for its own needs.
func TestWindowSize(t *testing.T) {
	t.Parallel()
	s, err := services(t, "inet_interfaces = 127.0.0.1\ntcp_windowsize = 6000\n", "0 inet n - n - - smtpd\n")
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := (&master{}).openSockets(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, sock := range sockets {
		defer sock.remove()
		for _, opt := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
			if n, err := unix.GetsockoptInt(sock.fd, unix.SOL_SOCKET, opt); err != nil || n != 12000 {
				t.Errorf("option %d is %d octets, %v, want twice 6000", opt, n, err)
			}
		}
	}
}

func TestOpenUnix(t *testing.T) {
	t.Parallel()
	queue := t.TempDir()
	deep := strings.Repeat("d", 60) + "/" + strings.Repeat("e", 60) // beyond a socket address
	if err := os.MkdirAll(filepath.Join(queue, deep), 0o700); err != nil {
		t.Fatal(err)
	}
	ep := endpoint{network: "unix", path: filepath.Join(deep, "s")}
	for range 2 { // the second finds what the first left
		s, err := openUnix(queue, ep)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(s.path); err != nil || info.Mode() != os.ModeSocket|0o666 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		unix.Close(s.fd)
	}
	plain := filepath.Join(queue, "file")
	if err := os.WriteFile(plain, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openUnix(queue, endpoint{network: "unix", path: "file"}); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Error(err)
	}
	if b, _ := os.ReadFile(plain); string(b) != "precious" {
		t.Error("the file has been touched")
	}
}

func TestDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg, err := config.LoadString("queue_directory = " + dir + "/a/b/queue\ndata_directory = " + dir + "/data\nspool_content_directory = " + dir + "/content\nmail_owner = " + testOwner(t) + "\nsetgid_group = nogroup\n")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := prepareDirectories(cfg); err != nil || len(got) != 0 {
		t.Fatalf("problems: %q, %v", got, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "content")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("spool_content_directory: %v, %v", info, err)
	}
	for name, mode := range map[string]os.FileMode{"": 0o755, "pid": 0o755, "private": 0o700, "public": 0o710, "maildrop": 0o730, "spool": 0o700} {
		if info, err := os.Stat(filepath.Join(dir, "a/b/queue", name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, mode)
		}
	}
	private := filepath.Join(dir, "a/b/queue/private")
	os.Chmod(private, 0o755)
	want := "too accessible (mode 0755, expected 0700): " + private
	if got, err := prepareDirectories(cfg); err != nil || len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("problems: %q, %v, want %s", got, err, want)
	}
	os.Remove(private)
	os.WriteFile(private, nil, 0o600)
	want = "not a directory: " + private
	if got, err := prepareDirectories(cfg); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("problems: %q, %v, want %s", got, err, want)
	}
}

// TestOwners has set-permissions give the services' files back to them, and nothing
// that may be a file of others.
func TestOwners(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT PROVED HERE: only root can give files away")
	}
	s := newSite(t, "", echoService+needed)
	s.mustCommand("check")
	s.mustCommand("set-permissions")
	segment, other := s.path("queue/spool/seg/0"), s.path("other")
	lost := s.path("queue/spool/lost+found/0") // the file system's own
	os.Mkdir(filepath.Dir(segment), 0o700)
	os.Mkdir(filepath.Dir(lost), 0o700)
	for _, name := range []string{segment, other, lost} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Link(other, s.path("queue/spool/hard")), os.Symlink(other, s.path("queue/spool/soft"))); err != nil {
		t.Fatal(err)
	}
	if _, text := s.command("check"); !strings.Contains(text, "warning: not owned by user ID ") || !strings.Contains(text, s.path("queue/spool/seg;")) {
		t.Errorf("check said %s", text)
	}
	s.mustCommand("set-permissions")
	owner, err := service.LookupAccount(testOwner(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{segment: owner.UID, filepath.Dir(segment): owner.UID, other: 0, lost: 0, filepath.Dir(lost): 0} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if uid := int(info.Sys().(*syscall.Stat_t).Uid); uid != want {
			t.Errorf("%s belongs to %d, want %d", name, uid, want)
		}
	}
	os.Remove(s.path("queue/spool/hard"))
	os.Remove(s.path("queue/spool/soft"))
	if _, text := s.command("check"); strings.Contains(text, "not owned") {
		t.Errorf("check said %s", text)
	}
}

// TestForetell has start and reload say what a service will complain of when it starts.
func TestForetell(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	s.mustCommand("start")
	s.edit("master.cf", "", "late unix - - n - - wrong\n")
	const want = "warning: it will not serve: "
	if status, text := s.command("reload"); status != 0 || !strings.Contains(text, want) || !strings.Contains(text, "service late/unix: a setting is wrong") {
		t.Errorf("reload: %d %s", status, text)
	}
	s.mustCommand("stop")
	if status, text := s.command("start"); status != 0 || !strings.Contains(text, want) {
		t.Errorf("start: %d %s", status, text)
	}
	if status, text := s.command("check"); status != 1 || !strings.Contains(text, "fatal: ") {
		t.Errorf("check: %d %s", status, text)
	}
	s.mustCommand("stop")
}

// TestReadOnly has check, start and reload tell that a directory can only be read.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService+needed)
	s.mustCommand("check")
	dir := s.path("queue/spool")
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("SKIPPED, NOT PROVED HERE: no file system to be had that can only be read: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	want := "cannot make files in " + dir + ": read-only file system\n"
	if status, text := s.command("check"); status != 1 || strings.Count(text, "fatal: ") != 1 || !strings.Contains(text, want) {
		t.Errorf("check: %d %s", status, text)
	}
	for _, command := range []string{"start", "reload"} {
		if status, text := s.command(command); status != 0 || !strings.Contains(text, "warning: it will not serve: ") || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", command, status, text)
		}
	}
	s.mustCommand("stop")
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	s.mustCommand("check")
}

// A directory whose owner cannot write for another reason than its mode is named,
// one that has the wrong mode is not named twice.
func TestUnwritable(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT PROVED HERE: only root can give files away")
	}
	owner, err := service.LookupAccount(testOwner(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	d := directory{path: dir, mode: 0o700, uid: owner.UID, gid: -1}
	if err := d.mend(); err != nil || d.writable() != nil {
		t.Fatal(err, d.writable())
	}
	// The owner is right, and mode 0500 is as it should be: who must not write is
	// the owner alone, not root.
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if err := d.writable(); err != nil {
		t.Errorf("what check says is said twice: %v", err)
	}
	d.mode = 0o500
	if err := d.writable(); !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), fmt.Sprintf("user ID %d cannot make files in %s", owner.UID, dir)) {
		t.Error(err)
	}
	d.uid = 0
	if err := errors.Join(d.mend(), d.writable()); err != nil {
		t.Errorf("root may write: %v", err)
	}
}

// TestOwn: who may control a mail system.
func TestOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	me := os.Geteuid()
	for _, test := range []struct {
		queue string
		uid   int
		ok    bool
	}{{dir, me, true}, {dir, 0, true}, {dir, me + 1, false}, {dir + "/none", me + 1, true}} {
		if err := own(test.queue, test.uid); (err == nil) != test.ok || err != nil && !strings.Contains(err.Error(), "is for ") {
			t.Errorf("%s, %d: %v", test.queue, test.uid, err)
		}
	}
}

func TestCheckAndSetPermissions(t *testing.T) {
	t.Parallel()
	s := newSite(t, "command_directory = QUEUE/sbin\n", echoService+needed)
	s.mustCommand("check")
	private := s.path("queue/private")
	os.Chmod(private, 0o777)
	if status, text := s.command("check"); status != 0 || !strings.Contains(text, "warning: too accessible (mode 0777, expected 0700): "+private) {
		t.Errorf("check: %d %s", status, text)
	}
	status, text := s.command("set-permissions")
	if os.Geteuid() != 0 {
		if status != 1 || !strings.Contains(text, "only root") {
			t.Errorf("set-permissions: %d %s", status, text)
		}
		return
	}
	if info, err := os.Stat(private); status != 0 || err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("set-permissions: %d %s; %v, %v", status, text, info.Mode(), err)
	}
	programs := []string{"postdrop", "postqueue"}
	for _, p := range programs {
		if !strings.Contains(text, "sbin/"+p+" is missing") {
			t.Errorf("set-permissions said %s", text)
		}
	}
	s.write("sbin", "")
	os.Remove(s.path("sbin"))
	os.Mkdir(s.path("sbin"), 0o755)
	for _, p := range programs {
		s.write("sbin/"+p, "#!/bin/sh\n")
	}
	if _, text := s.command("check"); strings.Count(text, "warning: not of group nogroup: ") != len(programs) {
		t.Errorf("check said %s", text)
	}
	s.mustCommand("set-permissions")
	if _, text := s.command("check"); strings.Contains(aboutRights(text), "sbin/") {
		t.Errorf("check said %s", text)
	}
	for _, p := range programs {
		if info, err := os.Stat(s.path("sbin/" + p)); err != nil || info.Mode() != 0o755|os.ModeSetgid {
			t.Errorf("%s: %v, %v", p, info.Mode(), err)
		}
	}
	for _, bad := range []struct{ setting, want string }{
		{"mail_owner = root", `user "root" is root, which the mail system must not run as: name another one`},
		{"mail_owner = no-such-user", `there is no user "no-such-user": create the account, or name another one in main.cf`},
		{"setgid_group = no-such-group", `there is no group "no-such-group": create it, or name another one in main.cf`},
	} {
		b, err := os.ReadFile(s.path("main.cf"))
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		s.write("main.cf", text+bad.setting+"\n")
		place := fmt.Sprintf("fatal: %s:%d: ", s.path("main.cf"), strings.Count(text, "\n")+1)
		for _, command := range []string{"check", "set-permissions"} {
			if status, said := s.command(command); status != 1 || !strings.Contains(said, place) || !strings.Contains(said, bad.want) {
				t.Errorf("%s, %s: %d %s", bad.setting, command, status, said)
			}
		}
		if status, _ := s.command("start"); status != 1 { // what master says is not for s
			t.Errorf("%s: it starts: %d", bad.setting, status)
		}
		s.write("main.cf", text)
	}
	s.edit("master.cf", "echo unix", "echo xinu")
	if status, text := s.command("check"); status != 1 || !strings.Contains(text, "master.cf:2: service echo: type xinu") {
		t.Errorf("check: %d %s", status, text)
	}
}

func masterText(t *testing.T, s *site) string {
	t.Helper()
	text, err := os.ReadFile(s.path("master.cf"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What check -v prints has the place of each service without a process.
func TestCheckVerbose(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService+needed+"tlsmgr unix - - n 1000? 1 tlsmgr\n")
	check := func(advice func(*config.Config, []config.Service) []string) string {
		opts := testOptions()
		opts.Advice = advice
		var out, errs bytes.Buffer
		if status := Command(opts, []string{"-c", s.dir, "check", "-v"}, &out, &errs); status != 0 {
			t.Fatalf("status %d: %s", status, &errs)
		}
		return out.String()
	}
	got := check(func(_ *config.Config, services []config.Service) []string {
		return []string{"advised on " + services[1].Command}
	})
	place := fmt.Sprintf("%s:%d", s.path("master.cf"), strings.Count(masterText(t, s), "\n"))
	want := "differences from Postfix with the same files:\n  advised on echo\n  " + place +
		": service tlsmgr/unix is built in: each service keeps its own TLS sessions and keys\n"
	if got != want {
		t.Errorf("printed %q, expected %q", got, want)
	}
	s.edit("master.cf", "tlsmgr unix", "#tlsmgr unix")
	if got, want := check(nil), "nothing in these files behaves differently from Postfix\n"; got != want {
		t.Errorf("printed %q, expected %q", got, want)
	}
}

// The command line's -v is every service's, besides those of its own line.
func TestVerboseForAll(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService+"loud unix - - n - - echo -v -v\n")
	opts := testOptions()
	opts.ConfigDir, opts.Verbose = s.dir, 2
	got, err := loadSettings(opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range got.services {
		if want := map[bool]int{false: 2, true: 4}[e.Name == "loud"]; e.line.Verbose != want {
			t.Errorf("service %s: %d, want %d", e.Name, e.line.Verbose, want)
		}
	}
	c := &control{opts: testOptions(), stderr: io.Discard}
	if args, err := c.flags([]string{"-vv", "-c", s.dir, "-v", "status"}); err != nil || len(args) != 1 || c.opts.Verbose != 3 {
		t.Errorf("%q, %v, verbose %d", args, err, c.opts.Verbose)
	}
}

func TestUnknownCommand(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	for _, test := range []struct{ args, want string }{
		{"", "fatal: no command"},
		{"-x start", "fatal: unknown option: -x"},
		{"frobnicate", "fatal: unknown command: 'frobnicate'. Usage: posthaste start (or stop, "},
		{"stop now", "fatal: stop: unexpected argument now"},
	} {
		if status, text := s.command(strings.Fields(test.args)...); status != 1 || !strings.Contains(text, test.want) {
			t.Errorf("%q: %d %s", test.args, status, text)
		}
	}
}

func TestStandardOutputInBackground(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	s.edit("main.cf", "maillog_file = "+s.path("maillog")+"\nmaillog_file_prefixes = "+s.dir, "maillog_file = /dev/stdout")
	if status, text := s.command("start"); status != 1 || !strings.Contains(text, "maillog_file = /dev/stdout works with start-fg only") {
		t.Errorf("start: %d %s", status, text)
	}
}

func TestStrftime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 5, 7, 8, 9, 0, time.UTC)
	for format, want := range map[string]string{
		"%Y%m%d-%H%M%S": "20261105-070809", "%y.%j": "26.309", "%%%s": "%1793862489", "%b %e %Q%": "Nov  5 %Q%", "": "",
	} {
		if got := strftime(format, now); got != want {
			t.Errorf("%q: %q, want %q", format, got, want)
		}
	}
}

// Options in master.cf that do nothing are warned of, by check and at start.
func TestOptionWarnings(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "low unix n - n - - echo -v -o no_such_parameter=x -o html_directory=/x\n"+needed)
	want := []string{"service low/unix: -v has no effect: echo has no dialogue to log",
		"service low/unix: -o: unknown parameter no_such_parameter=x: nothing reads it",
		"service low/unix: -o: parameter html_directory has no effect in Posthaste"}
	status, said := s.command("check")
	if status != 0 {
		t.Fatal(said)
	}
	s.mustCommand("start")
	logged, err := os.ReadFile(s.path("maillog"))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range want {
		if !strings.Contains(said, w) {
			t.Errorf("check does not say %q:\n%s", w, said)
		}
		if !strings.Contains(string(logged), w) {
			t.Errorf("start does not log %q:\n%s", w, logged)
		}
	}
}

// TestBrokenConfiguration: what runs can be looked at and stopped whatever
// main.cf says by then, but never something else.
func TestBrokenConfiguration(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	s.mustCommand("start")
	b, err := os.ReadFile(s.path("main.cf"))
	if err != nil {
		t.Fatal(err)
	}
	whole := string(b)
	for _, broken := range []string{"queue_directory /elsewhere\n", "queue_directory = ${x\n", "base /srv\nqueue_directory = $base/queue\n", "queue_directory = elsewhere\n"} {
		s.write("main.cf", whole+broken)
		if status, text := s.command("stop"); status != 1 || !strings.Contains(text, "fatal: "+s.path("main.cf")) {
			t.Errorf("%q: stop: %d %s", broken, status, text)
		}
	}
	s.write("main.cf", whole+"bogus line\nmessage_size_limit = abc\nmine = ${x\nrelayhost = $mine\n")
	if status, text := s.command("reload"); status != 1 || !strings.Contains(text, "fatal: ") {
		t.Errorf("reload: %d %s", status, text)
	}
	if status, text := s.command("status"); status != 0 || !strings.Contains(text, "is running: PID: ") || strings.Count(text, "warning: "+s.path("main.cf")) != 4 {
		t.Errorf("status: %d %s", status, text)
	}
	s.mustCommand("stop")
	if s.pid() != 0 {
		t.Error("it runs on")
	}
	if status, text := s.command("frobnicate"); status != 1 || !strings.Contains(text, "unknown command: 'frobnicate'") {
		t.Errorf("frobnicate: %d %s", status, text)
	}
	s.write("main.cf", whole)
	var out, errs bytes.Buffer
	if status := Command(testOptions(), []string{"-c" + s.dir, "status"}, &out, &errs); status != 1 || !strings.Contains(errs.String(), "is not running") {
		t.Errorf("-cDIR status: %d %s", status, errs.String())
	}
}
