package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/ipc"
	"posthaste/internal/metrics"
	"posthaste/internal/proto"
)

const (
	// MetricsName is the metrics service, and its command, in master.cf.
	MetricsName = "metrics"
	// MetricsProgram is the program that has it.
	MetricsProgram = "posthaste-metrics"
	// reportRetry is how long a process waits before it connects again.
	reportRetry = time.Second
	// farewellTime bounds how long a process that ends waits until its last
	// counts have been taken.
	farewellTime = time.Second
)

// MetricsSpec declares the metrics service. run is nil where the service is
// only to be named, in the program that master is in.
func MetricsSpec(run func(context.Context, *Env) error) Spec {
	if run == nil {
		run = func(context.Context, *Env) error {
			return fmt.Errorf("this service is in the program %s", MetricsProgram)
		}
	}
	// It stops as one of the last: others tell it what they have counted.
	return Spec{Process: MetricsName, Program: MetricsProgram, Exclusive: true, Rank: Store, Confines: true, Sandbox: Plain, Run: run}
}

// A reporter keeps the process's connection to the metrics service, and
// answers what that asks. The nil reporter does nothing.
type reporter struct {
	env    *Env
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// newReporter makes the process's Set and has it count the log's lines.
func newReporter(env *Env) *reporter {
	env.Metrics = metrics.New()
	env.Log.Observe(env.Metrics.Event)
	env.Metrics.Offer(resources)
	return &reporter{env: env}
}

// start connects, and stays connected until close.
func (r *reporter) start() {
	if r == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.wg.Go(func() { r.keep(ctx) })
}

func (r *reporter) keep(ctx context.Context) {
	client := ipc.NewClient(r.env.Private(MetricsName), r.answer)
	hello := &proto.Present{Service: r.env.Name, Process: r.env.Process, PID: os.Getpid()}
	client.OnDial(func(c *ipc.Conn) { c.Push(hello) })
	defer client.Close()
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		c, err := client.Conn(ctx)
		if err != nil {
			return // ctx has ended
		}
		select {
		case <-c.Done():
		case <-ctx.Done():
			r.farewell(c)
			return
		}
		retry.Reset(reportRetry)
		select {
		case <-retry.C:
		case <-ctx.Done():
			return
		}
	}
}

// answer says what has been counted. It takes time where others have to be
// asked for it, so that it goes to a goroutine.
func (r *reporter) answer(_ *ipc.Conn, q *ipc.Request) {
	if q.Kind != proto.KindMeasure {
		q.Fail("%s: unknown request %d", r.env.Process, q.Kind)
		return
	}
	r.wg.Go(func() { q.Reply(r.env.Metrics.Take()) })
}

// farewell says what has been counted since the last question.
func (r *reporter) farewell(c *ipc.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), farewellTime)
	defer cancel()
	err := c.Call(ctx, r.env.Metrics.Take(), new(proto.MeasuresReply))
	if err != nil && !errors.Is(err, ipc.ErrUnsent) && !errors.Is(err, ipc.ErrLost) && ctx.Err() == nil {
		r.env.Log.Warning("metrics: the latest counts are lost: %v", err)
	}
}

// close says farewell and disconnects.
func (r *reporter) close() {
	if r == nil || r.cancel == nil {
		return
	}
	r.cancel()
	r.wg.Wait()
}

// resources offers what the process uses.
func resources(o *metrics.Offer) {
	o.Gauge(metrics.Processes, 1)
	o.Gauge(metrics.Goroutines, float64(runtime.NumGoroutine()))
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) == nil {
		o.Total(metrics.CPUSeconds, seconds(u.Utime), "user")
		o.Total(metrics.CPUSeconds, seconds(u.Stime), "system")
	}
	if b, err := os.ReadFile("/proc/self/statm"); err == nil { // not there inside chroot
		var size, resident int
		if n, _ := fmt.Sscan(string(b), &size, &resident); n == 2 {
			o.Gauge(metrics.ResidentBytes, float64(resident*os.Getpagesize()))
		}
	}
	if list, err := os.ReadDir("/proc/self/fd"); err == nil {
		o.Gauge(metrics.OpenFiles, float64(len(list)))
	}
}

func seconds(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
