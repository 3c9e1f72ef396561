package master

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/postlog"
	"posthaste/internal/service"
	"posthaste/internal/testwait"
)

// TestMain is the program under test, too: executed as "master" or under a
// service's name it is that.
func TestMain(m *testing.M) {
	if what := os.Getenv(lockHelper); what != "" {
		holdLock(what)
	}
	name := filepath.Base(os.Args[0])
	if name == Program {
		os.Exit(Main(testOptions(), os.Args[1:]))
	}
	if name == "posthaste" {
		os.Exit(Command(testOptions(), os.Args[1:], os.Stdout, os.Stderr))
	}
	if spec, ok := testServices()[name]; ok {
		os.Exit(service.Main(spec, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// testOptions have a master that waits for its services for as long as they need on a busy machine to end. Those that do
// not end are waited for, too: none of their tests needs much longer than that.
func testOptions() Options { return Options{Services: testServices(), StopTimeout: 10 * time.Second} }

// testServices are small services that show what happens to them.
func testServices() map[string]service.Spec {
	return map[string]service.Spec{
		"echo":     {Process: "echo", Rank: service.Intake, Run: runEcho},
		"caged":    {Process: "caged", Rank: service.Intake, Sandbox: service.Plain, Run: runEcho},
		"keeper":   {Process: "keeper", Rank: service.Store, Exclusive: true, Run: runKeeper},
		"broken":   {Process: "broken", Run: func(context.Context, *service.Env) error { return errors.New("this never works") }},
		"shaky":    {Process: "shaky", Rank: service.Intake, Run: runShaky},
		"wrong":    {Process: "wrong", Rank: service.Intake, Tries: true, Run: func(context.Context, *service.Env) error { return errors.New("a setting is wrong") }},
		"stubborn": {Process: "stubborn", Rank: service.Agent, Run: runStubborn},
		"stuck":    {Process: "stuck", Rank: service.Store, Exclusive: true, Run: runStubborn},
		"absent":   {Process: "absent", Program: "no-such-program", Rank: service.Intake, Run: runEcho},
		"postlogd": postlog.Spec(),
	}
}

// runEcho answers each line with its process ID, the value of a parameter, and
// the line. A few lines are commands.
func runEcho(ctx context.Context, env *service.Env) error {
	will := false
	return env.ServeConns(ctx, func(stop context.Context, nc net.Conn) {
		interrupt := context.AfterFunc(stop, func() { nc.SetReadDeadline(time.Now()) })
		defer interrupt()
		in := bufio.NewScanner(nc)
		for in.Scan() {
			if path, ok := strings.CutPrefix(in.Text(), "write "); ok {
				fmt.Fprintln(nc, outcome(os.WriteFile(path, nil, 0o600)))
				continue
			}
			switch line := in.Text(); line {
			case "execute":
				fmt.Fprintln(nc, outcome(exec.Command("/bin/true").Run()))
			case "exit":
				os.Exit(3)
			case "panic":
				panic("told to")
			case "panic elsewhere":
				go panic("on another goroutine")
			case "last will":
				will = true
				fmt.Fprintln(nc, "noted")
			case "die":
				unix.Kill(os.Getpid(), unix.SIGKILL)
			case "take":
				fmt.Fprintf(nc, "%v %d\n", env.Flow.Take(), env.Flow.Level())
			case "put":
				env.Flow.Put(3)
				fmt.Fprintln(nc, env.Flow.Level())
			case "who":
				fmt.Fprintln(nc, os.Getuid(), os.Geteuid(), env.Privileged, env.Name, env.Type, env.MaxProc, strings.Join(env.Args, "|"))
			default:
				fmt.Fprintln(nc, os.Getpid(), env.Config.String("myhostname"), line)
			}
		}
		if stop.Err() != nil {
			if will {
				if c, err := net.Dial("unix", env.Public("keeper").String()); err == nil {
					io.WriteString(c, "goodbye")
					io.Copy(io.Discard, c) // until it has been heard
				}
			}
			fmt.Fprintln(nc, "421 stopping")
		}
	})
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, fs.ErrPermission):
		return "refused"
	}
	return err.Error()
}

// runKeeper notes its triggers, its start and its end in a file. While it
// lives nobody else of its kind may.
func runKeeper(ctx context.Context, env *service.Env) error {
	f, err := os.OpenFile("keeper", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		fmt.Fprintln(f, "overlap")
		return err
	}
	fmt.Fprintln(f, "start", os.Getpid())
	defer fmt.Fprintln(f, "end", os.Getpid())
	return env.ServeIPC(ctx, &ipc.Server{OnTrigger: func(b []byte) { fmt.Fprintf(f, "trigger %s\n", b) }}, time.Second)
}

// runShaky fails to start as often as there are files of its name to remove, and then
// serves as echo does.
func runShaky(ctx context.Context, env *service.Env) error {
	for _, name := range []string{"shaky1", "shaky2"} {
		if os.Remove(name) == nil {
			return fmt.Errorf("%s: no space left on device", name)
		}
	}
	return runEcho(ctx, env)
}

// runStubborn does not end when told to.
func runStubborn(ctx context.Context, env *service.Env) error {
	err := env.ServeConns(ctx, func(_ context.Context, nc net.Conn) {
		for in := bufio.NewScanner(nc); in.Scan(); {
			fmt.Fprintln(nc, os.Getpid())
		}
	})
	time.Sleep(time.Hour)
	return err
}

// A site is a configuration and what has been started with it.
type site struct {
	t   *testing.T
	dir string
}

// needed are the services without which check says that mail would wait.
const needed = "cleanup unix n - n - - echo\nqmgr unix n - n - - echo\nrewrite unix - - n - - echo\nbounce unix - - n - - echo\n" +
	"local unix - - n - - echo\nsmtp unix - - n - - echo\n"

// newSite writes a configuration. QUEUE in the texts stands for the site's
// directory.
func newSite(t *testing.T, main, master string) *site {
	t.Helper()
	s := &site{t, t.TempDir()}
	for d := s.dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		os.Chmod(d, 0o755) // mail_owner must get in
	}
	if err := os.Mkdir(s.path("queue"), 0o755); err != nil {
		t.Fatal(err)
	}
	owner := ""
	if os.Geteuid() == 0 {
		owner = "mail_owner = " + testOwner(t) + "\nsetgid_group = nogroup\n"
	}
	s.write("main.cf", `compatibility_level = 3.7
queue_directory = QUEUE/queue
data_directory = QUEUE/data
maillog_file = QUEUE/maillog
maillog_file_prefixes = QUEUE
maillog_file_permissions = 0644
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
myhostname = one.example
service_throttle_time = 1s
import_environment = GOCOVERDIR
`+owner+main)
	s.write("master.cf", "postlog unix-dgram n - n - 1 postlogd\n"+master)
	t.Cleanup(func() {
		if s.pid() != 0 {
			s.command("abort")
			s.eventually("no master", func() bool { return s.pid() == 0 })
		}
		if t.Failed() {
			b, _ := os.ReadFile(s.path("maillog"))
			t.Logf("log:\n%s", b)
		}
	})
	return s
}

func testOwner(t *testing.T) string {
	for _, name := range []string{"nobody", "mail", "daemon"} {
		if _, err := service.LookupAccount(name); err == nil {
			return name
		}
	}
	t.Skip("no unprivileged account to run services as")
	return ""
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) write(name, text string) {
	s.t.Helper()
	text = strings.ReplaceAll(text, "QUEUE", s.dir)
	if err := os.WriteFile(s.path(name), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// edit replaces a piece of a file.
func (s *site) edit(name, before, after string) {
	s.t.Helper()
	b, err := os.ReadFile(s.path(name))
	if err != nil {
		s.t.Fatal(err)
	}
	if !bytes.Contains(b, []byte(before)) {
		s.t.Fatalf("%s has no %q", name, before)
	}
	s.write(name, strings.Replace(string(b), before, after, 1))
}

// command runs posthaste with the arguments.
func (s *site) command(args ...string) (status int, stderr string) {
	s.t.Helper()
	var out, errs bytes.Buffer
	status = Command(testOptions(), append([]string{"-c", s.dir}, args...), &out, &errs)
	return status, errs.String()
}

func (s *site) mustCommand(args ...string) {
	s.t.Helper()
	if status, stderr := s.command(args...); status != 0 {
		s.t.Fatalf("%v: status %d\n%s", args, status, stderr)
	}
}

// pid is that of the running master.
func (s *site) pid() int {
	c, err := config.Load(s.dir)
	if err != nil {
		return 0
	}
	pid, _, err := findRunning(c)
	if err != nil {
		s.t.Error(err)
	}
	return pid
}

// eventually waits until cond holds.
func (s *site) eventually(what string, cond func() bool) {
	s.t.Helper()
	testwait.Until(s.t, what, cond)
}

// logged waits until the log has the text.
func (s *site) logged(text string) {
	s.t.Helper()
	s.eventually("log line "+text, func() bool { return s.count("maillog", text) > 0 })
}

func (s *site) count(file, text string) int {
	b, err := os.ReadFile(s.path(file))
	if err != nil {
		return 0
	}
	return bytes.Count(b, []byte(text))
}

// dial connects to a service's unix-domain socket.
func (s *site) dial(name string) *session {
	s.t.Helper()
	c, err := net.Dial("unix", filepath.Join(s.dir, "queue", name))
	if err != nil {
		s.t.Fatalf("connection refused: %v", err)
	}
	s.t.Cleanup(func() { c.Close() })
	return &session{s.t, c, bufio.NewReader(c)}
}

type session struct {
	t  *testing.T
	c  net.Conn
	in *bufio.Reader
}

// ask sends a line and returns the words of the answer.
func (c *session) ask(line string) []string {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.c, line); err != nil {
		c.t.Fatal(err)
	}
	return c.read()
}

// read returns the words of the next line. The time limit is one line's, since sessions last as
// long as their tests.
func (c *session) read() []string {
	c.t.Helper()
	c.c.SetReadDeadline(time.Now().Add(testwait.Patience))
	answer, err := c.in.ReadString('\n')
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	return strings.Fields(answer)
}

// clean reports processes that ended badly.
func (s *site) clean() {
	s.t.Helper()
	for _, text := range []string{"exit status", "killed by signal", "throttling", "panic:"} {
		if n := s.count("maillog", text); n != 0 {
			s.t.Errorf("the log has %q %d times", text, n)
		}
	}
}

// processes returns the process IDs of the site's services: those that have
// its configuration directory in their environment.
func (s *site) processes() (pids []int) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, d := range dirs {
		env, err := os.ReadFile(d + "/environ")
		if err != nil || !bytes.Contains(env, []byte("MAIL_CONFIG="+s.dir+"\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(d))
		if err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
