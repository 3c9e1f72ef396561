package qmgr

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
)

// parted is an outcome of which each word is a part: a! has failed, a? is to be
// tried again, a* says that an alias was expanded.
func parted(action dsn.Action, words ...string) mail.Outcome {
	o := mail.Outcome{Action: action, Status: dsn.S(4, 3, 0), Reason: "whole", Relay: "local", When: time.Now()}
	for _, w := range words {
		p := mail.Part{Address: w[:1] + "@to.test", Action: dsn.Failed, Status: dsn.S(5, 1, 1), Reason: "unknown"}
		switch w[1] {
		case '?':
			p.Action, p.Status = dsn.Deferred, dsn.S(4, 3, 0)
		case '*':
			p.Action, p.Status = dsn.Expanded, dsn.S(2, 0, 0)
		}
		o.Parts = append(o.Parts, p)
	}
	return o
}

// words is the contrary of parted, in alphabetical order; those that have been
// told end in a dot.
func words(o *mail.Outcome) (list []string) {
	for _, p := range o.Parts {
		w := p.Address[:1] + map[dsn.Action]string{dsn.Failed: "!", dsn.Deferred: "?", dsn.Expanded: "*"}[p.Action]
		if p.Told {
			w += "."
		}
		list = append(list, w)
	}
	slices.Sort(list)
	return list
}

// An attempt is one stay in the active queue, of a queue manager that has just
// started.
type attempt struct {
	name     string
	answer   mail.Outcome
	unsent   int      // so many notices fail
	notices  []string // kind and parts of each
	recorded []string // parts in the end; nil: the message is gone
}

// stay plays an attempt for a message of which outcomes are recorded, and
// returns those that are recorded in the end.
func (a *attempt) stay(t *testing.T, rcpt mail.Recipient, outcomes []mail.Outcome) (recorded []mail.Outcome) {
	st := newStage(t, "")
	st.unsent = a.unsent
	id := st.fill(faketest.Mail{Queue: queue.Deferred, Attempts: 1, Content: "x\r\n", Outcomes: outcomes,
		Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{rcpt}}})[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	o := smtp.next()
	o.req.Reply(&proto.DeliverReply{Outcomes: []mail.Outcome{a.answer}})
	var op proto.Op
	if a.recorded == nil {
		st.waitOp(id, "its removal", removed)
	} else {
		op = st.waitOp(id, "its deferral", inQueue(queue.Deferred))
		if len(op.Outcomes) != 1 || !slices.Equal(words(&op.Outcomes[0]), a.recorded) {
			t.Errorf("%s: recorded %v of %+v, not %v", a.name, words(&op.Outcomes[0]), op.Outcomes, a.recorded)
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	var told []string
	for i := range st.notices {
		n := &st.notices[i]
		for k := range n.Outcomes {
			told = append(told, fmt.Sprint(n.Notice, words(&n.Outcomes[k])))
		}
	}
	if !slices.Equal(told, a.notices) {
		t.Errorf("%s: told %q, not %q", a.name, told, a.notices)
	}
	return op.Outcomes
}

// A recipient stands for several. Of each of them that fails for good the sender
// hears at once, and once: whatever comes of the others, how often they are
// tried, and by which queue manager.
func TestPartsTold(t *testing.T) {
	t.Parallel()
	failure, success := fmt.Sprintf("%d ", proto.NoticeFailure), fmt.Sprintf("%d ", proto.NoticeSuccess)
	begin := []attempt{
		{name: "one fails", answer: parted(dsn.Deferred, "a!", "b?"), notices: []string{failure + "[a! b?]"}, recorded: []string{"a!.", "b?"}},
		{name: "again", answer: parted(dsn.Deferred, "a!", "b?"), recorded: []string{"a!.", "b?"}},
		{name: "not so far", answer: parted(dsn.Deferred, "b?"), recorded: []string{"a!.", "b?"}},
		{name: "nobody knows", answer: parted(dsn.Deferred), recorded: []string{"a!."}},
		{name: "another fails, and the notice", answer: parted(dsn.Deferred, "a!", "b?", "c!"), unsent: 1,
			notices: []string{failure + "[a!. b? c!]"}, recorded: []string{"a!.", "b?", "c!"}},
		{name: "the notice again", answer: parted(dsn.Deferred, "b?"), notices: []string{failure + "[a!. b? c!]"}, recorded: []string{"a!.", "b?", "c!."}},
		{name: "the same name twice", answer: parted(dsn.Deferred, "a!", "a!", "b?"), notices: []string{failure + "[a! a!. b? c!.]"},
			recorded: []string{"a!.", "a!.", "b?", "c!."}},
	}
	for name, tt := range map[string]struct {
		notify dsn.Notify
		story  []attempt
	}{
		"the last fails":   {0, append(slices.Clone(begin), attempt{name: "end", answer: parted(dsn.Failed, "a!", "b!", "c!"), notices: []string{failure + "[a!. b! c!.]"}})},
		"the last has it":  {0, append(slices.Clone(begin), attempt{name: "end", answer: parted(dsn.Failed, "a!", "c!")})},
		"all have it":      {0, append(slices.Clone(begin), attempt{name: "end", answer: parted(dsn.Delivered)})},
		"fails as a whole": {0, append(slices.Clone(begin), attempt{name: "end", answer: parted(dsn.Failed), notices: []string{failure + "[]"}})},
		"success": {dsn.NotifySuccess | dsn.NotifyFailure, []attempt{
			{name: "expanded", answer: parted(dsn.Deferred, "r*", "b?"), notices: []string{success + "[b? r*]"}, recorded: []string{"b?", "r*."}},
			{name: "not so far", answer: parted(dsn.Deferred, "b?"), recorded: []string{"b?", "r*."}},
			{name: "one fails", answer: parted(dsn.Deferred, "r*", "b?", "c!"), notices: []string{failure + "[b? c! r*.]"}, recorded: []string{"b?", "c!.", "r*."}},
			{name: "end", answer: parted(dsn.Expanded)},
		}},
		"success at once": {dsn.NotifySuccess, []attempt{{name: "end", answer: parted(dsn.Expanded), notices: []string{success + "[]"}}}},
		"success and failure": {dsn.NotifySuccess, []attempt{{name: "end", answer: parted(dsn.Failed, "r*", "a!"),
			notices: []string{success + "[a! r*]", failure + "[a! r*.]"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var outcomes []mail.Outcome
			for i := range tt.story {
				outcomes = tt.story[i].stay(t, mail.Recipient{Address: "r@to.test", Notify: tt.notify}, outcomes)
			}
		})
	}
}

// A recipient that has got the message, and whose sender wants a report of that, does not get it again from a queue manager that
// starts before the report is made: the success is recorded, though the recipient is not done.
func TestSuccessIsRecorded(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		notify dsn.Notify
		trace  mail.Trace
	}{"asked for": {notify: dsn.NotifySuccess}, "traced": {trace: mail.TraceReport}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, "")
			id := st.fill(faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Trace: x.trace,
				Recipients: []mail.Recipient{{Address: "slow@other.test"}, {Address: "a@to.test", Notify: x.notify}}}})[0]
			smtp := st.agent("smtp", proto.Inventory{})
			st.run()
			for range 2 { // the other recipient's delivery does not end: no report is made before
				if o := smtp.next(); o.Envelope.Recipients[0].Address == "a@to.test" {
					o.answer("ok")
				}
			}
			op := st.waitOp(id, "the outcome", func(op *proto.Op) bool { return len(op.Outcomes)+len(op.Done) > 0 })
			if len(op.Done) != 0 || len(op.Outcomes) != 1 || op.Outcomes[0].Rcpt != 1 || op.Outcomes[0].Action != dsn.Delivered {
				t.Errorf("recorded: %+v, done %d", op.Outcomes, op.Done)
			}
		})
	}
}

// A list of which a member has failed is not delivered to once more by a queue manager that starts before the sender
// has been told: the others have the message. What came of it is recorded at once.
func TestPartsFailedAreRecorded(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	id := st.arrive("s@from.test", "list@to.test", "slow@other.test")
	for range 2 { // the other recipient's delivery does not end: no notice is made before
		o := smtp.next()
		if o.Envelope.Recipients[0].Address == "list@to.test" {
			o.req.Reply(&proto.DeliverReply{Outcomes: []mail.Outcome{parted(dsn.Failed, "a!")}})
		}
	}
	op := st.waitOp(id, "the verdict", func(op *proto.Op) bool { return len(op.Outcomes) > 0 })
	if o := &op.Outcomes[0]; o.Action != dsn.Failed || !slices.Equal(words(o), []string{"a!"}) {
		t.Errorf("recorded: %+v", o)
	}
}

// The bounce service has told the sender of a list's failed member, recorded that, and died before it said so: the
// list is not delivered to once more.
func TestPartsToldUnheard(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	m := many(3, "to.test")
	m.Done, m.Queue, m.Attempts, m.Next = []int{0, 2}, queue.Deferred, 1, time.Now()
	id := st.fill(m)[0]
	st.entries[0].Done, st.entries[0].NPending = []byte{1 << 2}, 2 // of recipient 0 nothing was heard here
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	o := smtp.next()
	if !slices.Equal(o.Index, []int{1}) {
		t.Errorf("ordered for %v", o.Index)
	}
	o.answer("ok")
	st.waitOp(id, "its removal", removed)
	st.quiet()
}

// The verdict on a list that a queue manager did not live to record is taken over by the next one, to which the
// agent tells it again: the list is not delivered to once more, and the sender hears of the failed member. So it is
// whether the message waits for its turn or for another day.
func TestPartsFailedAreTakenOver(t *testing.T) {
	t.Parallel()
	for _, attempts := range []int{0, 1} {
		st := newStage(t, "")
		m := many(2, "to.test")
		if m.Attempts = attempts; attempts > 0 {
			m.Queue, m.Next = queue.Deferred, time.Now().Add(time.Hour)
			m.Outcomes = []mail.Outcome{parted(dsn.Deferred, "a!", "b?")}
			m.Outcomes[0].Tell(false)
		}
		id := st.fill(m)[0]
		verdict := proto.Inventory{Finished: []proto.Finished{{ID: id, Reply: proto.DeliverReply{Outcomes: []mail.Outcome{parted(dsn.Failed, "a!", "b!")}}}}}
		first := verdict
		if attempts > 0 {
			first = proto.Inventory{}
		}
		smtp := st.agent("smtp", first)
		st.run()
		if attempts > 0 { // an agent that retires
			if err := st.tool.Call(t.Context(), &verdict, nil); err != nil {
				t.Fatal(err)
			}
		}
		o := smtp.next()
		if !slices.Equal(o.Index, []int{1}) {
			t.Errorf("after %d attempts: ordered for %v", attempts, o.Index)
		}
		o.answer("ok")
		st.waitOp(id, "its removal", removed)
		st.mu.Lock()
		if len(st.notices) != 1 || st.notices[0].Notice != proto.NoticeFailure || len(st.notices[0].Outcomes) != 1 {
			t.Errorf("after %d attempts: told %+v", attempts, st.notices)
		} else if w := words(&st.notices[0].Outcomes[0]); !slices.Equal(w, map[int][]string{0: {"a!", "b!"}, 1: {"a!.", "b!"}}[attempts]) {
			t.Errorf("after %d attempts: told of %q", attempts, w)
		}
		st.mu.Unlock()
		st.quiet()
	}
}

// What has failed and could not be told is told with the rest when the message's
// time is over, and what was told is not.
func TestPartsExpire(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	told := parted(dsn.Deferred, "a!", "b?", "c!")
	told.Parts[0].Told = true
	id := st.fill(faketest.Mail{Queue: queue.Deferred, Attempts: 1, Content: "x\r\n", Expire: true, Outcomes: []mail.Outcome{told}, Next: time.Now(),
		Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{{Address: "r@to.test"}}}})[0]
	st.run()
	st.waitOp(id, "its removal", removed)
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.notices) != 1 || st.notices[0].Notice != proto.NoticeExpired || !slices.Equal(words(&st.notices[0].Outcomes[0]), []string{"a!.", "b?", "c!"}) {
		t.Errorf("told: %+v", st.notices)
	}
}

// A message that is queued again takes along who has been told, and nothing
// else: not what came of the others, and nobody who has it and whose sender
// could not yet be told so.
func TestPartsRequeued(t *testing.T) {
	t.Parallel()
	at := time.UnixMicro(1795251386000001)
	outcome := func(i int, o mail.Outcome) mail.Outcome {
		o.Rcpt, o.When = i, at
		return o
	}
	told := parted(dsn.Deferred, "a!", "b?")
	told.Tell(false)
	rcpt := func(addr, original string) mail.Recipient {
		return mail.Recipient{Address: addr + "@to.test", Original: original + "@to.test"}
	}
	st := newStage(t, "")
	id := st.fill(faketest.Mail{Queue: queue.Hold, Content: "x\r\n", Done: []int{0}, Attempts: 2,
		Outcomes: []mail.Outcome{outcome(1, parted(dsn.Deferred, "b?")), outcome(2, mail.Outcome{Action: dsn.Delivered, Status: dsn.S(2, 0, 0)}), outcome(4, told)},
		Envelope: mail.Envelope{Arrival: at, Sender: "s@from.test", Size: 3,
			Recipients: []mail.Recipient{rcpt("0", "0"), rcpt("1", "v"), rcpt("2", "2"), rcpt("3", "3"), rcpt("4", "w")}}})[0]
	only := st.fill(faketest.Mail{Queue: queue.Hold, Content: "x\r\n", Outcomes: []mail.Outcome{outcome(0, mail.Outcome{Action: dsn.Relayed, Status: dsn.S(2, 0, 0)})},
		Envelope: mail.Envelope{Arrival: at, Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{rcpt("0", "0")}}})[0]
	st.located[only] = true
	st.run()
	st.command(proto.Command{Verb: proto.VerbRequeue, ID: id})
	st.waitOp(id, "its removal", removed)
	st.command(proto.Command{Verb: proto.VerbRequeue, ID: only})
	st.until("it is said", func() bool {
		return strings.Contains(st.log.String(), string(only)+": not requeued: all recipients have it")
	})
	st.waitExplain(only, "hold queue")
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.taken) != 1 {
		t.Fatalf("through cleanup: %+v", st.taken)
	}
	q := &st.taken[0]
	var to []string
	for _, r := range q.Envelope.Recipients {
		to = append(to, r.Address)
	}
	if want := []string{"v@to.test", "3@to.test", "w@to.test"}; !slices.Equal(to, want) || !slices.Equal(q.Settles.Rcpts, []int{1, 2, 3, 4}) {
		t.Errorf("queued for %q, settles %v", to, q.Settles.Rcpts)
	}
	told.Parts = told.Parts[:1]
	if q.State == nil || !reflect.DeepEqual(q.State.Outcomes, []mail.Outcome{outcome(0, told)}) || q.State.Set != 0 || len(q.Was) != 1 || q.Was[0].Address != "4@to.test" || q.Was[0].Original != "w@to.test" {
		t.Errorf("state %+v of %+v", q.State, q.Was)
	}
}

// A message that is tried again before it has been recorded who has been told
// waits for that.
func TestPartsTriedAtOnce(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	id := st.fill(faketest.Mail{Content: "x\r\n",
		Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{{Address: "r@to.test"}}}})[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	o := smtp.next()
	st.mu.Lock()
	st.deaf = true
	st.mu.Unlock()
	o.req.Reply(&proto.DeliverReply{Outcomes: []mail.Outcome{parted(dsn.Deferred, "a!", "b?")}})
	st.until("it is deferred", func() bool { return st.unheard > 0 })
	st.command(proto.Command{Verb: proto.VerbFlush, ID: id})
	st.waitExplain(id, "active queue")
	select {
	case o := <-smtp.orders:
		t.Errorf("ordered: %+v", o.Deliver)
	case <-time.After(50 * time.Millisecond): // it is not there; a fault is seen mostly
	}
	st.mu.Lock()
	st.deaf = false
	st.cleanup.Close() // what was not answered comes again
	st.mu.Unlock()
	o = smtp.next()
	o.answer("ok")
	st.waitOp(id, "its removal", removed)
}
