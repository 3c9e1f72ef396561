package qmgr

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/event"
	"posthaste/internal/event/eventtest"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
)

// The event of a message whose time is over has all that is known of it, for each recipient, and is not made for nobody.
func TestExpiredEvents(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	m := s.aMessage(2)
	m.active.env = mail.Envelope{Sender: "s@from.test", MessageID: "<m@x>", EnvID: "e", Size: 9, Tenant: "acme", Campaign: "spring"}
	m.active.rcpts[0].Original, m.active.rcpts[1] = "o@to.test", nil
	outcomes := []mail.Outcome{{Rcpt: 0, Status: dsn.S(4, 4, 7), Reason: "too late"}, {Rcpt: 1, Status: dsn.S(4, 4, 7), Reason: "never tried"}}
	if list := s.expired(m, outcomes); list != nil {
		t.Errorf("nobody wants to know: %+v", list)
	}
	journal, reporter := eventtest.New(t, "qmgr", nil)
	s.opt.Events = reporter
	want := event.Event{Kind: event.Expired, Time: s.now, QueueID: string(m.id), MessageID: "<m@x>", EnvID: "e", Sender: "s@from.test", FromMessage: true, Size: 9, Attempt: 0, DSN: "4.4.7", Reply: "too late", Tenant: "acme", Campaign: "spring",
		Recipient: "a@to.test", Original: "o@to.test"}
	other := want
	other.Reply, other.Recipient, other.Original = "never tried", "", ""
	list := s.expired(m, outcomes)
	if !reflect.DeepEqual(list, []event.Event{want, other}) {
		t.Fatalf("%+v, want\n%+v", list, []event.Event{want, other})
	}
	// Who has not been read is read from the queue, and nobody else; what cannot be read is told without a name.
	stored := &storedMessage{rcpts: []mail.Recipient{{Address: "x@to.test"}, {Address: "b@to.test", Original: "ob@to.test"}}}
	for _, c := range []struct {
		open, read error
		name       string
	}{{errors.New("no"), nil, ""}, {nil, errors.New("no"), ""}, {nil, nil, "b@to.test"}} {
		s.opt.Open = func(context.Context, queue.Ref, mail.QueueID) (queueread.Stored, error) { return stored, c.open }
		stored.fails[1] = c.read
		list := []event.Event{want, other}
		s.tellExpired(t.Context(), m.ref, &proto.Notify{ID: m.id, Outcomes: outcomes}, list)
		if list[0].Recipient != "a@to.test" || list[1].Recipient != c.name || (list[1].Original == "ob@to.test") != (c.name != "") {
			t.Errorf("%+v", list)
		}
	}
	if n := len(journal.Told()); n != 6 {
		t.Errorf("%d events are told", n)
	}
	// All that an order of an operator's is about is told, of a message in memory; of another its ID; and nothing of what has left already.
	for i, x := range []*message{m, {id: m.id, num: 9}, {id: m.id, num: 9, vanished: true}} {
		before := len(journal.Told())
		s.tellOrdered(x, event.Held)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		s.opt.Events.Wait(ctx)
		cancel()
		if told := journal.Told()[before:]; len(told) != map[bool]int{true: 0, false: 1}[i == 2] || len(told) > 0 && told[0] != "held "+string(m.id) {
			t.Errorf("%d: %q", i, told)
		}
	}
	s.opt.Events = nil
	s.tellOrdered(m, event.Held)
}
