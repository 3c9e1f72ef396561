package agent

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
)

func finished(n uint64) *proto.Finished {
	return &proto.Finished{ID: mail.MakeQueueID(time.Unix(1e9, 0), n), Reply: proto.DeliverReply{
		Outcomes: []mail.Outcome{{Rcpt: int(n % 7), Action: dsn.Delivered, Status: dsn.S(2, 0, 0), Reason: "250 ok"}}}}
}

func ids(list []proto.Finished) (out []mail.QueueID) {
	for _, f := range list {
		out = append(out, f.ID)
	}
	return out
}

// What one queue manager has been told another one is told again, once, for
// as long as it is remembered.
func TestTold(t *testing.T) {
	t.Parallel()
	var told told
	old, next := new(ipc.Conn), new(ipc.Conn)
	now := time.Unix(1e9, 0)
	var want []mail.QueueID
	for n := range uint64(5000) { // 20 seconds
		conn := old
		if n%1000 == 999 {
			conn = nil // nobody was there
		}
		f := finished(n)
		told.add(now, conn, f)
		want = append(want, f.ID)
		now = now.Add(4 * time.Millisecond)
		told.prune(now)
	}
	// Whatever was not heard holds back what came after it.
	if want := want[999:]; !slices.Equal(ids(told.retell(now, next, nil)), want) {
		t.Fatalf("a new queue manager is not told of the %d outcomes since the one that nobody heard", len(want))
	}
	if again := told.retell(now, next, nil); len(again) != 0 {
		t.Errorf("told twice: %d", len(again))
	}
	f := finished(5000)
	told.add(now, next, f)
	if got := told.retell(now, old, nil); got[len(got)-1].Reply.Outcomes[0].Rcpt != f.Reply.Outcomes[0].Rcpt || got[len(got)-1].ID != f.ID {
		t.Errorf("the last one is %+v, want %+v", got[len(got)-1], f)
	}
	told.prune(now.Add(remembered + time.Millisecond))
	if told.n != 0 || len(told.parts) != 0 {
		t.Errorf("after %v %d outcomes are kept", remembered, told.n)
	}
}

// What was told of late to a queue manager that is gone nobody has heard, and is kept until somebody
// has; what it was told long before it went, it has recorded.
func TestLose(t *testing.T) {
	t.Parallel()
	var told told
	gone, other := new(ipc.Conn), new(ipc.Conn)
	now := time.Unix(1800000000, 0)
	told.add(now, gone, finished(1))
	now = now.Add(remembered + time.Second)
	told.add(now, gone, finished(2))
	told.add(now, other, finished(3))
	told.lose(now.Add(time.Second), gone)
	told.prune(now.Add(time.Hour))
	var kept []mail.QueueID
	for _, p := range told.take() {
		kept = append(kept, ids(p.list())...)
	}
	told.prune(now.Add(time.Hour))
	if !slices.Equal(kept, []mail.QueueID{finished(2).ID}) || told.n != 0 {
		t.Errorf("kept %v, and %d more", kept, told.n)
	}
}

// What is remembered of a delivery has all that a report would say, if there may be one.
func TestAppendShort(t *testing.T) {
	t.Parallel()
	long := func(rcpt int, action dsn.Action) mail.Outcome {
		return mail.Outcome{Rcpt: rcpt, Action: action, Status: dsn.S(2, 0, 0), Reason: "250 ok", Relay: "mx.to.test", MTA: "mx.to.test", When: time.Unix(1e9, 0)}
	}
	brief := func(rcpt int, action dsn.Action) mail.Outcome {
		return mail.Outcome{Rcpt: rcpt, Action: action, Status: dsn.S(2, 0, 0), When: time.Unix(1e9, 0)}
	}
	d := &proto.Deliver{Index: []int{3, 5, 8, 9}}
	d.Envelope.Recipients = make([]mail.Recipient, 4)
	d.Envelope.Recipients[1].Notify = dsn.NotifySuccess
	list := []mail.Outcome{long(3, dsn.Relayed), long(5, dsn.Delivered), long(8, dsn.Deferred), long(9, dsn.Delivered)}
	expanded := long(3, dsn.Delivered)
	expanded.Parts = []mail.Part{{Address: "x"}}
	for _, c := range []struct {
		name       string
		trace      mail.Trace
		list, want []mail.Outcome
	}{
		{"each as it is asked for", 0, list, []mail.Outcome{brief(3, dsn.Relayed), list[1], list[2], brief(9, dsn.Delivered)}},
		{"in another order", 0, []mail.Outcome{list[3], list[1]}, []mail.Outcome{brief(9, dsn.Delivered), list[1]}},
		{"traced", mail.TraceReport, list, list},
		{"with parts", 0, []mail.Outcome{expanded}, []mail.Outcome{expanded}},
		{"expanded", 0, []mail.Outcome{long(3, dsn.Expanded)}, []mail.Outcome{long(3, dsn.Expanded)}},
		{"not ordered", 0, []mail.Outcome{long(4, dsn.Delivered)}, []mail.Outcome{long(4, dsn.Delivered)}},
	} {
		d.Envelope.Trace = c.trace
		if got := appendShort(nil, d, c.list); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// Without a queue manager the memory has a bound.
func TestToldIsBounded(t *testing.T) {
	t.Parallel()
	var told told
	now := time.Unix(1e9, 0)
	f := finished(1)
	for range maxUnreported + 5000 {
		told.add(now, nil, f)
		told.prune(now)
	}
	told.add(now, nil, finished(2))
	if told.n > maxUnreported || told.n < maxUnreported-toldSize/16 {
		t.Errorf("%d outcomes are kept, want nearly %d", told.n, maxUnreported)
	}
	list := told.retell(now, new(ipc.Conn), nil)
	if len(list) != told.n || list[len(list)-1].ID != finished(2).ID {
		t.Errorf("%d of %d are told", len(list), told.n)
	}
}

// A long run costs the same for each delivery as a short one.
func BenchmarkTold(b *testing.B) {
	var told told
	conn := new(ipc.Conn)
	now := time.Unix(1e9, 0)
	f := finished(1)
	for b.Loop() {
		told.prune(now)
		told.add(now, conn, f)
		now = now.Add(250 * time.Microsecond)
	}
}

// The memory of what was forgotten is used again, and nothing is left in it of
// what was.
func TestToldReused(t *testing.T) {
	t.Parallel()
	var told told
	conn := new(ipc.Conn)
	now := time.Unix(1e9, 0)
	var want []mail.QueueID
	memory := make(map[*byte]bool)
	made := 0
	for n := range uint64(20000) { // 80 seconds
		before := len(told.parts)
		told.prune(now)
		before = min(before, len(told.parts))
		f := finished(n)
		told.add(now, conn, f)
		want = append(want, f.ID)
		if len(told.parts) > before {
			made++
		}
		memory[&told.parts[len(told.parts)-1].packed[0]] = true
		now = now.Add(4 * time.Millisecond)
	}
	list := told.retell(now, new(ipc.Conn), nil)
	if len(list) != told.n || told.n < 2500 || !slices.Equal(ids(list), want[len(want)-told.n:]) {
		t.Errorf("%d of %d are told, or others than the latest", len(list), told.n)
	}
	if made < 70 || len(memory) > made/2 && !reuse.Poison { // which makes new memory on purpose
		t.Errorf("%d pieces of memory for %d parts", len(memory), made)
	}
}
