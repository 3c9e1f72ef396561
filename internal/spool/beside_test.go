package spool

import (
	"sync"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// Who reads beside the writer sees every message that stays, as it is, while entries around it come, change, go,
// and are packed and unpacked all the time.
func TestIndexBeside(t *testing.T) {
	t.Parallel()
	sp, err := Open(Options{FS: vfs.NewMem(512), Dir: "q", SegmentSize: 1 << 20, leaf: 4, leaves: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer sp.Close()
	start := time.UnixMicro(1_800_000_000_000_000)
	add := func(b *Batch, size int64) mail.QueueID {
		number, err := sp.Lease(1)
		if err != nil {
			t.Fatal(err)
		}
		env := mail.Envelope{ID: mail.MakeQueueID(start, number), Arrival: start, Size: size}
		b.Add(Message{ID: env.ID, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, []mail.Recipient{{Address: "a@b.test"}}), NRcpt: 1,
			Queue: Deferred, NextAttempt: start, Content: []byte("x")})
		return env.ID
	}
	var stay []mail.QueueID
	b := new(Batch)
	for i := range 400 {
		if id := add(b, int64(1000+i)); i%10 == 0 {
			stay = append(stay, id)
		}
	}
	if err := sp.Commit(b); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			for ended := false; !ended; {
				select {
				case <-done:
					ended = true // and once more, when all is quiet
				default:
				}
				lookBeside(t, sp, stay)
			}
		}()
	}
	changeBeside(t, sp, stay, add)
	close(done)
	readers.Wait()
}

// changeBeside changes and removes what does not stay, and adds as much.
func changeBeside(t *testing.T, sp *Spool, stay []mail.QueueID, add func(*Batch, int64) mail.QueueID) {
	kept := map[mail.QueueID]bool{}
	for _, id := range stay {
		kept[id] = true
	}
	for round := range 20 {
		b := new(Batch)
		n := 0
		sp.Entries(func(e Entry) bool {
			if n++; !kept[e.ID] && n%7 == round%7 {
				b.Remove(e.ID)
				add(b, 5)
			} else if n%5 == round%5 {
				b.Update(e.ID, Change{Set: SetAttempts, Attempts: round})
			}
			return true
		})
		if err := sp.Commit(b); err != nil {
			t.Error(err)
			return
		}
	}
}

// lookBeside looks in each way for what stays.
func lookBeside(t *testing.T, sp *Spool, stay []mail.QueueID) {
	all, due, paged := map[mail.QueueID]int{}, map[mail.QueueID]int{}, map[mail.QueueID]int{}
	sp.Entries(func(e Entry) bool { all[e.ID]++; return true })
	sp.Due(&DueQuery{Limit: 1000}, func(e Entry) bool { due[e.ID]++; return true })
	for cursor := uint64(0); ; {
		var list []Placed
		list, cursor = sp.Page(cursor, nil)
		for _, p := range list {
			paged[p.ID]++
		}
		if cursor == 0 {
			break
		}
	}
	for i, id := range stay {
		e, ok := sp.Find(id.Number())
		if all[id] != 1 || due[id] != 1 || paged[id] != 1 || !ok || e.ID != id || e.Size != int64(1000+10*i) {
			t.Errorf("%s: %d times among all, %d among what is due, %d on pages; found %v: %+v", id, all[id], due[id], paged[id], ok, e)
			return
		}
	}
}
