package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/doubtful"
	"posthaste/internal/testwait"
)

var (
	stormTime  = flag.Duration("cluster.storm", 0, "for how long TestClusterStorm has faults happen; 0: a few of them")
	stormSeed  = flag.Uint64("cluster.storm.seed", 1, "the first seed of TestClusterStorm")
	stormFault = flag.String("cluster.storm.faults", "", "the faults of TestClusterStorm, with commas between them; empty: those of the seed")
	stormPlant = flag.String("cluster.storm.plant", "", "a fault to be planted in the engine, which TestClusterStorm must find: epoch, lease, sync")
)

// A clusterStorm is three nodes with a database of two servers, clients, next hops, and what goes wrong.
type clusterStorm struct {
	t     *testing.T
	lan   *lan
	db    *patroni
	nodes []*stormNode
	led   *ledger
	hops  []*stormHop
	day   *stormHop // the hop that has a limit of a day
	rng   *rand.Rand
	pause sync.RWMutex // held for writing while nobody sends
	ofDay atomic.Int64
	step  int
	fault string
	done  map[string]int // how often each fault has happened
	bins  []string       // the directories of the programs of two versions
}

// A stormNode is a node on a host of its own.
type stormNode struct {
	*system
	host *host
	name string
	bin  string // the directory of its programs
	addr string // where it takes mail
	main string
	seen int // how much of its log has been looked at
}

// strayed is what a node says that writes to a part of the queue which another one has had for so long that it has dropped its tables. Before that
// a node looks at the epoch, and says that the queue is not its own.
var strayed = regexp.MustCompile(`(?m)^.* the queue cannot be written any more.* relation "\S+" does not exist.*$`)

const (
	stormNarrow = 4  // deliveries at a time
	stormMinute = 90 // deliveries in a minute: less than what comes, so that there is always mail that waits
)

// stormParts are the shards of a storm, and stormNodes its nodes.
const stormParts, stormNodes = 3, 3

func stormMainCf(dayLimit int) string {
	return fmt.Sprintf(`spool_type = postgresql
spool_postgresql_url = postgres://mail@10.77.0.21,10.77.0.22/mail?sslmode=disable
relayhost = [10.77.0.1]
mynetworks = 10.77.0.0/24
smtpd_peername_lookup = no
transport_maps = inline:{ {narrow.test = smtp:[10.77.0.2]} {rate.test = smtp:[10.77.0.3]} {day.test = smtp:[10.77.0.4]} }
destination_limit_maps = inline:{ {10.77.0.2 = concurrency=%d} {10.77.0.3 = messages=%d/min} {10.77.0.4 = recipients=%d/d} }
initial_destination_concurrency = 20
smtp_connection_cache_on_demand = no
notify_classes =
`, stormNarrow, stormMinute, dayLimit) + quick
}

// newClusterStorm makes all of it, and starts it.
func newClusterStorm(t *testing.T, seed uint64, dayLimit int) *clusterStorm {
	t.Helper()
	s := &clusterStorm{t: t, led: &ledger{letters: map[int]*letter{}}, rng: rand.New(rand.NewPCG(seed, 0)), done: map[string]int{}}
	for _, p := range []string{"ip", "nsenter", "unshare", "setpriv"} {
		need(t, p)
	}
	if err := buildPG(); err != nil {
		t.Fatal(err)
	}
	s.lan = newLan(t)
	s.db = newPatroni(s.lan)
	// In the short run the clocks are not set: to compile all that has to do with time takes minutes.
	flags := overlay(t, *stormPlant, *stormTime > 0)
	s.bins = []string{binDir, binDir}
	if flags != nil {
		s.bins[0] = stormPrograms(t, "0.1", flags)
	}
	if *stormTime > 0 || strings.Contains(*stormFault, "roll") {
		s.bins[1] = stormPrograms(t, "9.9-storm", flags)
	}
	names := map[string]string{}
	for i, name := range []string{"a", "b", "c"}[:stormNodes] {
		n := &stormNode{name: name, bin: s.bins[0], host: s.lan.newHost(name, 11+i, "")}
		n.addr = n.host.ip + ":2525"
		n.main = stormMainCf(dayLimit) + "inet_interfaces = " + n.host.ip + "\ncluster_node_name = " + name + "\ndaemon_directory = %[1]s\ncommand_directory = %[1]s\n"
		if *stormTime > 0 { // that has the clocks of the nodes set
			n.main += "import_environment = TZ LANG=C STORM_CLOCK={dir}/clock\n"
		}
		n.system = newSystem(t, options{main: fmt.Sprintf(n.main, n.bin), master: stormMasterCf(n), unstarted: true})
		n.write("clock", "\x00\x00\x00\x00\x00\x00\x00\x00")
		names[n.host.ip] = name
		s.nodes = append(s.nodes, n)
	}
	t.Cleanup(s.keep)
	for i, h := range []*stormHop{{name: "plain", atOnce: 20, takes: 10 * time.Millisecond, slow: 1500 * time.Millisecond}, {name: "narrow", atOnce: stormNarrow, takes: 50 * time.Millisecond},
		{name: "rate", atOnce: 20, minute: stormMinute}, {name: "day", atOnce: 20, day: dayLimit}} {
		h.led = s.led
		h.listen(t, fmt.Sprintf("%s%d:25", lanPrefix, i+1), names)
		s.hops = append(s.hops, h)
	}
	s.day = s.hops[3]
	s.initialise()
	for _, n := range s.nodes {
		n.startNode()
	}
	return s
}

func stormMasterCf(n *stormNode) string { return n.addr + " inet n - n - - smtpd\n" }

// use has the node use the programs in a directory from its next start on.
func (n *stormNode) use(dir string) {
	n.bin = dir
	n.configure(fmt.Sprintf(n.main, dir), stormMasterCf(n))
}

// startNode starts the node on its host.
func (n *stormNode) startNode() {
	n.t.Helper()
	args := n.host.args("--net", filepath.Join(n.bin, "posthaste"), "-c", n.path("etc"), "start-fg")
	n.cmd = exec.Command(args[0], args[1:]...)
	n.cmd.Stdout, n.cmd.Stderr = &n.out, &n.out
	n.cmd.Env = append(os.Environ(), "STORM_CLOCK="+n.path("clock"))
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	n.launch()
}

// stormPrograms builds the programs that differ as another version, and returns their directory.
func stormPrograms(t *testing.T, version string, flags []string) string {
	t.Helper()
	dir, err := os.MkdirTemp(binDir, "version")
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(dir, 0o755)
	args := append([]string{"build", "-o", dir + "/", "-ldflags=-w -X posthaste/internal/config.release=" + version}, flags...)
	if out, err := exec.Command("go", append(args, "posthaste/cmd/posthaste", "posthaste/cmd/posthaste-pg")...).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return dir
}

// An edit is of a source file: a text that is once in it, and what it is replaced by.
type edit struct{ file, old, new string }

// stormPlants are the faults that can be planted in the engine.
var stormPlants = map[string]edit{
	"epoch": {"tx.go", "rows != len(shards) && !s.plant.noEpoch", "false && rows != len(shards)"},
	"lease": {"commit.go", "!e.store.plant.noLease && e.lease.postpone(r)", "false"},
	"sync":  {"tx.go", `mode := "on"`, `mode := "off"`},
}

// clockSource is added to Go's package time: what a file says, in seconds, is added to the time of day, and not to the monotonic clock.
const clockSource = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var clockAhead *int64

func init() {
	name, ok := syscall.Getenv("STORM_CLOCK")
	if !ok {
		return
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("STORM_CLOCK: " + err.Error())
	}
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("STORM_CLOCK: " + err.Error())
	}
	syscall.Close(fd)
	clockAhead = (*int64)(unsafe.Pointer(&b[0]))
}

func ahead() int64 {
	if clockAhead == nil {
		return 0
	}
	return atomic.LoadInt64(clockAhead)
}
`

// overlay is the compiler's flags to read some files otherwise: with a planted fault, if there is one, and with a clock that can be set.
func overlay(t *testing.T, plant string, clock bool) []string {
	t.Helper()
	dir, replace := t.TempDir(), map[string]string{}
	put := func(file, text string) {
		other := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(other, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		replace[file] = other
	}
	change := func(e edit) {
		text, err := os.ReadFile(e.file)
		if err != nil || strings.Count(string(text), e.old) != 1 {
			t.Fatalf("%s: %v, or %q is not once in it", e.file, err, e.old)
		}
		put(e.file, strings.Replace(string(text), e.old, e.new, 1))
	}
	if plant != "" {
		e, ok := stormPlants[plant]
		if !ok {
			t.Fatalf("there is no planted fault %q", plant)
		}
		engine, err := filepath.Abs("../pgspool")
		if err != nil {
			t.Fatal(err)
		}
		e.file = filepath.Join(engine, e.file)
		change(e)
	}
	if clock {
		root, err := exec.Command("go", "env", "GOROOT").Output()
		if err != nil {
			t.Fatal(err)
		}
		source := filepath.Join(strings.TrimSpace(string(root)), "src/time")
		change(edit{filepath.Join(source, "time.go"), "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n", "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n\tsec += ahead()\n"})
		put(filepath.Join(source, "zahead.go"), clockSource)
	}
	if len(replace) == 0 {
		return nil
	}
	list, _ := json.Marshal(map[string]any{"Replace": replace})
	name := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(name, list, 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"-overlay", name}
}

// keep says what was found, and how to have it again, and keeps the logs.
func (s *clusterStorm) keep() {
	s.led.mu.Lock()
	defer s.led.mu.Unlock()
	for _, p := range s.led.problems {
		s.t.Error(p)
	}
	if !s.t.Failed() {
		return
	}
	dir, err := os.MkdirTemp("", "posthaste-storm-")
	if err != nil {
		return
	}
	for _, n := range s.nodes {
		os.Rename(n.path("mail.log"), filepath.Join(dir, n.name+".log"))
	}
	s.t.Logf("in step %d, %s; the logs are in %s\nagain: go test ./internal/e2e -run 'TestClusterStorm$' -v -timeout 0 -cluster.storm=%v -cluster.storm.seed=%d -cluster.storm.faults=%q",
		s.step, s.fault, dir, *stormTime, *stormSeed, *stormFault)
}

// load has clients send to each node until the returned function is called.
func (s *clusterStorm) load(every time.Duration) (end func()) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var failed atomic.Int64
	for _, n := range s.nodes {
		for range 2 {
			c := &stormClient{led: s.led, node: n.name, addr: n.addr, rng: rand.New(rand.NewPCG(s.rng.Uint64(), 1)), pause: &s.pause, stop: stop, ofDay: &s.ofDay, every: every, failed: &failed}
			wg.Add(1)
			s.lan.within(func() { defer wg.Done(); c.run() })
		}
	}
	return sync.OnceFunc(func() { close(stop); wg.Wait() })
}

// do has a fault happen, waits until all is calm again, and checks.
func (s *clusterStorm) do(name string) {
	s.t.Helper()
	s.step++
	s.fault = name
	began := time.Now()
	s.led.mu.Lock()
	before := s.led.next
	s.led.mu.Unlock()
	s.t.Logf("%s step %d: %s", began.UTC().Format("15:04:05"), s.step, name)
	stormFaults[name](s)
	hurt := time.Since(began)
	s.settle()
	s.done[name]++
	s.led.mu.Lock()
	defer s.led.mu.Unlock()
	s.t.Logf("    %v, calm after %v more; %d letters, %d refused and %d unanswered of all", hurt.Round(100*time.Millisecond), (time.Since(began) - hurt).Round(100*time.Millisecond),
		s.led.next-before, s.led.refused, s.led.unknown)
	if len(s.led.problems) > 0 {
		s.t.FailNow()
	}
}

// takesMail says whether a node takes a letter.
func (s *clusterStorm) takesMail(n *stormNode) bool {
	letter, content := s.led.write(n.name, []string{"probe@plain.test"}, 300)
	id, err := sendTo(n.addr, []string{"probe@plain.test"}, content)
	s.led.answered(letter, id, err)
	return err == nil
}

// settle waits until the database has its standby, each node takes mail, and all that was acknowledged has arrived. Then it checks.
func (s *clusterStorm) settle() {
	s.t.Helper()
	s.db.calm()
	for _, n := range s.nodes {
		testwait.Until(s.t, "node "+n.name+" takes mail", func() bool { return s.takesMail(n) || pauseFalse() })
	}
	s.pause.Lock() // waits for those who are sending
	defer s.pause.Unlock()
	for list := s.led.missing("@day.test"); len(list) > 0; {
		// It may take minutes. That more comes is what is waited for.
		left := len(list)
		limit := time.Now().Add(testwait.Patience)
		for len(list) >= left && time.Now().Before(limit) {
			time.Sleep(20 * time.Millisecond)
			list = s.led.missing("@day.test")
		}
		if len(list) >= left {
			s.t.Fatalf("%d deliveries of acknowledged mail are not made: %v", len(list), list[:min(len(list), 20)])
		}
	}
	s.check()
}

// pauseFalse is for conditions whose look costs much.
func pauseFalse() bool { time.Sleep(200 * time.Millisecond); return false }

// check holds that what arrived twice was doubtful, and that what waits for tomorrow is in the queue. Nobody sends meanwhile.
func (s *clusterStorm) check() {
	s.t.Helper()
	doubts := map[string]int{} // by queue ID and recipient
	out := s.toolOf(s.nodes[0], "cluster", "doubtful", "-j")
	for line := range strings.Lines(out) {
		var d struct {
			ID        string
			Recipient int
		}
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		doubts[fmt.Sprintf("%s %d", d.ID, d.Recipient)]++
	}
	alone := map[string]int{} // those of agents, by queue ID and address
	for _, n := range s.nodes {
		for _, d := range n.doubtful() {
			if d.Why == doubtful.Agent { // the others are in the database, too
				alone[d.ID+" "+d.Recipient]++
			}
		}
	}
	waiting := map[string]bool{}
	for _, m := range regexp.MustCompile(`"queue_id": *"([^"]+)"`).FindAllStringSubmatch(s.toolOf(s.nodes[s.rng.IntN(len(s.nodes))], "postqueue", "-j"), -1) {
		waiting[m[1]] = true
	}
	for _, n := range s.nodes {
		text := n.log()
		if line := strayed.FindString(text[n.seen:]); line != "" {
			s.led.complain("node %s has written to a part of the queue that was not its own: %s", n.name, line)
		}
		n.seen = len(text)
	}
	s.led.mu.Lock()
	defer s.led.mu.Unlock()
	twice := 0
	for n, it := range s.led.letters {
		for i, r := range it.to {
			if it.arrived[i] > 1 {
				twice++
				if may := doubts[fmt.Sprintf("%s %d", it.id, i)] + alone[it.id+" "+r]; it.id != "" && it.arrived[i]-1 > may {
					s.led.problems = append(s.led.problems, fmt.Sprintf("letter %d, %s, arrived %d times at %s, and was doubtful %d times: %v", n, it.id, it.arrived[i], r, may, it.arrivals))
				}
			}
			if it.arrived[i] == 0 && it.id != "" && !waiting[it.id] {
				s.led.problems = append(s.led.problems, fmt.Sprintf("letter %d, %s, is neither delivered to %s nor in the queue", n, it.id, r))
			}
		}
	}
	s.t.Logf("    %d deliveries twice, %d doubtful and %d of agents alone; %d letters in the queue", twice, len(doubts), len(alone), len(waiting))
}

// toolOf is what a command prints, which has to succeed.
func (s *clusterStorm) toolOf(n *stormNode, args ...string) (out string) {
	s.t.Helper()
	status := 0
	testwait.For(s.t, func() string {
		if out, status = n.tool(nil, args...); status != 0 {
			pauseFalse()
			return fmt.Sprintf("%v: status %d, %s", args, status, out)
		}
		return ""
	})
	return out
}

// initialise makes the queue. On a busy machine Patroni may change the primary meanwhile, before the storm has begun: then
// it is made again, unless the transaction had ended.
func (s *clusterStorm) initialise() {
	s.t.Helper()
	again := false
	s.nodes[0].eventually("the queue is made", func() bool {
		out, status := s.nodes[0].tool(nil, "cluster", "init", "-n", fmt.Sprint(stormParts))
		if status == 0 || again && strings.Contains(out, "has a queue already") {
			return true
		}
		s.t.Logf("cluster init: %s", out)
		again = true
		return false
	})
}

// TestClusterStorm has go wrong, with real processes, networks and databases, what package nodesim has go wrong in its simulation:
// three nodes in networks of their own, two servers of PostgreSQL that Patroni looks after, and clients that send all the while.
// After each fault all that was acknowledged has arrived octet for octet, what arrived twice is named as doubtful, and no limit was exceeded.
func TestClusterStorm(t *testing.T) {
	t.Parallel()
	const ofDay = 40
	names := []string{"stop", "primary"}
	if *stormFault != "" {
		names = strings.Split(*stormFault, ",")
	}
	for _, name := range names {
		if stormFaults[name] == nil {
			t.Fatalf("there is no fault %q", name)
		}
	}
	s := newClusterStorm(t, *stormSeed, ofDay)
	s.ofDay.Store(ofDay + 50)
	s.settle()
	end := s.load(200 * time.Millisecond)
	defer end()
	if *stormTime == 0 {
		for _, name := range names {
			s.do(name)
		}
	} else {
		began := time.Now()
		for deck := []string{}; time.Since(began) < *stormTime; deck = deck[1:] {
			if len(deck) == 0 {
				deck = s.shuffled(names)
			}
			s.do(deck[0])
		}
	}
	end()
	s.settle()
	s.led.mu.Lock()
	defer s.led.mu.Unlock()
	t.Logf("%d letters, %d refused, %d not answered; faults: %v", s.led.next, s.led.refused, s.led.unknown, s.done)
	for _, h := range s.hops {
		t.Logf("%s: %d deliveries at a time at most, %d of the day", h.name, h.most, h.ofDay)
	}
}

// shuffled is all faults that can happen, or those that were asked for, in an order of the seed's.
func (s *clusterStorm) shuffled(names []string) (deck []string) {
	if *stormFault == "" {
		names = nil
		for name := range stormFaults { // all
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, i := range s.rng.Perm(len(names)) {
		deck = append(deck, names[i])
	}
	return deck
}
