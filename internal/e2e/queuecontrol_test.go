package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
)

// A destination is suspended: nothing reaches it over a reload, a killed
// queue manager and a restart of everything, until it is resumed; no attempt is
// counted, and other mail flows.
func TestSuspendedDestination(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost()})
	s.expect("posthaste queue: slow.test is suspended\n", "queue", "suspend", "slow.test", "--reason", "too fast for them")
	s.mustSend("a@from.test", []string{"x@slow.test", "y@quick.test"}, "Subject: one\n\none\n")
	s.eventually("the other recipient's copy arrives", func() bool { return len(next.received()) == 1 })
	s.waitLog(`to=<x@slow\.test>, relay=none, .* dsn=4\.3\.2, status=deferred \(delivery to slow\.test is suspended: too fast for them\)`)
	waits := func(what string) {
		t.Helper()
		s.eventually("the suspension is known "+what, func() bool {
			out, status := s.tool(nil, "queue", "suspended")
			return status == 0 && strings.HasPrefix(out, "slow.test: suspended by ") && strings.HasSuffix(out, ": too fast for them\n")
		})
		s.eventually("the message waits "+what, func() bool {
			out := s.mustTool("queue", "list", "-j", "--domain=slow.test", "--queue=deferred")
			return strings.Count(out, "\n") == 1 && strings.Contains(out, `"attempts": 0, `) && strings.Contains(out, `"dsn": "4.3.2"`)
		})
		s.mustTool("postqueue", "-f")
	}
	waits("at once")
	s.mustTool("reload")
	waits("after a reload")
	s.kill("qmgr")
	waits("after the queue manager was killed")
	s.stop()
	if names, err := filepath.Glob(s.path("data/overrides/overrides")); err != nil || len(names) != 1 {
		t.Errorf("the overrides lie in %v, %v", names, err)
	}
	s.start()
	waits("after a restart")
	s.eventually("the destination is explained", func() bool {
		out := s.mustTool("explain", "slow.test")
		return strings.Contains(out, "slow.test is suspended by ") && strings.Contains(out, "1 message(s)")
	})
	if n := len(next.received()); n != 1 {
		t.Errorf("%d messages have arrived", n)
	}
	s.expect("posthaste queue: slow.test is resumed\n", "queue", "resume", "slow.test")
	s.eventually("what has waited arrives", func() bool { return len(next.received()) == 2 })
	s.waitLog(`qmgr\[\d+\]: delivery to slow\.test resumed by `)
	if out, status := s.tool(nil, "queue", "resume", "slow.test"); status != 66 {
		t.Errorf("exit status %d: %s", status, out)
	}
}

// No more deliveries than a limit allows are under way at once, after a reload and after a kill, too. Whoever
// looks is told, and without the limit there are more.
func TestLimitedDestination(t *testing.T) {
	t.Parallel()
	var busy, most atomic.Int64
	gate := make(chan struct{})
	next := newSink(t, func(line string) string {
		if line != "." {
			return ""
		}
		n := busy.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-gate
		busy.Add(-1)
		return ""
	})
	t.Cleanup(func() { close(gate) })
	s := newSystem(t, options{main: next.relayhost()})
	hop := strings.TrimSpace(strings.TrimPrefix(next.relayhost(), "relayhost = "))
	if out, status := s.tool(nil, "limit", hop, "2", "--reason", "they are slow"); status != 0 || !strings.Contains(out, hop+" is limited to 2 at a time; no mail goes there now\n") {
		t.Fatalf("exit status %d: %s", status, out)
	}
	done := 0
	bounded := func(when string) {
		t.Helper()
		for range 5 {
			s.mustSend("a@from.test", []string{"x@slow.test"}, "Subject: one\n\none\n")
		}
		s.eventually("all are taken up "+when, func() bool {
			out := s.mustTool("limited")
			return strings.HasPrefix(out, hop+": limited to 2 at a time by ") && strings.HasSuffix(out, "; 2 deliveries are under way, 3 wait: they are slow\n")
		})
		s.eventually("two are under way "+when, func() bool { return busy.Load() == 2 })
		if out := s.mustTool("postqueue", "-j"); strings.Count(out, `"limited": "`+hop+`"`) != 5 {
			t.Errorf("%s postqueue -j prints\n%s", when, out)
		}
		if out := s.mustTool("postqueue", "-p"); !strings.Contains(out, "(delivery to "+hop+" is limited to 2 at a time: they are slow)") {
			t.Errorf("%s mailq prints\n%s", when, out)
		}
		for range 5 {
			gate <- struct{}{}
		}
		done += 5
		s.eventually("they arrive "+when, func() bool { return len(next.received()) == done && s.mustTool("postqueue", "-j") == "" })
		if n := most.Load(); n != 2 {
			t.Errorf("%s: %d at once", when, n)
		}
	}
	bounded("at once")
	s.mustTool("reload")
	bounded("after a reload")
	s.kill("qmgr")
	bounded("after the queue manager was killed")
	s.stop()
	s.start()
	bounded("after a restart")
	s.mustTool("unlimit", hop)
	s.waitLog(`qmgr\[\d+\]: limit of delivery to ` + regexp.QuoteMeta(hop) + ` lifted by `)
	for range 5 {
		s.mustSend("a@from.test", []string{"x@slow.test"}, "Subject: one\n\none\n")
	}
	s.eventually("more are under way", func() bool { return busy.Load() > 2 })
	for range 5 {
		gate <- struct{}{}
	}
	if out, status := s.tool(nil, "unlimit", hop); status != 66 {
		t.Errorf("exit status %d: %s", status, out)
	}
}

// Mail goes by the relay host that it is diverted to, over reload, kill and restart; local mail stays here, and
// afterwards the relay host of main.cf has it again.
func TestDivertedDestination(t *testing.T) {
	t.Parallel()
	dead := freePort(t)
	second := newSink(t, nil)
	relay := fmt.Sprintf("[127.0.0.1]:%d", dead)
	s := newSystem(t, options{main: "relayhost = " + relay + "\nminimal_backoff_time = 1h\nmaximal_backoff_time = 2h\n"})
	s.mustSend("a@from.test", []string{"x@far.test"}, "Subject: one\n\none\n")
	s.waitLog(`to=<x@far\.test>, .*status=deferred .*Connection refused`)
	hop := strings.TrimSpace(strings.TrimPrefix(second.relayhost(), "relayhost = "))
	out, status := s.tool(nil, "divert", relay, hop, "--reason", "it is down")
	if status != 0 || !strings.Contains(out, relay+" is diverted to "+hop+"\n") || !strings.Contains(out, "1 message in the queue") {
		t.Fatalf("exit status %d: %s", status, out)
	}
	if out := s.mustTool("postqueue", "-j"); !strings.Contains(out, `"diverted": "`+relay+`"`) {
		t.Errorf("postqueue -j prints\n%s", out)
	}
	s.mustTool("queue", "flush", "--nexthop="+hop)
	s.eventually("what waited arrives", func() bool { return len(second.received()) == 1 })
	for i, again := range []func(){func() { s.mustTool("reload") }, func() { s.kill("qmgr") }, func() { s.stop(); s.start() }} {
		// What the queue manager has not heard of when it is killed is delivered again.
		s.eventually("the queue is empty", func() bool { return strings.Contains(s.mustTool("mailq"), "Mail queue is empty") })
		again()
		s.mustSend("a@from.test", []string{"x@far.test"}, "Subject: one\n\none\n")
		s.eventually("the next one arrives", func() bool { return len(second.received()) == 2+i })
	}
	if out := s.mustTool("diverted"); !strings.HasPrefix(out, relay+": diverted to "+hop+" by ") || !strings.HasSuffix(out, ": it is down\n") {
		t.Errorf("diverted: %s", out)
	}
	s.mustTool("undivert", relay)
	s.mustSend("a@from.test", []string{"y@far.test"}, "Subject: one\n\none\n")
	s.waitLog(`to=<y@far\.test>, .*status=deferred .*Connection refused`)
	s.waitLog(`qmgr\[\d+\]: diversion of delivery to ` + regexp.QuoteMeta(relay) + ` ended by `)
	if n := len(second.received()); n != 4 {
		t.Errorf("%d messages have arrived", n)
	}
}

// A campaign is suspended by its sender while other mail flows; listings say so. A suspension
// with an end is over by itself.
func TestSuspendedSender(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost()})
	s.expect("posthaste suspend: mail from @list.test is suspended\n", "suspend", "--sender-domain=list.test", "--reason", "wrong prices")
	for i, m := range [][2]string{{"a@list.test", "x@one.test"}, {"b@list.test", "x@two.test"}, {"boss@work.test", "x@one.test"}} {
		s.mustSend(m[0], []string{m[1]}, fmt.Sprintf("Subject: x\n\nnumber %d\n", i))
	}
	s.eventually("other mail arrives", func() bool { return len(next.received()) == 1 })
	s.waitLogN(`status=deferred \(mail from @list\.test is suspended: wrong prices\)`, 2)
	s.eventually("two wait", func() bool { return strings.Contains(s.mustTool("suspended", "-j"), `"waiting": 2}`) })
	if out := s.mustTool("suspend", "-n", "--domain=two.test"); !strings.HasPrefix(out, "posthaste suspend: dry run, nothing is changed: domain two.test would suspend 1 message, ") {
		t.Errorf("dry run: %s", out)
	}
	if out := s.mustTool("mailq"); strings.Count(out, "(mail from @list.test is suspended: wrong prices)\n") != 2 {
		t.Errorf("mailq:\n%s", out)
	}
	if out := s.mustTool("postqueue", "-j"); strings.Count(out, `"suspended": "sender=@list.test"}`) != 2 {
		t.Errorf("postqueue -j:\n%s", out)
	}
	if out := s.mustTool("qshape", "-s", "deferred"); !strings.Contains(out, " suspended\n") {
		t.Errorf("qshape -s:\n%s", out)
	}
	out, status := s.tool(nil, "suspend", "two.test", "--for", "3")
	if status != 0 && !strings.Contains(out, "its end lies in the past") { // it does on a machine that takes so long for a command
		t.Errorf("exit status %d: %s", status, out)
	}
	s.expect("posthaste resume: mail from @list.test is resumed\n", "resume", "--sender-domain=list.test")
	s.eventually("what has waited arrives", func() bool { return len(next.received()) == 3 })
	if status == 0 {
		s.waitLog(`qmgr\[\d+\]: delivery to two\.test resumed: the time of its suspension is over`)
	}
	if out := s.mustTool("suspended"); out != "" {
		t.Errorf("suspended: %s", out)
	}
}

// A campaign is put on hold, looked at and deleted by its sender and by what was
// said of it, with nothing else touched, while the mail system runs and when
// it does not.
func TestSelectedMail(t *testing.T) {
	t.Parallel()
	next := newSink(t, func(line string) string {
		if strings.Contains(line, "@full.test") {
			return "452 4.2.2 mailbox full"
		}
		if strings.HasPrefix(line, "RCPT") {
			return "450 4.7.1 try later"
		}
		return ""
	})
	s := newSystem(t, options{main: next.relayhost()})
	for _, m := range [][2]string{{"news@list.test", "a@one.test"}, {"news@list.test", "b@full.test"}, {"boss@work.test", "c@full.test"}} {
		s.mustSend(m[0], []string{m[1]}, "Subject: x\n\nx\n")
	}
	s.eventually("all is deferred", func() bool {
		return strings.Count(s.mustTool("queue", "list", "-j", "--queue=deferred"), "\n") == 3
	})
	dry := s.mustTool("queue", "delete", "--sender=news@list.test", "--dry-run")
	if !strings.Contains(dry, "a@one.test\n") || !strings.Contains(dry, "b@full.test\n") || strings.Contains(dry, "boss@") ||
		!strings.Contains(dry, "posthaste queue: dry run, nothing is changed: Deleted: 2 messages\n") {
		t.Errorf("dry run:\n%s", dry)
	}
	hop := "--nexthop=" + strings.TrimSpace(strings.TrimPrefix(next.relayhost(), "relayhost = "))
	s.expect("posthaste queue: Placed on hold: 2 messages\n", "queue", "hold", hop, "--reply=mailbox full")
	s.expect("postsuper: Released from hold: 1 message\n", "postsuper", "-H", "ALL", "--sender=news@list.test", "hold")
	s.expect("posthaste queue: Deleted: 1 message\n", "queue", "delete", "--sender=news@list.test", "--reply=/4\\.7\\.1/")
	s.stop()
	s.expect("posthaste queue: Deleted: 1 message\n", "queue", "delete", "--queue=hold", "--smaller=1m")
	if left := s.mustTool("mailq"); !strings.Contains(left, "news@list.test") || strings.Count(left, "@full.test") != 1 {
		t.Errorf("left:\n%s", left)
	}
	if _, err := os.Stat(s.path("data/overrides")); err != nil {
		t.Error(err)
	}
}
