package e2e

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

var holdPause = flag.Bool("reload.pause", false, "fail when a reload holds mail up for longer than it may; for a machine that does nothing else")

// reloadPause is how long a reload may hold up deliveries, and how long nothing may be accepted.
const reloadPause = 300 * time.Millisecond

// However many deliveries hang, and for however many reloads: others go on, and mail is
// accepted. The deliveries that hang are those of earlier generations of agents by then, and are
// not made again; nothing but the end of the test ends them. So whoever waits for them waits for ever.
//
// 40 clients send small messages as fast as they are answered, but for a bound on what is under way.
// Each message has four recipients at a next hop that takes one at a time
// (smtp_destination_recipient_limit = 1), so that four messages are delivered, each in an SMTP
// transaction of its own, for one that is accepted. Deliveries and acceptances are counted.
//
// What is asserted is that each message that was accepted is delivered to each recipient, and once.
// With -reload.pause, on a machine that does nothing else, each reload is held to
// reloadPause as well, from the command until all services have been replaced and have done some work.
// Two things are allowed for: the longest time for which a thread of the test itself was due and did not
// run meanwhile, and the longest time without a delivery, or an acceptance, in a span as long right
// before the reload or right after it. Should a reload take longer all the same, everything is measured
// anew, once.
func TestReloadHoldsNobodyUp(t *testing.T) {
	for _, r := range []reloading{{name: "none hangs"}, {name: "100 hang", hang: 100}, {name: "metrics", hang: 10, metrics: true}} {
		t.Run(r.name, func(t *testing.T) {
			if !*holdPause {
				r.untimed = true
				r.measure(t, 2)
				return
			}
			for try := 1; ; try++ {
				var tooLong []string
				for i, p := range r.measure(t, 2) {
					t.Logf("reload %d: %s", i+1, p)
					if text := p.tooLong(); text != "" {
						tooLong = append(tooLong, fmt.Sprintf("reload %d: %s", i+1, text))
					}
				}
				if len(tooLong) == 0 {
					return
				}
				if try == 2 {
					t.Fatalf("reloads hold mail up, twice: %s", strings.Join(tooLong, "; "))
				}
				t.Logf("measured once more: %s", strings.Join(tooLong, "; "))
			}
		})
	}
}

// A reloading is a mail system that is reloaded under load.
type reloading struct {
	name       string
	hang       int  // so many more deliveries hang before each reload
	metrics    bool // metrics_listen is set
	postscreen bool // clients come by postscreen
	twice      bool // there is another reload before the first has come to its end
	queue      int  // deferred messages that are in the queue
	restart    bool // instead of a reload the mail system is stopped and started
	untimed    bool // there is load for no longer than the reloads take
}

// A pause is what a reload did to mail.
type pause struct {
	span              time.Duration // until all had been replaced
	delivery, accept  time.Duration // the longest time without one
	without, withoutA time.Duration // the same when nothing was reloaded
	late              time.Duration // for which a thread was due and did not run
	rate, rateA       float64       // deliveries and acceptances a second, before
	share             float64       // of the processor time that was used before it and after it: what the mail system and the test had
	system, test      time.Duration // of the processor, for each delivery before: the mail system's, and that of clients and next hop
}

func (p pause) String() string {
	ms := func(d time.Duration) int64 { return d.Milliseconds() }
	return fmt.Sprintf("in %d ms, no delivery for %d ms (without a reload %d), nothing accepted for %d ms (%d), a thread late by %d ms; before it %.0f deliveries/s, %.0f accepted/s, with %.0f %% of the processor time used, %d us for a delivery, and clients and next hop %d",
		ms(p.span), ms(p.delivery), ms(p.without), ms(p.accept), ms(p.withoutA), ms(p.late), p.rate, p.rateA, 100*p.share, p.system.Microseconds(), p.test.Microseconds())
}

// tooLong says what the reload has held up for longer than it may, and than the machine accounts for.
func (p pause) tooLong() string {
	var list []string
	if limit := reloadPause + p.without + p.late; p.delivery > limit {
		list = append(list, fmt.Sprintf("no delivery for %v, limit %v", p.delivery, limit))
	}
	if limit := reloadPause + p.withoutA + p.late; p.accept > limit {
		list = append(list, fmt.Sprintf("nothing accepted for %v, limit %v", p.accept, limit))
	}
	return strings.Join(list, ", ")
}

// reloadRun is one mail system with its load.
type reloadRun struct {
	t       testing.TB
	s       *system
	arrived *counter
	sent    *streams
	waker   *pulse
	deaf    *deaf
}

// copies are the recipients of each message.
var copies = []string{"a@to.test", "b@to.test", "c@to.test", "d@to.test"}

// measure reloads several times, and then has all that was accepted come, and come once.
func (r reloading) measure(t testing.TB, rounds int) (list []pause) {
	run := &reloadRun{t: t, arrived: newCounter(t), deaf: newDeaf(t, r.hang)}
	run.s = r.system(t, run.arrived.relayhost(), run.deaf)
	run.waker = newWaker(t)
	run.sent = startStreams(run.s, run.arrived, 40, copies)
	defer run.sent.end()
	if r.untimed {
		run.more(200)
	} else {
		run.more(2000)
	}
	span := time.Second
	var agents []int
	for i := range rounds {
		if r.hang > 0 {
			run.s.mustSend("a@from.test", run.deaf.addresses(i), "Subject: x\n\nx\n")
			run.s.eventually("deliveries hang", func() bool { return run.deaf.calls.Load() >= int64(r.hang*(i+1)) })
			agents = run.s.processes("smtp")
		}
		var before, after pause
		if !r.untimed {
			before = run.idle(span)
		}
		p := run.during(func() { r.reload(run.s) })
		if !r.restart {
			goOn(t, run.s, run.deaf, agents)
		}
		if !r.untimed {
			after = run.idle(p.span)
		}
		p.without, p.withoutA = max(before.delivery, after.delivery), max(before.accept, after.accept)
		p.rate, p.rateA, p.share = before.rate, before.rateA, max(before.share, after.share) // the time of processes that end is missing
		p.system, p.test = before.system, before.test
		span = p.span
		list = append(list, p)
	}
	if n := run.deaf.calls.Load(); n != int64(r.hang*rounds) {
		t.Errorf("%d deliveries hang, of %d that were ordered", n, r.hang*rounds)
	}
	run.sent.end()
	sent := run.sent.accepted()
	for missing := 1; missing > 0; { // as long as more arrive
		before := run.arrived.count()
		run.s.eventually("all that was accepted is delivered", func() bool {
			list, _ := run.arrived.amiss(sent, copies)
			missing = len(list)
			return missing == 0 || run.arrived.count() > before
		})
	}
	if _, twice := run.arrived.amiss(sent, copies); len(twice) > 0 {
		t.Errorf("of %d messages, %d deliveries were made more than once: %v", len(sent), len(twice), twice[:min(len(twice), 10)])
	}
	return list
}

// more waits for n more deliveries.
func (run *reloadRun) more(n int) {
	run.t.Helper()
	want := run.arrived.count() + n
	run.s.eventually("more messages arrive", func() bool { return run.arrived.count() >= want })
}

// idle is what there is without a reload, for that long.
func (run *reloadRun) idle(span time.Duration) pause {
	began, n := time.Now(), run.arrived.count()
	all, system, test := processorTimeUsed(run.t), run.s.processorTime(), run.processorTime()
	p := run.during(func() { time.Sleep(time.Until(began.Add(span))) })
	all, system, test = processorTimeUsed(run.t)-all, run.s.processorTime()-system, run.processorTime()-test
	p.share = min(1, (system+test).Seconds()/all.Seconds())
	if n = run.arrived.count() - n; n > 0 {
		p.system, p.test = system/time.Duration(n), test/time.Duration(n)
	}
	return p
}

// processorTime is what the test has used: clients and next hop.
func (run *reloadRun) processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		run.t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// processorTimeUsed is what all of the machine has used, and what was stolen from it.
func processorTimeUsed(t testing.TB) time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	ticks := 0
	for i, field := range strings.Fields(strings.SplitN(string(b), "\n", 2)[0]) {
		if n, err := strconv.Atoi(field); err == nil && i != 4 && i != 5 && i <= 8 { // neither idle nor waiting; guests are in the others
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// during measures while do runs, and until 1000 more messages have been delivered, and 250 more accepted: those
// who serve by then have done some of it.
func (run *reloadRun) during(do func()) (p pause) {
	run.t.Helper()
	began, n, m := time.Now(), run.arrived.count(), run.sent.count()
	do()
	accepted := run.sent.count() + 250
	run.more(1000)
	run.s.eventually("more messages are accepted", func() bool { return run.sent.count() >= accepted })
	ended := time.Now()
	p.span = ended.Sub(began)
	p.delivery, p.accept, p.late = run.arrived.gap(began, ended), run.sent.gap(began, ended), run.waker.gap(began, ended)
	p.rate, p.rateA = float64(run.arrived.count()-n)/p.span.Seconds(), float64(run.sent.count()-m)/p.span.Seconds()
	return p
}

// reload reloads, and returns when the old queue manager and the old cleanup, which are the last to be
// replaced, have gone.
func (r reloading) reload(s *system) {
	if r.restart {
		s.mustTool("stop")
		<-s.done
		s.start()
		return
	}
	names := []string{"qmgr", "cleanup"}
	old := s.processes(names...)
	var reloads sync.WaitGroup
	if r.twice {
		reloads.Go(func() { s.mustTool("reload") })
	}
	s.mustTool("reload")
	reloads.Wait()
	s.eventually("the old processes have gone", func() bool { // to ask the new ones would be more load
		now := s.processes(names...)
		return len(now) == 2 && !slices.Contains(old, now[0]) && !slices.Contains(old, now[1])
	})
}

// system starts a mail system that sends to hosts that are deaf, and otherwise to the relay host.
func (r reloading) system(t testing.TB, relayhost string, d *deaf) (s *system) {
	o := options{main: relayhost + "transport_maps = texthash:{dir}/etc/transport\nsmtp_helo_timeout = 3600\nsmtpd_peername_lookup = no\n" +
		"relay_destination_recipient_limit = 1\nsmtp_destination_recipient_limit = 1\nsmtp_destination_concurrency_limit = 50\n", unstarted: true,
		master: "smtp unix - - n - 1000 smtp\n"}
	if *holdPause { // what is measured is the usual log
		o.main += "spool_segment_size = 64m\n"
	}
	if r.postscreen {
		o.main += "postscreen_greet_wait = 0\n"
		o.master += "127.0.0.1:{port} inet n - n - 1 postscreen\nsmtpd pass - - n - - smtpd\ndnsblog unix - - n - 0 dnsblog\ntlsproxy unix - - n - 0 tlsproxy\n"
	}
	if r.metrics {
		o.master += "metrics unix - - n - 1 metrics\n"
		s, _ = newMeasured(t, o)
	} else {
		s = newSystem(t, o)
	}
	s.write("etc/transport", d.transports())
	if r.queue > 0 {
		fillDeferred(t, s, r.queue, 0)
	}
	s.start()
	return s
}

// goOn has the agents that hang still live, and hang: what has been delivered
// meanwhile has not waited for them.
func goOn(t testing.TB, s *system, d *deaf, agents []int) {
	t.Helper()
	now := s.processes("smtp")
	for _, pid := range agents {
		if !slices.Contains(now, pid) {
			t.Errorf("agent %d, whose deliveries hang, has ended", pid)
		}
	}
	if n := d.ended.Load(); n > 0 {
		t.Errorf("%d deliveries that hang have been given up", n)
	}
}

// A reload keeps what has been learnt: a destination that is dead is not tried
// again because of it, and only the recipients whose delivery goes on wait for that.
func TestReloadKeepsWhatIsLearnt(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	refusing := newSink(t, func(line string) string {
		if line == "" {
			calls.Add(1)
			return "421 4.7.0 go away"
		}
		return ""
	})
	next := newSink(t, nil)
	d := newDeaf(t, 1)
	s := newSystem(t, options{main: next.relayhost() + "transport_maps = texthash:{dir}/etc/transport\nsmtp_helo_timeout = 3600\n" +
		"smtp_initial_destination_concurrency = 1\nin_flow_delay = 0\ntransport_retry_time = 4000s\nminimal_backoff_time = 4000s\n", unstarted: true})
	s.write("etc/transport", d.transports()+fmt.Sprintf("refusing.test smtp:[127.0.0.1]:%d\n", refusing.port()))
	s.start()
	s.mustSend("a@from.test", []string{"b@refusing.test"}, "Subject: x\n\nx\n")
	s.waitLog(`to=<b@refusing\.test>.*status=deferred`)
	s.mustSend("a@from.test", []string{"c@refusing.test"}, "Subject: x\n\nx\n")
	s.waitLog(`to=<c@refusing\.test>.*delivery temporarily suspended`)
	before := calls.Load()
	s.mustSend("a@from.test", []string{"g0@d0.deaf.test"}, "Subject: x\n\nx\n")
	s.eventually("a delivery hangs", func() bool { return d.calls.Load() == 1 })
	old := s.processes("qmgr")
	for range 3 {
		s.mustTool("reload")
		old = append(old, s.newQueueManager(old...))
	}
	s.mustSend("a@from.test", []string{"d@refusing.test", "e@to.test"}, "Subject: x\n\nx\n")
	s.waitLog(`to=<d@refusing\.test>.*delivery temporarily suspended`)
	s.waitLog(`to=<e@to\.test>.*status=sent`)
	if now := calls.Load(); now != before {
		t.Errorf("a dead destination was tried %d times after the reload", now-before)
	}
	if n := d.calls.Load(); n != 1 {
		t.Errorf("a delivery that goes on was made %d times", n)
	}
	if strings.Contains(s.log(), "to=<g0@d0.deaf.test>") {
		t.Errorf("something is said of a delivery that goes on:\n%s", s.log())
	}
	s.mustTool("flush") // an operator's way to have all tried again
	s.eventually("the dead destination is tried again", func() bool { return calls.Load() > before })
}
