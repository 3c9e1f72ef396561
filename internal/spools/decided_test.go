package spools_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/spools"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// What is decided of mail on a disk that has failed is remembered from the very write that fails on, so that nobody who is
// told the queue meanwhile takes the mail for undelivered; and it is recorded when the disk is back.
func TestDecided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := vfs.NewMem(512)
		var ill atomic.Bool
		en, err := spools.Open(spools.Options{Parts: logs(sick(disk, "/d1/", &ill), "q", 2, false), Warn: t.Logf})
		if err != nil {
			t.Fatal(err)
		}
		var ids []mail.QueueID // on the disk that is going to fail
		for len(ids) < 6 {
			m, err := small(t, en, "hello")
			if err != nil {
				t.Fatal(err)
			}
			b := en.NewBatch()
			b.Add(m)
			if err := en.Commit(b); err != nil {
				t.Fatal(err)
			}
			if e, _ := en.Locate(m.ID); e.Ref.Spool == 1 {
				ids = append(ids, m.ID)
			}
		}
		decide := func(f func(b storage.Batch)) {
			t.Helper()
			b := en.NewBatch()
			b.Apart()
			f(b)
			done := make(chan error, 1)
			en.Post(b, func(err error) { done <- err })
			en.Hurry()
			if err := <-done; err != nil || !errors.Is(b.Refused(0), queue.ErrBroken) {
				t.Errorf("%v, refused: %v", err, b.Refused(0))
			}
		}
		check := func(when string) {
			t.Helper()
			want := []mail.QueueID{ids[3], ids[4], ids[5]}
			var page, all []mail.QueueID
			list, _ := en.Page(0, nil)
			for _, e := range list {
				if e.Ref.Spool == 1 {
					page = append(page, e.ID)
				}
			}
			for e := range en.Entries {
				if e.Ref.Spool == 1 {
					all = append(all, e.ID)
				}
			}
			slices.Sort(want)
			slices.Sort(page)
			slices.Sort(all)
			if !slices.Equal(page, want) || !slices.Equal(all, want) {
				t.Errorf("%s: pages have %v, and all are %v, want %v", when, page, all, want)
			}
			for _, id := range ids[:3] {
				_, there := en.Locate(id)
				if _, found := en.Find(id.Number()); there || found {
					t.Errorf("%s: %s is done with, and is there: %v, %v", when, id, there, found)
				}
			}
			half, _ := en.Locate(ids[3])
			later, _ := en.Locate(ids[4])
			whole, _ := en.Locate(ids[5])
			if half.NPending != 1 || len(half.Done) != 1 || half.Done[0] != 1 || later.Queue != queue.Deferred || later.Attempts != 2 || later.NPending != 2 || whole.NPending != 2 {
				t.Errorf("%s: %+v, %+v, %+v", when, half, later, whole)
			}
		}
		ill.Store(true)
		// The first of them is what meets the failure.
		decide(func(b storage.Batch) { b.Finish(ids[0]) })
		synctest.Wait()
		decide(func(b storage.Batch) {
			b.Done(ids[1], []int{0, 1})
			b.Done(ids[2], []int{1})
			b.Done(ids[3], []int{0})
			b.Update(ids[4], queue.Change{Set: queue.SetQueue | queue.SetAttempts, Queue: queue.Deferred, Attempts: 2})
		})
		decide(func(b storage.Batch) { b.Update(ids[2], queue.Change{Done: []int{0}}) })
		check("while it has failed")
		time.Sleep(time.Minute)
		ill.Store(false)
		time.Sleep(time.Second)
		check("when it is back")
		if err := en.Close(); err != nil {
			t.Fatal(err)
		}
		if en, err = spools.Open(spools.Options{Parts: logs(disk, "q", 2, false), Warn: t.Logf}); err != nil {
			t.Fatal(err)
		}
		check("after another start")
		en.Close()
	})
}
