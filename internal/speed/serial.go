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
	"runtime"
	"slices"
	"strconv"
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
	idle, own := idleTime(), ownTime()
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
	wall, spent, idle, own := time.Since(start), s.processorTimes(), idleTime()-idle, ownTime()-own
	close(done)
	if err := <-sent; err != nil {
		return err
	}
	c := &costs{load: load, messages: messages, wall: wall, idle: idle, own: own}
	for _, name := range slices.Sorted(maps.Keys(pids)) {
		one := cost{service: pids[name], all: spent[pids[name]] - times[pids[name]], profile: filepath.Join(data, name)}
		text, err := traces(ctx, one.profile+".cpu")
		if err != nil {
			return err
		}
		one.alone = aloneTimes(text)
		c.services = append(c.services, one)
	}
	return c.print(ctx, w)
}

// costs are what the messages of a profile took.
type costs struct {
	load      *workload
	messages  float64
	wall      time.Duration
	idle, own time.Duration // of the machine's processors: what nobody used, and what the load and the next hop took
	services  []cost
}

// A cost is what a service took of the processors.
type cost struct {
	service string
	all     time.Duration
	alone   []time.Duration // of it, each of alone
	profile string          // its file, without the ending
}

func (c *costs) print(ctx context.Context, w io.Writer) error {
	fmt.Fprintf(w, "%s: %.0f messages/s; µs of processor time for each message\n", c.load.name, c.messages/c.wall.Seconds())
	for i := range c.services {
		s := &c.services[i]
		fmt.Fprintf(w, "  %-26s%8.1f\n", s.service, micros(s.all, c.messages))
		for i, a := range alone {
			if s.alone[i] > 0 {
				fmt.Fprintf(w, "    %-24s%8.1f\n", a.name, micros(s.alone[i], c.messages))
			}
		}
		fmt.Fprintln(w, "    waits for locks, for a thousand messages, and who held the lock")
		if err := printLocks(ctx, s.profile+".mutex", c.messages, w); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "  %-26s%8.1f\n", "load and next hop", micros(c.own, c.messages))
	c.foresee(w)
	return nil
}

// order is the way of a message through the services.
var order = []string{"smtpd", "cleanup", "qmgr", "smtp", "postlogd"}

// path is the way of a message through all stages. slower is how much longer each takes; with apart the load and the next
// hop have processors of their own.
func (c *costs) path(slower float64, apart bool) (list []stage) {
	each := func(d time.Duration) time.Duration { return time.Duration(float64(d) * slower / c.messages) }
	if !apart {
		list = append(list, stage{name: "load and next hop", time: each(c.own)})
	}
	for _, name := range order {
		i := slices.IndexFunc(c.services, func(s cost) bool { return s.service == name })
		if i < 0 {
			continue
		}
		s := &c.services[i]
		rest := s.all
		for k, d := range s.alone {
			if d > 0 {
				list = append(list, stage{name: name + ": " + alone[k].name, time: each(d), alone: true})
				rest -= d
			}
		}
		// The log has one reader, and one who writes it.
		list = append(list, stage{name: name, time: each(max(rest, 0)), alone: name == "postlogd", acked: name == "cleanup"})
	}
	return list
}

// foresee prints what more processors would do, by calculation.
func (c *costs) foresee(w io.Writer) {
	const sent = 20000
	processors := runtime.NumCPU()
	used := c.own
	for i := range c.services {
		used += c.services[i].all
	}
	// Others have had the rest.
	slower := float64(processors) * float64(c.wall) / float64(used+c.idle)
	f := simulate(c.path(max(slower, 1), false), processors, c.load.sessions, sent)
	fmt.Fprintf(w, "  by calculation, %d processors with the share that was to be had: %.0f messages/s, %.2f of what was measured\n", processors, f.rate, f.rate/(c.messages/c.wall.Seconds()))
	for _, apart := range []bool{false, true} {
		for _, n := range []int{2, 4, 16, 64} {
			f := simulate(c.path(1, apart), n, max(c.load.sessions, 8*n), sent)
			fmt.Fprintf(w, "  by calculation, %2d processors, load apart: %-5v %8.0f messages/s; %s is busy for %.0f %%\n", n, apart, f.rate, f.busiest, 100*f.share)
		}
	}
}

// idleTime is what nobody has used of all processors since the machine was started.
func idleTime() time.Duration {
	b, _ := os.ReadFile("/proc/stat")
	f := strings.Fields(string(b)) // cpu user nice system idle iowait
	if len(f) < 6 {
		return 0
	}
	idle, _ := strconv.Atoi(f[4])
	wait, _ := strconv.Atoi(f[5])
	return time.Duration(idle+wait) * time.Second / 100 // USER_HZ
}

// ownTime is the processor time of this process: the load and the next hop are in it.
func ownTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
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

// maxLocks is how many locks of a service are printed: those that were waited for most often.
const maxLocks = 4

// printLocks prints how often a lock was waited for, by who holds it, for a thousand messages.
func printLocks(ctx context.Context, profile string, messages float64, w io.Writer) error {
	text, err := traces(ctx, "-sample_index=contentions", profile)
	if err != nil {
		return err
	}
	counts := lockWaits(text)
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Or(counts[b]-counts[a], strings.Compare(a, b)) })
	for _, name := range names[:min(len(names), maxLocks)] {
		fmt.Fprintf(w, "      %8.1f  %s\n", float64(counts[name])/messages*1000, name)
	}
	return nil
}

// traces are the stacks of a profile, as text.
func traces(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", append([]string{"tool", "pprof", "-traces"}, args...)...).Output()
	if err != nil {
		return "", fmt.Errorf("go tool pprof: %w", err)
	}
	return string(out), nil
}

// stacks calls yield for each stack of what pprof -traces prints, with its value and its functions, the innermost first. A
// stack begins behind a line of dashes, with the value before the first function.
func stacks(text string, yield func(value string, functions []string)) {
	var value string
	var functions []string
	end := func() {
		if value != "" {
			yield(value, functions)
		}
		value, functions = "", nil
	}
	head := true // before the first stack
	for sc := bufio.NewScanner(strings.NewReader(text)); sc.Scan(); {
		f := strings.Fields(sc.Text())
		switch {
		case len(f) == 0:
		case strings.HasPrefix(f[0], "-----"):
			end()
			head = false
		case head, strings.HasSuffix(f[0], ":"): // what the profile is of, and labels
		case value == "" && len(f) > 1:
			value, functions = f[0], append(functions, f[1])
		default:
			functions = append(functions, f[0])
		}
	}
	end()
}

// aloneTimes adds up, for each of alone, the samples that have its function on the stack.
func aloneTimes(text string) []time.Duration {
	sums := make([]time.Duration, len(alone))
	stacks(text, func(value string, functions []string) {
		d, err := time.ParseDuration(value)
		for i, a := range alone {
			if err == nil && slices.Contains(functions, a.function) {
				sums[i] += d
				return
			}
		}
	})
	return sums
}

// lockWaits adds up how often others have waited for a lock, by the function that gave it back.
func lockWaits(text string) map[string]int {
	counts := map[string]int{}
	stacks(text, func(value string, functions []string) {
		var n int
		if _, err := fmt.Sscan(value, &n); err != nil {
			return
		}
		for _, f := range functions {
			if !strings.HasPrefix(f, "sync.") && !strings.HasPrefix(f, "internal/sync.") {
				counts[f] += n
				return
			}
		}
	})
	return counts
}
