// Package e2e starts the real processes on loopback ports chosen at run time
// and sends real mail through them. Everything a test makes is below its own
// temporary directory; what it starts ends with it.
package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/service"
	"posthaste/internal/testport"
	"posthaste/internal/testpostfix"
	"posthaste/internal/testproc"
	"posthaste/internal/testusers"
	"posthaste/internal/testwait"
)

// binDir holds the program under test, with links for its tools.
var binDir string

func TestMain(m *testing.M) { os.Exit(testusers.Main(suite{m})) }

// suite builds the programs before the tests run.
type suite struct{ *testing.M }

func (m suite) Run() int {
	if binDir = os.Getenv(killedBin); binDir != "" {
		return m.M.Run()
	}
	dir, err := os.MkdirTemp("", "posthaste-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755) // services run as another user
	binDir = dir
	for _, p := range []string{"posthaste", "sendmail", "postdrop", "postqueue"} {
		args := append([]string{"build"}, buildFlags()...)
		cmd := exec.Command("go", append(args, "-o", filepath.Join(dir, p), "posthaste/cmd/"+p)...)
		if p != "posthaste" && !underRace { // as the Makefile does
			cmd = exec.Command("go", "build", "-ldflags", "-w "+entryFlag(p), "-o", filepath.Join(dir, p), "posthaste/cmd/"+p)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", p, err, out)
			return 1
		}
	}
	return m.M.Run()
}

// aside has a function for each program that few tests need, which builds it once.
var aside sync.Map

// buildAside builds a program that few tests need, beside those that all have.
func buildAside(program string) error {
	build, _ := aside.LoadOrStore(program, sync.OnceValue(func() error {
		args := append([]string{"build"}, buildFlags()...)
		out, err := exec.Command("go", append(args, "-o", filepath.Join(binDir, program), "posthaste/cmd/"+program)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("build %s: %w\n%s", program, err, out)
		}
		return nil
	}))
	return build.(func() error)()
}

// entryFlag is the linker's flag for programs that are set-gid: see package scrub.
func entryFlag(program string) string {
	if program == "sendmail" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return ""
	}
	return "-E posthaste/internal/scrub.entry"
}

// patience is how long a test waits for what must happen. It is only ever
// reached by a failure.
const patience = testwait.Patience

// A system is one mail system under test, or the original to compare it with.
type system struct {
	t    testing.TB
	dir  string
	port int
	// original is set in those that newPostfix has made, which have nothing of
	// what follows.
	original *testpostfix.Instance
	cmd      *exec.Cmd
	out      testproc.Output
	done     chan struct{}
	books    *books // of nodes that share a queue; nil: it is alone
}

// output is what the mail system has printed so far.
func (s *system) output() string { return s.out.String() }

// options of a system: lines for main.cf, and lines for master.cf that come
// after the usual ones (the last of a name counts).
type options struct {
	main   string
	master string
	// unstarted leaves it to the test to start it.
	unstarted bool
}

const usualMain = `compatibility_level = 3.6
queue_directory = {dir}/spool
data_directory = {dir}/data
command_directory = {bin}
maillog_file = {dir}/mail.log
maillog_file_prefixes = {dir}
myhostname = mta.test
mydestination = local.test
mynetworks = 127.0.0.0/8
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
alias_maps =
alias_database =
local_recipient_maps =
smtpd_client_connection_count_limit = 0
in_flow_delay = 0
mail_owner = {owner}
setgid_group = {group}
`

// smallLog is for all but benchmarks. A start fills five segments with zeros, and syncs them: with the usual 64 MiB each test
// would write a third of a gigabyte, and all others wait for the disk.
const smallLog = "spool_segment_size = 4m\n"

const usualMaster = `127.0.0.1:{port} inet n - n - - smtpd
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
proxywrite unix - - n - 1 proxymap
smtp unix - - n - - smtp
relay unix - - n - - smtp
showq unix n - n - - showq
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
local unix - n n - - local
virtual unix - n n - - virtual
lmtp unix - - n - - lmtp
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
`

// died is what the Go runtime says of a program with a defect; the master logs it.
var died = regexp.MustCompile(`(?m)^.*(DATA RACE|panic: |fatal error: ).*$`)

// newSystem makes and starts a mail system that is stopped, and found to have
// left no process, when the test ends.
func newSystem(t testing.TB, o options) *system {
	t.Helper()
	dir, err := os.MkdirTemp("", "ph")
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(dir, 0o755)
	s := &system{t: t, dir: dir, port: freePort(t)}
	t.Cleanup(func() {
		if line := died.FindString(s.out.String() + s.log()); line != "" {
			t.Errorf("a process says: %s", line)
		}
		if !t.Failed() && !t.Skipped() {
			s.addUp()
		}
		if t.Failed() {
			t.Logf("output of %s:\n%s\nlog:\n%s", dir, s.out.String(), s.log())
		}
		os.RemoveAll(dir)
	})
	for _, d := range []string{"etc", "spool", "data"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 { // as in an installation
		name, _ := mailOwner(t)
		owner, err := service.LookupAccount(name)
		if err == nil {
			err = os.Chown(s.path("data"), owner.UID, owner.GID)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.configure(o.main, o.master)
	if !o.unstarted {
		s.start()
	}
	return s
}

// configure writes main.cf and master.cf.
func (s *system) configure(main, master string) {
	s.t.Helper()
	owner, group := mailOwner(s.t)
	r := strings.NewReplacer("{dir}", s.dir, "{bin}", binDir, "{port}", strconv.Itoa(s.port), "{owner}", owner, "{group}", group)
	if _, measured := s.t.(*testing.B); !measured {
		main = smallLog + main
	}
	s.write("etc/main.cf", r.Replace(usualMain+main))
	s.write("etc/master.cf", r.Replace(usualMaster+master))
}

func (s *system) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// start starts the mail system and waits until it is ready.
func (s *system) start() {
	s.t.Helper()
	if s.original != nil {
		s.original.Start()
		return
	}
	s.cmd = exec.Command(filepath.Join(binDir, "posthaste"), "-c", s.path("etc"), "start-fg")
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.launch()
}

// launch starts s.cmd, and waits until the mail system says that it is ready.
// That one port takes connections would not do: the others may be opened later.
func (s *system) launch() {
	s.t.Helper()
	told := s.serviceManager()
	if err := s.cmd.Start(); err != nil {
		told.Close()
		s.t.Fatal(err)
	}
	s.done = make(chan struct{})
	unwatch := testproc.Watch(s.t, s.cmd, s.dir)
	go func(cmd *exec.Cmd, done chan struct{}) {
		cmd.Wait()
		unwatch()
		told.Close()
		close(done)
	}(s.cmd, s.done)
	s.t.Cleanup(s.stop)
	ready := make(chan struct{})
	go awaitReady(told, ready)
	select {
	case <-ready:
	case <-s.done:
		s.t.Fatalf("the mail system ended:\n%s", s.out.String())
	case <-time.After(patience):
		s.t.Fatalf("the mail system is not ready after %v", patience)
	}
}

// serviceManager is where s.cmd is going to say what it does, as it does to
// systemd (sd_notify(3)).
func (s *system) serviceManager() *net.UnixConn {
	s.t.Helper()
	name := s.path("notify")
	os.Remove(name) // that of an earlier start
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.cmd.Env = append(s.cmd.Environ(), "NOTIFY_SOCKET="+name)
	return told
}

// awaitReady closes ready when a mail system has said that it is, and reads on
// until told is closed.
func awaitReady(told *net.UnixConn, ready chan<- struct{}) {
	b := make([]byte, 100)
	for once := false; ; {
		n, err := told.Read(b)
		if err != nil {
			return
		}
		if !once && string(b[:n]) == "READY=1" {
			once = true
			close(ready)
		}
	}
}

// stop stops the mail system as an operator does, and looks for left-overs.
func (s *system) stop() {
	if s.original != nil {
		s.original.Stop()
		return
	}
	select {
	case <-s.done:
		return
	default:
	}
	if s.t.Failed() { // what it was waited for is there, perhaps
		queue, _ := s.tool(nil, "mailq")
		s.t.Logf("mailq: %.4000s", queue)
	}
	s.tool(nil, "stop")
	select {
	case <-s.done:
	case <-time.After(patience):
		s.t.Errorf("the mail system does not stop")
		s.cmd.Process.Signal(syscall.SIGKILL)
		<-s.done
	}
	if left := s.processes(); len(left) > 0 {
		s.t.Errorf("processes left after stop: %v", left)
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// processes are the pids of this system's processes, by their working
// directory, the queue directory.
func (s *system) processes(names ...string) []int {
	var pids []int
	want, _ := filepath.EvalSymlinks(s.path("spool"))
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		cwd, err := os.Readlink(d + "/cwd")
		if err != nil || cwd != want {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(d))
		if len(names) > 0 {
			cmdline, _ := os.ReadFile(d + "/cmdline")
			argv0, _, _ := strings.Cut(string(cmdline), "\x00")
			if !containsString(names, argv0) {
				continue
			}
		}
		pids = append(pids, pid)
	}
	return pids
}

func containsString(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

func (s *system) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}
func (s *system) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// tool runs one of the commands and returns its output and exit status.
func (s *system) tool(stdin []byte, args ...string) (out string, status int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, "posthaste"), append([]string{"-c", s.path("etc")}, args...)...)
	cmd.Stdin = bytes.NewReader(stdin)
	b, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// log is the log so far.
func (s *system) log() string {
	b, _ := os.ReadFile(s.path("mail.log"))
	return string(b)
}

// waitLog waits until a line of the log matches, and returns it.
func (s *system) waitLog(pattern string) string {
	s.t.Helper()
	return s.waitLogN(pattern, 1)[0]
}

// waitLogN waits until n lines of the log match, and returns all that do.
func (s *system) waitLogN(pattern string, n int) (lines []string) {
	s.t.Helper()
	re := regexp.MustCompile("(?m)^.*" + pattern + ".*$")
	s.eventually(fmt.Sprintf("%d log lines match %s", n, pattern), func() bool {
		lines = re.FindAllString(s.log(), -1)
		return len(lines) >= n
	})
	return lines
}

// eventually waits until f is true.
func (s *system) eventually(what string, f func() bool) {
	s.t.Helper()
	testwait.Until(s.t, what, f)
}

func freePort(t testing.TB) int { return testport.Free(t) }
