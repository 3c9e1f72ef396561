package spool

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// What is due is found in order and in parts, however the queue is made up, and a page after the
// other gives everything once.
func TestDue(t *testing.T) {
	once(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sp, err := Open(Options{FS: vfs.NewMem(512), Dir: "q", SegmentSize: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		defer sp.Close()
		start := time.UnixMicro(1_800_000_000_000_000)
		sane, amnesty := start.Add(20*time.Second), start.Add(7*time.Second)
		type due struct {
			next   time.Time
			number uint64
		}
		var want []due
		all := map[mail.QueueID]bool{}
		for range rapid.IntRange(0, 700).Draw(t, "messages") {
			number, err := sp.Lease(1)
			if err != nil {
				t.Fatal(err)
			}
			id := mail.MakeQueueID(start, number)
			q := rapid.SampledFrom([]Queue{Deferred, Deferred, Deferred, Incoming, Hold}).Draw(t, "queue")
			next := start.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "due")) * time.Second)
			if rapid.IntRange(0, 9).Draw(t, "at once") == 0 {
				next = time.Time{}
			}
			env := mail.Envelope{ID: id, Arrival: start}
			b := new(Batch)
			b.Add(Message{ID: id, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, []mail.Recipient{{Address: "a@b.test"}}), NRcpt: 1,
				Queue: q, NextAttempt: next, Content: []byte("x")})
			sp.Post(b, nil)
			all[id] = true
			if q == Deferred {
				if next.After(sane) {
					next = amnesty
				}
				want = append(want, due{next, number})
			}
		}
		if err := sp.Commit(new(Batch)); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(want, func(a, b due) int { return cmp.Or(a.next.Compare(b.next), cmp.Compare(a.number, b.number)) })

		q := DueQuery{Limit: rapid.IntRange(1, 300).Draw(t, "limit"), Sane: sane, Amnesty: amnesty}
		for whole := false; !whole; {
			part := want[:min(len(want), q.Limit)]
			want = want[len(part):]
			got := 0
			q.After, whole = sp.Due(&q, func(e Entry) bool {
				_, number, _ := e.ID.Parse()
				if got >= len(part) || number != part[got].number || !e.NextAttempt.Equal(part[got].next) {
					t.Fatalf("message %d is due %v; wanted are %v", number, e.NextAttempt, part[got:])
				}
				got++
				return true
			})
			if got != len(part) || whole != (len(want) == 0) {
				t.Fatalf("%d of %d messages, and %d left, which is all: %v", got, len(part), len(want), whole)
			}
			if part := len(want); part > 0 && q.After.Next.After(amnesty) { // those that are left are not shortened any more
				break
			}
		}

		for cursor := uint64(0); ; {
			var list []Placed
			if list, cursor = sp.Page(cursor, nil); len(list) > livesStep*leafLen {
				t.Fatalf("a page of %d messages", len(list))
			}
			for _, e := range list {
				_, number, _ := e.ID.Parse()
				if found, ok := sp.Find(number); !all[e.ID] || !ok || found.ID != e.ID || found.Ref != e.Ref {
					t.Fatalf("%s is given twice, or was not there", e.ID)
				}
				delete(all, e.ID)
			}
			if cursor == 0 {
				break
			}
		}
		if len(all) > 0 {
			t.Fatalf("%d messages are on no page", len(all))
		}
	})
}
