package simulate

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/tables.txt anew")

// row is one line of a table of Postfix's scheduler document, and what was
// published there.
type row struct {
	feedback string
	cache    string
	deferred float64 // per cent
	mean     float64
	dev      float64
	timeouts float64 // recipients; 0: not stated
}

// table is one of the document's three measurements.
type table struct {
	name   string
	title  string
	server string
	window int // initial
	rcpts  int
	rows   []row
	// seeds is how many runs a line is the mean of, when sessions are kept; 0: one.
	seeds int
	// within are the differences that a measurement of a real operating system
	// explains; docs/scheduler.md says why.
	within struct{ deferred, mean, dev float64 }
}

var feedbacks = map[string]string{"1/N": "1/concurrency", "1/sqrt(N)": "1/sqrt_concurrency", "1": "1"}

var tables = []table{
	{
		name: "connect", title: "full connection queue: 30 s connect time-out",
		server: "processes=5 queue=6 per_recipient=1s jitter=10% full=syn retry=3,6,9,12,15,21,29 timeout=30s",
		window: 20, rcpts: 2000,
		rows: []row{
			{"1/N", "no", 9.9, 19.4, 0.49, 198}, {"1/N", "yes", 10.3, 19.4, 0.49, 206},
			{"1/sqrt(N)", "no", 10.4, 19.6, 0.59, 208}, {"1/sqrt(N)", "yes", 10.6, 19.6, 0.61, 212},
			{"1", "no", 10.1, 19.5, 1.29, 202}, {"1", "yes", 10.8, 19.3, 1.57, 216},
		},
		within: struct{ deferred, mean, dev float64 }{1.2, 0.3, 0.3},
	},
	{
		name: "greeting", title: "connection queue that is never full: 300 s greeting time-out",
		server: "processes=5 queue=6 per_recipient=1s jitter=10% full=greeting retry=3,9,21,45,93 timeout=300s",
		window: 20, rcpts: 20000, seeds: 5,
		rows: []row{
			{"1/N", "no", 1.16, 19.8, 0.37, 230}, {"1/N", "yes", 1.36, 19.8, 0.36, 272},
			{"1/sqrt(N)", "no", 1.21, 19.9, 0.23, 242}, {"1/sqrt(N)", "yes", 1.36, 20.0, 0.23, 272},
			{"1", "no", 1.18, 20.0, 0.16, 236}, {"1", "yes", 1.39, 20.0, 0.16, 278},
		},
		within: struct{ deferred, mean, dev float64 }{0.15, 0.15, 0.15},
	},
	{
		name: "limiter", title: "active limiter: 421 beyond five sessions",
		server: "processes=10 per_recipient=1s jitter=10% client_limit=5",
		window: 5, rcpts: 2000,
		rows: []row{
			{"1/N", "no", 16.5, 5.17, 0.38, 0}, {"1/N", "yes", 16.5, 5.17, 0.38, 0},
			{"1/sqrt(N)", "no", 24.5, 5.28, 0.45, 0}, {"1/sqrt(N)", "yes", 24.3, 5.28, 0.46, 0},
			{"1", "no", 49.7, 5.63, 0.67, 0}, {"1", "yes", 49.7, 5.68, 0.70, 0},
		},
		within: struct{ deferred, mean, dev float64 }{0.5, 0.2, 0.2},
	},
}

// row runs one line of a table and prints it.
func (tb *table) row(t *testing.T, w io.Writer, r row) {
	t.Helper()
	var share, mean, dev [2]float64
	var timeouts [2]float64
	near := false
	for i, arithmetic := range []string{"plain", "rounded"} {
		runs := 1
		if r.cache == "yes" {
			runs = max(tb.seeds, 1)
		}
		for seed := range runs {
			rep, err := Run(strings.NewReader(tb.workload(r, arithmetic, seed+1)))
			if err != nil {
				t.Fatal(err)
			}
			if n := rep.Classes[0].Delivered + rep.DeferredRcpts; n != tb.rcpts {
				t.Errorf("%s %s: %d of %d recipients accounted for", tb.name, r.feedback, n, tb.rcpts)
			}
			share[i] += rep.DeferredShare() / float64(runs)
			timeouts[i] += 2 * float64(rep.Timeouts) / float64(runs)
			m, d := rep.Window()
			mean[i] += m / float64(runs)
			dev[i] += d / float64(runs)
		}
		near = near || math.Abs(share[i]-r.deferred) <= tb.within.deferred &&
			math.Abs(mean[i]-r.mean) <= tb.within.mean && math.Abs(dev[i]-r.dev) <= tb.within.dev
	}
	fmt.Fprintf(w, "%s\t%s\t%.2f\t%.2f\t%.2f\t%.2f/%.2f\t%.2f/%.2f\t%.2f/%.2f\t%.0f\t%.0f\t%.0f\t\n", r.feedback, r.cache,
		r.deferred, share[0], share[1], r.mean, r.dev, mean[0], dev[0], mean[1], dev[1], r.timeouts, timeouts[0], timeouts[1])
	if !near {
		t.Errorf("%s, feedback %s, caching %s: %.2f or %.2f %% deferred, window %.2f/%.2f or %.2f/%.2f; published: %.2f %%, %.2f/%.2f",
			tb.name, r.feedback, r.cache, share[0], share[1], mean[0], dev[0], mean[1], dev[1], r.deferred, r.mean, r.dev)
	}
}

func (tb *table) workload(r row, arithmetic string, seed int) string {
	return fmt.Sprintf(`title %s, feedback %s, connection caching %s
seed %d
transport smtp process_limit=100 destination_recipient_limit=2 destination_concurrency_limit=20 initial_destination_concurrency=%d destination_concurrency_positive_feedback=%s destination_concurrency_negative_feedback=%s idle_agent_time=2s cache=%s feedback=%s
server sink %s
send class=list rcpts=%d to=smtp:sink
end first-pass
`, tb.title, r.feedback, r.cache, seed, tb.window, feedbacks[r.feedback], feedbacks[r.feedback], r.cache, arithmetic, tb.server, tb.rcpts)
}

// TestTables reproduces the document's tables with both ways of summing
// feedback, the pseudocode's and today's, requires that one of them gives each
// published figure, and keeps the result in testdata/tables.txt.
func TestTables(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	for _, tb := range tables {
		fmt.Fprintf(&out, "%s\n\n", tb.title)
		w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(w, "feedback\tcaching\tdeferred %\tpseudocode\ttoday\tconcurrency\tpseudocode\ttoday\ttimed out\tpseudocode\ttoday\t")
		for _, r := range tb.rows {
			tb.row(t, w, r)
		}
		w.Flush()
		out.WriteByte('\n')
	}
	const file = "testdata/tables.txt"
	if *rewrite {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, out.Bytes()) {
		t.Errorf("the tables are not those of %s (go test -rewrite); now:\n%s", file, out.Bytes())
	}
}
