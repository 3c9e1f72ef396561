package master

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/confine"
	"posthaste/internal/testwait"
)

const echoService = "echo unix n - n - 5 echo\n"

func TestStartOnDemandAndStop(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	s.mustCommand("start", "-w")
	s.logged("postfix/master[" + strconv.Itoa(s.pid()) + "]: daemon started -- version 0.1, configuration " + s.dir)
	if got := s.processes(); len(got) != 0 {
		t.Fatalf("processes before anybody came: %v", got)
	}
	a, b := s.dial("public/echo"), s.dial("public/echo")
	one, two := a.ask("hello"), b.ask("there")
	if one[0] != two[0] || one[1] != "one.example" || one[2] != "hello" {
		t.Errorf("answers %q and %q: expected one process, and the line", one, two)
	}
	if title, err := os.ReadFile("/proc/" + one[0] + "/cmdline"); err != nil || !strings.HasPrefix(string(title), "echo\x00-n\x00echo\x00-t\x00unix\x00") {
		t.Errorf("title %q, %v", title, err)
	}
	if name, err := os.ReadFile("/proc/" + one[0] + "/comm"); err != nil || string(name) != "echo\n" {
		t.Errorf("process name %q, %v", name, err)
	}
	if status, text := s.command("start"); status != 1 || !strings.Contains(text, "fatal: the Posthaste mail system is already running") {
		t.Errorf("second start: %d %s", status, text)
	}
	if status, text := s.command("status"); status != 0 || !strings.Contains(text, "the Posthaste mail system is running: PID: "+strconv.Itoa(s.pid())) {
		t.Errorf("status: %d %s", status, text)
	}
	s.mustCommand("stop")
	if got := a.read(); got[0] != "421" {
		t.Errorf("session heard %q", got)
	}
	if got := s.processes(); len(got) != 0 {
		t.Errorf("processes after stop: %v", got)
	}
	s.logged("terminating on signal 15")
	if _, err := os.Stat(s.path("queue/public/echo")); !os.IsNotExist(err) {
		t.Errorf("socket after stop: %v", err)
	}
	if status, text := s.command("status"); status != 1 || !strings.Contains(text, "is not running") {
		t.Errorf("status: %d %s", status, text)
	}
	if status, text := s.command("stop"); status != 1 || !strings.Contains(text, "fatal: the Posthaste mail system is not running") {
		t.Errorf("second stop: %d %s", status, text)
	}
}

func TestMasterPIDFile(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	os.Remove(s.path("queue")) // master makes it
	s.mustCommand("start")
	b, err := os.ReadFile(s.path("queue/pid/master.pid"))
	if want := fmt.Sprintf("%32d\n", s.pid()); err != nil || string(b) != want {
		t.Errorf("master.pid %q, %v; want %q", b, err, want)
	}
}

func TestPrivileges(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "low unix n - n - 7 echo\n  flags=x { argv=a b }\nhigh unix - n n - 0 echo\n")
	s.mustCommand("start")
	low, high := s.dial("public/low").ask("who"), s.dial("private/high").ask("who")
	if got := strings.Join(low[2:], " "); got != "false low unix 7 flags=x|argv=a b" {
		t.Errorf("unprivileged service: %q", got)
	}
	if os.Geteuid() != 0 {
		s.logged("not started by root: all services run as user ID")
		return
	}
	if low[0] == "0" || low[1] == "0" {
		t.Errorf("unprivileged service runs as %q", low)
	}
	if high[0] != "0" || high[2] != "true" {
		t.Errorf("privileged service runs as %q", high)
	}
}

func TestCrash(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ say, logged string }{
		{"exit", "echo pid %d exit status 3"},
		{"die", "echo pid %d killed by signal 9"},
		{"panic", "echo pid %d exit status 2"},
	} {
		t.Run(test.say, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "", echoService)
			s.mustCommand("start")
			a := s.dial("public/echo")
			pid, err := strconv.Atoi(a.ask("hello")[0])
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(a.c, test.say)
			s.logged("warning: process /usr/lib/posthaste/" + fmt.Sprintf(test.logged, pid))
			if got := s.dial("public/echo").ask("again")[0]; got == strconv.Itoa(pid) {
				t.Error("the same process answers")
			}
			if n := s.count("maillog", "throttling"); n != 0 {
				t.Error("a service that had served was throttled")
			}
			if test.say == "panic" {
				s.logged("postfix/echo[" + strconv.Itoa(pid) + "]: panic: told to")
				s.logged("panic: at posthaste/master.runEcho")
			}
		})
	}
}

func TestThrottle(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "broken unix n - n - - broken\n")
	s.mustCommand("start")
	s.dial("public/broken")
	s.logged("]: fatal: this never works")
	s.logged("exit status 1")
	s.logged("warning: /usr/lib/posthaste/broken: bad command startup -- throttling")
	// It is tried again.
	s.eventually("second start", func() bool { return s.count("maillog", "bad command startup") >= 2 })
}

// What keeps a service from starting may be over in a moment: it is not left alone for
// service_throttle_time because of that.
func TestThrottlePassingFault(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "shaky unix n - n - - shaky\n")
	s.edit("main.cf", "service_throttle_time = 1s", "service_throttle_time = 1h")
	os.Chmod(s.path("queue"), 0o777) // the service removes files there
	for _, name := range []string{"queue/shaky1", "queue/shaky2"} {
		s.write(name, "")
	}
	s.mustCommand("start")
	s.dial("public/shaky").ask("hello")
	if n := s.count("maillog", "shaky: bad command startup -- throttling"); n != 2 {
		t.Errorf("%d bad starts in the log", n)
	}
}

// A service that cannot be started, because its program is gone or there is no
// memory for it, is throttled; nothing else suffers.
func TestThrottleUnstartable(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "absent unix n - n - - absent\n"+echoService)
	s.mustCommand("start")
	s.dial("public/absent")
	s.logged("absent: start a process: program no-such-program: it is neither of")
	s.logged("warning: /usr/lib/posthaste/absent: bad command startup -- throttling")
	s.dial("public/echo").ask("hello")
	s.eventually("second start", func() bool { return s.count("maillog", "bad command startup") >= 2 })
	if fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.pid())); err != nil || len(fds) > 40 {
		t.Errorf("master has %d descriptors: %v", len(fds), err)
	}
	s.mustCommand("stop")
}

// A service that has served and dies each time soon after its start is not
// started many times a second.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	s.mustCommand("start")
	for range freeDeaths + 1 {
		a := s.dial("public/echo")
		a.ask("hello")
		fmt.Fprintln(a.c, "die")
		if _, err := a.in.ReadString('\n'); err == nil {
			t.Error("it lives")
		}
	}
	s.logged("warning: /usr/lib/posthaste/echo: has failed soon after its start, 3 times in a row: the next start waits for 1s")
	s.dial("public/echo").ask("hello")
	if n := s.count("maillog", "throttling"); n != 0 {
		t.Error("a service that had served was throttled")
	}
	for crashes, want := range []time.Duration{0, 0, 0, 1, 2, 4, 8, 8} {
		if got := crashPause(crashes); got != want*time.Second {
			t.Errorf("after %d failures: %s", crashes, got)
		}
	}
}

// TestReload reloads twenty times while clients come all the time: none of
// them is refused, over TCP or a unix-domain socket, and none loses its session.
func TestReload(t *testing.T) {
	t.Parallel()
	const host = "127.0.0.78"
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	s := newSite(t, "", "echo unix n - n - 50 echo\n"+address+" inet n - n - 50 echo\n")
	s.mustCommand("start")
	old := s.dial("public/echo")
	pid := old.ask("hello")[0]

	done := make(chan struct{})
	var clients sync.WaitGroup
	var served atomic.Int64
	for _, where := range [][2]string{{"unix", s.path("queue/public/echo")}, {"tcp", address}} {
		clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				if err := echoOnce(where[0], where[1]); err != nil {
					t.Errorf("client %d of %s: %v", n, where[1], err)
					return
				}
				served.Add(1)
			}
		})
	}
	for i := range 20 {
		if i == 10 {
			s.edit("main.cf", "one.example", "two.example")
		}
		if err := unix.Kill(s.pid(), unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		s.eventually("reload", func() bool { return s.count("maillog", ": reload -- version") > i })
		n := served.Load()
		s.eventually("clients are served", func() bool { return t.Failed() || served.Load() > n+4 })
	}
	close(done)
	clients.Wait()

	// The session goes on as it began, with the old process and settings.
	if got := old.ask("still?"); got[0] != pid || got[1] != "one.example" {
		t.Errorf("old session: %q", got)
	}
	if got := s.dial("public/echo").ask("new?"); got[0] == pid || got[1] != "two.example" {
		t.Errorf("new session: %q", got)
	}
	old.c.Close()
	s.eventually("the old process has ended", func() bool {
		_, err := os.Stat("/proc/" + pid)
		return err != nil
	})
	s.clean()
}

// echoOnce is a client's whole visit.
func echoOnce(network, address string) error {
	c, err := net.Dial(network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(testwait.Patience))
	if _, err := fmt.Fprintln(c, "hello"); err != nil {
		return err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && !strings.HasSuffix(answer, ".example hello\n") {
		err = fmt.Errorf("answer %q", answer)
	}
	return err
}

// TestReloadUnthrottles: who mends a service and reloads need not wait.
func TestReloadUnthrottles(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "it unix n - n - - broken\n")
	s.edit("main.cf", "service_throttle_time = 1s", "service_throttle_time = 1h")
	s.mustCommand("start")
	s.dial("public/it")
	s.logged("throttling")
	s.edit("master.cf", "broken", "echo")
	s.mustCommand("reload")
	s.dial("public/it").ask("hello")
}

// TestReloadFaulty: a slip in an entry does not take its service away at a reload, and does not
// keep the other entries from coming into force.
func TestReloadFaulty(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	s.mustCommand("start")
	s.edit("master.cf", "echo unix n - n - 5 echo", "628 inet n - n - - qmqpd\necho unix n - n - 5 ehco\nother unix n - n - 5 echo")
	for range 2 { // which is told no news the second time
		status, text := s.command("reload")
		for _, want := range []string{":2: service 628/inet: command qmqpd: expected one of: ", ":3: service echo/unix: command ehco: expected one of: "} {
			if status != 0 || !strings.Contains(text, "warning: it will not serve: "+s.path("master.cf")+want) {
				t.Errorf("reload: %d %s, want %s", status, text, want)
			}
		}
		for _, name := range []string{"public/other", "public/echo"} {
			s.eventually(name, func() bool { _, err := os.Stat(s.path("queue/" + name)); return err == nil })
			if got := s.dial(name).ask("hello"); got[2] != "hello" {
				t.Errorf("%s answers %q", name, got)
			}
		}
	}
	s.logged("error: " + s.path("master.cf") + ":2: service 628/inet: ")
	s.logged("; the service is left out")
	s.logged("error: " + s.path("master.cf") + ":3: service echo/unix: ")
	s.logged("; the service goes on as it was")
	s.edit("master.cf", "5 ehco", "5 echo") // and is an ordinary entry again
	s.mustCommand("reload")
	s.dial("public/echo").ask("hello")
}

// TestFaultyEntry: a service that cannot be does not keep the mail system from starting.
func TestFaultyEntry(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService+"628 inet n - n - - qmqpd\nbroken unix n -\n")
	place := s.path("master.cf")
	if status, text := s.command("check"); status != 1 || !strings.Contains(text, "fatal: "+place+":3: service 628/inet: command qmqpd: ") ||
		!strings.Contains(text, "fatal: "+place+":4: expected 8 fields") {
		t.Errorf("check: %d %s", status, text)
	}
	if status, text := s.command("start"); status != 0 || !strings.Contains(text, "warning: it will not serve: "+place+":3: service 628/inet: command qmqpd: ") {
		t.Fatalf("start: %d %s", status, text)
	}
	if got := s.dial("public/echo").ask("hello"); got[2] != "hello" {
		t.Errorf("answer %q", got)
	}
	s.logged("error: " + place + ":3: service 628/inet: command qmqpd: expected one of: ")
	s.logged("; the service is left out")
	s.logged("error: " + place + ":4: expected 8 fields ")
	s.logged("; the service is left out")
}

// TestNoEntryLeft: there is nothing to start if every entry is faulty.
func TestNoEntryLeft(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "")
	s.write("master.cf", "628 inet n - n - - qmqpd\n")
	if status, text := s.command("start"); status != 1 || !strings.Contains(text, "fatal: "+s.path("master.cf")+":") || s.pid() != 0 {
		t.Errorf("start: %d %s", status, text)
	}
}

// What somebody has removed from the queue directory is there again after a
// reload: a socket, or the directory with all of them.
func TestReloadMakesAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	s.mustCommand("start")
	s.dial("public/echo").ask("hello")
	for i, name := range []string{"queue/public/echo", "queue/public"} {
		if err := os.RemoveAll(s.path(name)); err != nil {
			t.Fatal(err)
		}
		s.mustCommand("reload")
		s.eventually("there is "+name+" again", func() bool {
			c, err := net.Dial("unix", s.path("queue/public/echo"))
			if err == nil {
				c.Close()
			}
			return err == nil
		})
		s.dial("public/echo").ask("hello")
		s.eventually("the reload is over", func() bool { return s.count("maillog", "reload -- version") == i+1 })
	}
	s.mustCommand("reload") // which keeps them
	s.eventually("another reload", func() bool { return s.count("maillog", "reload -- version") == 3 })
	s.dial("public/echo").ask("hello")
}

func TestReloadAddsAndRemoves(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService+"second unix - - n - - echo\n")
	s.mustCommand("start")
	pid := s.dial("private/second").ask("hello")[0]
	s.edit("master.cf", "second unix", "third unix")
	s.mustCommand("reload")
	s.eventually("third", func() bool { // a socket's file is there a moment before it listens
		c, err := net.Dial("unix", s.path("queue/private/third"))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	if got := s.dial("private/third").ask("hello"); got[0] == pid {
		t.Errorf("answer %q of the old process", got)
	}
	if _, err := net.Dial("unix", s.path("queue/private/second")); err == nil {
		t.Error("the removed service still listens")
	}
}

func TestExclusive(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "keeper unix n - n 1 1 keeper\n")
	// The service writes into the queue directory.
	os.Chmod(s.path("queue"), 0o777)
	s.mustCommand("start")
	s.eventually("wake-up at start", func() bool { return s.count("queue/keeper", "trigger W") > 0 })
	s.eventually("wake-up by the clock", func() bool { return s.count("queue/keeper", "trigger W") > 1 })
	for i := range 5 {
		n := s.count("queue/keeper", "trigger")
		s.mustCommand("reload")
		s.eventually("reload", func() bool { return s.count("maillog", ": reload -- version") > i })
		s.eventually("wake-up", func() bool { return s.count("queue/keeper", "trigger") > n })
	}
	s.mustCommand("stop")
	b, err := os.ReadFile(s.path("queue/keeper"))
	if err != nil {
		t.Fatal(err)
	}
	running := ""
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		switch words[0] {
		case "start":
			if running != "" {
				t.Errorf("%s started while %s ran", words[1], running)
			}
			running = words[1]
		case "end":
			running = ""
		case "overlap":
			t.Error("two processes at once")
		}
	}
	if running != "" {
		t.Error("the last process has not ended properly")
	}
}

func TestLazyWakeup(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "keeper unix n - n 1? 1 keeper\nother unix n - n 1 1 echo\n")
	os.Chmod(s.path("queue"), 0o777)
	s.mustCommand("start")
	// The other service has been woken, so that the clock has run.
	s.eventually("other", func() bool { return len(s.processes()) > 0 })
	if n := s.count("queue/keeper", "trigger"); n != 0 {
		t.Fatalf("%d wake-ups before first use", n)
	}
	s.dial("public/keeper")
	s.eventually("wake-up", func() bool { return s.count("queue/keeper", "trigger W") > 0 })
}

func TestStubborn(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "stubborn unix n - n - - stubborn\n")
	s.mustCommand("start")
	s.dial("public/stubborn").ask("hello")
	s.mustCommand("stop")
	s.logged("does not stop: it is killed")
	if got := s.processes(); len(got) != 0 {
		t.Errorf("processes after stop: %v", got)
	}
}

func TestAbort(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "stubborn unix n - n - - stubborn\n"+echoService)
	s.mustCommand("start")
	s.dial("public/stubborn").ask("hello")
	s.dial("public/echo").ask("hello")
	s.mustCommand("abort")
	s.eventually("no process", func() bool { return len(s.processes()) == 0 })
}

func TestMasterKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	s.mustCommand("start")
	session := s.dial("public/echo")
	session.ask("hello")
	pid := s.pid()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := session.read(); got[0] != "421" {
		t.Errorf("session heard %q", got)
	}
	s.eventually("master has gone", func() bool { return s.pid() == 0 })
	s.mustCommand("start")
	if s.pid() == pid {
		t.Error("the same process")
	}
	s.dial("public/echo").ask("hello")
}

// TestStubbornOrphan: a process that does not stop when master has died ends
// all the same, and the next master waits for that.
func TestStubbornOrphan(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	s := newSite(t, "", "stubborn unix n - n - - stubborn\n")
	s.mustCommand("start")
	s.dial("public/stubborn").ask("hello")
	unix.Kill(s.pid(), unix.SIGKILL)
	s.eventually("master has gone", func() bool { return s.pid() == 0 })
	orphans := s.processes()
	s.mustCommand("start")
	for _, pid := range s.processes() {
		if slices.Contains(orphans, pid) {
			t.Errorf("process %d of the first master lives", pid)
		}
	}
	s.logged("waiting for processes of an earlier master to end")
}

// TestReloadAtStart: a reload that comes before the mail system has started is
// done when it has.
func TestReloadAtStart(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	if err := os.MkdirAll(s.path("queue/pid"), 0o755); err != nil {
		t.Fatal(err)
	}
	orphan, err := os.Create(s.path("queue/pid/services.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(orphan.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	go func() {
		defer close(started)
		s.command("start")
	}()
	s.eventually("the new master waits", func() bool { return s.pid() != 0 })
	pid := s.pid()
	s.mustCommand("reload")
	orphan.Close()
	<-started
	s.eventually("reload", func() bool { return s.count("maillog", ": reload -- version") == 1 })
	if s.pid() != pid {
		t.Error("it is another master")
	}
	s.dial("public/echo").ask("hello")
}

func TestIdle(t *testing.T) {
	t.Parallel()
	s := newSite(t, "max_idle = 1s\n", echoService)
	s.mustCommand("start")
	session := s.dial("public/echo")
	pid := session.ask("hello")[0]
	session.c.Close()
	s.eventually("idle process ends", func() bool {
		_, err := os.Stat("/proc/" + pid)
		return err != nil
	})
	if got := s.dial("public/echo").ask("again"); got[0] == pid {
		t.Error("the process that had ended answers")
	}
	s.clean()
}

func TestProcessLimit(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "echo unix n - n - 2 echo\n")
	s.mustCommand("start")
	a, b, c := s.dial("public/echo"), s.dial("public/echo"), s.dial("public/echo")
	a.ask("1")
	b.ask("2")
	s.logged(`warning: service "echo" (echo) has reached its process limit "2": new clients may experience noticeable delays`)
	a.c.Close()
	if got := c.ask("3"); got[2] != "3" {
		t.Errorf("answer %q", got)
	}
}

func TestFlow(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "a unix n - n - - echo\nb unix n - n - - echo\n")
	s.mustCommand("start")
	a, b := s.dial("public/a"), s.dial("public/b")
	if got := a.ask("take")[0]; got != "false" {
		t.Errorf("take from an empty pipe: %s", got)
	}
	if got := b.ask("put")[0]; got != "3" {
		t.Errorf("level %s", got)
	}
	if got := strings.Join(a.ask("take"), " "); got != "true 2" {
		t.Errorf("take: %s", got)
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	s := newSite(t, "", echoService+port+" inet n - n - - echo\n")
	status, text := s.command("start")
	want := fmt.Sprintf("fatal: %s:3: service %s/inet: listen on 127.0.0.1:%s: address already in use; %s (process %d) has the port: stop it", s.path("master.cf"), port, port, executable(t), os.Getpid())
	if status != 1 || !strings.Contains(text, want) {
		t.Errorf("start: %d %s\nwant %s", status, text, want)
	}
	if _, err := os.Stat(s.path("queue/public/echo")); !os.IsNotExist(err) {
		t.Errorf("another service's socket is left: %v", err)
	}
	if s.pid() != 0 {
		t.Error("master runs")
	}
	if status, text := s.command("check"); !strings.Contains(text, fmt.Sprintf("warning: %s:3: service %s/inet: %s (process %d) listens on 127.0.0.1:%s: stop it before the start", s.path("master.cf"), port, executable(t), os.Getpid(), port)) {
		t.Errorf("check: %d %s", status, text)
	}
}

func executable(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestInet(t *testing.T) {
	t.Parallel()
	const host = "127.0.0.77" // nobody else's, so that the port stays free
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	s := newSite(t, "", address+" inet n - n - - echo\n")
	s.mustCommand("start")
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(testwait.Patience))
	if got := (&session{t, c, bufio.NewReader(c)}).ask("hello"); got[2] != "hello" {
		t.Errorf("answer %q", got)
	}
}

// TestStopOrder: what takes mail in stops first, and may still use, and even
// start, what it depends on.
func TestStopOrder(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService+"keeper unix n - n - 1 keeper\n")
	os.Chmod(s.path("queue"), 0o777)
	s.mustCommand("start")
	c := s.dial("public/echo")
	c.ask("hello")
	fmt.Fprintln(c.c, "last will")
	c.read()
	if n := s.count("queue/keeper", "start"); n != 0 {
		t.Fatal("the keeper runs already")
	}
	s.mustCommand("stop")
	if got := c.read(); got[0] != "421" {
		t.Errorf("session heard %q", got)
	}
	b, err := os.ReadFile(s.path("queue/keeper"))
	if words := strings.Fields(string(b)); err != nil || len(words) != 6 || words[0] != "start" || words[3] != "goodbye" || words[4] != "end" {
		t.Errorf("the keeper noted %q, %v", b, err)
	}
}

// TestLastWords: what the Go runtime says when it gives up goes to the log.
func TestLastWords(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	s.mustCommand("start")
	fmt.Fprintln(s.dial("public/echo").c, "panic elsewhere")
	s.logged(": panic: on another goroutine")
	s.logged("exit status 2")
}

func TestNoNewPrivileges(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root has privileges to keep from others")
	}
	s := newSite(t, "", "low unix n - n - - echo\nhigh unix n n n - - echo\n")
	s.mustCommand("start")
	for name, want := range map[string]string{"low": "NoNewPrivs:\t1\n", "high": "NoNewPrivs:\t0\n"} {
		pid := s.dial("public/" + name).ask("hello")[0]
		tasks, err := filepath.Glob("/proc/" + pid + "/task/*/status")
		if err != nil || len(tasks) < 2 {
			t.Fatal(tasks, err)
		}
		for _, task := range tasks {
			if b, err := os.ReadFile(task); err != nil || !strings.Contains(string(b), want) {
				t.Errorf("%s, thread %s: no %q, %v", name, task, want, err)
			}
		}
	}
}

// TestServiceSandbox: a service in a sandbox executes nothing and writes only
// below the mail system's directories and where temporary files are, with root's
// rights and without.
func TestServiceSandbox(t *testing.T) {
	t.Parallel()
	if !confine.Sandboxes() {
		t.Skip("SKIPPED: this kernel has no Landlock, or not enabled")
	}
	services := "low unix n - n - - caged\noff unix n - n - - caged -o service_sandbox=no\n"
	if os.Geteuid() == 0 {
		services += "high unix n n n - - caged\njailed unix n - y - - caged\n"
	}
	s := newSite(t, "", services)
	s.mustCommand("start")
	anyone := func(parent string) string {
		dir, err := os.MkdirTemp(parent, "anyone")
		if err == nil {
			err = os.Chmod(dir, 0o777)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	temporary, outside := anyone(""), anyone("/var/tmp")
	for _, c := range []struct{ service, do, want string }{
		{"low", "write " + outside + "/low", "refused"},
		{"low", "write " + temporary + "/low", "done"},
		{"low", "write " + s.path("data/low"), "done"},
		{"low", "write private/low", "done"},
		{"low", "execute", "refused"},
		{"off", "write " + outside + "/off", "done"},
		{"off", "execute", "done"},
		{"high", "write " + outside + "/high", "refused"},
		{"high", "write private/high", "done"},
		{"high", "execute", "refused"},
		{"jailed", "write /private/jailed", "done"},
		{"jailed", "write /tmp/jailed", "done"},
	} {
		if !strings.Contains(services, c.service+" unix") {
			continue
		}
		if got := s.dial("public/" + c.service).ask(c.do); len(got) != 1 || got[0] != c.want {
			t.Errorf("%s: %s: %s, expected %s", c.service, c.do, got, c.want)
		}
	}
}

func TestChroot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can change the root directory")
	}
	s := newSite(t, "", "jailed unix n - y - 1 echo\n")
	s.mustCommand("start")
	a := s.dial("public/jailed")
	pid := a.ask("hello")[0]
	if root, err := os.Readlink("/proc/" + pid + "/root"); err != nil || root != s.path("queue") {
		t.Errorf("root directory %q, %v", root, err)
	}
	// The log can be reached from inside.
	s.dial("public/jailed")
	s.logged("postfix/echo[" + pid + "]: warning: service \"jailed\"")
}

func TestPass(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "given pass - - n - - echo\n")
	s.mustCommand("start")
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours := os.NewFile(uintptr(pair[0]), "ours")
	defer ours.Close()
	s.dial("private/given").c.Close() // somebody who hands over nothing
	u := s.dial("private/given").c.(*net.UnixConn)
	if _, _, err := u.WriteMsgUnix([]byte{0}, unix.UnixRights(pair[1]), nil); err != nil {
		t.Fatal(err)
	}
	unix.Close(pair[1])
	c, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := (&session{t, c, bufio.NewReader(c)}).ask("hello"); got[2] != "hello" {
		t.Errorf("answer %q", got)
	}
}

func TestLogRotate(t *testing.T) {
	t.Parallel()
	s := newSite(t, "maillog_file_rotate_suffix = old-%Y\n", echoService)
	s.mustCommand("start")
	s.dial("public/echo").ask("hello")
	s.mustCommand("logrotate")
	s.logged(": reload -- version")
	packed, err := filepath.Glob(s.path("maillog.old-2*.gz"))
	if err != nil || len(packed) != 1 {
		t.Errorf("rotated files %q, %v", packed, err)
	}
	if n := s.count("maillog", "daemon started"); n != 0 {
		t.Error("the new file has old lines")
	}
	// A service's line, by way of postlogd, is in the new file.
	a := s.dial("public/echo")
	pid := a.ask("hello")[0]
	fmt.Fprintln(a.c, "panic")
	s.logged("postfix/echo[" + pid + "]: panic: told to")
}

func TestBuiltIn(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService+"tlsmgr unix - - n 1000? 1 tlsmgr\nflush unix n - n 1000? 0 flush\n")
	s.mustCommand("start")
	if _, err := os.Stat(s.path("queue/private/tlsmgr")); !os.IsNotExist(err) {
		t.Errorf("socket of a built-in service: %v", err)
	}
	s.edit("master.cf", "flush unix", "scache unix - - n - 1 scache\nflush unix")
	s.mustCommand("reload")
	s.dial("public/echo").ask("hello")
	if n := s.count("maillog", "built in"); n != 0 {
		t.Errorf("%d lines say what is built in", n)
	}
}

func TestFlush(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "qmgr unix n - n - 1 keeper\n")
	os.Chmod(s.path("queue"), 0o777)
	if status, text := s.command("flush"); status != 1 || !strings.Contains(text, "is not running") {
		t.Errorf("flush: %d %s", status, text)
	}
	s.mustCommand("start")
	s.mustCommand("flush")
	s.eventually("trigger", func() bool { return s.count("queue/keeper", "trigger FADI") > 0 })
}

func TestServiceManager(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	s := newSite(t, "", echoService)
	read := func() string {
		l.SetReadDeadline(time.Now().Add(testwait.Patience))
		b := make([]byte, 100)
		n, err := l.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		state, _, _ := strings.Cut(string(b[:n]), "\n")
		return state
	}
	s.mustCommand("start")
	got := []string{read()}
	s.mustCommand("reload")
	got = append(got, read(), read())
	s.mustCommand("stop")
	got = append(got, read())
	if want := "READY=1 RELOADING=1 READY=1 STOPPING=1"; strings.Join(got, " ") != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// TestForeground: start-fg is the mail system itself; an interrupt from the
// terminal stops it.
func TestForeground(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", echoService)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	start := func() (*exec.Cmd, *bytes.Buffer) {
		var stderr bytes.Buffer
		cmd := &exec.Cmd{Path: exe, Args: []string{"posthaste", "-c", s.dir, "start-fg"}, Stderr: &stderr}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, &stderr
	}
	cmd, _ := start()
	s.logged("daemon started")
	s.dial("public/echo").ask("hello")
	if s.pid() != cmd.Process.Pid {
		t.Errorf("master is process %d, not %d", s.pid(), cmd.Process.Pid)
	}
	second, stderr := start()
	if err := second.Wait(); err == nil || second.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), "is already running") {
		t.Errorf("second start: %v, %s", err, stderr)
	}
	cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); err != nil {
		t.Errorf("after an interrupt: %v", err)
	}
	s.logged("terminating on signal 2")
	if got := s.processes(); len(got) != 0 {
		t.Errorf("processes after stop: %v", got)
	}
}

// TestReloadStuck: an exclusive service that does not end when it should is
// stopped, and then killed, so that its successor can start.
func TestReloadStuck(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes six seconds")
	}
	s := newSite(t, "application_event_drain_time = 1s\n", "stuck unix n - n - 1 stuck\n")
	s.mustCommand("start")
	c := s.dial("public/stuck")
	pid := c.ask("hello")[0]
	s.mustCommand("reload")
	s.logged(": reload -- version")
	if got := s.dial("public/stuck").ask("hello")[0]; got == pid {
		t.Error("the old process answers")
	}
	s.logged("warning: stuck/unix process " + pid + " has not ended 1s after a reload: it is stopped")
	s.logged("warning: stuck/unix process " + pid + " does not stop: it is killed")
	s.clean()
}

func TestWake(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := wake(endpoint{network: "tcp", addr: l.Addr().(*net.TCPAddr).AddrPort()}, time.Minute); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if b, err := io.ReadAll(c); err != nil || string(b) != "W" {
		t.Errorf("%q, %v", b, err)
	}
	path := filepath.Join(t.TempDir(), "s")
	d, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := wake(endpoint{network: "unixgram", path: path}, time.Minute); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	if n, err := d.Read(b); err != nil || string(b[:n]) != "W" {
		t.Errorf("%q, %v", b[:n], err)
	}
	if err := wake(endpoint{network: "unix", path: path + "x"}, time.Minute); err == nil {
		t.Error("woke nobody")
	}
}
