package simulate

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"posthaste/internal/simnet"
)

// The measurement of docs/scheduler.md: mail for a provider of each kind, by fixed limits and by what it answers,
// with these seeds.
var adaptiveSeeds = []uint64{1, 2, 3, 4, 5}

// adaptiveLoad is what is sent to each provider: 3,000 messages at once, which a fixed limit meets as it can.
const adaptiveLoad = `title %[1]s, adaptive %[2]s
seed %[3]d
qmgr qmgr_message_active_limit=20000
transport smtp process_limit=100 destination_concurrency_limit=20 cache=yes destination_adaptive=%[2]s
server p provider=%[1]s
send class=bulk count=3000 every=50ms to=smtp:p
end at=12h
`

// measured is what a run came to, the mean of all seeds.
type measured struct {
	deferred float64 // deferrals by the provider
	done     float64 // seconds until 95 of 100 messages were delivered
	all      float64 // messages delivered
	most     float64 // deferrals in the worst of the seeds
}

func measureAdaptive(t *testing.T, provider string, adaptive bool) measured {
	t.Helper()
	word := "no"
	if adaptive {
		word = "yes"
	}
	return measureLoad(t, adaptiveLoad, provider, word)
}

// measureLoad runs a load for a provider, with a word that it has a place for, with each seed.
func measureLoad(t *testing.T, load, provider, word string) (m measured) {
	t.Helper()
	for _, seed := range adaptiveSeeds {
		r, err := Run(strings.NewReader(fmt.Sprintf(load, provider, word, seed)))
		if err != nil {
			t.Fatal(err)
		}
		n := float64(len(adaptiveSeeds))
		d := float64(r.DeferredRcpts - r.Suspended)
		m.deferred += d / n
		m.most = max(m.most, d)
		m.all += float64(r.Classes[0].Delivered) / n
		m.done += r.Classes[0].Wait(.95).Seconds() / n
	}
	return m
}

// TestAdaptive is docs/scheduler.md's case for destination_adaptive: with each kind of provider there are fewer
// deferrals, or as many, and the mail is there no later.
func TestAdaptive(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	table.WriteString("| provider | kind | deferrals: fixed | adaptive | 95 % wait at most: fixed | adaptive | delivered of 3,000: fixed | adaptive |\n|---|---|---|---|---|---|---|---|\n")
	for _, name := range []string{"microsoft", "postfix", "orange", "gmail", "comcast", "yahoo", "postgrey", "slow", "good"} {
		fixed, follows := measureAdaptive(t, name, false), measureAdaptive(t, name, true)
		fmt.Fprintf(&table, "| %s | %s | %.0f | %.0f | %.0f s | %.0f s | %.0f | %.0f |\n", name, simnet.Profiles()[name].Kind, fixed.deferred, follows.deferred, fixed.done, follows.done, fixed.all, follows.all)
		if follows.deferred > fixed.deferred*1.01 || follows.done > fixed.done*1.02 || follows.all < fixed.all*.99 {
			t.Errorf("%s: fixed %+v, adaptive %+v", name, fixed, follows)
		}
	}
	page, err := os.ReadFile("../../../docs/scheduler.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), table.String()) {
		t.Errorf("docs/scheduler.md has not this table:\n%s", table.String())
	}
}

// tunedLoad is adaptiveLoad with limits that fit the provider, such as somebody sets who knows it.
const tunedLoad = `title %[1]s, limits %[2]s
seed %[3]d
qmgr qmgr_message_active_limit=20000
transport smtp process_limit=100 destination_concurrency_limit=20 cache=yes
server p provider=%[1]s limits=%[2]s
send class=bulk count=3000 every=50ms to=smtp:p
end at=12h
`

// tuned are the limits with which a provider delivers soonest, as -adaptive.tune found them. Those that refuse nothing for how
// much comes are not here: nothing is to be tuned.
var tuned = []struct{ provider, limits string }{
	{"microsoft", "concurrency=8"},
	{"orange", "concurrency=2"},
	{"gmail", "messages=115/min"},
	{"comcast", "messages=55/min"},
	{"yahoo", "messages=20/min"},
}

var tune = flag.Bool("adaptive.tune", false, "try many limits for each provider of TestAdaptiveTuned, and print what each comes to")

// TestAdaptiveTuned sets following beside what it cannot know: limits that were chosen for each provider by trying. It
// must not take more than a tenth longer.
func TestAdaptiveTuned(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	table.WriteString("| provider | limits | deferrals: tuned | adaptive | 95 % wait at most: tuned | adaptive |\n|---|---|---|---|---|---|\n")
	for _, c := range tuned {
		if *tune {
			tryLimits(t, c.provider)
		}
		fixed, follows := measureLoad(t, tunedLoad, c.provider, c.limits), measureAdaptive(t, c.provider, true)
		fmt.Fprintf(&table, "| %s | `%s` | %.0f | %.0f | %.0f s | %.0f s |\n", c.provider, c.limits, fixed.deferred, follows.deferred, fixed.done, follows.done)
		if fixed.all < 3000 || follows.all < 3000 {
			t.Errorf("%s: not all is delivered: tuned %+v, adaptive %+v", c.provider, fixed, follows)
		}
		// A second is for what is over in one.
		if follows.done > 1.1*fixed.done+1 {
			t.Errorf("%s: following takes longer: tuned %+v, adaptive %+v", c.provider, fixed, follows)
		}
	}
	page, err := os.ReadFile("../../../docs/scheduler.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), table.String()) {
		t.Errorf("docs/scheduler.md has not this table:\n%s", table.String())
	}
}

// tryLimits prints what many limits come to.
func tryLimits(t *testing.T, provider string) {
	t.Helper()
	var list []string
	for n := 1; n <= 20; n++ {
		list = append(list, fmt.Sprintf("concurrency=%d", n))
	}
	for n := 5; n <= 200; n += 5 {
		list = append(list, fmt.Sprintf("messages=%d/min", n))
	}
	for _, limits := range list {
		m := measureLoad(t, tunedLoad, provider, limits)
		t.Logf("%s %s: %.0f deferrals, 95 %% wait %.0f s, %.0f delivered", provider, limits, m.deferred, m.done, m.all)
	}
}
