package simulate

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
)

// Class is what became of one class of messages.
type Class struct {
	Name       string
	Messages   int
	Recipients int
	Delivered  int // recipients
	Deferred   int // messages deferred at least once

	waits []time.Duration // arrival to end, of messages that ended
	curve []point
}

// wait notes how long a message was here.
func (c *Class) wait(d time.Duration) { c.waits = append(c.waits, d) }

// Wait is the time that a share q of the class's messages did not exceed,
// from arrival to the last delivery; 0 when none ended.
func (c *Class) Wait(q float64) time.Duration {
	if len(c.waits) == 0 {
		return 0
	}
	sorted := slices.Clone(c.waits)
	slices.Sort(sorted)
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Report is the outcome of a run.
type Report struct {
	Title         string
	Time          time.Duration // virtual
	Classes       []*Class      // in order of first appearance
	Deliveries    int           // requests given to agents
	Reused        int           // of them, over a session that was open
	Finished      int           // messages
	DeferredRcpts int           // recipients deferred, each time that one was
	Suspended     int           // of them, without an attempt
	Bounced       int           // recipients
	Expired       int           // recipients
	Timeouts      int           // connections given up

	busySum, busySquares float64 // over time
	winSum, winSquares   float64 // over deliveries
	windows              int
	curve                []point // deliveries under way
}

// point is a place in a plot.
type point struct {
	at time.Duration
	y  float64
}

func newReport(title string) *Report { return &Report{Title: title} }

func (r *Report) class(name string) *Class {
	for _, c := range r.Classes {
		if c.Name == name {
			return c
		}
	}
	c := &Class{Name: name}
	r.Classes = append(r.Classes, c)
	return c
}

// pass accounts for a span of time with so many deliveries under way.
func (r *Report) pass(d time.Duration, busy int) {
	r.busySum += d.Seconds() * float64(busy)
	r.busySquares += d.Seconds() * float64(busy) * float64(busy)
}

// window accounts for the window at the end of a delivery.
func (r *Report) window(n int) {
	r.winSum += float64(n)
	r.winSquares += float64(n) * float64(n)
	r.windows++
}

// maxPoints bounds a curve: when it is full, every second point goes.
const maxPoints = 4000

func add(curve []point, p point) []point {
	if n := len(curve); n > 0 && curve[n-1].at == p.at {
		curve[n-1] = p
		return curve
	}
	if len(curve) >= maxPoints {
		kept := curve[:0]
		for i := 0; i < len(curve); i += 2 {
			kept = append(kept, curve[i])
		}
		curve = kept
	}
	return append(curve, p)
}

func (r *Report) sample(at time.Duration, busy int) {
	r.curve = add(r.curve, point{at, float64(busy)})
}

func (r *Report) delivered(at time.Duration, c *Class) {
	c.curve = add(c.curve, point{at, float64(c.Delivered)})
}

func (r *Report) finish(at time.Duration) { r.Time = at }

// Recipients is how many there were.
func (r *Report) Recipients() (n int) {
	for _, c := range r.Classes {
		n += c.Recipients
	}
	return n
}

// DeferredShare is the share of recipients that were deferred, in per cent.
// When messages are retried it may exceed 100.
func (r *Report) DeferredShare() float64 {
	return 100 * float64(r.DeferredRcpts) / float64(max(r.Recipients(), 1))
}

// Throughput is recipients delivered per second.
func (r *Report) Throughput() float64 {
	n := 0
	for _, c := range r.Classes {
		n += c.Delivered
	}
	if r.Time <= 0 {
		return 0
	}
	return float64(n) / r.Time.Seconds()
}

// Window is the mean of the concurrency window over all deliveries, and its
// standard deviation.
func (r *Report) Window() (mean, deviation float64) {
	return moments(r.winSum, r.winSquares, float64(r.windows))
}

// Busy is the mean of the deliveries under way over time, and its standard
// deviation.
func (r *Report) Busy() (mean, deviation float64) {
	return moments(r.busySum, r.busySquares, r.Time.Seconds())
}

func moments(sum, squares, n float64) (mean, deviation float64) {
	if n <= 0 {
		return 0, 0
	}
	mean = sum / n
	return mean, math.Sqrt(max(squares/n-mean*mean, 0))
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 2, 64) }

// WriteText writes the report as a table.
func (r *Report) WriteText(w io.Writer) error {
	if r.Title != "" {
		fmt.Fprintf(w, "%s\n\n", r.Title)
	}
	wm, wd := r.Window()
	bm, bd := r.Busy()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "time\t%s s\n", seconds(r.Time))
	fmt.Fprintf(t, "throughput\t%.2f recipients/s\n", r.Throughput())
	fmt.Fprintf(t, "deliveries\t%d, %d over an open session\n", r.Deliveries, r.Reused)
	fmt.Fprintf(t, "deferred\t%d recipients (%.2f %%), %d of them without an attempt\n", r.DeferredRcpts, r.DeferredShare(), r.Suspended)
	fmt.Fprintf(t, "timed out\t%d connections\n", r.Timeouts)
	fmt.Fprintf(t, "bounced, expired\t%d, %d recipients\n", r.Bounced, r.Expired)
	fmt.Fprintf(t, "window\t%.2f, deviation %.2f\n", wm, wd)
	fmt.Fprintf(t, "concurrency\t%.2f, deviation %.2f\n\n", bm, bd)
	fmt.Fprintf(t, "class\tmessages\trecipients\tdelivered\tdeferred\twait: median\t90 %%\tmax\n")
	for _, c := range r.Classes {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%s s\t%s s\t%s s\n", c.Name, c.Messages, c.Recipients, c.Delivered, c.Deferred,
			seconds(c.Wait(0.5)), seconds(c.Wait(0.9)), seconds(c.Wait(1)))
	}
	return t.Flush()
}

// WriteCSV writes one line for each class, and one, named TOTAL, for all.
func (r *Report) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	f := func(x float64) string { return strconv.FormatFloat(x, 'f', 4, 64) }
	wm, wd := r.Window()
	bm, bd := r.Busy()
	lines := [][]string{{"class", "messages", "recipients", "delivered", "deferred_messages", "wait_median_s", "wait_p90_s", "wait_max_s",
		"time_s", "throughput_per_s", "deferred_rcpts", "deferred_percent", "timeouts", "window_mean", "window_dev", "busy_mean", "busy_dev"}}
	messages, delivered, deferred := 0, 0, 0
	for _, k := range r.Classes {
		lines = append(lines, append([]string{k.Name, strconv.Itoa(k.Messages), strconv.Itoa(k.Recipients), strconv.Itoa(k.Delivered),
			strconv.Itoa(k.Deferred), f(k.Wait(0.5).Seconds()), f(k.Wait(0.9).Seconds()), f(k.Wait(1).Seconds())}, make([]string, 9)...))
		messages += k.Messages
		delivered += k.Delivered
		deferred += k.Deferred
	}
	lines = append(lines, []string{"TOTAL", strconv.Itoa(messages), strconv.Itoa(r.Recipients()), strconv.Itoa(delivered), strconv.Itoa(deferred),
		"", "", "", f(r.Time.Seconds()), f(r.Throughput()), strconv.Itoa(r.DeferredRcpts), f(r.DeferredShare()), strconv.Itoa(r.Timeouts), f(wm), f(wd), f(bm), f(bd)})
	return c.WriteAll(lines)
}
