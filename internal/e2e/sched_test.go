package e2e

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// bigMail is the sender of the message with many recipients.
const bigMail = "big@from.test"

// order is the order in which recipients reach a slow next hop.
type order struct {
	mu    sync.Mutex
	big   int         // recipients of the big message so far
	small map[int]int // by small message: how many of those came while it waited
	start map[int]int // and how many had come when it was sent
	wait  map[int]time.Duration
	sent  map[int]time.Time
}

// wholeMix runs TestSmallMailPasses at the size that docs/scheduler.md states.
var wholeMix = flag.Bool("mix.whole", false, "5,000 recipients and 200 small messages instead of a part of that")

// runMix sends one message to many recipients, and while that is under way
// many messages to one, over a next hop that takes its time for each delivery. The next hop holds the first
// deliveries until all mail is queued, so that it does not matter how fast it is sent.
func runMix(t *testing.T, scheduler string, recipients, small int) *order {
	t.Helper()
	o := &order{small: map[int]int{}, start: map[int]int{}, wait: map[int]time.Duration{}, sent: map[int]time.Time{}}
	queued := make(chan struct{})
	next := newSink(t, func(line string) string {
		switch {
		case strings.HasPrefix(line, "RCPT TO:<b"):
			o.mu.Lock()
			o.big++
			o.mu.Unlock()
		case strings.HasPrefix(line, "RCPT TO:<s"):
			var n int
			fmt.Sscanf(line, "RCPT TO:<s%d@", &n)
			o.mu.Lock()
			o.small[n] = o.big - o.start[n]
			o.wait[n] = time.Since(o.sent[n])
			o.mu.Unlock()
		case line == ".":
			<-queued
			time.Sleep(50 * time.Millisecond) // the next hop's work
		}
		return ""
	})
	release := sync.OnceFunc(func() { close(queued) })
	t.Cleanup(release)
	s := newSystem(t, options{main: next.relayhost() + "default_scheduler = " + scheduler +
		"\nsmtp_destination_concurrency_limit = 20\nsmtp_destination_recipient_limit = 1\nsmtpd_recipient_limit = 10000\n"})
	to := make([]string, recipients)
	for i := range to {
		to[i] = fmt.Sprintf("b%d@to.test", i)
	}
	s.mustSend(bigMail, to, "Subject: big\n\nx\n")
	s.eventually("the big message is on its way", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.big > 0
	})
	for i := range small {
		o.mu.Lock()
		o.sent[i], o.start[i] = time.Now(), o.big
		o.mu.Unlock()
		s.mustSend("small@from.test", []string{fmt.Sprintf("s%d@to.test", i)}, "Subject: small\n\nx\n")
	}
	release()
	s.eventually("all small messages arrive", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.small) == small
	})
	return o
}

// Small mail does not wait behind a message with thousands of recipients: with
// preemption the median small message sees at most a quarter of the big
// message's deliveries pass while it waits that it would see first come first
// served.
func TestSmallMailPasses(t *testing.T) {
	t.Parallel()
	recipients, small := 2000, 80
	if *wholeMix {
		recipients, small = 5000, 200
	}
	median := func(o *order) int {
		var before []int
		for _, n := range o.small {
			before = append(before, n)
		}
		slices.Sort(before)
		return before[len(before)/2]
	}
	var fifo, preemptive *order
	t.Run("run", func(t *testing.T) {
		t.Run("fifo", func(t *testing.T) { t.Parallel(); fifo = runMix(t, "fifo", recipients, small) })
		t.Run("preemptive", func(t *testing.T) { t.Parallel(); preemptive = runMix(t, "preemptive", recipients, small) })
	})
	if t.Failed() {
		return
	}
	f, p := median(fifo), median(preemptive)
	t.Logf("recipients of the big message delivered while the median small message waited: fifo %d, preemptive %d of %d; median wait fifo %v, preemptive %v",
		f, p, recipients, medianWait(fifo), medianWait(preemptive))
	if p*4 > f {
		t.Errorf("preemptive %d, fifo %d: want at most a quarter", p, f)
	}
}

func medianWait(o *order) time.Duration {
	var w []time.Duration
	for _, d := range o.wait {
		w = append(w, d)
	}
	slices.Sort(w)
	return w[len(w)/2].Round(time.Millisecond)
}
