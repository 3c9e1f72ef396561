package main

import (
	"crypto/tls"
	"slices"
	"sync/atomic"
	"time"
)

// An inquiry is what a sink is to find out about the messages of its sessions. The zero value only counts them.
type inquiry struct {
	tls    *tls.Config             // what it offers STARTTLS with; nil: it does not
	mark   string                  // what a line of each message begins with; empty: nothing does
	name   string                  // what recipients begin with, before the message's number; empty: it does not matter
	stamps *stamps                 // when messages with such a recipient came, if that is to be known
	take   func(text []byte) error // has what comes, before it is acknowledged; nil: nothing does
}

// A tally is what a sink has found out.
type tally struct {
	messages, marked    int
	named               int64 // recipients
	plain               int   // messages outside of TLS
	handshakes, resumed int
	states              map[suite]int // of the handshakes
	text                []byte        // the first message
}

// A suite is what of a TLS session decides what it costs.
type suite struct {
	version, cipher uint16
	curve           tls.CurveID
}

func suiteOf(s tls.ConnectionState) suite { return suite{s.Version, s.CipherSuite, s.CurveID} }

// ask begins a tally. Sessions that are open go by it too, from their next message.
func (s *sink) ask(q *inquiry) {
	s.asked.Store(q)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally = tally{states: map[suite]int{}}
}

// found is the tally since the last inquiry.
func (s *sink) found() tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tally
}

// wantsText says whether the tally has no message's text yet.
func (s *sink) wantsText() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tally.states != nil && s.tally.text == nil
}

// count adds a message to the tally.
func (s *sink) count(h *hop, marked bool) {
	_, secured := h.c.(*tls.Conn)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.tally
	t.messages++
	t.named += h.named
	if marked {
		t.marked++
	}
	if !secured {
		t.plain++
	}
	if t.text == nil && len(h.text) > 0 {
		t.text = slices.Clone(h.text)
	}
}

// handshake adds one to the tally.
func (s *sink) handshake(state tls.ConnectionState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally.handshakes++
	if state.DidResume {
		s.tally.resumed++
	}
	if s.tally.states != nil {
		s.tally.states[suiteOf(state)]++
	}
}

// stamps are when each message of a round began and when it was there, in nanoseconds.
type stamps struct{ begun, ended []atomic.Int64 }

func newStamps(messages int) *stamps {
	return &stamps{make([]atomic.Int64, messages), make([]atomic.Int64, messages)}
}

// times are how long the messages took, the shortest first. One that did not come is not there.
func (s *stamps) times() (list []time.Duration) {
	for i := range s.begun {
		if b, e := s.begun[i].Load(), s.ended[i].Load(); b != 0 && e != 0 {
			list = append(list, time.Duration(e-b))
		}
	}
	slices.Sort(list)
	return list
}

// percentile is the time that so many percent of a sorted list do not exceed.
func percentile(list []time.Duration, percent int) time.Duration {
	return list[max(0, (len(list)*percent+99)/100-1)]
}
