package spools

import (
	"slices"
	"sync"
	"sync/atomic"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
)

// A decision is what is remembered of a message, and not recorded.
type decision struct {
	gone bool
	what queue.Change // without outcomes, which are in no Entry
}

// decisions are what was decided of the messages of an engine that cannot record it. The engine goes on to show each
// message as it was when it failed; whoever took that for what is so would deliver it again. They belong to one engine:
// its successor has them recorded.
type decisions struct {
	some atomic.Bool // mostly there is none, and then nobody waits for mu
	mu   sync.Mutex
	list map[mail.QueueID]*decision
}

// add notes a change, after those that were noted before.
func (d *decisions) add(c *change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.list == nil {
		d.list = map[mail.QueueID]*decision{}
	}
	x := d.list[c.id]
	if x == nil {
		x = &decision{}
		d.list[c.id] = x
	}
	switch c.kind {
	case removed, finished:
		x.gone = true
	case done:
		x.what.Done = append(x.what.Done, c.rcpts...)
	case updated:
		x.update(&c.what)
	}
	d.some.Store(true)
}

// update notes the fields of a change that it sets, and who is done.
func (x *decision) update(c *queue.Change) {
	w := &x.what
	w.Set |= c.Set
	if c.Set&queue.SetQueue != 0 {
		w.Queue = c.Queue
	}
	if c.Set&queue.SetNextAttempt != 0 {
		w.NextAttempt = c.NextAttempt
	}
	if c.Set&queue.SetAttempts != 0 {
		w.Attempts = c.Attempts
	}
	if c.Set&queue.SetWarned != 0 {
		w.Warned = c.Warned
	}
	if c.Set&queue.SetExpire != 0 {
		w.Expire = c.Expire
	}
	w.Done = append(w.Done, c.Done...)
}

// apply has e as it was decided. It is false when nothing is left to be done with the message.
func (d *decisions) apply(e *queue.Entry) bool {
	if !d.some.Load() {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.list[e.ID]
	if x == nil {
		return true
	}
	if x.gone {
		return false
	}
	w := &x.what
	if w.Set&queue.SetQueue != 0 {
		e.Queue = w.Queue
	}
	if w.Set&queue.SetNextAttempt != 0 {
		e.NextAttempt = w.NextAttempt
	}
	if w.Set&queue.SetAttempts != 0 {
		e.Attempts = w.Attempts
	}
	if w.Set&queue.SetWarned != 0 {
		e.Warned = w.Warned
	}
	if w.Set&queue.SetExpire != 0 {
		e.Expire = w.Expire
	}
	if len(w.Done) == 0 {
		return true
	}
	bits := slices.Clone(e.Done) // the engine's own
	for _, i := range w.Done {
		if i < 0 || i >= e.NRcpt {
			continue
		}
		for len(bits) <= i/8 {
			bits = append(bits, 0)
		}
		if bit := byte(1) << (i % 8); bits[i/8]&bit == 0 {
			bits[i/8] |= bit
			e.NPending--
		}
	}
	e.Done = bits
	return e.NPending > 0
}
