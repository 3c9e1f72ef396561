package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// The figures that are measured beside Postfix, besides those of every comparison.
var (
	helping = figure{"of it in helpers", false}
	middle  = figure{"MAIL FROM to delivered, median, ms", false}
	slowest = figure{"the same, 99th percentile, ms", false}
	memory  = figure{"memory, sum of PSS, MB", false}
)

// beside measures the present tree beside Postfix, and prints a table.
func beside(ctx context.Context, o *options, w io.Writer) error {
	list, err := chosenContests(o.workloads, o.messages)
	if err != nil {
		return err
	}
	if o.rounds < 2 {
		return errors.New("there must be at least two rounds: one says nothing about how far the next would be from it")
	}
	if err := missing(list); err != nil {
		return err
	}
	dir, remove, err := o.place()
	if err != nil {
		return err
	}
	defer remove()
	bin := o.bin
	if bin == "" {
		bin = filepath.Join(dir, "bin")
		if err := command(ctx, ".", "go", "build", "-trimpath", "-o", bin+"/", "./cmd/posthaste", "./cmd/posthaste-tables"); err != nil {
			return err
		}
	}
	var busy *compilers
	if o.busy > 0 {
		if busy, err = startCompilers(o.busy, filepath.Join(dir, "compilers")); err != nil {
			return err
		}
		defer busy.stop()
	}
	besideHead(w, dir, o)
	for _, c := range list {
		place := filepath.Join(dir, c.name)
		if err := c.run(ctx, o, place, bin, busy, w); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if !o.keep {
			os.RemoveAll(place)
		}
	}
	return nil
}

// run starts the entrants of a contest, has all the rounds of it, and prints what came of them.
func (c *contest) run(ctx context.Context, o *options, dir, bin string, busy *compilers, w io.Writer) error {
	names := []string{oursName, theirName}
	if c.limit {
		names = append(names, limitName)
	}
	var list []*entrant
	for _, name := range names {
		e, err := newEntrant(name, dir, bin, c)
		if err != nil {
			return err
		}
		defer e.close()
		list = append(list, e)
	}
	for n := -1; n < o.rounds; n++ { // the first one warms up
		for state := range len(list[0].scores) {
			if state == 1 && (busy == nil || n < 0) {
				continue
			}
			if err := c.turns(ctx, list, n, state, busy); err != nil {
				return err
			}
		}
	}
	if c.memory {
		for _, e := range list {
			octets, err := e.memoryUnder(ctx, c)
			if err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
			e.scores[0][memory] = []float64{float64(octets) / 1e6}
		}
	}
	c.print(list, busy != nil, w)
	return nil
}

// turns has each entrant have its mail of round n: the first one first, or last in odd rounds. With state 1 the machine
// is busy.
func (c *contest) turns(ctx context.Context, list []*entrant, n, state int, busy *compilers) error {
	if state == 1 {
		if err := busy.run(ctx); err != nil {
			return err
		}
		defer busy.halt()
	}
	for i := range list {
		if n%2 != 0 {
			i = len(list) - 1 - i
		}
		e := list[i]
		load := e.load
		if n < 0 {
			load.messages = max(load.messages/5, 1)
		}
		got, err := c.turn(ctx, e, &load)
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		for f, value := range got {
			if n >= 0 {
				e.scores[state][f] = append(e.scores[state][f], value)
			}
		}
	}
	return nil
}

// turn has an entrant have the mail of load, makes sure that its settings were in force, and returns the figures.
func (c *contest) turn(ctx context.Context, e *entrant, load *workload) (map[figure]float64, error) {
	q := c.inquiry
	q.tls = e.sinkTLS
	if c.latency {
		q.stamps = newStamps(load.messages)
		load.stamps = q.stamps
	}
	if load.secured != nil {
		load.secured.begin()
	}
	e.sink.ask(&q)
	before, helped := e.processorTime(), e.helperTime()
	wall, err := e.carry(ctx, load)
	if err != nil {
		return nil, err
	}
	cpu := e.rested(ctx) - before
	helped = e.helperTime() - helped
	if err := c.inForce(e, load, e.sink.found()); err != nil {
		return nil, err
	}
	got := map[figure]float64{
		c.rate():  float64(load.messages) * c.each / wall.Seconds(),
		processor: max(float64(cpu.Microseconds())/float64(load.messages), 0.01),
	}
	if len(e.helpers) > 0 {
		got[helping] = max(float64(helped.Microseconds())/float64(load.messages), 0.01)
	}
	if c.latency {
		times := q.stamps.times()
		if len(times) != load.messages {
			return nil, fmt.Errorf("the times of %d of %d messages are known", len(times), load.messages)
		}
		got[middle], got[slowest] = milliseconds(percentile(times, 50)), milliseconds(percentile(times, 99))
	}
	return got, nil
}

// rate is the figure of how much goes through.
func (c *contest) rate() figure { return figure{c.unit + " a second", true} }

func milliseconds(t time.Duration) float64 { return float64(t.Microseconds()) / 1000 }

// inForce says what of the contest's settings was not in force in a round.
func (c *contest) inForce(e *entrant, load *workload, t tally) error {
	if t.messages != load.messages {
		return fmt.Errorf("%d messages came to the next hop for %d", t.messages, load.messages)
	}
	if c.tls != nil {
		if err := c.tls.check(load.secured, t); err != nil {
			return err
		}
	}
	if c.check != nil {
		return c.check(e, t)
	}
	return nil
}

// memoryUnder is the memory that the processes take while all sessions are there, and half of a round's mail has come.
func (e *entrant) memoryUnder(ctx context.Context, c *contest) (octets int64, err error) {
	e.sink.ask(&c.inquiry)
	want := e.sink.deliveries.Load() + int64(e.load.messages*e.load.recipients/2)
	done := make(chan error, 1)
	go func() {
		_, err := e.carry(ctx, &e.load)
		done <- err
	}()
	for {
		select {
		case err := <-done:
			if err == nil {
				err = errors.New("the memory was not asked for in time")
			}
			return 0, err
		case <-time.After(time.Millisecond):
		}
		if e.sink.deliveries.Load() >= want {
			octets = e.system.memory()
			return octets, <-done
		}
	}
}

// runPart is a process that a contest has besides the mail systems.
func runPart(name string, args []string) error {
	if len(args) != 2 {
		return errors.New("-part: two addresses must follow")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch name {
	case "filter":
		return runFilter(ctx, args[0], args[1])
	case "bare":
		return runBare(ctx, args[0], args[1])
	}
	return fmt.Errorf("-part %s: there are filter and bare", name)
}
