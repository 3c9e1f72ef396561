package spools_test

import (
	"fmt"
	"strings"
	sync2 "sync"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/spool"
	"posthaste/internal/spools"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// A slow disk takes time for each sync, and for each octet that was written before it.
type slow struct {
	vfs.FS
	sync, octet time.Duration
}

type slowFile struct {
	vfs.File
	disk  *slow
	dirty int
}

func (s *slow) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &slowFile{f, s, 0}, nil
}

func (s *slow) Create(name string) (vfs.File, error)    { return s.wrap(s.FS.Create(name)) }
func (s *slow) OpenWrite(name string) (vfs.File, error) { return s.wrap(s.FS.OpenWrite(name)) }

func (f *slowFile) WriteAt(p []byte, off int64) (int, error) {
	f.dirty += len(p)
	return f.File.WriteAt(p, off)
}

func (f *slowFile) Datasync() error {
	time.Sleep(f.disk.sync + time.Duration(f.dirty)*f.disk.octet)
	f.dirty = 0
	return f.File.Datasync()
}

// TestRate prints how many messages of 10 KB 256 sessions make durable in a second of virtual time, in one spool and in several,
// on disks of their own: what the disks permit, with as many processors as anybody could want. A disk takes 1 or 10 ms for a sync, and
// with a bandwidth 10 ms more for each MB that was written. Where the bandwidth is what bounds one, the next one has to add to it.
func TestRate(t *testing.T) {
	t.Parallel()
	for _, sync := range []time.Duration{time.Millisecond, 10 * time.Millisecond} {
		for _, octet := range []time.Duration{0, 10 * time.Nanosecond} {
			rates := map[int]float64{}
			for _, n := range []int{1, 2, 4} {
				synctest.Test(t, func(t *testing.T) { rates[n] = rate(t, n, sync, octet) })
			}
			t.Logf("sync %v, %v for each octet: %.0f messages/s in one spool, %.0f in two, %.0f in four", sync, octet, rates[1], rates[2], rates[4])
			if rates[2] < rates[1]*.9 || rates[4] < rates[2]*.9 || octet > 0 && sync == time.Millisecond && (rates[2] < 1.5*rates[1] || rates[4] < 1.3*rates[2]) {
				t.Errorf("several spools are no faster than one: %v", rates)
			}
		}
	}
}

// rate is the messages of 10 KB a second that 256 sessions make durable in n spools.
func rate(t *testing.T, n int, sync, octet time.Duration) float64 {
	const sessions, messages = 256, 12
	var parts []spools.Part
	for i := range n {
		o := spool.Options{FS: &slow{vfs.NewMem(4096), sync, octet}, Dir: "q", SegmentSize: 8 << 20}
		parts = append(parts, spools.Part{Number: uint8(i), Dir: fmt.Sprint(i), Takes: true, Open: func() (storage.Engine, error) { return spools.OpenLog(o) }})
	}
	en, err := spools.Open(spools.Options{Parts: parts})
	if err != nil {
		t.Fatal(err)
	}
	defer en.Close()
	time.Sleep(time.Minute) // segments are made ahead
	content := []byte(strings.Repeat("x", 10<<10))
	begun := time.Now()
	var wg sync2.WaitGroup
	for range sessions {
		wg.Go(func() {
			for range messages {
				m, err := small(t, en, "")
				if err != nil {
					t.Error(err)
					return
				}
				m.Content = content
				add, gone := en.NewBatch(), en.NewBatch()
				add.Add(m)
				if err := en.Commit(add); err != nil {
					t.Error(err)
					return
				}
				gone.Apart()
				gone.Remove(m.ID)
				en.Post(gone, nil)
			}
		})
	}
	wg.Wait()
	return sessions * messages / time.Since(begun).Seconds()
}
