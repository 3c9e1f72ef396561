package main

import (
	"math"
	"testing"
	"time"
)

const us = time.Microsecond

// What a simulation must come to can be said where one thing alone holds it up.
func TestSimulate(t *testing.T) {
	path := []stage{{name: "smtpd", time: 30 * us, acked: true}, {name: "loop", time: 10 * us, alone: true}, {name: "smtp", time: 60 * us}}
	for _, c := range []struct {
		name                 string
		stages               []stage
		processors, sessions int
		rate                 float64
		busiest              string
	}{
		{"one processor does it all", path, 1, 20, 1e6 / 100, "loop"},
		{"two processors do twice as much", path, 2, 20, 2e6 / 100, "loop"},
		{"the goroutine of which there is one", path, 64, 1000, 1e6 / 10, "loop"},
		{"the slower of two such", append(path[:2:2], stage{name: "log", time: 25 * us, alone: true}), 64, 1000, 1e6 / 25, "log"},
		{"one client waits for its answers", path, 64, 1, 1e6 / 30, "loop"},
		{"nothing but processors", []stage{{name: "smtpd", time: 50 * us, acked: true}}, 16, 64, 16e6 / 50, ""},
	} {
		f := simulate(c.stages, c.processors, c.sessions, 20000)
		if math.Abs(f.rate/c.rate-1) > 0.05 || f.busiest != c.busiest {
			t.Errorf("%s: %.0f messages a second, busiest is %q; want %.0f and %q", c.name, f.rate, f.busiest, c.rate, c.busiest)
		}
	}
}

// The same run always has the same outcome.
func TestSimulateAgain(t *testing.T) {
	path := []stage{{name: "a", time: 7 * us, alone: true}, {name: "b", time: 31 * us, acked: true}, {name: "c", time: 11 * us, alone: true}}
	first := simulate(path, 4, 20, 5000)
	if again := simulate(path, 4, 20, 5000); again != first {
		t.Errorf("%+v, and then %+v", first, again)
	}
}

func TestTraces(t *testing.T) {
	const text = `File: posthaste
Type: cpu
Duration: 10s, Total samples = 50ms
-----------+-------------------------------------------------------
      30ms   runtime.mapaccess2_fast64
             posthaste/qmgr.(*Server).arrive
             posthaste/qmgr.(*Server).loop
-----------+-------------------------------------------------------
       key:  value
      1.5ms  posthaste/internal/spool.(*Spool).write
-----------+-------------------------------------------------------
      10ms   posthaste/internal/ipc.(*Conn).read
             posthaste/internal/ipc.(*Conn).readLoop
-----------+-------------------------------------------------------
      10ms   runtime.schedule
`
	got := aloneTimes(text)
	for i, want := range []time.Duration{30 * time.Millisecond, 1500 * us, 10 * time.Millisecond, 0} {
		if got[i] != want {
			t.Errorf("%s: %v, want %v", alone[i].name, got[i], want)
		}
	}
	const locks = `Type: contentions
-----------+-------------------------------------------------------
        12   internal/sync.(*Mutex).Unlock
             sync.(*Mutex).Unlock (inline)
             posthaste/internal/ipc.(*Conn).enqueue
-----------+-------------------------------------------------------
         3   sync.(*Mutex).Unlock
             posthaste/internal/ipc.(*Conn).enqueue
             posthaste/internal/ipc.(*Conn).Push
`
	if n := lockWaits(locks); len(n) != 1 || n["posthaste/internal/ipc.(*Conn).enqueue"] != 15 {
		t.Errorf("%v", n)
	}
}
