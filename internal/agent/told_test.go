package agent

import (
	"slices"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
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
