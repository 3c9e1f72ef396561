package main

import (
	"container/heap"
	"time"
)

// A stage is a part of what a message takes of processors, on its way from its client to the next hop.
type stage struct {
	name string
	time time.Duration
	// alone says that one message at a time can be there: a goroutine of which there is one does it.
	alone bool
	// acked says that the client has its answer behind it, and sends the next message.
	acked bool
}

// A forecast is what a mail system would do with so many processors, by calculation.
type forecast struct {
	rate float64 // messages a second
	// The stage of those that one message at a time can be in that is busiest, and for which share of the time.
	busiest string
	share   float64
}

// simulate sends so many messages through the stages, over so many sessions, with so many processors. Time is virtual, and
// all that takes any is processor time: no disk, no network, no waking. A message that has come to a stage waits for the
// stage, if it is one of those, and then for a processor, first come first served.
func simulate(stages []stage, processors, sessions, messages int) forecast {
	s := &simulation{stages: stages, free: processors, unsent: messages, taken: make([]bool, len(stages)), wait: make([][]letter, len(stages))}
	for range min(sessions, messages) {
		s.send()
	}
	for s.assign(); len(s.running) > 0; s.assign() {
		r := heap.Pop(&s.running).(running)
		s.now = r.until
		s.free++
		s.leave(r.letter)
	}
	f := forecast{rate: float64(messages) / s.now.Seconds()}
	for _, st := range stages {
		if busy := float64(st.time) * float64(messages) / float64(s.now); st.alone && busy > f.share {
			f.busiest, f.share = st.name, busy
		}
	}
	return f
}

// A letter is a message, by the stage that it is in.
type letter int

// A simulation is one run of it.
type simulation struct {
	stages  []stage
	now     time.Duration
	free    int // processors
	unsent  int
	taken   []bool     // by stage: somebody is in it
	wait    [][]letter // by stage: who waits to be
	ready   []letter   // who waits for a processor
	running finishes
	count   int // of all that have run
}

// send has a client send the next message, if there is one left.
func (s *simulation) send() {
	if s.unsent > 0 {
		s.unsent--
		s.enter(0)
	}
}

// enter brings a message to a stage.
func (s *simulation) enter(l letter) {
	switch {
	case !s.stages[l].alone:
		s.ready = append(s.ready, l)
	case s.taken[l]:
		s.wait[l] = append(s.wait[l], l)
	default:
		s.taken[l] = true
		s.ready = append(s.ready, l)
	}
}

// leave takes a message from its stage to the next one.
func (s *simulation) leave(l letter) {
	if w := s.wait[l]; len(w) > 0 {
		s.ready, s.wait[l] = append(s.ready, w[0]), w[1:]
	} else {
		s.taken[l] = false
	}
	if s.stages[l].acked {
		s.send()
	}
	if int(l)+1 < len(s.stages) {
		s.enter(l + 1)
	}
}

// assign gives processors to those that wait for one.
func (s *simulation) assign() {
	for s.free > 0 && len(s.ready) > 0 {
		l := s.ready[0]
		s.ready = s.ready[1:]
		s.free--
		s.count++
		heap.Push(&s.running, running{s.now + s.stages[l].time, s.count, l})
	}
}

// running is a message that has a processor, until some time. Of two that end at the same time the first to begin is first.
type running struct {
	until time.Duration
	begun int
	letter
}

type finishes []running

func (f finishes) Len() int { return len(f) }
func (f finishes) Less(i, j int) bool {
	return f[i].until < f[j].until || f[i].until == f[j].until && f[i].begun < f[j].begun
}
func (f finishes) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *finishes) Push(x any)   { *f = append(*f, x.(running)) }
func (f *finishes) Pop() any {
	last := len(*f) - 1
	r := (*f)[last]
	*f = (*f)[:last]
	return r
}
