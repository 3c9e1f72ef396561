//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
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
		if took := time.Since(began); took > patience {
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
	if now := s.processes("cleanup"); len(now) != 1 || now[0] != cleanup[0] {
		t.Errorf("cleanup was %v and is %v", cleanup, now)
	}
	disk.sound() // and all of the log is written
	for _, id := range s.delivered("doubtful@to.test") {
		if !strings.Contains(s.log(), id+": in doubt: ") {
			t.Errorf("%s was refused, is delivered, and is not named as in doubt", id)
		}
	}
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

// Who submits by sendmail while the queue's disk fails is told that all is well, and is
// right: the file stays in maildrop, is tried again, and is taken when the disk works. What
// is queued twice is named.
func TestPickupWhileDiskFails(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s, disk := onDisk(t, options{main: next.relayhost() + quick, master: "pickup unix n - n 1 1 pickup\n"})
	drop := func(to string) {
		t.Helper()
		s.operate("Subject: x\n\nx\n", "sendmail", "-f", "a@from.test", to)
	}
	inMaildrop := func() int {
		t.Helper()
		left, err := os.ReadDir(s.path("spool", "maildrop"))
		if err != nil {
			t.Fatal(err)
		}
		return len(left)
	}
	drop("before@to.test")
	s.waitLog(`to=<before@to\.test>.*status=sent`)
	disk.fail()
	const files = 3
	for i := range files {
		drop(fmt.Sprintf("meanwhile%d@to.test", i))
	}
	disk.tried()
	s.waitLogN(`postfix/pickup\[\d+\]: warning: maildrop/\w+: .*(queue file write error|get a queue ID|connection to cleanup lost)`, files+1) // one of them a second time
	if n := inMaildrop(); n != files {
		t.Errorf("%d files are in maildrop while the disk fails, want %d", n, files)
	}
	disk.mend()
	s.eventually("maildrop is empty", func() bool { return inMaildrop() == 0 })
	s.idle()
	disk.sound() // and all of the log is written
	for i := range files {
		ids := s.delivered(fmt.Sprintf("meanwhile%d@to.test", i))
		for n, id := range ids[:max(0, len(ids)-1)] { // all but one
			if !strings.Contains(s.log(), id+": in doubt: ") && !strings.Contains(s.log(), ids[n+1]+": in doubt: ") {
				t.Errorf("message %d was queued as %v, and none is named as in doubt", i, ids)
			}
		}
		if len(ids) == 0 {
			t.Errorf("message %d is lost", i)
		}
	}
}

// A message cannot be delivered while the queue's disk fails, so that neither the notice to
// its sender nor that it is done can be recorded. The sender is told once, when the
// disk works.
func TestBounceWhileDiskFails(t *testing.T) {
	t.Parallel()
	asked, failing := make(chan struct{}), make(chan struct{})
	var once sync.Once
	next := newSink(t, func(line string) string {
		if !strings.HasPrefix(line, "RCPT TO:<nobody@to.test>") {
			return ""
		}
		once.Do(func() { close(asked) })
		<-failing
		return "550 5.1.1 nobody"
	})
	s, disk := onDisk(t, options{main: next.relayhost() + quick + "notify_classes =\n"})
	s.mustSend("a@from.test", []string{"nobody@to.test"}, "Subject: x\n\nx\n")
	<-asked
	disk.fail()
	close(failing)
	s.waitLog(`to=<nobody@to\.test>.*status=bounced`)
	disk.tried() // bounce hears that, or waits for a cleanup that is opening the queue again
	disk.mend()
	notices := func() (n int) {
		for _, m := range next.received() {
			if slices.Contains(m.to, "a@from.test") && strings.Contains(m.data, "Final-Recipient: rfc822; nobody@to.test") {
				n++
			}
		}
		return n
	}
	s.eventually("the sender is told", func() bool { return notices() > 0 })
	s.idle()
	if n := notices(); n != 1 {
		t.Errorf("the sender was told %d times", n)
	}
	disk.sound()
}

// The disk that the log is on is full. Mail is taken and delivered all the same, more of
// it than the log's way holds lines, and the mail system can be stopped. When there
// is room the log goes on.
func TestLogDiskFull(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + "maillog_file = {dir}/log/mail.log\n", unstarted: true})
	dir := s.path("log")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	disktest.MountAt(t, dir, "-t", "tmpfs", "-o", "size=8m", "tmpfs")
	t.Cleanup(s.stopIfStarted)
	s.start()
	s.mustSend("a@from.test", []string{"first@to.test"}, "Subject: x\n\nx\n")
	s.eventually("it is logged", func() bool { return strings.Contains(readAll(t, s.path("log/mail.log")), "to=<first@to.test>") })
	filler := disktest.Fill(t, dir)
	load := startLoad(s, 4)
	load.waitAccepted(400)
	load.end()
	s.allArrived(next, load)
	disktest.Free(t, filler)
	s.eventually("it is logged again", func() bool {
		s.mustSend("a@from.test", []string{"last@to.test"}, "Subject: x\n\nx\n")
		return strings.Contains(readAll(t, s.path("log/mail.log")), "to=<last@to.test>")
	})
	disktest.Fill(t, dir)
	s.stop()
}

// A table of trivial-rewrite's cannot be opened. Mail is deferred, and the log says which
// table it is; and when the table is there mail goes out, without a reload.
func TestTableCannotBeOpened(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"texthash", "lmdb"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			next := newSink(t, nil)
			s := newSystem(t, options{main: quick + "transport_maps = " + kind + ":{dir}/etc/transport\nnotify_classes =\n",
				master: "pickup unix n - n 1 1 pickup\n"})
			s.operate("Subject: x\n\nx\n", "sendmail", "-f", "a@from.test", "b@to.test")
			s.waitLog(kind + `:` + regexp.QuoteMeta(s.path("etc/transport")) + `.*(No such file|no such file)`)
			if replyCode(s.send("a@from.test", []string{"c@to.test"}, "Subject: x\n\nx\n")) != 451 {
				t.Error("a client was not told to come again")
			}
			s.write("etc/transport", fmt.Sprintf("to.test smtp:[127.0.0.1]:%d\n", next.port()))
			if kind != "texthash" {
				s.operate("", "postmap", kind+":"+s.path("etc/transport"))
			}
			s.waitLog(`to=<b@to\.test>.*status=sent`)
			s.mustSend("a@from.test", []string{"c@to.test"}, "Subject: x\n\nx\n")
			s.waitLog(`to=<c@to\.test>.*status=sent`)
		})
	}
}
