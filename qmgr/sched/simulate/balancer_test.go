package simulate

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
)

// balanced runs mail to a load balancer with one bad server of four, over so
// many deliveries of one recipient.
func balanced(t *testing.T, arithmetic, positive, negative, balance string, deliveries int) *Report {
	t.Helper()
	r, err := Run(strings.NewReader(fmt.Sprintf(`seed 1
transport smtp feedback=%s process_limit=100 destination_recipient_limit=1 initial_destination_concurrency=5 destination_concurrency_limit=20 destination_concurrency_positive_feedback=%s destination_concurrency_negative_feedback=%s destination_concurrency_failed_cohort_limit=10
server farm members=4 bad=1 per_recipient=1s jitter=10%% balance=%s
send class=list rcpts=%d to=smtp:farm
end first-pass
`, arithmetic, positive, negative, balance, deliveries)))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestBalancer is the document's limitation of feedback less than one, with both
// ways of summing feedback, with a balancer that chooses at random and one that
// takes strict turns. It keeps the mean windows in testdata/balancer.txt.
func TestBalancer(t *testing.T) {
	t.Parallel()
	lengths := []int{400, 4000}
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "arithmetic\tpositive\tnegative\tbalance\t")
	for _, n := range lengths {
		fmt.Fprintf(w, "%d deliveries\t", n)
	}
	fmt.Fprintln(w)
	for _, arithmetic := range []string{"plain", "rounded"} {
		for _, f := range [][2]string{{"1/concurrency", "1/concurrency"}, {"1/4", "1/4"}, {"1/4", "1/5"}, {"3/4", "1/4"}, {"1", "1"}} {
			for _, balance := range []string{"turns", "random"} {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t", arithmetic, f[0], f[1], balance)
				for _, n := range lengths {
					mean, dev := balanced(t, arithmetic, f[0], f[1], balance, n).Window()
					fmt.Fprintf(w, "%.2f/%.2f\t", mean, dev)
				}
				fmt.Fprintln(w)
			}
		}
		// The document: with 1/N and 1 of K bad, growth stops at about K, for ever.
		if mean, _ := balanced(t, arithmetic, "1/concurrency", "1/concurrency", "turns", 20000).Window(); mean < 4.24 || mean > 4.26 {
			t.Errorf("%s, feedback 1/N, strict turns: mean window %.2f after 20,000 deliveries, want 4.25", arithmetic, mean)
		}
	}
	w.Flush()
	const file = "testdata/balancer.txt"
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
		t.Errorf("not what is in %s (go test -rewrite):\n%s", file, out.Bytes())
	}
}
