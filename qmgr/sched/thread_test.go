package sched

import (
	"fmt"
	"testing"
	"time"

	"posthaste/internal/mail"
)

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// threads makes a world of one transport that schedules threads.
func threads(t *testing.T, agents, quantum int, order Order, seed uint64) *world {
	cfg := DefaultConfig()
	cfg.Seed = seed
	cfg.QueueRunDelay = 0
	cfg.Transport = func(_ mail.Transport, c TransportConfig) TransportConfig {
		c.Mode, c.Order, c.ProcessLimit, c.ThreadQuantum = Thread, order, agents, quantum
		return c
	}
	return newWorld(t, cfg)
}

// TestThreadBound: with all agents busy a new thread gets one after at most
// ThreadQuantum deliveries for each turn under way and each thread ahead of it.
// Without a quantum it waits for as long as the others have mail.
func TestThreadBound(t *testing.T) {
	t.Parallel()
	const agents, mailEach = 10, 60
	for _, quantum := range []int{0, 1, 3, 10} {
		for _, ahead := range []int{0, 1, 7} {
			w := threads(t, agents, quantum, Age, 1)
			w.check = false // the bound is to be seen without Check's help
			id := MsgID(0)
			for range mailEach {
				for d := range agents {
					id++
					w.arrive(id, 0, rcpt("smtp", fmt.Sprintf("busy%d.example", d)))
				}
			}
			for d := range ahead {
				for range mailEach {
					id++
					w.arrive(id, 0, rcpt("smtp", fmt.Sprintf("ahead%d.example", d)))
				}
			}
			for range 17 { // anywhere in the turns
				w.done(w.order[0], sent, true)
			}
			begun, got := 0, -1
			w.on = func(e Effect) {
				if e.Kind != EffectDeliver {
					return
				}
				if e.Nexthop == "small.example" {
					got = begun
				}
				begun++
			}
			id++
			w.arrive(id, 0, rcpt("smtp", "small.example"))
			for got < 0 {
				w.done(w.order[0], sent, true)
			}
			bound := quantum * (agents + ahead)
			if quantum == 0 && got < 100 {
				t.Errorf("no quantum, %d ahead: the small destination has its turn after %d deliveries", ahead, got)
			}
			if quantum > 0 && got > bound {
				t.Errorf("quantum %d, %d ahead: the small destination waited for %d deliveries, at most %d may begin", quantum, ahead, got, bound)
			}
		}
	}
}

// TestThreadsTakeTurns: threads have their turns in the order in which they came
// to wait, and each the same share.
func TestThreadsTakeTurns(t *testing.T) {
	t.Parallel()
	w := threads(t, 1, 2, Age, 1)
	order := ""
	w.on = func(e Effect) {
		if e.Kind == EffectDeliver {
			order += string(e.Nexthop[:1])
		}
	}
	for i := range 5 {
		for k, d := range []string{"a", "b", "c", "d"} {
			w.arrive(MsgID(10*i+k+1), 0, rcpt("smtp", d+".example"))
		}
	}
	for len(w.order) > 0 {
		w.done(w.order[0], sent, true)
	}
	if want := "aabbccddaabbccddabcd"; order != want {
		t.Errorf("turns are %s, want %s", order, want)
	}
}

// TestRandomOrder: in random order each message that waits is as likely as any
// other to be next, so that none stands in front of all; in order of age the
// oldest is.
func TestRandomOrder(t *testing.T) {
	t.Parallel()
	const waiting, runs = 8, 400
	first := map[Order]map[MsgID]int{Age: {}, Random: {}}
	for order, count := range first {
		for seed := range runs {
			w := threads(t, 1, 0, order, uint64(seed))
			for id := range MsgID(1 + waiting) {
				w.arrive(id+1, 0, rcpt("smtp", "a.example"))
			}
			w.done(w.order[0], sent, false) // the first had no choice
			count[w.busy[w.order[0]].ID]++
			left := waiting
			for ; len(w.order) > 0; left-- {
				w.done(w.order[0], sent, false)
			}
			if left != 0 {
				t.Fatalf("%d messages are left", left)
			}
		}
	}
	if n := first[Age][2]; n != runs {
		t.Errorf("by age the oldest was next %d times in %d", n, runs)
	}
	for id := MsgID(2); id < 2+waiting; id++ {
		if n := first[Random][id]; n < runs/waiting/2 || n > 2*runs/waiting {
			t.Errorf("in random order message %d was next %d times in %d", id, n, runs)
		}
	}
}

// TestIdlePool: an agent that asks for more keeps its session for its thread for
// idle_agent_time, is given the thread's next mail, and makes room for another
// thread when there is no other place.
func TestIdlePool(t *testing.T) {
	t.Parallel()
	for _, idle := range []int{0, 2, 30} {
		cfg := DefaultConfig()
		cfg.Transport = func(_ mail.Transport, c TransportConfig) TransportConfig {
			c.Mode, c.ProcessLimit, c.IdleMax = Thread, 2, seconds(idle)
			return c
		}
		w := newWorld(t, cfg)
		var last Effect
		var dismissed []AgentID
		w.on = func(e Effect) {
			switch e.Kind {
			case EffectDeliver:
				last = e
			case EffectDismiss:
				dismissed = append(dismissed, e.Agent)
			}
		}
		w.arrive(1, 0, rcpt("smtp", "a.example"))
		if keeps := last.Cache == CacheLoad|CacheStore && last.Keep == seconds(idle); keeps != (idle > 0) || last.Reuse {
			t.Errorf("idle_agent_time %d: the first delivery has hints %d, keep %v, reuse %v", idle, last.Cache, last.Keep, last.Reuse)
		}
		agent := last.Agent
		w.done(last.Entry, sent, true)
		if idle == 0 {
			if len(dismissed) != 1 || dismissed[0] != agent {
				t.Errorf("idle_agent_time 0: dismissed are %v", dismissed)
			}
			continue
		}
		w.tick(seconds(idle) - seconds(1))
		w.arrive(2, 0, rcpt("smtp", "a.example"))
		if !last.Reuse || last.Agent != agent || len(dismissed) != 0 {
			t.Errorf("after %d s the agent has been dismissed (%v) or another has the mail", idle-1, dismissed)
		}
		w.done(last.Entry, sent, true)
		w.tick(seconds(idle) + seconds(1))
		if len(dismissed) != 1 || dismissed[0] != agent {
			t.Errorf("after %d s dismissed are %v, want agent %d", idle+1, dismissed, agent)
		}
	}
}
