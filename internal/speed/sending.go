package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A sender is a mail system with some of what docs/sending.md has, and the mail that is sent to it.
type sender struct {
	name string
	more string // lines of main.cf; {dir} is the system's directory
	*system
	rates, times []pair                   // of each round, beside the first of the senders in the same round
	services     map[string]time.Duration // processor time by service, of all rounds; empty before the first
}

// The first of the senders is what the others are compared with; with -workloads it has only some of the others beside it.
func senders() []*sender {
	return []*sender{
		{name: "nothing"},
		{name: "beside one tenant", more: oneTenant + "tenant_maps = inline:{ {own.test = t0} }\nsender_dependent_egress_pool_maps = inline:{ {@own.test = two} }\n"},
		{name: "one tenant", more: oneTenant + "tenant_maps = inline:{ {127.0.0.1 = t0} }\ndefault_egress_pool = two\n"},
		{name: "many tenants", more: forMany},
		{name: "each event", more: forMany + "event_sinks = file:{dir}/data/events/all\n"},
	}
}

const (
	manyTenants = 1000
	manySources = 50
)

// oneTenant is all that can be said of the mail of one tenant: limits, a weight, a life, a pool of two sources of which
// one warms up, shaping files, and who is told of what fails. No number holds anything up.
const oneTenant = shaped + `tenant_weights = t0=3
tenant_limit_maps = inline:{ {t0 = concurrency=1000, messages=100000000/h, recipients=1000000000/d} }
tenant_queue_lifetime_maps = inline:{ {t0 = 2d} }
egress_source_maps = inline:{ {mta1 = address=127.0.1.1, helo=mta1.test} {mta2 = address=127.0.1.2, helo=mta2.test, warmup=2026-01-01:=1000000000} }
egress_pool_maps = inline:{ {two = mta1=1, mta2=1} }
event_sinks = { file:{dir}/data/events/bad, events=bounced+expired+complaint }
`

// forMany is the same for all of them, by tables in files.
const forMany = shaped + `tenant_maps = hash:{dir}/etc/tenants
tenant_limit_maps = hash:{dir}/etc/limits
tenant_weight_maps = hash:{dir}/etc/weights
default_egress_pool = all
egress_source_maps = hash:{dir}/etc/sources
egress_pool_maps = hash:{dir}/etc/pools
`

// shaped is what both have: limits by what providers take, and by what they answer.
const shaped = `shaping_files = {shaping}
destination_rollup = yes
smtp_destination_adaptive = yes
smtp_slow_delivery_limit = 500
`

// freely is the last of the shaping files: what the others allow a stranger is far less than what is measured.
const freely = `["default"]
connection_limit = 1000
max_connection_rate = "1000000/s"
max_message_rate = "1000000/s"
max_deliveries_per_connection = 1000000
`

// sending measures what a sender's settings cost a plain relay.
func sending(ctx context.Context, o *options, w io.Writer) error {
	dir, remove, err := o.place()
	if err != nil {
		return err
	}
	defer remove()
	if err := command(ctx, ".", "go", "build", "-trimpath", "-o", filepath.Join(dir, "bin")+"/", "./cmd/posthaste", "./cmd/posthaste-events"); err != nil {
		return err
	}
	files, err := o.shapingFiles(dir)
	if err != nil {
		return err
	}
	list, err := chosenSenders(o.workloads)
	if err != nil {
		return err
	}
	for i, s := range list {
		if err := s.open(filepath.Join(dir, strconv.Itoa(i)), filepath.Join(dir, "bin"), files); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		defer s.stop()
	}
	load := workloads[0]
	load.senders = manyTenants // each has a tenant, where there are many
	fmt.Fprintf(w, "%s, %d rounds, queues in %s\n", load.name, o.rounds, dir)
	for n := -1; n < o.rounds; n++ { // the first one warms up
		if err := sendRound(ctx, list, load, n); err != nil {
			return err
		}
	}
	byService(list, o.rounds*load.messages, w)
	report(ctx, list, w)
	return nil
}

// sendRound has all senders send the same number of messages, in turn, in an order that turns from round to round.
func sendRound(ctx context.Context, list []*sender, load workload, n int) error {
	got := make([][2]float64, len(list))
	for i := range list {
		at := (i + n + 1) % len(list)
		s := list[at]
		before := s.processorTimes()
		wall, cpu, err := s.round(ctx, &load)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if n >= 0 {
			s.count(before, s.processorTimes())
		}
		got[at] = [2]float64{float64(load.messages) / wall.Seconds(), max(float64(cpu.Microseconds())/float64(load.messages), .01)}
	}
	if n >= 0 {
		for i, s := range list {
			s.rates = append(s.rates, pair{got[0][0], got[i][0]})
			s.times = append(s.times, pair{got[0][1], got[i][1]})
		}
	}
	return nil
}

// report prints what came of it, and how much memory each takes, and how long a reload keeps mail.
func report(ctx context.Context, list []*sender, w io.Writer) {
	fmt.Fprintf(w, "%-28s%14s%28s%16s%28s%8s%12s\n", "settings", "messages/s", "ratio, 95 %", "µs/message", "ratio, 95 %", "MB", "reload, ms")
	for _, s := range list {
		r, t := compare(s.rates), compare(s.times)
		fmt.Fprintf(w, "%-28s%14s%28s%16s%28s%8.0f", s.name, thousands(r.now), r.interval(), thousands(t.now), t.interval(), float64(s.memory())/1e6)
		if took, err := s.reload(ctx); err != nil {
			fmt.Fprintf(w, "  %v\n", err)
		} else {
			fmt.Fprintf(w, "%12d\n", took.Milliseconds())
		}
	}
}

// chosenSenders are the first of the senders and those whose names begin with what is listed; all, if nothing is.
func chosenSenders(names string) ([]*sender, error) {
	all := senders()
	if names == "" {
		return all, nil
	}
	list := all[:1]
	for name := range strings.SplitSeq(names, ",") {
		n := len(list)
		for _, s := range all[1:] {
			if strings.HasPrefix(s.name, strings.TrimSpace(name)) {
				list = append(list, s)
			}
		}
		if len(list) == n {
			return nil, fmt.Errorf("%q: no such settings", name)
		}
	}
	return list, nil
}

// count adds what each service has used in a round. A process that ended in the round is left out.
func (s *sender) count(before, after map[string]time.Duration) {
	if s.services == nil {
		s.services = map[string]time.Duration{}
	}
	for name, t := range after {
		s.services[name] += max(t-before[name], 0)
	}
}

// byService prints the processor time of a message, in µs, that each service takes.
func byService(list []*sender, messages int, w io.Writer) {
	names := map[string]bool{}
	for _, s := range list {
		for name, t := range s.services {
			if t > 0 {
				names[name] = true
			}
		}
	}
	sorted := slices.Sorted(maps.Keys(names))
	fmt.Fprintf(w, "\n%-28s", "µs/message by service")
	for _, name := range sorted {
		fmt.Fprintf(w, "%16s", name)
	}
	for _, s := range list {
		fmt.Fprintf(w, "\n%-28s", s.name)
		for _, name := range sorted {
			fmt.Fprintf(w, "%16.1f", float64(s.services[name].Microseconds())/float64(messages))
		}
	}
	fmt.Fprintln(w)
}

// interval is a ratio with what has it with 95 % confidence.
func (r ratio) interval() string { return fmt.Sprintf("%.3f, %.3f to %.3f", r.mean, r.low, r.top) }

// shapingFiles are those of the command line, or made up ones that are as large as those of KumoMTA's community;
// and freely.
func (o *options) shapingFiles(dir string) (string, error) {
	last := filepath.Join(dir, "freely.toml")
	if err := os.WriteFile(last, []byte(freely), 0o644); err != nil {
		return "", err
	}
	if o.shaping == "" {
		made := filepath.Join(dir, "made.toml")
		return made + ", " + last, os.WriteFile(made, []byte(madeUp()), 0o644)
	}
	var list []string
	for name := range strings.SplitSeq(o.shaping, ",") {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		// Services that are not root's must be able to read it.
		name = filepath.Join(dir, fmt.Sprintf("shaping%d%s", len(list), filepath.Ext(name)))
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return "", err
		}
		list = append(list, name)
	}
	return strings.Join(append(list, last), ", "), nil
}

// madeUp is a shaping file with a hundred sections and eighty rules.
func madeUp() string {
	var b strings.Builder
	b.WriteString("[\"default\"]\nconnection_limit = 10\nmax_message_rate = \"100/s\"\n")
	for i := range 40 {
		fmt.Fprintf(&b, "[provider.\"p%[1]d\"]\nmatch = [{MXSuffix=\".p%[1]d.example\"}]\nconnection_limit = 5\nmax_message_rate = \"50/s\"\n", i)
		for j, what := range []string{"blocked", "rate limited"} {
			fmt.Fprintf(&b, "[[provider.\"p%d\".automation]]\nregex = '4\\.7\\.%d .*%s by p%d'\ntrigger = {Threshold=\"5/hr\"}\naction = \"Suspend\"\nduration = \"1h\"\n", i, j, what, i)
		}
	}
	for i := range 60 {
		fmt.Fprintf(&b, "[\"d%d.example\"]\nmx_rollup = false\nmax_deliveries_per_connection = 20\n", i)
	}
	return b.String()
}

// open starts the mail system in dir with the programs of bin.
func (s *sender) open(dir, bin, shaping string) error {
	if err := os.CopyFS(dir, os.DirFS(bin)); err != nil {
		return err
	}
	r := strings.NewReplacer("{dir}", dir, "{shaping}", shaping)
	var err error
	s.system, err = prepareSystem(dir, r.Replace(s.more), "events unix - - n 60 1 events\nsuppress unix - - n - 1 suppressd\nproxymap unix - - n - - proxymap\n")
	if err != nil {
		return err
	}
	if err = s.tables(); err == nil {
		err = s.start()
	}
	if err != nil {
		s.sink.close()
	}
	return err
}

// tables makes the tables of many tenants, which the others do not ask.
func (s *sender) tables() error {
	files := map[string]string{}
	var pool []string
	for i := range manyTenants {
		files["tenants"] += fmt.Sprintf("from%d.test t%d\n", i, i)
		files["limits"] += fmt.Sprintf("t%d concurrency=%d, messages=100000000/h, recipients=1000000000/d\n", i, 100+i)
		files["weights"] += fmt.Sprintf("t%d %d\n", i, 1+i%5)
	}
	for i := range manySources {
		warmup := ""
		if i%2 == 1 {
			warmup = ", warmup=2026-01-01:=1000000000"
		}
		files["sources"] += fmt.Sprintf("s%d address=127.0.1.%d, helo=s%d.test%s\n", i, i+1, i, warmup)
		pool = append(pool, fmt.Sprintf("s%d=%d", i, 1+i%3))
	}
	files["pools"] = "all " + strings.Join(pool, ", ") + "\n"
	for name, text := range files {
		path := filepath.Join(s.dir, "etc", name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
		if err := command(context.Background(), ".", filepath.Join(s.dir, "posthaste"), "-c", filepath.Join(s.dir, "etc"), "postmap", "hash:"+path); err != nil {
			return err
		}
	}
	return nil
}

// memory is the sum of what the processes have for themselves and of their parts of what they share, in octets.
func (s *system) memory() (octets int64) {
	for _, d := range s.processes() {
		text, err := os.ReadFile(d + "/smaps_rollup")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
				kb, _ := strconv.ParseInt(f[1], 10, 64)
				octets += kb << 10
			}
		}
	}
	return octets
}

// reload reloads the mail system while mail goes through it, one message after another, and returns the longest time
// for which nothing was delivered.
func (s *system) reload(ctx context.Context) (time.Duration, error) {
	load := workloads[0]
	load.sessions, load.messages = 4, 6000
	s.sink.gap.Store(0)
	s.sink.last.Store(time.Now().UnixNano())
	done := make(chan error, 1)
	go func() {
		_, _, err := s.round(ctx, &load)
		done <- err
	}()
	err := command(ctx, ".", filepath.Join(s.dir, "posthaste"), "-c", filepath.Join(s.dir, "etc"), "reload")
	if e := <-done; err == nil {
		err = e
	}
	return time.Duration(s.sink.gap.Load()), err
}
