package e2e

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"posthaste/internal/simnet"
)

// stormMain is a mail system with few agents, for which a storm of a few hundred dead destinations is as large as
// one of ten thousand for a hundred. Session caches would make good mail faster than a connection to each host.
const stormMain = `default_process_limit = 10
smtp_helo_timeout = 9s
smtp_connection_cache_on_demand = no
minimal_backoff_time = 300s
`

const stormAside = "smtp_slow_delivery_limit = 500\n"

// A storm is mail for destinations of which half answer nothing.
type storm struct {
	main string
	to   []string // dead ones and good ones in turn, each twice
	good int      // messages that can be delivered
}

// newStorm makes so many destinations of each kind, on addresses of loopback of their own.
func newStorm(t *testing.T, destinations int) *storm {
	t.Helper()
	var routes []string
	serve := func(name, addr string, p simnet.Profile) {
		l, err := net.Listen("tcp", addr+":0")
		if err != nil {
			t.Fatal(err)
		}
		server := simnet.Serve(l, simnet.New(p, 1))
		t.Cleanup(func() { server.Close() })
		routes = append(routes, fmt.Sprintf("{%s = smtp:[%s]:%d}", name, addr, l.Addr().(*net.TCPAddr).Port))
	}
	st := &storm{}
	good := simnet.Profiles()["good"]
	for i := range destinations {
		serve(fmt.Sprintf("dead%d.test", i), fmt.Sprintf("127.1.%d.%d", i/200, i%200+1), simnet.Profile{Kind: simnet.Dead})
		serve(fmt.Sprintf("good%d.test", i), fmt.Sprintf("127.2.%d.%d", i/200, i%200+1), good)
	}
	for n := range 2 * destinations {
		st.to = append(st.to, fmt.Sprintf("u%d@dead%d.test", n, n%destinations), fmt.Sprintf("u%d@good%d.test", n, n%destinations))
		st.good++
	}
	st.main = stormMain + "transport_maps = inline:{ " + strings.Join(routes, " ") + " }\n"
	return st
}

var goodSent = regexp.MustCompile(`to=<u\d+@good\d+\.test>.* delay=([0-9.]+),.* status=sent`)

// run sends all of it, a message to each recipient, and returns how long those for good hosts waited, in order.
func (st *storm) run(s *system) (waits []float64) {
	s.t.Helper()
	s.eventually("it takes mail", func() bool { return s.send("a@from.test", st.to[:1], "Subject: x\n\nx\n") == nil })
	for _, to := range st.to[1:] {
		if err := s.send("a@from.test", []string{to}, "Subject: x\n\nx\n"); err != nil {
			s.t.Fatal(err)
		}
	}
	// It may take minutes. That more comes is what is waited for.
	for n := 0; n < st.good; n = len(waits) {
		s.eventually("more good mail is delivered", func() bool {
			waits = waits[:0]
			for _, m := range goodSent.FindAllStringSubmatch(s.log(), -1) {
				d, _ := strconv.ParseFloat(m[1], 64)
				waits = append(waits, d)
			}
			return len(waits) > n
		})
	}
	slices.Sort(waits)
	return waits
}

// With half of the destinations dead, mail for the others goes while all that is for dead ones still waits for a
// greeting. -mix.whole measures what docs/scheduler.md states, beside the original, which may not do better.
func TestStorm(t *testing.T) {
	t.Parallel()
	if !*wholeMix {
		st := newStorm(t, 15)
		// No delivery to a dead host ends before the test does.
		st.run(newSystem(t, options{main: strings.Replace(st.main, "9s", "3600s", 1) + stormAside}))
		return
	}
	st := newStorm(t, 100)
	measure := func(name string, s *system) float64 {
		w := st.run(s)
		t.Logf("%s: good mail waits %.1f s in the median, p99 %.1f s", name, w[len(w)/2], w[len(w)*99/100])
		return w[len(w)/2]
	}
	theirs := measure("the original", newPostfix(t, options{main: st.main}))
	plain := measure("ours, slow_delivery_limit = 0", newSystem(t, options{main: st.main}))
	aside := measure("ours, slow_delivery_limit = 500", newSystem(t, options{main: st.main + stormAside}))
	if aside > theirs || aside > plain {
		t.Errorf("slow deliveries aside: %.1f s; without %.1f s, the original %.1f s", aside, plain, theirs)
	}
}
