package e2e

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/testproc"
	"posthaste/internal/testwait"
)

var relayQueue = flag.Int("relay.queue", 100000, "deferred messages in BenchmarkRelay's deep queue")

// Messages of one round of BenchmarkRelay, their size, and the sessions.
const (
	relayMessages = 4000
	relaySize     = 10240
	relaySessions = 20
)

// BenchmarkRelay is mail relayed over kept sessions: by a mail system with an
// empty queue, by one in which many messages are deferred, and by one that is
// held to one processor, in turn. Load and next hop are smtp-source and
// smtp-sink, which need some of the same processors. What is measured is the time to the last
// delivery, and the mail system's own processor time.
//
//	go test ./internal/e2e -run '^$' -bench Relay -benchtime 3x
func BenchmarkRelay(b *testing.B) {
	source := need(b, "smtp-source")
	sink := startSMTPSink(b)
	settings := fmt.Sprintf("relayhost = [127.0.0.1]:%d\nsmtp_destination_concurrency_limit = 100\ndefault_process_limit = 200\n", sink)
	deep := newSystem(b, options{main: settings, unstarted: true})
	fillDeferred(b, deep, *relayQueue, 0)
	deep.start()
	systems := map[string]*system{"empty": newSystem(b, options{main: settings}), "deep": deep, "one-core": newSystem(b, options{main: settings, unstarted: true})}
	onOneProcessor(b, systems["one-core"].start)
	took, used, sent := map[string]time.Duration{}, map[string]time.Duration{}, map[string]int{}
	round := func(name string, messages int) (wall, cpu time.Duration) {
		s := systems[name]
		before := s.processorTime()
		start := time.Now()
		out, err := exec.Command(source, "-d", "-s", fmt.Sprint(relaySessions), "-l", fmt.Sprint(relaySize), "-m", fmt.Sprint(messages),
			"-f", "a@from.test", "-t", "b@to.test", s.addr()).CombinedOutput()
		if err != nil {
			b.Fatalf("smtp-source: %v\n%s", err, out)
		}
		sent[name] += messages
		s.eventually("all mail is delivered", func() bool { return strings.Count(s.log(), ": removed\n") >= sent[name] })
		return time.Since(start), s.processorTime() - before
	}
	for name := range systems {
		round(name, 200)
	}
	for b.Loop() {
		for _, name := range []string{"empty", "deep", "one-core"} {
			wall, cpu := round(name, relayMessages)
			took[name] += wall
			used[name] += cpu
		}
	}
	n := float64(b.N * relayMessages)
	for name := range systems {
		b.ReportMetric(n/took[name].Seconds(), name+"/s")
		b.ReportMetric(float64(used[name].Microseconds())/n, name+"-cpu-µs")
	}
	b.ReportMetric(took["empty"].Seconds()/took["deep"].Seconds(), "deep/empty")
	b.ReportMetric(took["one-core"].Seconds()/took["empty"].Seconds(), "2-cores/1")
	b.ReportMetric(0, "ns/op")
}

// startSMTPSink starts Postfix's smtp-sink, which takes everything, and returns its port.
func startSMTPSink(t testing.TB) int {
	port := freePort(t)
	cmd := exec.Command(need(t, "smtp-sink"), fmt.Sprintf("127.0.0.1:%d", port), "1000")
	if os.Getuid() == 0 {
		cmd.Args = append(cmd.Args[:1], append([]string{"-u", "nobody"}, cmd.Args[1:]...)...)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(testproc.Watch(t, cmd, ""))
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	testwait.Until(t, "smtp-sink listens", func() bool {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return port
}

// onOneProcessor has what start starts use the first processor only.
func onOneProcessor(t testing.TB, start func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for i := range 1024 {
		if all.IsSet(i) {
			one.Set(i)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	defer unix.SchedSetaffinity(0, &all)
	start()
}

// processorTime is what the processes of the mail system have used, user and
// system.
func (s *system) processorTime() time.Duration {
	ticks := 0
	for _, pid := range s.processes() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		var user, system int
		if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err != nil {
			s.t.Fatal(err)
		}
		ticks += user + system
	}
	return time.Duration(ticks) * time.Second / 100 // USER_HZ, which Linux has everywhere
}
