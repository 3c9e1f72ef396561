package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// sayAll is what a command printed, which must have ended with that status.
func (s *system) sayAll(status int, args ...string) string {
	s.t.Helper()
	out, got := s.tool(nil, args...)
	if got != status {
		s.t.Fatalf("%v: status %d, want %d\n%s", args, got, status, out)
	}
	return out
}

// damage changes the stored content of messages that have this text in it.
func (c *cluster) damage(text string) {
	c.t.Helper()
	c.server.Load(`\c mail
DO $$ DECLARE t text; BEGIN
	FOR t IN SELECT table_name FROM information_schema.tables WHERE table_schema = 'posthaste' AND table_name LIKE 'seg\_%' LOOP
		EXECUTE format('UPDATE posthaste.%I SET body = set_byte(body, octet_length(body) - 2, 1) WHERE position(convert_to(%L, ''UTF8'') IN body) > 0', t, '` + text + `');
	END LOOP;
END $$;
`)
}

// deferringPair starts two nodes, each with a part of the queue. The next hop defers all mail, which is not tried again for an hour.
func deferringPair(t *testing.T) (c *cluster, a, b *system) {
	c = newCluster(t, laterHop(t), 2)
	c.main += "minimal_backoff_time = 1h\nmaximal_backoff_time = 1h\n"
	a, b = c.node("a"), c.node("b")
	a.start()
	b.start()
	c.shared(a, "a", "b")
	return c, a, b
}

// carriedOut waits until an order has been carried out by one of the nodes, and fails when that happened more than once.
func carriedOut(t *testing.T, what string, nodes ...*system) {
	t.Helper()
	count := func() (n int) {
		for _, s := range nodes {
			n += len(regexp.MustCompile(`order \d+, given .* by .* on node .*: `+what).FindAllString(s.log(), -1))
		}
		return n
	}
	nodes[0].eventually("the order is carried out: "+what, func() bool { return count() > 0 })
	if n := count(); n != 1 {
		t.Errorf("carried out %d times: %s", n, what)
	}
}

// What is ordered of a node that is dead is written down, shown, and carried out once: by the node when it is back, or by the one that
// takes its part over. What is ordered later does not overtake it.
func TestClusterOrders(t *testing.T) {
	t.Parallel()
	_, a, b := deferringPair(t)
	held, deleted, flushed, requeued := a.leaveDeferred("1@from.test"), "", "", ""
	for i, id := range []*string{&deleted, &flushed, &requeued} {
		from := fmt.Sprintf("%d@from.test", i+2)
		a.mustSend(from, []string{"b@to.test"}, "Subject: x\n\nx\n")
		*id = queueID.FindStringSubmatch(a.waitLogN(`to=<b@to\.test>.*status=deferred`, i+2)[i+1])[1]
	}
	onB := b.leaveDeferred("b@from.test")
	b.sayAll(0, "cluster", "drain") // so that it stays a's
	a.eventually("the other has all of it", func() bool { return nodesOf(t, b)[onB] == "a" })
	a.killAll()

	const ordered = "node a: it does not answer. This is ordered: "
	for _, args := range [][]string{{"postsuper", "-h", held}, {"queue", "delete", deleted}, {"postqueue", "-i", flushed}, {"postsuper", "-r", requeued}, {"suspend", "to.test"}} {
		if out := b.sayAll(75, args...); !strings.Contains(out, ordered) {
			t.Errorf("%v: %s", args, out)
		}
	}
	// What the dead node does not have is nothing to be ordered.
	b.sayAll(0, "postsuper", "-h", "4k9XSc0000zzz")
	out := b.sayAll(0, "cluster", "status")
	if strings.Count(out, "\norder ") != 5 || !strings.Contains(out, "for node a: hold 1 messages, the first of them "+held) || !strings.Contains(out, "it waits until it is back") {
		t.Errorf("status: %s", out)
	}
	// It is not done before the node is back.
	if nodes := nodesOf(t, b); nodes[deleted] != "down a" || len(nodes) != 5 {
		t.Errorf("%v", nodes)
	}

	a.start()
	carriedOut(t, "hold 1 messages, the first of them "+held+": done to 1", a, b)
	carriedOut(t, "delete 1 messages, the first of them "+deleted+": done to 1", a, b)
	carriedOut(t, "flush "+flushed+": done", a, b)
	carriedOut(t, "requeue 1 messages, the first of them "+requeued+": done to 1", a, b)
	carriedOut(t, "suspension of to.test begins: done", a)
	a.waitLog(requeued + ": requeued as ")
	if out := a.sayAll(0, "postqueue", "-j"); strings.Contains(out, deleted) || strings.Contains(out, requeued) || !regexp.MustCompile(`"hold".*`+held).MatchString(out) {
		t.Errorf("%s", out)
	}
	if out := a.sayAll(0, "suspended"); !strings.Contains(out, "to.test: suspended by") {
		t.Errorf("%s", out)
	}
	if out := a.sayAll(0, "cluster", "status"); strings.Contains(out, "\norder ") {
		t.Errorf("%s", out)
	}

	// The other one takes over, and what is ordered afterwards comes afterwards.
	a.killAll()
	if out := b.sayAll(75, "queue", "release", held); !strings.Contains(out, ordered) {
		t.Errorf("%s", out)
	}
	b.sayAll(0, "cluster", "undrain")
	// At once, or when the part has been read: then it is ordered, too.
	b.eventually("a hold is taken up", func() bool {
		out, _ := b.tool(nil, "postsuper", "-h", held)
		return strings.Contains(out, "Placed on hold: 1 message") || strings.Contains(out, "This is ordered")
	})
	carriedOut(t, "release 1 messages, the first of them "+held+": done to 1", b)
	b.eventually("it is put on hold again", func() bool {
		return regexp.MustCompile(`"hold".*` + held).MatchString(b.sayAll(0, "postqueue", "-j"))
	})
}

// A command to another node that is reloaded again and again meanwhile is carried out, and its outcome is known.
func TestClusterReloads(t *testing.T) {
	t.Parallel()
	_, a, b := deferringPair(t)
	onA := a.leaveDeferred("a@from.test")
	ended, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				a.tool(nil, "reload")
			}
		}
	}()
	for range 6 {
		for _, verb := range []string{"-h", "-H"} {
			if out, status := b.tool(nil, "postsuper", verb, onA); strings.Contains(out, "is not known") || status != 0 && status != 75 {
				t.Errorf("postsuper %s: status %d\n%s", verb, status, out)
			}
		}
	}
	close(stop)
	<-ended
	a.eventually("it is where the last command has put it", func() bool {
		out, status := a.tool(nil, "postqueue", "-j")
		return status == 0 && regexp.MustCompile(`"deferred".*`+onA).MatchString(out)
	})
}

// Mail that was set aside as corrupt is deleted from any node: at once, or, where its node is dead, as it was ordered.
func TestClusterCorrupt(t *testing.T) {
	t.Parallel()
	c, a, b := deferringPair(t)
	first := a.leaveDeferred("first@from.test")
	a.mustSend("second@from.test", []string{"b@to.test"}, "Subject: x\n\nthe body for second@from.test\n")
	second := queueID.FindStringSubmatch(a.waitLogN(`to=<b@to\.test>.*status=deferred`, 2)[1])[1]
	onB := b.leaveDeferred("b@from.test")
	for id, text := range map[string]string{first: "the body for first@from.test", second: "the body for second@from.test", onB: "the body for b@from.test"} {
		c.damage(text)
		on := a
		if id == onB {
			on = b
		}
		on.sayAll(0, "postsuper", "-r", id) // reads the content
		on.eventually(id+" is set aside", func() bool {
			out, _ := on.tool(nil, "postqueue", "-j")
			return !strings.Contains(out, id)
		})
	}
	if out := b.sayAll(0, "postsuper", "-d", first, "corrupt"); !strings.Contains(out, "Deleted: 1 message") {
		t.Errorf("%s", out)
	}
	if out := b.sayAll(0, "postsuper", "-d", "ALL", "deferred"); !strings.Contains(out, "Deleted: 0 messages") {
		t.Errorf("%s", out)
	}
	b.sayAll(0, "cluster", "drain")
	a.eventually("it has all of it", func() bool { return strings.Count(a.sayAll(0, "cluster", "status"), ": a, for") == 2 })
	a.killAll()
	if out := b.sayAll(75, "postsuper", "-d", "ALL", "corrupt"); !strings.Contains(out, "This is ordered: delete ") {
		t.Errorf("%s", out)
	}
	a.start()
	for _, id := range []string{second, onB} {
		carriedOut(t, "delete 1 messages, the first of them "+id+": done to 1", a, b)
	}
	if out := a.sayAll(0, "postsuper", "-d", "ALL", "corrupt"); !strings.Contains(out, "Deleted: 0 messages") {
		t.Errorf("%s", out)
	}
}
