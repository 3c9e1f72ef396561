package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/service"
	"posthaste/internal/vfs/disktest"
)

// largeMail is a message that goes to a file of its own.
func largeMail(subject string) string {
	return subject + "\n\n" + strings.Repeat(strings.Repeat("x", 63)+"\n", 400_000/64)
}

// contentSystem is a mail system with the log and the content of large mail on file systems of their
// own, which is not started. Its content is in dir.
func contentSystem(t *testing.T, main, master string) (s *system, dir string, off, on func()) {
	t.Helper()
	s = newSystem(t, options{unstarted: true})
	dir = s.path("content")
	s.configure(main+quick+"spool_segment_size = 1m\nmessage_size_limit = 2m\nspool_content_directory = {dir}/content\n", master)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	disktest.MountAt(t, s.path("spool"), "-t", "tmpfs", "-o", "size=32m", "tmpfs")
	off, on = s.mountContent(t, dir)
	t.Cleanup(s.stopIfStarted)
	return s, dir, off, on
}

// mountContent mounts an ext4 file system, as an operator does: its root is the mail owner's, and
// has lost+found in it.
func (s *system) mountContent(t *testing.T, dir string) (off, on func()) {
	t.Helper()
	image := s.path("content.img")
	dev := disktest.Ext4(t, image, 48<<20)
	off = disktest.MountAt(t, dir, dev)
	name, _ := mailOwner(s.t)
	owner, err := service.LookupAccount(name)
	if err == nil {
		err = os.Chown(dir, owner.UID, owner.GID)
	}
	if err == nil {
		err = os.Chmod(dir, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	return off, func() { disktest.MountAt(t, dir, dev) }
}

// Large mail is on a file system of its own: it survives a kill, and while that file system is full
// large mail is refused and small mail is not. Inside chroot, too.
func TestContentDirectory(t *testing.T) {
	t.Parallel()
	for name, master := range map[string]string{"plain": "", "chroot": chrootMaster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			next := newSink(t, func(line string) string { return "" })
			s, dir, _, _ := contentSystem(t, next.relayhost()+"defer_transports = smtp\nnotify_classes =\n", master)
			s.start()
			acked := map[string]bool{}
			send := func(subject, text string) error {
				err := s.send("a@from.test", []string{"b@to.test"}, text)
				if err == nil {
					acked[subject] = true
				}
				return err
			}
			for i := range 3 {
				subject := fmt.Sprintf("Subject: large-%d", i)
				if err := send(subject, largeMail(subject)); err != nil {
					t.Fatal(err)
				}
			}
			if list, _ := filepath.Glob(dir + "/*z*"); len(list) != 3 {
				t.Errorf("content: %q", list)
			}
			s.killAll()
			s.start()
			filler := disktest.Fill(t, dir)
			if code := replyCode(send("Subject: toolarge", largeMail("Subject: toolarge"))); code != 452 {
				t.Errorf("large mail with a full file system: %d, want 452", code)
			}
			if err := send("Subject: small", "Subject: small\n\nx\n"); err != nil {
				t.Errorf("small mail with a full file system for large mail: %v", err)
			}
			disktest.Free(t, filler)
			if err := send("Subject: again", largeMail("Subject: again")); err != nil {
				t.Errorf("large mail with room: %v", err)
			}
			s.mustTool("postconf", "-e", "defer_transports =")
			s.mustTool("reload")
			s.mustTool("flush")
			s.arrivedOnce(next, acked)
			s.idle()
			s.stop()
			s.consistent()
		})
	}
}

// A mount point without its file system, or another directory, is not begun with while the queue has
// content elsewhere, and who asks is told so.
func TestContentMissing(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	main := "spool_segment_size = 1m\nmessage_size_limit = 2m\nspool_content_directory = {dir}/"
	s, dir, off, on := contentSystem(t, next.relayhost()+"defer_transports = smtp\n", "")
	s.start()
	s.mustSend("a@from.test", []string{"b@to.test"}, largeMail("Subject: large"))
	s.configure(next.relayhost()+quick+main+"elsewhere\n", "")
	if out, status := s.tool(nil, "check"); status == 0 || !strings.Contains(out, "Move all files in "+dir+" to "+s.path("elsewhere")+" first") {
		t.Errorf("check: %d %s", status, out)
	}
	s.tool(nil, "reload")
	s.waitLog(`reload refused.*spool_content_directory has changed from "` + dir + `" to "` + s.path("elsewhere") + `": stop the mail system`)
	s.stop()
	if out, status := s.tool(nil, "start"); status == 0 || !strings.Contains(out, "Move all files in "+dir) {
		t.Errorf("start: %d %s", status, out)
	}
	moved, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	s.configure(next.relayhost()+quick+main+"content\n", "")
	off()
	if out, status := s.tool(nil, "start"); status == 0 || !strings.Contains(out, "a file system is not mounted there") {
		t.Errorf("start without the file system: %d %s", status, out)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("made on the mount point: %v %v", left, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if out, status := s.tool(nil, "start"); status == 0 || !strings.Contains(out, dir+", where "+s.path("spool", "spool")+" has it, is not there") {
		t.Errorf("start without the directory: %d %s", status, out)
	}
	if err := os.Mkdir(dir, 0o700); err != nil { // and nobody else has made it
		t.Fatal(err)
	}
	on()
	s.configure(next.relayhost()+quick+main+"elsewhere\n", "")
	for _, f := range moved {
		if f.Type().IsRegular() {
			s.mustMove(t, filepath.Join(dir, f.Name()), filepath.Join(s.path("elsewhere"), f.Name()))
		}
	}
	s.mustTool("postsuper", "-h", "ALL") // opens the spool, as cleanup does
	s.mustTool("postsuper", "-H", "ALL")
	if out := s.mustTool("spool", "stats"); !strings.Contains(out, "\n1 files of large messages, ") {
		t.Errorf("stats: %s", out)
	}
	s.start()
	s.eventually("it arrives", func() bool { return len(next.received()) == 1 })
	s.idle()
}

// mustMove moves a file to another file system, with its owner.
func (s *system) mustMove(t *testing.T, from, to string) {
	t.Helper()
	disktest.Copy(t, from, to)
	name, _ := mailOwner(s.t)
	owner, err := service.LookupAccount(name)
	if err == nil {
		err = os.Chown(to, owner.UID, owner.GID)
	}
	if err == nil {
		err = os.Remove(from)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Where cleanup is inside chroot, as in Debian's master.cf, it has no /proc by which an unnamed file can be
// given its name. Large mail is taken all the same.
func TestLargeInChroot(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: chroot takes root's privileges")
	}
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + quick, master: chrootMaster})
	s.mustSend("a@from.test", []string{"b@to.test"}, largeMail("Subject: large"))
	s.arrivedOnce(next, map[string]bool{"Subject: large": true})
	s.idle()
}
