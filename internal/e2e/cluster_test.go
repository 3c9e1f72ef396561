package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/smtp"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/testservers"
	"posthaste/internal/testwait"
)

func buildPG() error { return buildAside("posthaste-pg") }

// A cluster is a database, and the settings of nodes that share it.
type cluster struct {
	t      *testing.T
	server *testservers.Server
	next   *sink
	main   string // what all nodes have
	books  books
}

// newCluster makes a database with a queue of so many shards.
func newCluster(t *testing.T, next *sink, shards int) *cluster {
	t.Helper()
	return clusterOf(t, next, shards, binDir)
}

// clusterOf is newCluster whose tables the programs in a directory make.
func clusterOf(t *testing.T, next *sink, shards int, bin string) *cluster {
	t.Helper()
	if err := buildPG(); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, next: next, server: testservers.PostgreSQL(t, "GRANT CREATE ON DATABASE mail TO mail;", "max_connections=100")}
	c.main = fmt.Sprintf(`spool_type = postgresql
spool_postgresql_url = postgres://mail@%s/mail?sslmode=disable
spool_postgresql_password_file = {dir}/password
daemon_directory = {bin}
`, c.server.Addr) + next.relayhost() + quick
	first := c.node("init")
	first.configure(strings.ReplaceAll(c.main, "{bin}", bin)+"cluster_node_name = init\n", "")
	init, err := exec.Command(filepath.Join(bin, "posthaste"), "-c", first.path("etc"), "cluster", "init", "-n", fmt.Sprint(shards)).CombinedOutput()
	if err != nil || !strings.Contains(string(init), "CREATE TABLE shard") {
		t.Fatalf("cluster init: %v\n%s", err, init)
	}
	if out, status := first.tool(nil, "cluster", "init"); status != 69 || !strings.Contains(out, "has a queue already") {
		t.Errorf("a second init: status %d, %s", status, out)
	}
	return c
}

// node makes a node, which is not started.
func (c *cluster) node(name string) *system {
	s := newSystem(c.t, options{main: c.main + "cluster_node_name = " + name + "\n", unstarted: true})
	s.write("password", "secret\n")
	c.audits(s)
	return s
}

// audits has the books of a node be those of the cluster.
func (c *cluster) audits(s *system) {
	s.books = &c.books
	c.books.open++
}

// doubtful is the queue IDs that "posthaste cluster doubtful" lists.
func doubtfulIn(t *testing.T, s *system) map[string]bool {
	t.Helper()
	out, status := s.tool(nil, "cluster", "doubtful", "-j")
	if status != 0 {
		t.Fatalf("cluster doubtful: status %d\n%s", status, out)
	}
	list := map[string]bool{}
	for line := range strings.Lines(out) {
		var d struct{ ID string }
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		list[d.ID] = true
	}
	return list
}

// repeatedWithin fails the test when a message arrived more than once that is not in list.
func repeatedWithin(t *testing.T, next *sink, list map[string]bool) {
	t.Helper()
	ids := map[string][]string{}
	for _, m := range next.received() {
		subject := regexp.MustCompile(`(?m)^Subject: load-\d+-\d+$`).FindString(m.data)
		id := regexp.MustCompile(`\bid ([0-9A-Za-z]+)`).FindStringSubmatch(m.data)
		if subject != "" && id != nil {
			ids[subject] = append(ids[subject], id[1])
		}
	}
	twice := 0
	for subject, l := range ids {
		if len(l) > 1 {
			twice++
			if !list[l[0]] {
				t.Errorf("%s arrived %d times, and is not doubtful: %v", subject, len(l), l)
			}
		}
	}
	t.Logf("%d messages, %d of them twice, %d doubtful", len(ids), twice, len(list))
}

// Two nodes share a queue. One serves; the other refuses mail, at once, until the first is killed under load: then
// it takes the queue over. Nothing that was acknowledged is lost, and nothing arrives twice but what is listed as
// doubtful. The first, started again, stands by.
func TestCluster(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	c := newCluster(t, next, 1)
	a, b := c.node("a"), c.node("b")
	a.start()
	a.mustSend("a@from.test", []string{"b@to.test"}, "Subject: first\n\nx\n")
	testwait.Until(t, "mail goes through", func() bool { return len(next.received()) == 1 })
	b.start()
	b.waitLog("standing by, mail is refused: .*: a has it")
	if err := b.send("a@from.test", []string{"b@to.test"}, "x"); replyCode(err) != 451 {
		t.Errorf("the standby answers %v", err)
	}
	load := startLoad(a, 6)
	load.waitAccepted(100)
	killed := time.Now()
	a.killAll()
	load.end()
	before := len(next.received())
	b.waitLog("took over the queue from a")
	b.eventually("deliveries go on", func() bool {
		return len(next.received()) > before || strings.Contains(b.log(), "took over the queue from a: 0 messages")
	})
	t.Logf("first delivery %v after the death of the other node", time.Since(killed).Round(time.Millisecond))
	b.allArrived(next, load)
	repeatedWithin(t, next, doubtfulIn(t, b))
	b.mustSend("a@from.test", []string{"b@to.test"}, "Subject: later\n\nx\n")

	a.start()
	a.waitLog("standing by, mail is refused: .*: b has it")
	out, status := a.tool(nil, "cluster", "status")
	if status != 0 || !strings.Contains(out, "shard 1: b, for ") || !strings.Contains(out, "node a: seen ") || !strings.Contains(out, "no standby is synchronous") {
		t.Errorf("status %d: %s", status, out)
	}
}

// A node that is stopped for longer than its lease lasts, and goes on, gets no leave to deliver what the other
// has, and takes no mail.
func TestClusterNodeHangs(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	c := newCluster(t, next, 1)
	a, b := c.node("a"), c.node("b")
	a.start()
	// It has the queue when it takes mail; the other, started beside it, might have got that.
	a.mustSend("a@from.test", []string{"b@to.test"}, "Subject: first\n\nx\n")
	b.start()
	load := startLoad(a, 6)
	load.waitAccepted(60)
	hung := a.processes()
	for _, pid := range hung {
		syscall.Kill(pid, syscall.SIGSTOP)
	}
	b.waitLog("took over the queue from a")
	for _, pid := range hung {
		syscall.Kill(pid, syscall.SIGCONT)
	}
	a.waitLog("standing by, mail is refused: .*: b has it")
	load.end()
	b.allArrived(next, load)
	if err := a.send("a@from.test", []string{"b@to.test"}, "x"); replyCode(err) != 451 {
		t.Errorf("the node that lost the queue answers %v", err)
	}
	repeatedWithin(t, next, doubtfulIn(t, b))
}

// The commands on the queue work on the node that owns it, and say why they do not where that is so.
func TestClusterTools(t *testing.T) {
	t.Parallel()
	next := newSink(t, func(line string) string {
		if strings.HasPrefix(line, "RCPT") {
			return "450 4.2.0 later"
		}
		return ""
	})
	c := newCluster(t, next, 1)
	a := c.node("a")
	a.start()
	long := strings.Repeat("a line of some length, of which there are many\n", 10000)
	a.mustSend("a@from.test", []string{"b@to.test"}, "Subject: short\n\nthe body of a message\n")
	a.mustSend("a@from.test", []string{"b@to.test"}, "Subject: long\n\n"+long)
	lines := a.waitLogN(`to=<b@to\.test>.*status=deferred`, 2)
	ids := map[string]bool{}
	for _, l := range lines {
		ids[queueID.FindStringSubmatch(l)[1]] = true
	}
	listed, status := a.tool(nil, "mailq")
	if status != 0 || !strings.Contains(listed, "in 2 Requests") {
		t.Errorf("mailq: status %d\n%s", status, listed)
	}
	found := 0
	for id := range ids {
		out, status := a.tool(nil, "postcat", "-q", id)
		if status != 0 || !strings.Contains(out, "sender: a@from.test") {
			t.Errorf("postcat: status %d\n%s", status, out)
		}
		if strings.Contains(out, "the body of a message") || strings.Count(out, "a line of some length") == 10000 {
			found++
		}
	}
	if found != 2 {
		t.Error("postcat has not shown both messages")
	}
	if out, status := a.tool(nil, "qshape", "incoming", "active", "deferred"); status != 0 || !strings.Contains(out, "to.test") {
		t.Errorf("qshape: status %d\n%s", status, out)
	}
	if out, status := a.tool(nil, "spool", "check"); status != 69 || !strings.Contains(out, "is for spool_type = log") {
		t.Errorf("spool check: status %d\n%s", status, out)
	}
	for id := range ids {
		if out, status := a.tool(nil, "postsuper", "-d", id); status != 0 {
			t.Errorf("postsuper: status %d\n%s", status, out)
		}
	}
	a.eventually("the queue is empty", func() bool {
		out, _ := a.tool(nil, "mailq")
		return strings.Contains(out, "Mail queue is empty")
	})
	a.mustSend("a@from.test", []string{"b@to.test"}, "Subject: stays\n\nx\n")
	a.stop()
	if out, status := a.tool(nil, "mailq"); status != 69 || !strings.Contains(out, "is for spool_type = log") {
		t.Errorf("mailq of a mail system that is down: status %d\n%s", status, out)
	}
}

// While the database is away mail is refused at once and nothing is lost; when it is back everything goes on by
// itself.
func TestClusterDatabaseAway(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	c := newCluster(t, next, 1)
	a := c.node("a")
	a.start()
	load := startLoad(a, 6)
	load.waitAccepted(60)
	c.server.Kill()
	a.eventually("mail is refused", func() bool { return replyCode(a.send("a@from.test", []string{"b@to.test"}, "x")) == 451 })
	c.server.Start()
	accepted := load.count.Load()
	a.eventually("mail is taken again", func() bool { return load.count.Load() > accepted+20 })
	load.end()
	a.allArrived(next, load)
	repeatedWithin(t, next, doubtfulIn(t, a))
}

// Two nodes that have a part of the queue each take mail at the same time. When one is killed under load, the other
// adopts its part and goes on with its own all the while. The one that died gets a share again when it is back, and
// can be drained.
func TestClusterAdopts(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	c := newCluster(t, next, 2)
	a, b := c.node("a"), c.node("b")
	a.start()
	a.mustSend("a@from.test", []string{"b@to.test"}, "Subject: first\n\nx\n")
	b.start()
	shared := func() bool {
		out, _ := a.tool(nil, "cluster", "status")
		return regexp.MustCompile(`shard \d: a, for`).MatchString(out) && regexp.MustCompile(`shard \d: b, for`).MatchString(out)
	}
	a.eventually("both have a shard", shared)
	loads := []*load{startLoad(a, 3), startLoad(b, 3)}
	for _, l := range loads {
		l.waitAccepted(60)
	}
	killed := time.Now()
	a.killAll()
	loads[0].end()
	b.waitLog("took over the queue from a")
	t.Logf("taken over %v after the death of the other node", time.Since(killed).Round(time.Millisecond))
	accepted := loads[1].count.Load()
	b.eventually("it takes mail", func() bool { return loads[1].count.Load() > accepted+20 })
	loads[1].end()
	if n := loads[1].refused.Load(); n > 0 {
		t.Errorf("%d messages were refused by the node that lived", n)
	}
	for _, l := range loads {
		b.allArrived(next, l)
	}
	repeatedWithin(t, next, doubtfulIn(t, b))

	a.start()
	a.eventually("both have a shard again", shared)
	a.eventually("it takes mail", func() bool { return a.send("a@from.test", []string{"b@to.test"}, "x") == nil })
	if out, status := b.tool(nil, "cluster", "drain"); status != 0 {
		t.Errorf("drain: status %d\n%s", status, out)
	}
	b.waitLog("standing by, mail is refused: .*drained")
	a.mustSend("a@from.test", []string{"b@to.test"}, "Subject: drained\n\nx\n")
	if out, status := a.tool(nil, "cluster", "status"); status != 0 || strings.Count(out, ": a, for") != 2 && !strings.Contains(out, "nobody's") {
		t.Errorf("status %d\n%s", status, out)
	}
	if out, status := a.tool(nil, "cluster", "undrain", "b"); status != 0 {
		t.Errorf("undrain: status %d\n%s", status, out)
	}
	a.eventually("both have a shard once more", shared)
}

// docs/cluster.md is carried out as it stands, on four machines.
func TestClusterDoc(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"swaks", "pg_createcluster", "pg_basebackup"} {
		need(t, p)
	}
	if err := buildPG(); err != nil {
		t.Fatal(err)
	}
	d := manual{page: "cluster.md"}
	titles, blocks := d.sections(t)
	zone := ""
	for _, list := range blocks {
		zone += zoneOf(list)
	}
	n := newNetwork(t, zone)
	newSinkAt(t, "203.0.113.25:25", nil)
	machines := map[string]*example{}
	for _, name := range []string{"db1", "db2", "mail1", "mail2"} {
		machines[name] = &example{t: t, page: d.page, machine: n.newMachine(name + ".example.org"), ids: map[string]string{}}
	}
	on := map[string]string{"On any of them": "mail2", "What mail2 does then": "mail2", "Then db2 is promoted": "db2", "Mail goes on by itself": "mail2", "": "db1"}
	for _, title := range titles {
		name, ok := on[title]
		if !ok {
			name = title[strings.LastIndex(title, " ")+1:] // "On db1"
		}
		x := machines[name]
		if x == nil {
			t.Fatalf("the section %q is on no machine", title)
		}
		for _, b := range blocks[title] {
			x.do(b)
		}
	}
	x := machines["mail2"]
	if out, status := x.machine.run("root", "posthaste stop"); status != 0 {
		t.Errorf("posthaste stop: %s", out)
	}
}

// What cannot be delivered is returned, once, from a queue in a database too, and the message leaves it; long
// content goes through as it is.
func TestClusterBounce(t *testing.T) {
	t.Parallel()
	next := newSink(t, func(line string) string {
		if strings.HasPrefix(line, "RCPT TO:<bad@") {
			return "550 5.1.1 no such user"
		}
		return ""
	})
	c := newCluster(t, next, 1)
	a := c.node("a")
	a.start()
	long := strings.Repeat("a line of some length, of which there are many\n", 20000)
	a.mustSend("a@from.test", []string{"good@to.test", "bad@to.test"}, "Subject: long\n\n"+long)
	a.eventually("the mail and its return arrive", func() bool { return len(next.received()) == 2 })
	for _, m := range next.received() {
		switch {
		case m.from == "" && len(m.to) == 1 && m.to[0] == "a@from.test" && strings.Contains(m.data, "no such user"):
		case m.from == "a@from.test" && strings.HasSuffix(m.data, long):
		default:
			t.Errorf("from %q to %q, %d octets", m.from, m.to, len(m.data))
		}
	}
	a.eventually("the queue is empty", func() bool {
		out, _ := a.tool(nil, "mailq")
		return strings.Contains(out, "Mail queue is empty")
	})
	if n := len(next.received()); n != 2 {
		t.Errorf("%d messages have arrived", n)
	}
}

// A queue moves from the log into a database, is exported and imported there, and moves back, with what its messages
// carry, and is delivered in the end. The mail system must not run meanwhile.
func TestClusterMigrate(t *testing.T) {
	t.Parallel()
	var open atomic.Bool
	next := newSink(t, func(line string) string {
		if strings.HasPrefix(line, "RCPT") && !open.Load() {
			return "450 4.2.0 not now"
		}
		return ""
	})
	c := newCluster(t, next, 2)
	s := c.node("a")
	slow := "minimal_backoff_time = 1h\nmaximal_backoff_time = 1h\n"
	s.configure(strings.Replace(c.main, "spool_type = postgresql", "spool_type = log", 1)+slow+"cluster_node_name = a\n", "")
	s.start()
	long := strings.Repeat("a line of some length, of which there are many\n", 10000)
	s.mustSend("a@from.test", []string{"b@to.test", "c@to.test"}, "Subject: load-1-1\n\nthe body of a message\n")
	s.mustSend("a@from.test", []string{"b@to.test"}, "Subject: load-1-2\n\n"+long)
	held := queueID.FindStringSubmatch(s.waitLogN(`to=<b@to\.test>.*status=deferred`, 2)[0])[1]
	if out, status := s.tool(nil, "postsuper", "-h", held); status != 0 {
		t.Fatalf("postsuper: %s", out)
	}
	name := regexp.MustCompile(`(?m)^[0-9A-Za-z]{10,}([!*]?) +`) // the queue ID alone is another
	listed := func() string {
		out, status := s.tool(nil, "mailq")
		if status != 0 {
			t.Errorf("mailq: status %d, %s", status, out)
		}
		_, out, _ = strings.Cut(out, "\n") // the titles; the order of what was imported is not the same
		lines := strings.Split(name.ReplaceAllString(out, "ID$1 "), "\n\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n\n")
	}
	want := listed()
	if !strings.Contains(want, "450 4.2.0 not now") {
		t.Fatal(want)
	}
	s.configure(c.main+slow+"cluster_node_name = a\n", "")
	if out, status := s.tool(nil, "spool", "migrate", "log"); status != 75 || !strings.Contains(out, "stop it first") {
		t.Errorf("while it runs: status %d, %s", status, out)
	}
	s.stop()
	migrate := func(from, to string) {
		t.Helper()
		out, status := s.tool(nil, "spool", "migrate", "-v", from)
		if status != 0 || !strings.Contains(out, "2 messages moved from "+from+" to "+to) || strings.Count(out, ": now ") != 2 {
			t.Fatalf("status %d, %s", status, out)
		}
	}
	if out, status := s.tool(nil, "spool", "migrate", "postgresql"); status != 78 || !strings.Contains(out, "to where it is") {
		t.Errorf("in the wrong direction: status %d, %s", status, out)
	}
	migrate("log", "postgresql")
	s.start()
	s.waitLog("took over the queue: 2 messages")
	if got := listed(); got != want {
		t.Errorf("in the database:\n%s\nwant\n%s", got, want)
	}

	dir := filepath.Join(t.TempDir(), "out")
	if out, status := s.tool(nil, "spool", "export", "-a", dir); status != 0 || !strings.Contains(out, "2 messages exported") {
		t.Errorf("export: status %d, %s", status, out)
	}
	if out, status := s.tool(nil, "postsuper", "-d", "ALL"); status != 0 {
		t.Errorf("postsuper: %s", out)
	}
	if out, status := s.tool(nil, "spool", "import", dir); status != 0 || !strings.Contains(out, "2 messages imported") {
		t.Errorf("import: status %d, %s", status, out)
	}
	s.eventually("it is in the queue again", func() bool { return listed() == want })
	s.stop()

	s.configure(strings.Replace(c.main, "spool_type = postgresql", "spool_type = log", 1)+slow+"cluster_node_name = a\n", "")
	migrate("postgresql", "log")
	s.start()
	s.eventually("the log has the queue", func() bool { return listed() == want })
	open.Store(true)
	if out, status := s.tool(nil, "postsuper", "-H", "ALL"); status != 0 {
		t.Errorf("postsuper: %s", out)
	}
	if out, status := s.tool(nil, "postqueue", "-f"); status != 0 {
		t.Errorf("postqueue: %s", out)
	}
	testwait.Until(t, "all is delivered", func() bool { return len(next.received()) >= 2 })
	for _, m := range next.received() {
		if !strings.Contains(m.data, "the body of a message") && strings.Count(m.data, "a line of some length") != 10000 {
			t.Errorf("%.300q", m.data)
		}
	}
}

// A crowd counts the deliveries that a next hop has at a time.
type crowd struct {
	mu        sync.Mutex
	takes     time.Duration // each, so that others can come meanwhile
	now, most int
	lately    int // the most since slow was called
}

func newCrowd() *crowd { return &crowd{takes: 50 * time.Millisecond} }

// reply is that of a sink.
func (c *crowd) reply(line string) string {
	if !strings.HasPrefix(line, "RCPT") {
		return ""
	}
	c.mu.Lock()
	c.now++
	c.most, c.lately = max(c.most, c.now), max(c.lately, c.now)
	takes := c.takes
	c.mu.Unlock()
	time.Sleep(takes)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
	return ""
}

// slow has deliveries take longer from now on.
func (c *crowd) slow(takes time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takes, c.lately = takes, 0
}

// reached says whether n were there at a time since slow was called.
func (c *crowd) reached(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lately >= n
}

// within fails the test when more deliveries were there at a time than are allowed.
func (c *crowd) within(t *testing.T, limit int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most > limit {
		t.Errorf("%d deliveries at a time, %d are allowed", c.most, limit)
	}
}

// The limit of deliveries at a time to a destination holds over both nodes together, both have a share of it, and when
// one is gone the other has all of it.
func TestClusterLimit(t *testing.T) {
	t.Parallel()
	const limit = 4
	busy := newCrowd()
	next := newSink(t, busy.reply)
	c := newCluster(t, next, 2)
	c.main += fmt.Sprintf("default_destination_concurrency_limit = %d\ninitial_destination_concurrency = %d\nsmtp_connection_cache_on_demand = no\nnotify_classes =\n", limit, limit)
	a, b := c.node("a"), c.node("b")
	a.start()
	b.start()
	for _, s := range []*system{a, b} {
		s.eventually("it takes mail", func() bool { return s.send("a@from.test", []string{"b@to.test"}, "Subject: first\n\nx\n") == nil })
	}
	const each = 60
	for i := range each {
		a.mustSend("a@from.test", []string{"b@to.test"}, fmt.Sprintf("Subject: a %d\n\nx\n", i))
		b.mustSend("b@from.test", []string{"b@to.test"}, fmt.Sprintf("Subject: b %d\n\nx\n", i))
	}
	testwait.Until(t, "all is delivered", func() bool { return len(next.received()) == 2*each+2 })
	busy.within(t, limit)
	b.stop()
	// The share of the other node ends when its node says so, or a while later, and the window grows when deliveries succeed. They
	// take longer and longer, so that in the end they are there together, however slow this machine is.
	all := 2*each + 2
	busy.slow(50 * time.Millisecond)
	for takes := 50 * time.Millisecond; !busy.reached(limit); takes *= 2 {
		if takes > 20*time.Second {
			t.Fatal("node a alone does not have all of them")
		}
		busy.slow(takes)
		for i := range 2 * limit {
			a.mustSend("a@from.test", []string{"b@to.test"}, fmt.Sprintf("Subject: later %d\n\nx\n", i))
		}
		all += 2 * limit
		testwait.Until(t, "all is delivered", func() bool { return len(next.received()) == all })
	}
	busy.within(t, limit)
}

// While one node has all of a destination's limit, the other says of its mail that it waits for a share.
func TestClusterWaitsForShare(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	next := newSink(t, func(line string) string {
		if strings.HasPrefix(line, "RCPT TO:<slow@") {
			<-open
		}
		return ""
	})
	defer close(open)
	c := newCluster(t, next, 2)
	c.main += "default_destination_concurrency_limit = 1\ninitial_destination_concurrency = 1\nsmtp_connection_cache_on_demand = no\nsmtp_rcpt_timeout = 300s\n"
	a, b := c.node("a"), c.node("b")
	a.start()
	b.start()
	c.shared(a, "a", "b")
	a.eventually("it takes mail", func() bool { return a.send("a@from.test", []string{"slow@to.test"}, "Subject: slow\n\nx\n") == nil })
	b.mustSend("b@from.test", []string{"b@to.test"}, "Subject: waits\n\nx\n")
	id := queueID.FindStringSubmatch(b.waitLog(`from=<b@from\.test>`))[1]
	b.eventually("it is said what it waits for", func() bool {
		out, status := b.tool(nil, "explain", id)
		return status == 0 && strings.Contains(out, "wait for a share of the destination's concurrency limit, which other nodes of the cluster have")
	})
}

// What a client does at one node counts at the other, which refuses it then, and no more when that node is gone.
func TestClusterClients(t *testing.T) {
	t.Parallel()
	const limit = 40
	c := newCluster(t, newSink(t, nil), 2)
	c.main += fmt.Sprintf("smtpd_client_message_rate_limit = %d\nsmtpd_client_event_limit_exceptions =\nanvil_rate_time_unit = 1d\n", limit)
	// The service has the same name on both but for the address, as on machines of their own.
	port := freePort(t)
	node := func(name, addr string) *system {
		s := newSystem(t, options{main: c.main + "cluster_node_name = " + name + "\n", unstarted: true,
			master: fmt.Sprintf("%s:%d inet n - n - - smtpd\n", addr, port)})
		s.write("password", "secret\n")
		s.start()
		return s
	}
	from := func(addr string) string {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}).Dial("tcp", net.JoinHostPort(addr, strconv.Itoa(port)))
		if err != nil {
			return err.Error()
		}
		defer conn.Close()
		client, err := smtp.NewClient(conn, "x")
		if err == nil {
			err = client.Mail("a@from.test")
		}
		return fmt.Sprint(err)
	}
	// counted is how many messages b knows of; to ask that is not counted.
	counted := func(s *system) (n int) {
		conn, err := net.Dial("unix", s.path("spool/private/anvil"))
		if err != nil {
			return -1
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(conn, "request=lookup\nident=127.0.0.2:%d:127.0.0.1\n\n", port)
		lines := bufio.NewScanner(conn)
		for lines.Scan() {
			if mail, ok := strings.CutPrefix(lines.Text(), "mail="); ok {
				n, _ = strconv.Atoi(mail)
				return n
			}
		}
		return -1
	}
	a, b := node("a", "127.0.0.1"), node("b", "127.0.0.2")
	const tooMuch = "too much mail"
	testwait.Until(t, "b answers", func() bool { return from("127.0.0.2") == "<nil>" })
	testwait.Until(t, "a has counted enough", func() bool { return strings.Contains(from("127.0.0.1"), tooMuch) })
	testwait.Until(t, "b has heard of it", func() bool { return counted(b) > limit })
	if got := from("127.0.0.2"); !strings.Contains(got, tooMuch) {
		t.Errorf("b: %s", got)
	}
	a.stop()
	testwait.Until(t, "b goes by its own counts", func() bool { n := counted(b); return n > 0 && n < limit })
	if got := from("127.0.0.2"); got != "<nil>" {
		t.Errorf("b alone: %s", got)
	}
}
