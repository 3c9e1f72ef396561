package e2e

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/testproc"
)

// unpacked is where peers.sh puts the content of packages that cannot be
// installed beside others.
const unpacked = "/var/cache/posthaste-peers"

// A peer is a foreign mail server that keeps what it gets in maildirs.
type peer struct {
	t    *testing.T
	dir  string // below which mail/USER/new has the messages
	port string
}

// newPeer makes room for a peer.
func newPeer(t *testing.T, port string) *peer {
	t.Helper()
	dir, err := os.MkdirTemp("", "peer")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &peer{t: t, dir: dir, port: port}
	p.mkdir("mail", 0o777)
	os.Chmod(dir, 0o755)
	return p
}

func (p *peer) path(name string) string { return filepath.Join(p.dir, name) }

func (p *peer) mkdir(name string, mode os.FileMode) {
	p.t.Helper()
	if err := os.MkdirAll(p.path(name), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Chmod(p.path(name), mode); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) write(name, text string, mode os.FileMode) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(p.path(name)), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(p.path(name), []byte(text), mode); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Chmod(p.path(name), mode); err != nil { // whatever the umask
		p.t.Fatal(err)
	}
}

// configure writes a file of testdata/peers with the peer's own values in it.
func (p *peer) configure(name, as, next string) {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "peers", name))
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(as, strings.NewReplacer("{dir}", p.dir, "{port}", p.port, "{next}", next).Replace(string(text)), 0o644)
}

// start runs a server until the test ends. It returns when the server listens.
func (p *peer) start(cmd *exec.Cmd) {
	p.t.Helper()
	var out testproc.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.WaitDelay = patience // for what holds its output open
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(testproc.Watch(p.t, cmd, ""))
	p.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it has not waited for
		if p.t.Failed() {
			p.t.Logf("%s:\n%s", cmd.Path, out.String())
			for _, name := range []string{"dovecot.log", "var/log/exim4/mainlog", "var/log/exim4/paniclog"} {
				if text, err := os.ReadFile(p.path(name)); err == nil {
					p.t.Logf("%s:\n%s", name, text)
				}
			}
		}
	})
	for limit := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", p.port))
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(limit) {
			p.t.Fatalf("%s does not listen", cmd.Path)
		}
	}
}

// certificate puts a certificate and its key into the peer's etc.
func (p *peer) certificate() {
	p.t.Helper()
	p.mkdir("etc", 0o755)
	run(p.t, need(p.t, "openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=127.0.0.1", "-days", "2",
		"-keyout", p.path("etc/key.pem"), "-out", p.path("etc/cert.pem"))
}

// The users of a jail: two that servers want to find under different names,
// and one who keeps mail.
const (
	jailPasswd = "root:x:0:0::/:/bin/sh\nDebian-exim:x:65000:65000::/:/bin/sh\nopensmtpd:x:65001:65001::/var/lib/opensmtpd/empty:/bin/sh\n" +
		"opensmtpq:x:65002:65002::/:/bin/sh\nkeeper:x:65003:65003::/home/keeper:/bin/sh\n"
	jailGroup = "root:x:0:\nDebian-exim:x:65000:\nopensmtpd:x:65001:\nopensmtpq:x:65002:\nkeeper:x:65003:\n"
)

var library = regexp.MustCompile(`/\S+`)

// jail makes p's directory a root for the programs of a package that peers.sh
// has unpacked, in which they find what they were built to find.
func (p *peer) jail(pkg string, programs ...string) {
	p.t.Helper()
	from := filepath.Join(unpacked, pkg)
	if _, err := os.Stat(from); err != nil {
		if os.Getenv("PEERS_REQUIRED") != "" {
			p.t.Fatalf("%s is not unpacked: run \"make peers\"", pkg)
		}
		p.t.Skipf("SKIPPED: %s is not unpacked: \"make peers\" does that", pkg)
	}
	if os.Getuid() != 0 {
		p.t.Skipf("SKIPPED: %s is run in a root of its own, which only root can", pkg)
	}
	run(p.t, "cp", "-R", from+"/.", p.dir)
	copied := map[string]bool{}
	for _, program := range append([]string{"/bin/sh"}, programs...) {
		path := program
		if path == "/bin/sh" {
			p.copy(path)
		} else {
			path = p.path(program)
		}
		out, err := exec.Command("ldd", path).CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("not found")) {
			p.t.Fatalf("ldd %s: %v\n%s", path, err, out)
		}
		for _, lib := range library.FindAllString(string(out), -1) {
			if lib = strings.TrimSuffix(lib, ":"); !copied[lib] && lib != path {
				copied[lib] = true
				p.copy(lib)
			}
		}
	}
	p.write("etc/passwd", jailPasswd, 0o644)
	p.write("etc/group", jailGroup, 0o644)
	p.write("etc/shadow", regexp.MustCompile(`(?m):.*$`).ReplaceAllString(jailPasswd, ":*:1::::::"), 0o600)
	p.write("dev/null", "", 0o666)
	for _, dir := range []string{"tmp", "run", "var/run", "var/log", "var/spool"} {
		p.mkdir(dir, 0o755)
	}
	p.mkdir("tmp", 0o1777)
	p.mkdir("home/keeper", 0o755)
	p.own("home/keeper", 65003)
	p.certificate()
}

// copy copies a file into the jail.
func (p *peer) copy(path string) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(p.path(path)), 0o755); err != nil {
		p.t.Fatal(err)
	}
	run(p.t, "cp", "-L", path, p.path(path))
}

func (p *peer) own(name string, uid int) {
	p.t.Helper()
	if err := os.Chown(p.path(name), uid, uid); err != nil {
		p.t.Fatal(err)
	}
}

// jailed is a command that has p's directory for its root.
func (p *peer) jailed(name string, args ...string) *exec.Cmd {
	return &exec.Cmd{Path: name, Args: append([]string{name}, args...), Dir: "/", SysProcAttr: &syscall.SysProcAttr{Chroot: p.dir}, Env: []string{"PATH=/bin:/usr/bin:/usr/sbin"}}
}

// kept is what a user's messages are, once there are n.
func (p *peer) kept(user string, n int) (messages []string) {
	p.t.Helper()
	for limit := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		names, _ := filepath.Glob(p.path("mail/" + user + "/new/*"))
		if len(names) >= n {
			for _, name := range names {
				b, err := os.ReadFile(name)
				if err != nil {
					p.t.Fatal(err)
				}
				messages = append(messages, string(b))
			}
			return messages
		}
		if time.Now().After(limit) {
			p.t.Fatalf("%d messages for %s, want %d", len(names), user, n)
		}
	}
}

// keptBody wants one message of a user with that body, in any of its messages.
func (p *peer) keptBody(user string, n int, body string) {
	p.t.Helper()
	messages := p.kept(user, n)
	for _, m := range messages {
		if _, b, _ := strings.Cut(m, "\n\n"); strings.TrimRight(b, "\n") == strings.TrimRight(body, "\n") {
			return
		}
	}
	p.t.Errorf("no message for %s has the body %q:\n%q", user, body, messages)
}
