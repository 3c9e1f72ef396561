//go:build linux

package spool

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/mail"
	"posthaste/internal/vfs/disktest"
)

// These tests use a real file system (ext4) on a loop device, which takes root.

// addOne commits one message.
func addOne(s *Spool) (mail.QueueID, error) {
	n, err := s.Lease(1)
	if err != nil {
		return "", err
	}
	id := mail.MakeQueueID(time.Now(), n)
	body := []byte(strings.Repeat("0123456789\r\n", 100))
	var b Batch
	b.Add(Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: testRecipients(1), NRcpt: 1, Content: body})
	return id, s.Commit(&b)
}

func idsOf(s *Spool) map[mail.QueueID]bool {
	m := map[mail.QueueID]bool{}
	s.Entries(func(e Entry) bool { m[e.ID] = true; return true })
	return m
}

// TestFailedSyncDisk makes a real fdatasync fail: the device is a file on a
// full tmpfs with holes where the log goes next. The kernel then has pages in
// its cache that it calls clean and that are not on the disk, which the next
// process reads: what it makes of them must be on the disk when it says so.
func TestFailedSyncDisk(t *testing.T) {
	t.Parallel()
	if !disktest.Apart(t) {
		return
	}
	ram, _ := disktest.Mount(t, "-t", "tmpfs", "-o", "size=64m", "tmpfs")
	image := filepath.Join(ram, "image")
	dev := disktest.Ext4(t, image, 32<<20)
	disk, off := disktest.Mount(t, dev)
	dir := filepath.Join(disk, "q")
	opt := Options{SegmentSize: 256 << 10}
	s := openTest(t, dir, opt)
	acked := map[mail.QueueID]bool{}
	for range 5 {
		id, err := addOne(s)
		if err != nil {
			t.Fatal(err)
		}
		acked[id] = true
	}
	unix.Sync()
	var head segment
	for said := false; !said; time.Sleep(time.Millisecond) { // the idle log has its last word
		s.e.mu.RLock()
		head, said = *s.e.head, s.e.said == s.e.promised
		s.e.mu.RUnlock()
	}
	disktest.Punch(t, image, segName(dir, head.file), head.off, head.size)
	filler := disktest.Fill(t, ram)
	last, err := addOne(s)
	if !errors.Is(err, ErrBroken) {
		t.Fatalf("commit over a failing disk: %v", err)
	}
	t.Logf("%v", err)
	<-s.Broken()
	disktest.Free(t, filler) // there is room again, and a sync would succeed
	if _, err := addOne(s); !errors.Is(err, ErrBroken) {
		t.Errorf("the next commit after a failed sync: %v, want it refused for good", err)
	}
	if err := s.Close(); err != nil && !errors.Is(err, ErrBroken) {
		t.Fatal(err)
	}

	s = openTest(t, dir, opt)
	found, rep := idsOf(s), s.Recovery()
	for id := range acked {
		if !found[id] {
			t.Errorf("message %s was acknowledged and is gone", id)
		}
	}
	if rep.Alarms > 0 {
		t.Errorf("false alarms: %+v", rep)
	}
	t.Logf("after the restart: the message of the failed sync is there: %v; %d records written again", found[last], rep.Tail)
	if found[last] && rep.Tail == 0 {
		t.Error("what was read of the failed batch was believed and not written again")
	}
	// The cache goes, as in a power cut; only the disk is left.
	if err := closeAbruptly(s); err != nil {
		t.Fatal(err)
	}
	off()
	disk, _ = disktest.Mount(t, dev)
	s = openTest(t, filepath.Join(disk, "q"), opt)
	if rep := s.Recovery(); rep.Alarms > 0 {
		t.Errorf("what is left on the disk: %+v", rep)
	}
	rd := NewReader(nil, filepath.Join(disk, "q"))
	defer rd.Close()
	s.Entries(func(en Entry) bool {
		if !found[en.ID] {
			t.Errorf("message %s appeared", en.ID)
		}
		if m, err := tryRead(rd, en); err != nil || en.Queue == Corrupt || len(m.body) != 1200 {
			t.Errorf("message %s: %v queue, %v", en.ID, en.Queue, err)
		}
		delete(found, en.ID)
		return true
	})
	if len(found) > 0 {
		t.Errorf("%d messages that were there after the restart are not on the disk: %v", len(found), found)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// closeAbruptly ends the spool's goroutines and files without the mark of a
// clean end, which would write and sync once more.
func closeAbruptly(s *Spool) error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	signal(s.wake)
	signal(s.chores)
	<-s.done
	return s.e.closeFiles()
}

// TestPowerCutDisk copies the device under a process that has been stopped
// under load, as often as that is quick. What is in the page cache only is
// not in the copy, and what was acknowledged must be.
func TestPowerCutDisk(t *testing.T) {
	once(t)
	t.Parallel()
	if !disktest.Apart(t) {
		return
	}
	for range 3 {
		where := t.TempDir()
		image, snap := filepath.Join(where, "image"), filepath.Join(where, "snap")
		dev := disktest.Ext4(t, image, 48<<20)
		disk, off := disktest.Mount(t, dev)
		known, doubt, lines := stopAndCopy(t, filepath.Join(disk, "q"), image, snap)
		off()
		copied, _ := disktest.Mount(t, disktest.Loop(t, snap))
		s := openTest(t, filepath.Join(copied, "q"), Options{SegmentSize: 256 << 10})
		if rep := s.Recovery(); rep.Alarms > 0 {
			t.Errorf("false alarms: %+v", rep)
		}
		found := idsOf(s)
		for id := range known {
			if !found[id] {
				t.Errorf("message %s was acknowledged and is gone", id)
			}
		}
		t.Logf("%d lines, %d known, %d found, %d in doubt; %+v", lines, len(known), len(found), len(doubt), s.Recovery())
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPowerCutFS cuts the power under a process that says over a pipe what was
// acknowledged, on each file system that disktest knows, and looks for all of it,
// content included, after a check and a mount. A file system that cannot be cut is
// copied at one moment instead: what it has not given to its device is not there.
func TestPowerCutFS(t *testing.T) {
	once(t)
	t.Parallel()
	if !disktest.Apart(t) {
		return
	}
	for _, k := range disktest.Kinds {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			var all cutCounts
			for start, n := time.Now(), 0; n < 4 || *crashTime >= 10*time.Second && time.Since(start) < *crashTime; n++ {
				if !t.Run(fmt.Sprint(n), func(t *testing.T) { powerCutFS(t, k, 100+150*(n%7), &all) }) {
					break
				}
			}
			t.Logf("%d power cuts: %d messages acknowledged and found, %d of them large", all.cuts, all.found, all.large)
			if all.cuts > 0 && all.large == 0 {
				t.Error("no large message was among them")
			}
		})
	}
}

type cutCounts struct{ cuts, found, large int }

// powerCutFS is one power cut, when the process has said so many things.
func powerCutFS(t *testing.T, k disktest.Kind, lines int, all *cutCounts) {
	where := t.TempDir()
	if !k.Cuts { // an image on a file system that can copy it at one moment
		where, _ = disktest.Mount(t, disktest.Make(t, disktest.XFS, filepath.Join(where, "outer"), 1<<30))
	}
	image, snap := filepath.Join(where, "image"), filepath.Join(where, "snap")
	disk, off := disktest.Mount(t, disktest.Make(t, k, image, 0))
	known := runUntilCut(t, filepath.Join(disk, "q"), lines, func() (goesOn bool) {
		if k.Cuts {
			disktest.Cut(t, disk)
			return false
		}
		disktest.Snapshot(t, image, snap)
		return true
	})
	if k.Cuts { // before it is taken off, which writes what the device has in its cache
		disktest.Copy(t, image, snap)
	}
	off()
	dev := disktest.Loop(t, snap)
	k.Check(t, dev)
	disk, off = disktest.Mount(t, dev)
	defer off()
	all.cuts++
	checkKnown(t, filepath.Join(disk, "q"), known, all)
}

// runUntilCut runs a process on the spool until it has said a number of things and
// cuts the power. It returns which messages are durable and were not to be removed,
// by what the process said before its end. What it says after a cut must be true,
// too; where it goes on, as cut says, it is killed, and what it had begun counts only.
func runUntilCut(t *testing.T, dir string, lines int, cut func() (goesOn bool)) map[mail.QueueID]bool {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
	cmd.Env = append(os.Environ(), "SPOOL_TEST_CHILD="+dir, "SPOOL_TEST_LARGE=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() // killed
	defer cmd.Process.Kill()
	known := map[mail.QueueID]bool{}
	in := bufio.NewReader(out)
	goesOn := false
	for n := 1; ; n++ {
		line, err := in.ReadString('\n')
		if err != nil {
			if n <= lines {
				t.Errorf("the process ended after %d lines", n-1)
			}
			return known
		}
		word, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "added":
			if !goesOn {
				known[mail.QueueID(id)] = true
			}
		case "removing":
			delete(known, mail.QueueID(id))
		case "removed", "PASS":
		default:
			t.Errorf("the process said: %s", line)
		}
		if n == lines {
			if goesOn = cut(); goesOn {
				cmd.Process.Kill()
			}
		}
	}
}

// checkKnown opens the spool and reads all that is known to be there.
func checkKnown(t *testing.T, dir string, known map[mail.QueueID]bool, all *cutCounts) {
	t.Helper()
	s := openTest(t, dir, Options{SegmentSize: 256 << 10})
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if rep := s.Recovery(); rep.Alarms > 0 {
		t.Errorf("alarms: %+v", rep)
	}
	rd := NewReader(nil, dir)
	defer rd.Close()
	found := map[mail.QueueID]bool{}
	s.Entries(func(en Entry) bool {
		m, err := tryRead(rd, en)
		if err != nil || len(bytes.Trim(m.body, "z")) > 0 || len(m.body) != 3000 && len(m.body) != 150_000 {
			t.Errorf("message %s: %v", en.ID, err)
			return true
		}
		found[en.ID] = true
		if known[en.ID] {
			all.found++
			if m.big {
				all.large++
			}
		}
		return true
	})
	for id := range known {
		if !found[id] {
			t.Errorf("message %s was acknowledged and is gone", id)
		}
	}
}

// stopAndCopy runs a process on the spool until it has said a number of
// things, stops it, copies the image, and kills it. All that it said was
// said before the copy was begun.
func stopAndCopy(t *testing.T, dir, image, snap string) (known, doubt map[mail.QueueID]bool, lines int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
	cmd.Env = append(os.Environ(), "SPOOL_TEST_CHILD="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() // killed
	defer cmd.Process.Kill()
	known, doubt = map[mail.QueueID]bool{}, map[mail.QueueID]bool{}
	in := bufio.NewReader(out)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return known, doubt, lines
		}
		if lines++; lines == 1500 {
			if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(image); err != nil {
				t.Fatal(err)
			} else if err := os.WriteFile(snap, b, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd.Process.Kill()
		}
		word, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "added":
			known[mail.QueueID(id)] = true
		case "removing":
			delete(known, mail.QueueID(id))
			doubt[mail.QueueID(id)] = true
		case "removed":
			delete(doubt, mail.QueueID(id))
		}
	}
}
