package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/service"
	"posthaste/internal/spool"
	"posthaste/internal/vfs/disktest"
)

// While the queue's disk fails, every message is refused at once, and when it works
// again mail is taken again: by the same process, so that nothing has to be started, and
// nothing is throttled. What was acknowledged is delivered.
func TestDiskFailsForAWhile(t *testing.T) {
	t.Parallel()
	ram, _ := disktest.Mount(t, "-t", "tmpfs", "-o", "size=100m", "tmpfs")
	image := filepath.Join(ram, "image")
	dev := disktest.Ext4(t, image, 64<<20)
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + "spool_segment_size = 1048576\nqueue_minfree = 0\nmessage_size_limit = 100000\n", unstarted: true})
	disk := s.path("spool", spool.Subdir)
	if err := os.MkdirAll(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	off := disktest.MountAt(t, disk, dev)
	owner, _ := mailOwner(t)
	account, err := service.LookupAccount(owner)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(disk, account.UID, account.GID); err != nil {
		t.Fatal(err)
	}
	s.start()
	t.Cleanup(func() { s.stop(); off() })
	s.mustSend("a@from.test", []string{"first@to.test"}, "Subject: x\n\nx\n")
	s.waitLog(`to=<first@to\.test>.*status=sent`)
	cleanup := s.processes("cleanup")

	// From now on a write that needs new space on the device fails. Segments that the
	// log is making meanwhile are among the files, or cannot be made.
	filler := disktest.Fill(t, ram)
	files, _ := filepath.Glob(filepath.Join(disk, "seg", "*"))
	holes := 0
	for _, f := range files {
		holes += disktest.PunchZeros(t, image, f)
	}
	if holes == 0 {
		t.Fatal("there is nothing to punch")
	}
	more, err := os.OpenFile(filler, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	fillUp(t, more) // with what punching has freed
	// A block here and there may still be writable: what is taken has to arrive.
	taken, refused := 0, 0
	refuse := func() {
		t.Helper()
		began := time.Now()
		err := s.send("a@from.test", []string{"doubtful@to.test"}, "Subject: x\n\nx\n")
		switch code := replyCode(err); {
		case err == nil:
			taken++
		case code/100 == 4:
			refused++
		default:
			t.Errorf("while the disk fails: %v", err)
		}
		if took := time.Since(began); took > patience/2 {
			t.Errorf("the client waited %v for its refusal", took)
		}
	}
	refuse()
	s.waitLog(`postfix/cleanup\[\d+\]: error: the queue cannot be written any more, and is opened again: `)
	for enough := refused + 20; refused < enough; {
		refuse()
	}
	disktest.Free(t, filler)
	s.eventually("mail is taken again", func() bool {
		return s.send("a@from.test", []string{"last@to.test"}, "Subject: x\n\nx\n") == nil
	})
	s.waitLog(`to=<last@to\.test>.*status=sent`)
	s.eventually("all that was taken has arrived", func() bool {
		return strings.Count(s.log(), "to=<doubtful@to.test>") >= taken
	})
	if now := s.processes("cleanup"); len(now) != 1 || now[0] != cleanup[0] {
		t.Errorf("cleanup was %v and is %v", cleanup, now)
	}
}
