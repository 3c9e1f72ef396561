package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"posthaste/internal/service"
	"posthaste/internal/vfs/disktest"
)

// spoolsOf is how many messages are in each spool, by its number, as "posthaste spool directories" has it.
func (s *system) spoolsOf() map[int]int {
	s.t.Helper()
	count := map[int]int{}
	for _, m := range regexp.MustCompile(`(?m)^ *(\d+) .* (\d+) messages`).FindAllStringSubmatch(s.mustTool("spool", "directories"), -1) {
		n, _ := strconv.Atoi(m[1])
		count[n], _ = strconv.Atoi(m[2])
	}
	return count
}

// The queue is spread over directories: mail goes round, survives a kill of everything and a reload, and all tools see one
// queue. One is added with a restart, and taken out when its mail has been moved; none is left out by mistake.
func TestSpoolDirectories(t *testing.T) {
	t.Parallel()
	for name, master := range map[string]string{"plain": "", "chroot": chrootMaster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if master != "" && os.Getuid() != 0 {
				t.Skip("SKIPPED: chroot takes root's privileges")
			}
			next := newSink(t, nil)
			s := newSystem(t, options{unstarted: true})
			main := next.relayhost() + quick + "defer_transports = smtp\nspool_segment_size = 1m\n"
			s.configure(main, master)
			t.Cleanup(s.stopIfStarted)
			s.start()
			acked := map[string]bool{}
			send := func(n int, text func(subject string) string) {
				t.Helper()
				for range n {
					subject := fmt.Sprintf("Subject: message-%d", len(acked))
					s.mustSend("a@from.test", []string{"b@to.test"}, text(subject))
					acked[subject] = true
				}
			}
			brief := func(subject string) string { return subject + "\n\nx\n" }
			send(2, brief) // there was one spool before
			s.stop()
			// The first one's mail stays where it is, and no more comes.
			several := main + "spool_directories = {dir}/d1, {dir}/d2\n"
			s.configure(several, master)
			s.mustTool("check")
			s.start()
			send(6, brief)
			send(4, largeMail)
			s.killAll()
			s.start()
			s.mustTool("reload")
			send(2, brief)
			s.mustTool("reload")
			s.waitLog(`took over the queue: \d+ records`)
			if got := s.spoolsOf(); got[0] != 2 || got[1]+got[2] != 12 || got[1] < 4 || got[2] < 4 {
				t.Errorf("messages in each spool: %v", got)
			}
			s.everyToolSees(14)
			s.stop()
			s.consistent()
			s.everyToolSees(14)
			// One that is not named any more, or is not there, is not begun without.
			d1, d2 := s.path("d1"), s.path("d2")
			s.configure(main+"spool_directories = {dir}/d1\n", master)
			if out, status := s.tool(nil, "start"); status == 0 || !strings.Contains(out, "spool drain "+d2) {
				t.Errorf("start without one that has mail: %d %s", status, out)
			}
			s.configure(several, master)
			if err := os.Rename(d2, d2+".gone"); err != nil {
				t.Fatal(err)
			}
			if out, status := s.tool(nil, "start"); status == 0 || !strings.Contains(out, "spool_directories_absent = "+d2) {
				t.Errorf("start without the directory: %d %s", status, out)
			}
			if _, err := os.Stat(d2); err == nil {
				t.Error("the directory was made")
			}
			s.goesOnWithout(several, master, d2)
			if err := os.Rename(d2+".gone", d2); err != nil {
				t.Fatal(err)
			}
			s.configure(several, master)
			out := s.mustTool("spool", "drain", d1)
			if !strings.Contains(out, " messages moved\n"+d1+" is empty") {
				t.Errorf("drain: %s", out)
			}
			s.configure(main+"spool_directories = {dir}/d2\n", master)
			s.start()
			if got := s.spoolsOf(); got[0] != 2 || got[1] != 0 || got[2] != 12 {
				t.Errorf("messages in each spool afterwards: %v", got)
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

// everyToolSees looks whether the tools count that many messages, and can read each.
func (s *system) everyToolSees(n int) {
	s.t.Helper()
	out := s.mustTool("postqueue", "-j")
	ids := regexp.MustCompile(`"queue_id": "(\w+)"`).FindAllStringSubmatch(out, -1)
	if len(ids) != n {
		s.t.Errorf("%d messages in the queue, want %d: %s", len(ids), n, out)
	}
	for _, id := range ids {
		if out := s.mustTool("postcat", "-q", id[1]); !strings.Contains(out, "Subject: message-") {
			s.t.Errorf("%s: %.300s", id[1], out)
		}
	}
	dir := s.path(fmt.Sprint("export", n, len(s.log())))
	if err := os.Mkdir(dir, 0o777); err != nil {
		s.t.Fatal(err)
	}
	s.mustTool("spool", "export", "-a", dir)
	if list, _ := filepath.Glob(dir + "/*.msg"); len(list) != n {
		s.t.Errorf("%d messages exported, want %d", len(list), n)
	}
}

// goesOnWithout starts and stops the mail system without a directory that is not there.
func (s *system) goesOnWithout(main, master, dir string) {
	s.t.Helper()
	s.configure(main+"spool_directories_absent = "+dir+"\n", master)
	s.start()
	out := s.mustTool("spool", "directories")
	if !strings.Contains(out, " - absent ") {
		s.t.Errorf("directories: %s", out)
	}
	s.stop()
}

// When one disk fails or is full the mail system goes on, and says which mail waits.
func TestOneDiskFails(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true})
	s.configure(next.relayhost()+quick+"spool_segment_size = 1m\nmessage_size_limit = 1m\nspool_directories = {dir}/d1, {dir}/d2\n", "")
	owner, err := service.LookupAccount(first(mailOwner(t)))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"d1", "d2"} {
		if err := os.Mkdir(s.path(d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	disktest.MountAt(t, s.path("d1"), "-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs")
	if err := os.Chown(s.path("d1"), owner.UID, owner.GID); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(s.path("d2"), owner.UID, owner.GID); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stopIfStarted)
	s.start()
	acked := map[string]bool{}
	send := func(n int) {
		t.Helper()
		for range n {
			subject := fmt.Sprintf("Subject: message-%d", len(acked))
			s.mustSend("a@from.test", []string{"b@to.test"}, largeMail(subject))
			acked[subject] = true
		}
	}
	send(4)
	filler := disktest.Fill(t, s.path("d1"))
	send(8)
	disktest.Free(t, filler)
	send(4)
	s.arrivedOnce(next, acked)
	s.idle()
}

func first[A, B any](a A, _ B) A { return a }
