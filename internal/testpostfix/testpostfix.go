// Package testpostfix runs the original Postfix for tests that compare with
// it: private instances, each with its own configuration, queue, log and port,
// on loopback. An instance is made with [New], told its main.cf and master.cf,
// and started; it ends with the test.
//
// Tests without Postfix, or without root, which it needs, are skipped, and say
// so; with PEERS_REQUIRED set a missing Postfix fails them.
//
// Postfix is what Debian's package has installed. Its configuration and its
// queue, if the machine has any, are not touched.
package testpostfix

import (
	"context"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/testpeers"
	"posthaste/internal/testport"
	"posthaste/internal/testproc"
	"posthaste/internal/testwait"
)

// patience is how long is waited for what must happen. It is only ever reached
// by a failure.
const patience = testwait.Patience

// Where Debian has the commands, and the services.
const (
	commands = "/usr/sbin"
	services = testpeers.PostfixServices
)

// Need skips the test where Postfix cannot be run.
func Need(t testing.TB) {
	t.Helper()
	for _, name := range []string{"postfix", "sendmail"} {
		testpeers.Postfix(t, name)
	}
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: the original Postfix only runs as root")
	}
}

// An Instance is one mail system. It belongs to the test's goroutine; only Log,
// Path, Command and Tool may be called by others at the same time.
type Instance struct {
	Dir  string // has etc, spool, data and, when something was logged, mail.log
	Port int    // for its SMTP server, if it is to have one

	t    testing.TB
	proc *testproc.Process
}

// New makes the directories of an instance, which go when the test ends.
func New(t testing.TB) *Instance {
	t.Helper()
	Need(t)
	dir, err := os.MkdirTemp("", "pf") // short, for the sockets' sake
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &Instance{Dir: dir, Port: testport.Free(t), t: t}
	p.layOut()
	return p
}

// layOut makes the directories as "postfix check" would make them, which takes
// longer than all else that a start does.
func (p *Instance) layOut() {
	p.t.Helper()
	uid, gid := p.ids()
	for _, d := range []struct {
		name     string
		mode     uint32
		uid, gid int
	}{
		{".", 0o755, 0, 0}, {"etc", 0o755, 0, 0}, {"data", 0o700, uid, -1}, {"spool", 0o755, 0, 0}, {"spool/pid", 0o755, 0, 0},
		{"spool/maildrop", 0o1730, uid, gid}, {"spool/public", 0o2710, uid, gid}, {"spool/private", 0o700, uid, -1},
		{"spool/active", 0o700, uid, -1}, {"spool/bounce", 0o700, uid, -1}, {"spool/corrupt", 0o700, uid, -1}, {"spool/defer", 0o700, uid, -1},
		{"spool/deferred", 0o700, uid, -1}, {"spool/flush", 0o700, uid, -1}, {"spool/hold", 0o700, uid, -1}, {"spool/incoming", 0o700, uid, -1},
		{"spool/saved", 0o700, uid, -1}, {"spool/trace", 0o700, uid, -1},
	} {
		if err := os.MkdirAll(p.Path(d.name), 0o755); err != nil {
			p.t.Fatal(err)
		}
		if err := os.Chown(p.Path(d.name), d.uid, d.gid); err != nil {
			p.t.Fatal(err)
		}
		if err := syscall.Chmod(p.Path(d.name), d.mode); err != nil {
			p.t.Fatal(err)
		}
	}
}

// ids are the user and the group of the queue.
func (p *Instance) ids() (uid, gid int) {
	p.t.Helper()
	u, err := user.Lookup("postfix")
	if err != nil {
		p.t.Fatal(err)
	}
	g, err := user.LookupGroup("postdrop")
	if err != nil {
		p.t.Fatal(err)
	}
	uid, _ = strconv.Atoi(u.Uid)
	gid, _ = strconv.Atoi(g.Gid)
	return uid, gid
}

// Path is the path of something in the instance's directory.
func (p *Instance) Path(parts ...string) string {
	return filepath.Join(append([]string{p.Dir}, parts...)...)
}

// own is the beginning of every main.cf.
const own = `compatibility_level = 3.6
queue_directory = {dir}/spool
data_directory = {dir}/data
maillog_file = {dir}/mail.log
maillog_file_prefixes = {dir}
`

// Configure writes main.cf, which begins with where the instance's files are,
// and master.cf, in which the caller must not forget the service postlog. In
// both, {dir} is the directory and {port} the port.
func (p *Instance) Configure(main, master string) {
	p.t.Helper()
	r := strings.NewReplacer("{dir}", p.Dir, "{port}", strconv.Itoa(p.Port))
	p.write("main.cf", lastOfEach(r.Replace(own+main)))
	p.write("master.cf", r.Replace(master))
}

// write writes a file that looks old: Postfix waits until what it reads has
// been left alone for a second.
func (p *Instance) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(p.Path("etc", name), []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
	old := time.Now().Add(-time.Minute)
	if err := os.Chtimes(p.Path("etc", name), old, old); err != nil {
		p.t.Fatal(err)
	}
}

// lastOfEach leaves out settings that a later one overrides. Postfix warns of
// each, in every process; its logger's own warning waits for itself for ever
// when the others' have filled its socket.
func lastOfEach(main string) string {
	lines := strings.SplitAfter(main, "\n")
	last := map[string]int{}
	for i, line := range lines {
		if name, _, ok := strings.Cut(line, "="); ok && !strings.ContainsAny(line[:1], " \t#") {
			last[strings.TrimSpace(name)] = i
		}
	}
	var kept strings.Builder
	keep := true
	for i, line := range lines {
		if line != "" && !strings.ContainsAny(line[:1], " \t#") { // what follows it belongs to it
			name, _, _ := strings.Cut(line, "=")
			keep = last[strings.TrimSpace(name)] == i
		}
		if keep {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// Start starts the instance, and returns when all its sockets are there.
func (p *Instance) Start() {
	p.t.Helper()
	logged := len(p.Log())
	cmd := exec.Command(services+"/master", "-d")
	cmd.Env = append(os.Environ(), "MAIL_CONFIG="+p.Path("etc"))
	p.proc = testproc.Start(p.t, cmd, p.Dir)
	p.awaitLog("Postfix starts", logged, ": daemon started -- ")
}

// Reload has the instance read its files again, and returns when it has.
func (p *Instance) Reload() {
	p.t.Helper()
	logged := len(p.Log())
	p.Run("", "postfix", "reload")
	p.awaitLog("Postfix reloads", logged, ": reload -- ")
}

// awaitLog waits until words are in what is logged after the first so many
// octets.
func (p *Instance) awaitLog(what string, logged int, words string) {
	p.t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(p.Log()[logged:], words); time.Sleep(20 * time.Millisecond) {
		select {
		case <-p.proc.Done:
			p.t.Fatalf("%s: it has ended:\n%s", what, p.Log()[logged:])
		default:
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s: waited %v in vain:\n%s", what, patience, p.Log()[logged:])
		}
	}
}

// Stop stops the instance, if it runs, and returns when none of its processes
// is left. It may be started again then. The end of the test stops it too.
func (p *Instance) Stop() { p.proc.Stop() }

// Log is what the instance has logged so far.
func (p *Instance) Log() string {
	b, _ := os.ReadFile(p.Path("mail.log")) // that is not there yet is empty
	return string(b)
}

// Command is one of Postfix's commands, with the instance's configuration.
func (p *Instance) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	option := "-c"
	if name == "sendmail" {
		option = "-C"
	}
	return exec.CommandContext(ctx, filepath.Join(commands, name), append([]string{option, p.Path("etc")}, args...)...)
}

// Tool runs one of Postfix's commands, with this standard input, and returns
// what it says.
func (p *Instance) Tool(stdin, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := p.Command(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Run is Tool for commands that must succeed.
func (p *Instance) Run(stdin, name string, args ...string) string {
	p.t.Helper()
	out, err := p.Tool(stdin, name, args...)
	if err != nil {
		p.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return out
}
