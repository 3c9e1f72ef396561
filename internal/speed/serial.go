package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// alone are the goroutines of which a process, or a connection between two, has one: more processors do not make
// them any faster. Each is known by a function that is on its stack all the time.
var alone = []struct{ function, name string }{
	{"posthaste/qmgr.(*Server).loop", "the queue manager's loop"},
	{"posthaste/internal/spool.(*Spool).write", "the log's writer"},
	{"posthaste/internal/ipc.(*Conn).readLoop", "readers of connections"},
	{"posthaste/internal/ipc.(*Conn).writeLoop", "writers of connections"},
}

// profileTime is more than what a service takes for a profile of ten seconds.
const profileTime = 30 * time.Second

// serials measures what those goroutines take of a processor for each message, in a mail system under load.
func serials(ctx context.Context, o *options, w io.Writer) error {
	loads, err := chosen(cmp.Or(o.workloads, "relay,relay100,domains"))
	if err != nil {
		return err
	}
	dir, remove, err := o.place()
	if err != nil {
		return err
	}
	defer remove()
	if err := command(ctx, ".", "go", "build", "-trimpath", "-o", dir+"/", "./cmd/posthaste"); err != nil {
		return err
	}
	s, err := startSystem(dir, "")
	if err != nil {
		return err
	}
	defer s.stop()
	for i := range loads {
		if _, _, err := s.round(ctx, &loads[i]); err != nil { // warms up
			return err
		}
		if err := s.serial(ctx, &loads[i], w); err != nil {
			return fmt.Errorf("%s: %w", loads[i].name, err)
		}
	}
	return nil
}

// serial has every service profile itself while the mail of load is sent again and again, and prints what came of it.
func (s *system) serial(ctx context.Context, load *workload, w io.Writer) error {
	data := filepath.Join(s.dir, "data")
	old, _ := filepath.Glob(filepath.Join(data, "*-*.*"))
	for _, name := range old {
		os.Remove(name)
	}
	ctx, cancel := context.WithTimeout(ctx, profileTime)
	defer cancel()
	sent := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				sent <- nil
				return
			default:
			}
			if _, _, err := s.round(ctx, load); err != nil {
				sent <- err
				return
			}
		}
	}()
	before, times, start := s.sink.deliveries.Load(), s.processorTimes(), time.Now()
	pids := map[string]string{} // of services, by the names of their profiles
	for name, pid := range s.services() {
		if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
			return err
		}
		pids[fmt.Sprintf("%s-%d", name, pid)] = name
	}
	for name := range pids {
		if err := written(ctx, filepath.Join(data, name+".heap")); err != nil {
			close(done)
			return errors.Join(err, <-sent)
		}
	}
	messages := float64(s.sink.deliveries.Load()-before) / float64(load.recipients)
	wall, spent := time.Since(start), s.processorTimes()
	close(done)
	if err := <-sent; err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %.0f messages/s; µs of processor time for each message\n", load.name, messages/wall.Seconds())
	for _, name := range slices.Sorted(maps.Keys(pids)) {
		service := pids[name]
		all := spent[service] - times[service]
		fmt.Fprintf(w, "  %-26s%8.1f\n", service, micros(all, messages))
		if err := printAlone(ctx, filepath.Join(data, name+".cpu"), messages, w); err != nil {
			return err
		}
	}
	return nil
}

// micros is the share of a message.
func micros(d time.Duration, messages float64) float64 {
	return float64(d) / float64(time.Microsecond) / messages
}

// services are the processes that carry the mail, by the names that their profiles bear.
func (s *system) services() map[string]int {
	list := map[string]int{}
	for _, d := range s.processes() {
		var pid int
		name, err := os.ReadFile(d + "/comm")
		if _, serr := fmt.Sscanf(filepath.Base(d), "%d", &pid); err != nil || serr != nil {
			continue
		}
		switch n := strings.TrimSpace(string(name)); n {
		case "smtpd", "cleanup", "qmgr", "smtp", "postlogd":
			list[n] = pid
		}
	}
	return list
}

// written waits for a file.
func written(ctx context.Context, path string) error {
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no profile: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// printAlone prints what a profile has of each of the goroutines of alone.
func printAlone(ctx context.Context, profile string, messages float64, w io.Writer) error {
	out, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-traces", profile).Output()
	if err != nil {
		return fmt.Errorf("go tool pprof: %w", err)
	}
	sums := aloneTimes(string(out))
	for i, a := range alone {
		if sums[i] > 0 {
			fmt.Fprintf(w, "    %-24s%8.1f\n", a.name, micros(sums[i], messages))
		}
	}
	return nil
}

// aloneTimes adds up, for each of alone, the samples that have its function on the stack. text is what pprof -traces
// prints: for each stack a line with the time and the innermost function, and a line for each of its callers.
func aloneTimes(text string) []time.Duration {
	sums := make([]time.Duration, len(alone))
	var value time.Duration
	for sc := bufio.NewScanner(strings.NewReader(text)); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) == 0 {
			continue
		}
		if strings.HasPrefix(f[0], "-----") {
			value = 0
			continue
		}
		if d, err := time.ParseDuration(f[0]); err == nil && len(f) > 1 {
			value, f = d, f[1:]
		}
		for i, a := range alone {
			if f[0] == a.function {
				sums[i] += value
				value = 0 // a stack counts once
			}
		}
	}
	return sums
}
