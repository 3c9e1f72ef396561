package cleanup

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/metrics"
	"posthaste/internal/spool"
	"posthaste/internal/vfs"
)

// What a start says of the queue: nothing of the first one and of one after an orderly stop; what was read when the one before
// was killed; and after a reload, of which mail had to wait for, whether it was of use that the log was read beside the
// predecessor.
func TestStartInWords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem(512)
		o := spool.Options{FS: mem, Dir: "spool", SegmentSize: 64 << 10}
		start := func(how string, o spool.Options, unclean bool, want string) engine {
			t.Helper()
			en, err := openLog(o, nil)
			if err != nil {
				t.Fatal(err)
			}
			r := en.Recovery()
			if !regexp.MustCompile("^"+want+"$").MatchString(r.Summary) || r.Unclean != unclean {
				t.Errorf("%s: %q, unclean: %v", how, r.Summary, r.Unclean)
			}
			return en
		}
		stop := func(en engine) {
			t.Helper()
			if err := en.Close(); err != nil {
				t.Fatal(err)
			}
		}
		en := start("the first", o, false, "")
		l := &life{t: t, sp: en.(logEngine).Spool}
		l.add(1)
		f := spool.NewFollower(o)
		f.Read(t.Context())
		l.add(1)
		f.Read(t.Context())
		stop(en)
		stop(start("after an orderly stop", o, false, ""))

		en = start("after another one", o, false, "")
		l.sp = en.(logEngine).Spool
		l.add(1)
		killed := mem.Clone()
		killed.Restart()
		f = spool.NewFollower(o)
		f.Read(t.Context())
		l.add(1)
		stop(en)
		follows := o
		follows.Follower = f
		stop(start("after a reload", follows, false, `took over the queue: [1-9]\d* records read while the predecessor had it, [1-9]\d* since in \S+`))
		follows.Follower = spool.NewFollower(o) // it has not come to read anything
		stop(start("after a quick reload", follows, false, `took over the queue: what was read while the predecessor had it was of no use; [1-9]\d* segments, [1-9]\d* records read in \S+`))

		o.FS = killed
		stop(start("after a kill", o, true, `recovered the queue: [1-9]\d* segments, [1-9]\d* records read in \S+, \d+ of them in doubt and recorded again`))
	})
}

// All of the queue is read in each period while it is served, at idle, and what was read before it was opened again still
// counts. A log that nothing is read of has no such numbers, and its maintenance ends at once.
func TestScrubsWhileServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem(512)
		log := plainLog()
		defer log.l.Close()
		var idle atomic.Int64
		scrub := newScrubbing(time.Hour, log.l, mem, "spool")
		scrub.idle = func() { idle.Add(1) }
		numbers := func(en engine) string {
			set := metrics.New()
			set.Offer(en.Offer)
			var list []string
			for _, m := range set.Take().Samples {
				if name, ok := strings.CutPrefix(m.Name, "posthaste_spool_scrub_"); ok && name != "bytes" {
					list = append(list, fmt.Sprint(name, " ", int64(m.Value)))
				}
			}
			slices.Sort(list)
			return strings.Join(list, ", ")
		}
		for n := range 2 {
			en, err := openLog(spool.Options{FS: mem, Dir: "spool", SegmentSize: 64 << 10}, scrub)
			if err != nil {
				t.Fatal(err)
			}
			(&life{t: t, sp: en.(logEngine).Spool}).add(1)
			before := scrub.stats().Bytes
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); en.Maintain(ctx) }()
			time.Sleep(2*time.Hour + time.Minute)
			synctest.Wait()
			at := scrub.stats().Last
			if age := time.Since(at); age <= 0 || age > 2*time.Minute {
				t.Errorf("the last pass ended %v ago", age)
			}
			want := fmt.Sprintf("findings 0, last_pass_timestamp_seconds %d, passes %d", at.Unix(), 2*n+2)
			if got := numbers(en); got != want {
				t.Errorf("while it is read: %s, want %s", got, want)
			}
			stop()
			<-ended
			if got := numbers(en); got != want {
				t.Errorf("when that has ended: %s, want %s", got, want)
			}
			if scrub.stats().Bytes <= before || idle.Load() != int64(n)+1 || scrub.present != nil {
				t.Errorf("%d octets after %d, at idle %d times, goes on: %v", scrub.stats().Bytes, before, idle.Load(), scrub.present != nil)
			}
			if err := en.Close(); err != nil {
				t.Fatal(err)
			}
		}
		en, err := openLog(spool.Options{FS: mem, Dir: "spool", SegmentSize: 64 << 10}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer en.Close()
		en.Maintain(t.Context())
		if got := numbers(en); got != "" {
			t.Errorf("nothing is read: %s", got)
		}
	})
}
