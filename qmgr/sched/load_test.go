package sched

import (
	"slices"
	"testing"
)

// TestLoadAnswers: what the shell may say when recipients are asked for.
func TestLoadAnswers(t *testing.T) {
	t.Parallel()
	a := rcpt("smtp", "a.example")
	tests := []struct {
		name    string
		answers []Event // to one load after the other
		done    bool    // deliveries are then reported as sent
		want    []EffectKind
	}{
		{"nothing is left", []Event{{Kind: EventLoaded, Next: 3}}, false, []EffectKind{EffectLoad, EffectFinish}},
		{"the shell dealt with the first batch", []Event{{Kind: EventLoaded, Next: 2, Unread: 1}, {Kind: EventLoaded, Next: 3}}, false,
			[]EffectKind{EffectLoad, EffectLoad, EffectFinish}},
		{"the shell dealt with the last batch", []Event{{Kind: EventLoaded, Rcpts: []Rcpt{a}, Next: 1, Unread: 2}, {Kind: EventLoaded, Next: 3}}, true,
			[]EffectKind{EffectLoad, EffectLoad, EffectDeliver, EffectFinish}},
		{"there should be more", []Event{{Kind: EventLoaded, Unread: 3}}, false, []EffectKind{EffectLoad, EffectNote, EffectDefer}},
		{"all have failed before", []Event{{Kind: EventLoaded, Next: 3, Failed: true}, {Kind: EventNotified, OK: true}}, false,
			[]EffectKind{EffectLoad, EffectNotify, EffectFinish}},
		{"all have failed before, and it cannot be told", []Event{{Kind: EventLoaded, Next: 3, Failed: true}, {Kind: EventNotified}}, false,
			[]EffectKind{EffectLoad, EffectNotify, EffectDefer}},
		{"it cannot be told and is to be held", []Event{{Kind: EventLoaded, Next: 3, Failed: true}, {Kind: EventHold, Scope: ScopeMessage}, {Kind: EventNotified}}, false,
			[]EffectKind{EffectLoad, EffectNotify, EffectHold}},
		{"cannot be read now", []Event{{Kind: EventLoadFailed}}, false, []EffectKind{EffectLoad, EffectDefer}},
		{"cannot ever be read", []Event{{Kind: EventLoadFailed, Corrupt: true}}, false, []EffectKind{EffectLoad, EffectCorrupt}},
	}
	for _, x := range tests {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			s := New(DefaultConfig())
			var got []EffectKind
			events := []Event{{Kind: EventQueued, ID: 1, Arrival: Arrival{Queue: QueueIncoming, Created: epoch, Rcpts: 3}}}
			for len(events) > 0 {
				out := s.Step(epoch, events[0], nil)
				events = events[1:]
				if err := s.Check(); err != nil {
					t.Fatal(err)
				}
				for _, e := range out {
					got = append(got, e.Kind)
					switch {
					case e.Kind == EffectLoad && len(x.answers) > 0, e.Kind == EffectNotify:
						for more := true; more && len(x.answers) > 0; {
							ev := x.answers[0]
							ev.ID = 1
							x.answers = x.answers[1:]
							events = append(events, ev)
							more = ev.Kind == EventHold // which is no answer
						}
					case e.Kind == EffectDeliver && x.done:
						events = append(events, Event{Kind: EventDone, Entry: e.Entry})
					}
				}
			}
			if !slices.Equal(got, x.want) {
				t.Errorf("effects %v, not %v", got, x.want)
			}
		})
	}
}

// TestTurns: when there are several places in the active queue, new and
// deferred mail take them in turn; when there is one at a time, it is for new
// mail.
func TestTurns(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.ActiveLimit = 1
	s := New(cfg)
	var got []MsgID
	var origins []Queue
	step := func(ev Event) {
		for _, e := range s.Step(epoch, ev, nil) {
			if e.Kind == EffectLoad {
				got = append(got, e.ID)
				origins = append(origins, e.Origin)
			}
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []MsgID{1, 2, 3, 4, 5} {
		step(Event{Kind: EventQueued, ID: id, Arrival: Arrival{Queue: QueueIncoming, Created: epoch, Rcpts: 1}})
	}
	for _, id := range []MsgID{11, 12, 13} {
		step(Event{Kind: EventQueued, ID: id, Arrival: Arrival{Queue: QueueDeferred, Created: epoch, Rcpts: 1}})
	}
	step(Event{Kind: EventLoaded, ID: 1}) // nothing left: its place is free
	cfg.ActiveLimit = 6
	step(Event{Kind: EventReconfigured, Config: &cfg})
	if want := []MsgID{1, 2, 3, 11, 4, 12, 5}; !slices.Equal(got, want) {
		t.Errorf("taken up: %v, not %v", got, want)
	}
	for i, id := range got {
		want := QueueIncoming
		if id > 10 {
			want = QueueDeferred
		}
		if origins[i] != want {
			t.Errorf("message %d is said to come from %v", id, origins[i])
		}
	}
}
