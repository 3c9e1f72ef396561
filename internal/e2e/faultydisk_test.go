//go:build linux

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/spool"
	"posthaste/internal/vfs/disktest"
)

// A queueDisk is a disk on which there is nothing but the queue of a mail system.
type queueDisk struct {
	s    *system
	dir  string
	dev  string
	off  func()
	mend func() // while it fails
}

// onDisk makes a mail system whose queue is on a disk of its own.
func onDisk(t *testing.T, o options) (*system, *queueDisk) {
	t.Helper()
	d := &queueDisk{dev: disktest.Ext4(t, filepath.Join(t.TempDir(), "image"), 64<<20)}
	o.unstarted = true
	o.main += "spool_segment_size = 1m\nqueue_minfree = 0\nmessage_size_limit = 1000000\n"
	s := newSystem(t, o)
	d.s, d.dir = s, s.path("spool", spool.Subdir)
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d.off = disktest.MountAt(t, d.dir, d.dev)
	s.own(d.dir)
	s.start()
	t.Cleanup(s.stopIfStarted)
	return s, d
}

// fail has every write to the log fail from now on, and the making of new segments.
func (d *queueDisk) fail() {
	d.s.t.Helper()
	segments, err := filepath.Glob(filepath.Join(d.dir, "seg", "*.seg"))
	if err != nil || len(segments) == 0 {
		d.s.t.Fatalf("segments %v, %v", segments, err)
	}
	d.mend = disktest.Fail(d.s.t.(*testing.T), d.dev, segments...)
}

// renew takes the disk off and puts it on again, when the mail system is stopped: what
// was in memory only is gone.
func (d *queueDisk) renew() {
	d.s.t.Helper()
	d.off()
	d.off = disktest.MountAt(d.s.t.(*testing.T), d.dir, d.dev)
}

// sound stops the mail system, and looks at what is really on the disk.
func (d *queueDisk) sound() {
	d.s.t.Helper()
	d.s.stop()
	d.renew()
	d.s.consistent()
}

// delivered are the queue IDs under which something was delivered to an address.
func (s *system) delivered(to string) (ids []string) {
	for _, g := range regexp.MustCompile(`\]: (\w+): to=<`+regexp.QuoteMeta(to)+`>.*status=sent`).FindAllStringSubmatch(s.log(), -1) {
		ids = append(ids, g[1])
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// tried waits until cleanup has opened the queue anew in vain.
func (d *queueDisk) tried() {
	d.s.t.Helper()
	d.s.waitLog(`postfix/cleanup\[\d+\]: error: the queue cannot be opened, mail is refused for now: `)
}

// While the queue's disk fails, every message is refused at once, and when it works
// again mail is taken again: by the same process, so that nothing has to be started, and
// nothing is throttled. What was refused and is queued all the same is named.
func TestDiskFailsForAWhile(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s, disk := onDisk(t, options{main: next.relayhost()})
	s.mustSend("a@from.test", []string{"first@to.test"}, "Subject: x\n\nx\n")
	s.waitLog(`to=<first@to\.test>.*status=sent`)
	cleanup := s.processes("cleanup")

	disk.fail()
	refuse := func() {
		t.Helper()
		began := time.Now()
		if err := s.send("a@from.test", []string{"doubtful@to.test"}, "Subject: x\n\nx\n"); replyCode(err) != 451 {
			t.Errorf("while the disk fails: %v, want 451", err)
		}
		if took := time.Since(began); took > patience/2 {
			t.Errorf("the client waited %v for its refusal", took)
		}
	}
	refuse()
	s.waitLog(`postfix/cleanup\[\d+\]: error: the queue cannot be written any more, and is opened again: `)
	for range 20 {
		refuse()
	}
	disk.tried()
	refuse()
	disk.mend()
	s.eventually("mail is taken again", func() bool {
		return s.send("a@from.test", []string{"last@to.test"}, "Subject: x\n\nx\n") == nil
	})
	s.waitLog(`to=<last@to\.test>.*status=sent`)
	s.idle()
	for _, id := range s.delivered("doubtful@to.test") {
		if !strings.Contains(s.log(), id+": in doubt: ") {
			t.Errorf("%s was refused, is delivered, and is not named as in doubt", id)
		}
	}
	if now := s.processes("cleanup"); len(now) != 1 || now[0] != cleanup[0] {
		t.Errorf("cleanup was %v and is %v", cleanup, now)
	}
	disk.sound()
}

// The disk fails a sync under a mail system at work. From then on nothing is
// acknowledged, and cleanup says why; and once the disk is sound again
// everything that was acknowledged is there.
func TestFailedSync(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s, disk := onDisk(t, options{main: next.relayhost() + quick})
	const clients = 4
	load := startLoad(s, clients)
	load.waitAccepted(20)
	disk.fail()
	before := load.count.Load() // and one of each client that is not counted yet
	s.waitLog(`cleanup\[\d+\]: error: the queue cannot be written any more, and is opened again: .*spool: broken`)
	disk.tried()
	refused := load.refused.Load()
	s.eventually("each client is refused some times", func() bool { return load.refused.Load() >= refused+20 })
	if now := load.count.Load(); now > before+clients {
		t.Errorf("%d messages were acknowledged while the disk failed", now-before)
	}
	if code := load.code.Load(); code != 451 {
		t.Errorf("the last refusal was %d", code)
	}
	disk.mend()
	load.waitAccepted(20)
	load.end()
	s.allArrived(next, load)
	s.idle()
	disk.sound()
}
