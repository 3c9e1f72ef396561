package e2e

import (
	"cmp"
	"flag"
	"runtime"
	"slices"
	"testing"
	"time"
)

var (
	reloadQueue  = flag.Int("reload.queue", 100_000, "deferred messages in BenchmarkReload/deep-queue")
	reloadRounds = flag.Int("reload.rounds", 5, "reloads in each part of BenchmarkReload")
)

// BenchmarkReload measures for how long a reload holds mail up, as TestReloadHoldsNobodyUp does, in
// milliseconds: the median and the longest of several reloads, and the longest time in spans as long
// without a reload (else). over-300 counts the reloads in which nothing was delivered, or nothing
// accepted, for more than 300 ms. The last part stops and starts the mail system instead.
//
// Clients and next hop have the same processors. us-system and us-clients are the processor time that a
// delivery took of either, and delivered/s-at-most is how many these processors can do at that price: where
// it is not far from delivered/s the processors are the limit, and us-clients is what the load itself takes of them.
//
//	go test ./internal/e2e -run '^$' -bench 'Reload/(plain|100-hang)$' -benchtime 1x -reload.rounds 10 -v
//	go test ./internal/e2e -run '^$' -bench Reload -reload.queue 1000000
func BenchmarkReload(b *testing.B) {
	for _, r := range []reloading{
		{name: "plain"}, {name: "100-hang", hang: 100}, {name: "metrics", metrics: true}, {name: "postscreen", postscreen: true},
		{name: "twice", twice: true}, {name: "deep-queue", queue: *reloadQueue}, {name: "restart", restart: true},
	} {
		b.Run(r.name, func(b *testing.B) {
			var list []pause
			for b.Loop() {
				list = append(list, r.measure(b, *reloadRounds)...)
			}
			for i, p := range list {
				b.Logf("%d: %s", i+1, p)
			}
			of := func(f func(pause) time.Duration) (median, most float64) {
				var all []time.Duration
				for _, p := range list {
					all = append(all, f(p))
				}
				slices.Sort(all)
				return 1e3 * all[len(all)/2].Seconds(), 1e3 * all[len(all)-1].Seconds()
			}
			report := func(name string, during, without func(pause) time.Duration) {
				median, most := of(during)
				_, other := of(without)
				b.ReportMetric(median, "ms-"+name)
				b.ReportMetric(most, "ms-"+name+"-most")
				b.ReportMetric(other, "ms-"+name+"-else")
			}
			report("undelivered", func(p pause) time.Duration { return p.delivery }, func(p pause) time.Duration { return p.without })
			report("unaccepted", func(p pause) time.Duration { return p.accept }, func(p pause) time.Duration { return p.withoutA })
			slices.SortFunc(list, func(p, q pause) int { return cmp.Compare(p.rate, q.rate) })
			b.ReportMetric(list[len(list)/2].rate, "delivered/s")
			slices.SortFunc(list, func(p, q pause) int { return cmp.Compare(p.system+p.test, q.system+q.test) })
			middle, over := list[len(list)/2], 0
			for _, p := range list {
				if p.delivery > reloadPause || p.accept > reloadPause {
					over++
				}
			}
			b.ReportMetric(float64(over), "over-300")
			b.ReportMetric(1e6*middle.system.Seconds(), "us-system")
			b.ReportMetric(1e6*middle.test.Seconds(), "us-clients")
			if cost := middle.system + middle.test; cost > 0 {
				b.ReportMetric(float64(runtime.NumCPU())/cost.Seconds(), "delivered/s-at-most")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
