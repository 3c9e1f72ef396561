package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"posthaste/internal/testproc"
)

// BenchmarkEvents has the same number of messages of 10 KB relayed to a host by a mail system without events and by
// one that writes them to a file, in turns. It reports the messages a second until all are gone, and the processor
// time of the mail system for each, that of the events service included.
func BenchmarkEvents(b *testing.B) {
	source, dest := need(b, "smtp-source"), need(b, "smtp-sink")
	if err := buildAside("posthaste-events"); err != nil {
		b.Fatal(err)
	}
	const messages = 3000
	port := freePort(b)
	next := exec.Command(dest, "-u", "nobody", fmt.Sprintf("127.0.0.1:%d", port), "200")
	if err := next.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(testproc.Watch(b, next, ""))
	b.Cleanup(func() { next.Process.Kill(); next.Wait() })
	main := fmt.Sprintf("relayhost = [127.0.0.1]:%d\ndefault_process_limit = 200\n", port)
	systems := map[string]*system{"off": newSystem(b, options{main: main}),
		"on": newSystem(b, options{main: main + "event_sinks = file:{dir}/data/events.json\n", master: "events unix - - n 60 1 events\n"})}
	took, used, sent := map[string]time.Duration{}, map[string]time.Duration{}, 0
	for b.Loop() {
		sent += messages
		for _, name := range []string{"off", "on"} {
			s := systems[name]
			before, start := s.processorTime(), time.Now()
			out, err := exec.Command(source, "-d", "-s", fmt.Sprint(relaySessions), "-l", fmt.Sprint(relaySize), "-m", fmt.Sprint(messages), "-f", "a@from.test", "-t", "b@to.test", s.addr()).CombinedOutput()
			if err != nil {
				b.Fatalf("smtp-source: %v\n%s", err, out)
			}
			s.eventually("all mail is delivered", func() bool { return strings.Count(s.log(), ": removed\n") >= sent })
			took[name] += time.Since(start)
			used[name] += s.processorTime() - before
		}
	}
	n := float64(b.N * messages)
	for name := range took {
		b.ReportMetric(n/took[name].Seconds(), name+"/s")
		b.ReportMetric(float64(used[name].Microseconds())/n, name+"-cpu-µs")
	}
	b.ReportMetric(0, "ns/op")
}
