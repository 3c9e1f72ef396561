package cleanup

import (
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// toldTo connects a queue manager, and returns what it is told unasked.
func toldTo(t *testing.T, s *server) (client *ipc.Client, told chan proto.Entries) {
	told = make(chan proto.Entries, 10)
	return servedTo(t, s, func(_ *ipc.Conn, r *ipc.Request) {
		var e proto.Entries
		if err := r.Decode(&e); err != nil {
			t.Error(err)
		}
		told <- e
	}), told
}

// Who attaches hears of each message that is to be delivered now, and of the others how many there are in each
// queue and since when: the oldest of a queue is no other queue's, whichever comes first.
func TestAttachCounts(t *testing.T) {
	t.Parallel()
	hours := func(n int) time.Time { return time.Unix(1800000000, 0).Add(-time.Duration(n) * time.Hour) }
	for name, ages := range map[string]map[queue.Name][]int{
		"held is older":     {queue.Incoming: {30, 1}, queue.Deferred: {5, 7, 6}, queue.Hold: {8, 20}},
		"deferred is older": {queue.Incoming: {1}, queue.Deferred: {9, 50, 3}, queue.Hold: {8, 20, 2, 4}},
		"none is held":      {queue.Incoming: {2}, queue.Deferred: {4}},
		"all is held":       {queue.Hold: {4, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := newTestServer(t, "", "")
			client, told := toldTo(t, s)
			oldest := map[queue.Name]time.Time{}
			for name, list := range ages {
				for _, age := range list {
					number, err := s.opt.Engine.Lease(1)
					if err != nil {
						t.Fatal(err)
					}
					q := &proto.Submit{Envelope: mail.Envelope{ID: mail.MakeQueueID(hours(age), number), Arrival: hours(age), Sender: "s@from.test",
						Recipients: []mail.Recipient{{Address: "r@to.test"}}}, Content: []byte("Subject: x\r\n\r\nx\r\n"),
						State: &queue.Change{Set: queue.SetQueue, Queue: name}}
					var r proto.SubmitReply
					if err := client.Call(t.Context(), q, &r); err != nil || r.Code != 250 {
						t.Fatal(err, r)
					}
					if at := hours(age); oldest[name].IsZero() || at.Before(oldest[name]) {
						oldest[name] = at
					}
				}
			}
			if err := client.Call(t.Context(), new(proto.Attach), new(proto.RecordReply)); err != nil {
				t.Fatal(err)
			}
			var sum proto.Entries
			for !sum.Complete {
				e := <-told
				sum.List = append(sum.List, e.List...)
				sum.Complete, sum.Deferred, sum.Hold, sum.OldestDeferred, sum.OldestHold = e.Complete, e.Deferred, e.Hold, e.OldestDeferred, e.OldestHold
			}
			if len(sum.List) != len(ages[queue.Incoming]) || int(sum.Deferred) != len(ages[queue.Deferred]) || int(sum.Hold) != len(ages[queue.Hold]) {
				t.Errorf("%d entries, %d deferred, %d on hold", len(sum.List), sum.Deferred, sum.Hold)
			}
			if !sum.OldestDeferred.Equal(oldest[queue.Deferred]) || !sum.OldestHold.Equal(oldest[queue.Hold]) {
				t.Errorf("the oldest deferred is from %v, held from %v; want %v", sum.OldestDeferred, sum.OldestHold, oldest)
			}
		})
	}
}
