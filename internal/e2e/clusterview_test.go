package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"posthaste/internal/testwait"
)

// laterHop is a next hop that takes nothing for now.
func laterHop(t *testing.T) *sink {
	return newSink(t, func(line string) string {
		if strings.HasPrefix(line, "RCPT") {
			return "450 4.2.0 later"
		}
		return ""
	})
}

// shared waits until each of the nodes has a shard.
func (c *cluster) shared(on *system, names ...string) {
	c.t.Helper()
	on.eventually("each node has a shard", func() bool {
		out, _ := on.tool(nil, "cluster", "status")
		for _, name := range names {
			if !regexp.MustCompile(`shard \d+: ` + name + `, for`).MatchString(out) {
				return false
			}
		}
		return true
	})
}

// leaveDeferred sends a message to a node, and waits until it has been tried. It returns the queue ID.
func (s *system) leaveDeferred(from string) string {
	s.t.Helper()
	s.eventually("it takes mail", func() bool {
		return s.send(from, []string{"b@to.test"}, "Subject: for "+from+"\n\nthe body for "+from+"\n") == nil
	})
	return queueID.FindStringSubmatch(s.waitLogN(`to=<b@to\.test>.*status=deferred`, 1)[0])[1]
}

// nodesOf is which node has which message, as "mailq" on s says it; "down " is before the name of a node that is down.
func nodesOf(t *testing.T, s *system) map[string]string {
	t.Helper()
	out, status := s.tool(nil, "postqueue", "-j")
	if status != 0 {
		t.Fatalf("postqueue -j: status %d, %s", status, out)
	}
	nodes := map[string]string{}
	for line := range strings.Lines(out) {
		var it struct {
			ID   string `json:"queue_id"`
			Node string `json:"node"`
			Down bool   `json:"node_down"`
		}
		if err := json.Unmarshal([]byte(line), &it); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if it.Down {
			it.Node = "down " + it.Node
		}
		nodes[it.ID] = it.Node
	}
	return nodes
}

// Each node shows all of the queue, and whose what is: also one that has no part of it, and that of a node that is down.
func TestClusterView(t *testing.T) {
	t.Parallel()
	_, a, b := deferringPair(t)
	onA, onB := a.leaveDeferred("a@from.test"), b.leaveDeferred("b@from.test")
	for _, s := range []*system{a, b} {
		s.eventually("the whole queue is listed", func() bool {
			nodes := nodesOf(t, s)
			return len(nodes) == 2 && nodes[onA] == "a" && nodes[onB] == "b"
		})
		other, has := "b", onB
		if s == b {
			other, has = "a", onA
		}
		out, status := s.tool(nil, "mailq")
		if status != 0 || strings.Count(out, "-- On node ") != 1 || !strings.Contains(out, "\n\n-- On node "+other+":\n\n"+has) || !strings.Contains(out, "in 2 Requests") ||
			strings.Count(out, "450 4.2.0 later") != 2 {
			t.Errorf("mailq: status %d\n%s", status, out)
		}
		out, status = s.tool(nil, "postqueue", "-p", "--sender=b@from.test")
		if status != 0 || !strings.Contains(out, onB) || strings.Contains(out, onA) {
			t.Errorf("postqueue -p --sender: status %d\n%s", status, out)
		}
		for id, from := range map[string]string{onA: "a@from.test", onB: "b@from.test"} {
			if out, status := s.tool(nil, "postcat", "-q", id); status != 0 || !strings.Contains(out, "sender: "+from) || !strings.Contains(out, "the body for "+from) {
				t.Errorf("postcat: status %d\n%s", status, out)
			}
		}
		if out, status := s.tool(nil, "qshape", "deferred"); status != 0 || !regexp.MustCompile(`(?m)^ *to\.test +2 `).MatchString(out) {
			t.Errorf("qshape: status %d\n%s", status, out)
		}
	}
	if out, status := a.tool(nil, "postcat", "-q", "4k9XSc0000zzz"); status != 66 {
		t.Errorf("postcat of nothing: status %d\n%s", status, out)
	}

	if out, status := a.tool(nil, "cluster", "drain"); status != 0 {
		t.Fatalf("drain: status %d\n%s", status, out)
	}
	a.eventually("the other has all of it", func() bool {
		nodes := nodesOf(t, a)
		return nodes[onA] == "b" && nodes[onB] == "b"
	})
	b.killAll()
	a.eventually("it is seen that the other is down", func() bool {
		nodes := nodesOf(t, a)
		return len(nodes) == 2 && nodes[onA] == "down b" && nodes[onB] == "down b"
	})
	out, status := a.tool(nil, "mailq")
	if status != 0 || !strings.Contains(out, "-- On node b, which is down:\n\n") || !strings.Contains(out, "in 2 Requests") {
		t.Errorf("mailq: status %d\n%s", status, out)
	}
	if out, status := a.tool(nil, "postcat", "-q", onB); status != 0 || !strings.Contains(out, "the body for b@from.test") {
		t.Errorf("postcat: status %d\n%s", status, out)
	}
}

// A command on any node is carried out by the node that has the message, orders hold on all nodes, and a node that does not answer
// is named.
func TestClusterCommands(t *testing.T) {
	t.Parallel()
	_, a, b := deferringPair(t)
	onA, onB := a.leaveDeferred("a@from.test"), b.leaveDeferred("b@from.test")
	must := func(s *system, want string, args ...string) string {
		t.Helper()
		var out string
		var status int
		// What a node that is slow to answer was asked for was not done, and the command says so.
		s.eventually("all nodes answer", func() bool {
			out, status = s.tool(nil, args...)
			return status == 0 || !strings.Contains(out, "it does not answer")
		})
		if status != 0 || !strings.Contains(out, want) {
			t.Fatalf("%v: status %d, want %q\n%s", args, status, want, out)
		}
		return out
	}
	queueOf := func(s *system, id string) string {
		out := must(s, "", "postqueue", "-j")
		for line := range strings.Lines(out) {
			if strings.Contains(line, id) {
				return regexp.MustCompile(`"queue_name": "(\w+)"`).FindStringSubmatch(line)[1]
			}
		}
		return ""
	}
	must(a, "Placed on hold: 1 message", "postsuper", "-h", onB)
	b.waitLog("asked by node a for .*: hold 1 messages, the first of them " + onB)
	a.waitLog("asked of node b by .*: hold 1 messages, the first of them " + onB)
	if q := queueOf(b, onB); q != "hold" {
		t.Errorf("%s is in the queue %s", onB, q)
	}
	must(b, "Placed on hold: 1 message", "postsuper", "-h", "ALL")
	must(b, "Released from hold: ", "queue", "release", "ALL")
	// The release may have come between two tries, or begun one.
	if out := must(a, onB+": ", "explain", onB); !regexp.MustCompile(onB + ": (incoming|active|deferred) queue").MatchString(out) {
		t.Errorf("released, it is in none of the queues that are tried:\n%s", out)
	}
	must(b, "Placed on hold: 1 message", "queue", "hold", "--sender=a@from.test")
	if q := queueOf(a, onA); q != "hold" {
		t.Errorf("%s is in the queue %s", onA, q)
	}
	must(b, "Released from hold: 1 message", "postsuper", "-H", onA)
	tries := strings.Count(b.log(), onB+": to=")
	must(a, "", "postqueue", "-i", onB)
	b.eventually("it is tried again", func() bool { return strings.Count(b.log(), onB+": to=") > tries })

	must(a, "is suspended", "suspend", "to.test")
	must(b, "to.test: suspended by", "suspended")
	must(a, "suspended", "explain", onB)
	must(b, "is resumed", "resume", "to.test")
	if out := must(a, "", "suspended"); strings.Contains(out, "to.test") {
		t.Errorf("it is still suspended: %s", out)
	}
	must(a, "Deleted: 1 message", "postsuper", "-d", onB)
	a.eventually("it is gone", func() bool { return queueOf(a, onB) == "" && queueOf(b, onB) == "" })

	must(b, "", "cluster", "drain") // so that it stays a's
	a.killAll()
	out, status := b.tool(nil, "postsuper", "-h", onA)
	if status != 75 || !strings.Contains(out, "node a: it does not answer. This is ordered: ") {
		t.Errorf("status %d\n%s", status, out)
	}
	out, status = b.tool(nil, "suspend", "to.test")
	if status != 75 || !strings.Contains(out, "node a: it does not answer. This is ordered: ") || !strings.Contains(out, "is suspended") {
		t.Errorf("status %d\n%s", status, out)
	}
}

// The metrics of all nodes are at one of them, by node, and so is the queue at its showq service. A node that is down is named, its
// numbers are missing, and its mail is listed.
func TestClusterNumbers(t *testing.T) {
	t.Parallel()
	if err := buildMetrics(); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, laterHop(t), 2)
	main := c.main + "minimal_backoff_time = 1h\nmaximal_backoff_time = 1h\n"
	at := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	c.main = main + "metrics_listen = " + at + "\n"
	a := c.node("a")
	c.main = main + fmt.Sprintf("metrics_listen = 127.0.0.1:%d\n", freePort(t))
	b := c.node("b")
	a.start()
	b.start()
	c.shared(a, "a", "b")
	onA, onB := a.leaveDeferred("a@from.test"), b.leaveDeferred("b@from.test")
	numbers := func(what string, want map[string]float64) {
		t.Helper()
		text := ""
		defer func() {
			if t.Failed() {
				t.Log(text)
			}
		}()
		a.eventually(what, func() bool {
			got, err := scrapePath(at, "/metrics/nodes", "text/plain")
			if text = got; err != nil {
				return false
			}
			values := series(text)
			for k, v := range want {
				if got, ok := values[k]; ok != (v >= 0) || ok && got != v {
					return false
				}
			}
			return true
		})
	}
	numbers("both nodes' numbers", map[string]float64{`posthaste_node_answers{node="a"}`: 1, `posthaste_node_answers{node="b"}`: 1,
		`posthaste_queue_messages{node="a",queue="deferred"}`: 1, `posthaste_queue_messages{node="b",queue="deferred"}`: 1,
		`posthaste_deliveries_total{node="b",service="smtp",status="deferred"}`: 1})
	showq := func() string {
		conn, err := net.Dial("unix", a.path("spool/public/showq"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		got, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		return string(got)
	}
	if got := showq(); !strings.Contains(got, onA) || !strings.Contains(got, onB) || !strings.HasSuffix(got, "\x00\x00\x00") {
		t.Errorf("showq: %q", got)
	}
	if out, status := a.tool(nil, "cluster", "drain"); status != 0 { // so that it stays b's
		t.Fatalf("drain: status %d\n%s", status, out)
	}
	a.eventually("the other has all of it", func() bool { return nodesOf(t, a)[onA] == "b" })
	b.killAll()
	numbers("that the other is down", map[string]float64{`posthaste_node_answers{node="a"}`: 1, `posthaste_node_answers{node="b"}`: 0,
		`posthaste_queue_messages{node="b",queue="deferred"}`: -1})
	if got := showq(); !strings.Contains(got, onA) || !strings.Contains(got, onB) {
		t.Errorf("showq: %q", got)
	}
}

// A host that does not answer costs the second node no connection: it hears from the first one that the host is dead.
func TestClusterDeadHost(t *testing.T) {
	t.Parallel()
	var fromA, fromB atomic.Int64
	next := newSink(t, func(line string) string {
		switch {
		case strings.HasPrefix(line, "EHLO a."):
			fromA.Add(1)
		case strings.HasPrefix(line, "EHLO b."):
			fromB.Add(1)
		default:
			return ""
		}
		<-t.Context().Done()
		return ""
	})
	c := newCluster(t, next, 2)
	// Once heard of, it is not tried for an hour.
	main := strings.Replace(c.main, quick, "queue_run_delay = 1s\ntransport_retry_time = 1s\nservice_throttle_time = 1s\n", 1) +
		"minimal_backoff_time = 1h\nmaximal_backoff_time = 1h\nsmtp_helo_timeout = 2s\ninitial_destination_concurrency = 1\n"
	c.main = main + "smtp_helo_name = a.example\n"
	a := c.node("a")
	c.main = main + "smtp_helo_name = b.example\n"
	b := c.node("b")
	a.start()
	b.start()
	c.shared(a, "a", "b")
	a.eventually("it takes mail", func() bool { return a.send("a@from.test", []string{"b@to.test"}, "Subject: x\n\nx\n") == nil })
	a.waitLog(`to=<b@to\.test>.*status=deferred`)
	b.waitLog(`is not tried by smtp until`)
	const n = 5
	for range n {
		b.mustSend("b@from.test", []string{"b@to.test"}, "Subject: y\n\ny\n")
	}
	b.waitLogN(`to=<b@to\.test>.*status=deferred \(delivery temporarily suspended: .* \(as node a has found\)\)`, n)
	if fromA.Load() == 0 || fromB.Load() != 0 {
		t.Errorf("%d connections of the first node, %d of the second", fromA.Load(), fromB.Load())
	}
	if out, status := b.tool(nil, "explain", "to.test"); status != 0 || !strings.Contains(out, "as node a has found") {
		t.Errorf("explain: status %d\n%s", status, out)
	}
	// An operator who wants to know has it tried all the same.
	if out, status := b.tool(nil, "postqueue", "-f"); status != 0 {
		t.Errorf("postqueue -f: status %d\n%s", status, out)
	}
	b.eventually("it is tried", func() bool { return fromB.Load() > 0 })
}

// The limits of a domain hold over both nodes together: deliveries at a time, and recipients a day, of which both send some, and
// all that is allowed is sent. What a node has sent that is dead counts until midnight.
func TestClusterSharedLimit(t *testing.T) {
	t.Parallel()
	const limit, day = 3, 40
	busy := newCrowd()
	next := newSink(t, busy.reply)
	c := newCluster(t, next, 2)
	c.main += fmt.Sprintf("destination_limit_maps = inline:{ {127.0.0.1 = concurrency=%d recipients=%d/d} }\ninitial_destination_concurrency = 10\nsmtp_connection_cache_on_demand = no\n", limit, day)
	a, b := c.node("a"), c.node("b")
	a.start()
	b.start()
	c.shared(a, "a", "b")
	fill := func(list ...*system) {
		for range day {
			for _, s := range list {
				s.eventually("it takes mail", func() bool { return s.send("a@from.test", []string{"x@to.test"}, "Subject: x\n\nx\n") == nil })
			}
		}
	}
	fill(a, b)
	arrived := func() int { return len(next.received()) }
	testwait.Until(t, "all that is allowed is delivered", func() bool { return arrived() >= day })
	for _, s := range []*system{a, b} {
		s.waitLogN(`to=<x@to\.test>.*status=sent`, 1)
	}
	b.killAll()
	a.waitLog("took over the queue from b")
	fill(a)
	busy.within(t, limit)
	if n := arrived(); n != day {
		t.Errorf("%d recipients, %d are allowed in a day", n, day)
	}
}
